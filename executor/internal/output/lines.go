package output

import (
	"bytes"
	"strings"
	"time"
)

// The rate of output that is passed on; what exceeds it is read and dropped.
// The worker holds calls to the same numbers; these are for what bypasses it.
const (
	burst = 256 << 10
	rate  = 64 << 10 // bytes per second
)

// longestLine is how many bytes without a line break are kept back.
const longestLine = 8 << 10

// bucket is a token bucket over bytes. The zero value is full.
type bucket struct {
	used float64
	last time.Time
}

func (b *bucket) take(n int) bool {
	now := time.Now()
	if !b.last.IsZero() {
		b.used = max(0, b.used-now.Sub(b.last).Seconds()*rate)
	}
	b.last = now
	if b.used+float64(n) > burst {
		return false
	}
	b.used += float64(n)
	return true
}

// Lines cuts what one process writes to one descriptor into texts of whole lines
// without secrets. Not for concurrent use.
type Lines struct {
	redact  *Redactor
	hand    func(text string)
	partial []byte // a line whose end has not come
	budget  bucket
}

// NewLines makes one that gives texts, without their last line break, to hand.
func NewLines(redact *Redactor, hand func(text string)) *Lines {
	return &Lines{redact: redact, hand: hand}
}

// Add takes data and hands over the lines that end in it. A line that is too long
// is handed over in parts.
func (l *Lines) Add(data []byte) {
	if !l.budget.take(len(data)) {
		return
	}
	l.partial = append(l.partial, data...)
	end := bytes.LastIndexByte(l.partial, '\n') + 1
	if keep := l.redact.Overlap(); len(l.partial)-end > longestLine+keep {
		end = len(l.partial) - keep
	}
	l.handOver(end)
}

// Settle hands over what has no line break yet.
func (l *Lines) Settle() { l.handOver(len(l.partial)) }

func (l *Lines) handOver(end int) {
	if end == 0 {
		return
	}
	text := strings.ToValidUTF8(l.redact.Text(string(l.partial[:end])), "\uFFFD")
	l.partial = append(l.partial[:0], l.partial[end:]...)
	l.hand(strings.TrimSuffix(text, "\n"))
}
