package process

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// Own makes a control character the program's own, for writers of [Visible]. Text from others cannot
// forge it: a word that only this process knows is before it.
func Own(control string) string { return own + control }

var own = "\x00" + rand.Text()

// Visible returns a writer to w for text from others. It writes control characters of terminals,
// and those that change the direction of writing, as their escape, such as \u001b, which JSON reads
// as the same text. Line ends, tabs and what [Own] returned stay. Each Write must hold whole
// characters.
func Visible(w io.Writer) io.Writer { return &visible{to: w} }

type visible struct{ to io.Writer }

func (v *visible) Write(p []byte) (int, error) {
	shown := make([]byte, 0, len(p)+64)
	for i := 0; i < len(p); {
		ours := bytes.HasPrefix(p[i:], []byte(own))
		if ours {
			i += len(own)
		}
		c, size := utf8.DecodeRune(p[i:])
		if !ours && (steers(c) || c == utf8.RuneError && size == 1) {
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

// steers reports whether a terminal does more with a character than show it: control characters of one byte or two,
// those of the direction of writing, and further line ends.
func steers(c rune) bool {
	return c != '\n' && c != '\t' && (unicode.IsControl(c) || unicode.In(c, unicode.Bidi_Control, unicode.Zl, unicode.Zp))
}
