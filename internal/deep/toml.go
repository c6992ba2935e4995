package deep

import (
	"bytes"
	"fmt"

	"github.com/BurntSushi/toml"
)

// maxTOMLDepth bounds the levels around a value: the parts of keys, with those of the table's header and
// of inline tables further out, and the lists and inline tables themselves. Reading takes time in the
// cube of their number, and every value costs the bytes of its whole key: levelBytes of these are a level.
const maxTOMLDepth, levelBytes = 40, 25

// UnmarshalTOML reads a file from an untrusted author.
func UnmarshalTOML(data []byte, to any) error {
	type place struct {
		bytes int  // size of the levels around it
		key   bool // a key is next, no value
	}
	var header int // as place.bytes
	var outer []place
	at := place{key: true}
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '#':
			if end := bytes.IndexByte(data[i:], '\n'); end > 0 {
				i += end - 1
			} else {
				i = len(data)
			}
		case c == '"' || c == '\'':
			n := tomlString(data[i:])
			i += n - 1
			if at.key {
				at.bytes += n
			}
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

// tomlString is the length of the string that data begins with.
func tomlString(data []byte) int {
	quote := data[:1]
	if triple := bytes.Repeat(quote, 3); bytes.HasPrefix(data, triple) {
		quote = triple
	}
	for i := len(quote); i < len(data); i++ {
		switch {
		case data[i] == '\\' && data[0] == '"':
			i++
		case bytes.HasPrefix(data[i:], quote):
			i += len(quote)
			for len(quote) == 3 && i < len(data) && data[i] == data[0] { // it ended with quotes of its own
				i++
			}
			return i
		case data[i] == '\n' && len(quote) == 1:
			return i // an error of the file
		}
	}
	return len(data)
}
