package process

import (
	"fmt"
	"io"
	"strings"
	"unicode"
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
	shown := make([]byte, 0, len(p)+64)
	for i := 0; i < len(p); {
		c, size := utf8.DecodeRune(p[i:])
		kept := v.ownAt(p[i:])
		if size = max(size, kept); kept == 0 && (steers(c) || c == utf8.RuneError && size == 1) {
			shown = fmt.Appendf(shown, `\u%04x`, c)
		} else {
			shown = append(shown, p[i:i+size]...)
		}
		i += size
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

// steers reports whether a terminal does more with a character than show it: control characters of one byte or two,
// those of the direction of writing, and further line ends.
func steers(c rune) bool {
	return c != '\n' && c != '\t' && (unicode.IsControl(c) || unicode.In(c, unicode.Bidi_Control, unicode.Zl, unicode.Zp))
}
