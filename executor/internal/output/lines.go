package output

import (
	"bytes"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// The rate of output that is passed on, in bytes and bytes per second; the excess is read and
// dropped. The worker enforces the same numbers itself, except for output that bypasses it.
const burst, perSecond = 256 << 10, 64 << 10

// NewBudget bounds output at so many times that rate.
func NewBudget(times int) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(times*perSecond), times*burst)
}

// longestLine is how many bytes without a line break are held back.
const longestLine = 8 << 10

// Lines cuts the output of one process to one descriptor into texts of whole lines without
// secrets. Not for concurrent use.
type Lines struct {
	redact  *Redactor
	hand    func(text string)
	partial []byte // an unfinished line
	budget  *rate.Limiter
}

// NewLines makes Lines that pass texts, without their last line break, to hand.
func NewLines(redact *Redactor, hand func(text string)) *Lines {
	return &Lines{redact: redact, hand: hand, budget: NewBudget(1)}
}

// Add passes on the lines that end in data. A line that is too long is passed on in
// parts.
func (l *Lines) Add(data []byte) {
	if !l.budget.AllowN(time.Now(), len(data)) {
		return
	}
	l.partial = append(l.partial, data...)
	end := bytes.LastIndexByte(l.partial, '\n') + 1
	if keep := l.redact.Overlap(); len(l.partial)-end > longestLine+keep {
		end = l.redact.Apart(string(l.partial), len(l.partial)-keep)
	}
	l.handOver(end)
}

// Settle passes on the unfinished line.
func (l *Lines) Settle() { l.handOver(len(l.partial)) }

func (l *Lines) handOver(end int) {
	if end == 0 {
		return
	}
	text := l.redact.Text(string(l.partial[:end]))
	l.partial = append(l.partial[:0], l.partial[end:]...)
	l.hand(strings.TrimSuffix(text, "\n"))
}
