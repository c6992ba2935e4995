package tool

import (
	"encoding/json"
	"math/big"
	"regexp"
	"strings"
)

// jsonNumber is a number as JSON writes it (RFC 8259, section 6).
var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// WholeNumber writes a whole JSON number as an integer: to JSON Schema 3.0 and 1e3 are integers,
// to many readers they are not. It reports false for a text that is not a whole JSON number,
// and for an exponent of more than three digits, which is not written out.
func WholeNumber(text string) (json.RawMessage, bool) {
	m := jsonNumber.FindStringSubmatch(text)
	if m == nil || len(strings.TrimLeft(m[3], "eE+-")) > len("999") {
		return nil, false
	}
	n, ok := new(big.Rat).SetString(text)
	if !ok || !n.IsInt() {
		return nil, false
	}
	return json.RawMessage(n.Num().String()), true
}
