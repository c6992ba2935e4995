package codec

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// progressText is how many bytes of a progress's text are kept: it is a line for people.
const progressText = 256

// Progress is how far a call says that it is: Mesh-Progress.
type Progress struct {
	// Fraction is from 0 to 1; nil where it is not known.
	Fraction *float64 `json:"fraction,omitempty"`
	// Text describes the current step: one line of at most 256 bytes.
	Text string `json:"text,omitempty"`
}

// NewProgress bounds a fraction, nil or NaN for none, and a text to valid values.
func NewProgress(fraction *float64, text string) Progress {
	var p Progress
	if fraction != nil && !math.IsNaN(*fraction) {
		p.Fraction = new(min(max(*fraction, 0), 1))
	}
	line, _, _ := strings.Cut(strings.ToValidUTF8(text, ""), "\n")
	if len(line) > progressText {
		line = line[:progressText]
		for !utf8.ValidString(line) {
			line = line[:len(line)-1]
		}
	}
	p.Text = strings.TrimSpace(line)
	return p
}

// Same reports whether two say the same.
func (p *Progress) Same(other Progress) bool { return reflect.DeepEqual(*p, other) }

// header renders it in ASCII: a header is no place for other text.
func (p *Progress) header() string {
	var b strings.Builder
	for _, c := range string(Encode(p)) {
		switch {
		case c < utf8.RuneSelf && c >= ' ' && c != 0x7f:
			b.WriteRune(c)
		default:
			for _, unit := range utf16.AppendRune(nil, c) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
	}
	return b.String()
}

// parseProgress reads a header; nil if it cannot be read.
func parseProgress(text string) *Progress {
	var p Progress
	if json.Unmarshal([]byte(text), &p) != nil {
		return nil
	}
	p = NewProgress(p.Fraction, p.Text)
	return &p
}
