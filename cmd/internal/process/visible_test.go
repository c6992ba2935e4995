package process_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain ünï 日本 👩‍🔬\n\ttab": "plain ünï 日本 👩‍🔬\n\ttab",
		"a\x1b[31mred":            `a\u001b[31mred`,
		"title\x1b]0;owned\a":     `title\u001b]0;owned\u0007`,
		"over\rwritten":           `over\u000dwritten`,
		"\u009b2J":                `\u009b2J`,
		"\x9b2J":                  `\ufffd2J`,
		"nul\x00 del\x7f":         `nul\u0000 del\u007f`,
		"back\u202ewards\u2066":   `back\u202ewards\u2066`,
		"two\u2028lines":          `two\u2028lines`,
		process.Own("\x1b") + "[1mours\r" + process.Own("\r") + process.Own("\x1b") + "[K": "\x1b[1mours\\u000d\r\x1b[K",
		process.Own("\x1b")[:9] + "\x1b[K":                                                 `\u0000` + process.Own("")[1:9] + `\u001b[K`,
		"":                                                                                 "",
	} {
		var b strings.Builder
		n, err := process.Visible(&b).Write([]byte(text))
		if err != nil || n != len(text) || b.String() != want {
			t.Errorf("%q: %q, %d, %v; want %q", text, b.String(), n, err, want)
		}
	}
}

// JSON says the same with it.
func TestVisibleJSON(t *testing.T) {
	t.Parallel()
	const text = "a\u009b\u202e\u2028\x7f\x1b"
	data := []byte("\"a\u009b\u202e\u2028\x7f\\u001b\"")
	var b strings.Builder
	if _, err := process.Visible(&b).Write(data); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil || got != text {
		t.Errorf("%q is read as %q, %v", b.String(), got, err)
	}
}
