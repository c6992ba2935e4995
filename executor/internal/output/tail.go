package output

import (
	"io"
	"strings"
	"sync"
)

// tailSize is how many bytes of last words are kept.
const tailSize = 4 << 10

// Tail keeps the last bytes of a stream, as long as they are of one session: what
// a call leaves in it is not for the next one, which may be of another session.
// Safe for concurrent use.
type Tail struct {
	redact  *Redactor
	mu      sync.Mutex
	buf     []byte
	session string
}

// NewTail makes an empty one.
func NewTail(redact *Redactor) *Tail { return &Tail{redact: redact} }

// Add takes output of a call of the session.
func (t *Tail) Add(data []byte, session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if session != t.session {
		t.buf, t.session = t.buf[:0], session
	}
	size := tailSize + t.redact.Overlap() // what begins before the tail is still known in it
	t.buf = append(t.buf, data[max(0, len(data)-size):]...)
	if excess := len(t.buf) - size; excess > 0 {
		t.buf = append(t.buf[:0], t.buf[excess:]...)
	}
}

// Forget drops what there is: the call that wrote it has ended.
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

// String is all that there is, without secrets.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text()
}

// Suffix is all that there is behind a colon, for the end of a message; empty without.
func (t *Tail) Suffix() string {
	if text := t.String(); text != "" {
		return ": " + text
	}
	return ""
}

func (t *Tail) text() string {
	text := t.redact.Text(string(t.buf))
	if len(text) > tailSize {
		text = text[len(text)-tailSize:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
}

// Drain reads the output of an import or a program to its end: it goes into the tail and, as
// lines, to hand.
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
