package output

import (
	"io"
	"slices"
	"strings"
	"sync"
)

const tailSize = 4 << 10

// Tail keeps the last bytes of a stream while they are of one session: output of a call must not
// be shown to a later call of another session. Safe for concurrent use.
type Tail struct {
	redact  *Redactor
	mu      sync.Mutex
	buf     []byte
	session string
}

// NewTail makes an empty Tail.
func NewTail(redact *Redactor) *Tail { return &Tail{redact: redact} }

// Add appends output of a call of the session.
func (t *Tail) Add(data []byte, session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if session != t.session {
		t.buf, t.session = t.buf[:0], session
	}
	size := tailSize + t.redact.Overlap() // secrets that begin before the tail are still found
	t.buf = append(t.buf, data[max(0, len(data)-size):]...)
	t.buf = slices.Delete(t.buf, 0, max(0, len(t.buf)-size))
}

// Forget drops the content: the call that wrote it has ended.
func (t *Tail) Forget() {
	t.mu.Lock()
	t.buf = t.buf[:0]
	t.mu.Unlock()
}

// Of is the text that a call of the session may see.
func (t *Tail) Of(session string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if session != t.session {
		return ""
	}
	return t.text()
}

// String is the whole content, without secrets.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text()
}

// Suffix is the whole content behind a colon, for the end of a message; empty without content.
func (t *Tail) Suffix() string {
	if text := t.String(); text != "" {
		return ": " + text
	}
	return ""
}

func (t *Tail) text() string {
	text := string(t.buf)
	text = text[t.redact.Apart(text, max(0, len(text)-tailSize)):]
	return strings.TrimSpace(t.redact.Text(text))
}

// Drain reads the output of an import or a program to its end, into the tail and, as lines,
// into hand.
func Drain(from io.Reader, tail *Tail, hand func(text string)) {
	lines := NewLines(tail.redact, hand)
	defer lines.Settle()
	buf := make([]byte, 8<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			tail.Add(buf[:n], "")
			lines.Add(buf[:n])
		}
		if err != nil {
			return
		}
	}
}
