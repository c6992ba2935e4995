package output

import (
	"strings"
	"sync"
	"time"
)

// The rate of output that is passed on; what exceeds it is read and dropped.
// The worker holds calls to the same numbers; these are for what bypasses it.
const (
	outputBurst = 256 << 10
	outputRate  = 64 << 10 // bytes per second
	tailSize    = 4 << 10
)

// Bucket is a token bucket over bytes. The zero value is full. Not for
// concurrent use.
type Bucket struct {
	used float64
	last time.Time
}

// Take takes n bytes out; false when there are not so many.
func (b *Bucket) Take(n int) bool {
	now := time.Now()
	if !b.last.IsZero() {
		b.used = max(0, b.used-now.Sub(b.last).Seconds()*outputRate)
	}
	b.last = now
	if b.used+float64(n) > outputBurst {
		return false
	}
	b.used += float64(n)
	return true
}

// Tail keeps the last bytes of a stream, as long as they are one session's: what
// a worker's call leaves there is not for the next one, who may be somebody else.
// Safe for concurrent use.
type Tail struct {
	redact *Redactor
	mu     sync.Mutex
	buf    []byte
	whose  string // session
}

// NewTail makes one whose text has no secrets.
func NewTail(redact *Redactor) *Tail { return &Tail{redact: redact} }

// Add adds what a session's call wrote.
func (t *Tail) Add(data []byte, whose string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if whose != t.whose {
		t.buf, t.whose = t.buf[:0], whose
	}
	size := tailSize + t.redact.Overlap() // what begins before the tail is still known in it
	if len(data) >= size {
		t.buf = append(t.buf[:0], data[len(data)-size:]...)
		return
	}
	if over := len(t.buf) + len(data) - size; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	t.buf = append(t.buf, data...)
}

// Forget drops what there is: the call that wrote it has ended.
func (t *Tail) Forget() {
	t.mu.Lock()
	t.buf = t.buf[:0]
	t.mu.Unlock()
}

// Of is what a session's call may see.
func (t *Tail) Of(session string) string {
	t.mu.Lock()
	mine := session == t.whose
	t.mu.Unlock()
	if !mine {
		return ""
	}
	return t.String()
}

// String is all of it, whoever may see it.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.redact.Text(string(t.buf))
	if len(text) > tailSize {
		text = text[len(text)-tailSize:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
}
