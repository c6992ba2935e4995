package process

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Visible returns a writer to w for text from others. It writes control characters of terminals,
// and those that change the direction of writing, as their escape, such as \u001b, which JSON reads
// as the same text. Line ends, tabs and the sequences in own stay. Each Write must hold whole
// characters.
func Visible(w io.Writer, own ...string) io.Writer { return &visible{to: w, own: own} }

type visible struct {
	to  io.Writer
	own []string
}

func (v *visible) Write(p []byte) (int, error) {
	var shown []byte // nil while it equals p
	for i := 0; i < len(p); {
		c, size := utf8.DecodeRune(p[i:])
		if kept := v.ownAt(p[i:]); kept > 0 {
			size = kept
		} else if steers(c) || c == utf8.RuneError && size == 1 {
			if shown == nil {
				shown = append(make([]byte, 0, len(p)+64), p[:i]...)
			}
			shown = fmt.Appendf(shown, `\u%04x`, c)
			i += size
			continue
		}
		if shown != nil {
			shown = append(shown, p[i:i+size]...)
		}
		i += size
	}
	if shown == nil {
		return v.to.Write(p)
	}
	if _, err := v.to.Write(shown); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ownAt returns the length of our own sequence at the start of text.
func (v *visible) ownAt(text []byte) int {
	if text[0] != '\x1b' && text[0] != '\r' {
		return 0
	}
	for _, s := range v.own {
		if strings.HasPrefix(string(text[:min(len(text), len(s))]), s) {
			return len(s)
		}
	}
	return 0
}

// steers reports whether a terminal does more with a character than show it.
func steers(c rune) bool {
	switch {
	case c == '\n', c == '\t':
		return false
	case c < ' ', c >= 0x7f && c < 0xa0: // control characters, of one byte or two
		return true
	case c >= 0x202a && c <= 0x202e, c >= 0x2066 && c <= 0x2069, c == 0x200e, c == 0x200f, c == 0x061c: // direction
		return true
	}
	return c == 0x2028 || c == 0x2029 // further line ends
}
