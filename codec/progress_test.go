package codec

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func FuzzProgress(f *testing.F) {
	for _, text := range []string{"", "asking", "two\nlines", "ü😀\x00\x7f\u2028", "\xff\xfe", strings.Repeat("ü", 300), `{"text":1}`} {
		f.Add(0.5, text)
	}
	f.Add(math.NaN(), "unknown")
	f.Add(math.Inf(1), "much")
	f.Fuzz(func(t *testing.T, fraction float64, text string) {
		p := NewProgress(&fraction, text)
		header := p.header()
		for _, c := range []byte(header) {
			if c < ' ' || c > '~' {
				t.Fatalf("header %q", header)
			}
		}
		if len(p.Text) > progressText || (p.Fraction == nil) != math.IsNaN(fraction) {
			t.Errorf("%+v", p)
		}
		if got := parseProgress(header); got == nil || !got.Same(p) {
			t.Errorf("%s: %s", header, cmp.Diff(got, &p))
		}
		_ = parseProgress(text)
	})
}
