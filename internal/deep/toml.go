package deep

import (
	"bytes"
	"fmt"
	"regexp"

	"github.com/BurntSushi/toml"
)

// maxTOMLDepth bounds the levels around a value: the parts of keys, with those of the table's header and
// of inline tables further out, and the lists and inline tables themselves. Reading takes time in the
// cube of their number, and every value costs the bytes of its whole key: levelBytes of these are a level.
const maxTOMLDepth, levelBytes = 40, 25

// tomlTexts matches strings, long ones first, and comments. A string without an end is an error of
// the file.
var tomlTexts = regexp.MustCompile(`(?s)"""(?:\\.|[^\\])*?(?:"{3,}|\\?$)|'''.*?(?:'{3,}|$)|"(?:\\.|[^"\\\n])*"?|'[^'\n]*'?|#[^\n]*`)

// UnmarshalTOML reads a file from an untrusted author.
func UnmarshalTOML(data []byte, to any) error {
	type place struct {
		bytes int  // size of the levels around it
		key   bool // a key is next, no value
	}
	var header int // as place.bytes
	var outer []place
	at := place{key: true}
	texts := tomlTexts.FindAllIndex(data, -1)
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case len(texts) > 0 && i == texts[0][0]:
			i = texts[0][1] - 1
			if c != '#' && at.key {
				at.bytes += i + 1 - texts[0][0]
			}
			texts = texts[1:]
		case c == '[' || c == '{':
			if at.key && len(outer) == 0 {
				at.bytes = 0
			}
			at.bytes += levelBytes
			at.key = at.key || c == '{'
			outer = append(outer, at)
		case c == ']' || c == '}':
			if at.key && c == ']' {
				header = at.bytes
			}
			at.key = false
			outer = outer[:max(len(outer)-1, 0)]
		case c == ',' && len(outer) > 0:
			at = outer[len(outer)-1]
		case c == '\n' && len(outer) == 0:
			at = place{header, true}
		case c == '=':
			at.key = false
		case c == '.' && at.key:
			at.bytes += levelBytes
		case at.key:
			at.bytes++
		}
		if at.bytes > maxTOMLDepth*levelBytes {
			return fmt.Errorf("line %d: keys, lists and tables have at most %d levels, and %d bytes of keys count as one",
				1+bytes.Count(data[:i], []byte("\n")), maxTOMLDepth, levelBytes)
		}
	}
	return toml.Unmarshal(data, to)
}
