package output

import (
	"bytes"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// The rate of output that is passed on, in bytes per second; what exceeds it is read and
// dropped. The worker holds calls to the same numbers; these are for what bypasses it.
const burst, perSecond = 256 << 10, 64 << 10

// longestLine is how many bytes without a line break are kept back.
const longestLine = 8 << 10

// Lines cuts what one process writes to one descriptor into texts of whole lines
// without secrets. Not for concurrent use.
type Lines struct {
	redact  *Redactor
	hand    func(text string)
	partial []byte // a line whose end has not come
	budget  *rate.Limiter
}

// NewLines makes one that gives texts, without their last line break, to hand.
func NewLines(redact *Redactor, hand func(text string)) *Lines {
	return &Lines{redact: redact, hand: hand, budget: rate.NewLimiter(perSecond, burst)}
}

// Add takes data and hands over the lines that end in it. A line that is too long
// is handed over in parts.
func (l *Lines) Add(data []byte) {
	if !l.budget.AllowN(time.Now(), len(data)) {
		return
	}
	l.partial = append(l.partial, data...)
	end := bytes.LastIndexByte(l.partial, '\n') + 1
	if keep := l.redact.Overlap(); len(l.partial)-end > longestLine+keep {
		end = len(l.partial) - keep
	}
	l.handOver(end)
}

// Settle hands over the line that has no end yet.
func (l *Lines) Settle() { l.handOver(len(l.partial)) }

func (l *Lines) handOver(end int) {
	if end == 0 {
		return
	}
	text := strings.ToValidUTF8(l.redact.Text(string(l.partial[:end])), "\uFFFD")
	l.partial = append(l.partial[:0], l.partial[end:]...)
	l.hand(strings.TrimSuffix(text, "\n"))
}
