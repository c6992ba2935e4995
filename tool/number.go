package tool

import (
	"encoding/json"
	"math/big"
	"regexp"
	"strings"
)

// jsonNumber is a number as JSON writes it (RFC 8259, section 6).
var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// WholeNumber writes a JSON number that is whole as an integer: to JSON Schema 3.0
// and 1e3 are integers, to what reads them often not. It reports false for what is
// no JSON number or not whole, and for an exponent of more than three digits,
// which is not written out.
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
