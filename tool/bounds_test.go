package tool_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/tool"
)

// allocated is how many bytes do takes: work that a slow machine does not change.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// alternatives is the schema of an object whose x has n alternatives.
func alternatives(n int, one string) string {
	return `{"type":"object","properties":{"x":{"anyOf":[` + strings.Repeat(one+`,`, n-1) + one + `]}}}`
}

// The cost of a refusal depends on the size of the arguments, and not on the number of
// alternatives of the schema that they fail.
func TestRefusalsAreBounded(t *testing.T) { //nolint:paralleltest // it counts allocations
	long := strings.Repeat("y", 400_000)
	list := `["[` + strings.Repeat("1,", 200_000) + `1]"]`
	keys := make([]string, 2000)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"k-%d":{}`, i)
	}
	for what, one := range map[string]struct{ schema, args string }{
		"a long text":                  {alternatives(500, `{"type":"string","maxLength":0,"pattern":"^x"}`), `{"x":"` + long + `"}`},
		"a list of long texts":         {alternatives(500, `{"type":"array","contains":{"const":1}}`), `{"x":["` + long + `"]}`},
		"a list, written as text":      {alternatives(500, `{"type":"array","items":{"type":"integer"},"maxItems":0}`), `{"x":` + list + `}`},
		"alternatives of alternatives": {alternatives(30, alternatives(30, `{"not":{"type":"string"}}`)), `{"x":{"x":"` + long + `"}}`},
		"many names": {
			`{"type":"object","properties":{"x":{"anyOf":[` + strings.Repeat(`{"$ref":"#/$defs/y"},`, 499) + `{"$ref":"#/$defs/y"}]}},"$defs":{"y":{"properties":{` + strings.Join(keys, `,`) + `},"maxProperties":0}}}`,
			`{"x":{` + strings.ReplaceAll(strings.Join(keys, `,`), "k-", "n-") + `}}`,
		},
	} {
		v := compile(t, one.schema)
		args := json.RawMessage(one.args)
		for do, try := range map[string]func(){
			"Validate":    func() { _ = v.Validate(args) },
			"Fit":         func() { _, _ = v.Fit(args) },
			"CheckResult": func() { _, _ = v.CheckResult(args) },
		} {
			if n := allocated(try); n > 256<<20 {
				t.Errorf("%s of %s of %d bytes takes %d MB", do, what, len(args), n>>20)
			}
		}
	}
}

// Messages about a result call it a result and name its place once; the public text has parts of
// the schema only.
func TestMismatchNamesTheResult(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"object","properties":{"n":{"type":"integer"},"d":{"type":"string","format":"date"},"m":{"type":"object","additionalProperties":{"maximum":3}}},"required":["n"],"additionalProperties":false}`
	v := compile(t, schema)
	for _, one := range []struct{ result, text, public string }{
		{`{"n":1}`, "", ""},
		{`{"n":1,"d":"x"}`, `/d must be a string in the format date, not "x"`, `#/properties/d: expected a string in the format date, got a string`},
		{`{"n":1,"m":{"me":4}}`, `/m/me must be at most 3, not 4`, `#/properties/m/additionalProperties: expected at most 3, got a number`},
		{`{"n":1,"x":2}`, `"x" is not a field of the result`, `#: expected no field that is not declared, got an object`},
		{`{"d":"2026-01-01"}`, `"n" is required`, `#: expected "n", got an object without`},
		{`7`, `the result must be object, not number 7`, `#: expected object, got a number`},
		{`{"n":1,"n":2}`, `/n is given more than once`, `expected one value`},
		{`{"n":1e4000}`, `/n is a number outside the range of a double`, `expected a number in the range of a double`},
	} {
		wrong, err := v.CheckResult(json.RawMessage(one.result))
		if err != nil {
			t.Errorf("%s: %v", one.result, err)
		}
		if wrong == nil {
			wrong = &tool.Mismatch{}
		}
		if wrong.Text != one.text || wrong.Public != one.public {
			t.Errorf("%s: %q, for others %q", one.result, wrong.Text, wrong.Public)
		}
	}
}

// A result that cannot be decided in time is none that does not fit.
func TestResultOfTooMuchWorkIsUndecided(t *testing.T) {
	t.Parallel()
	v := compile(t, `{"$ref":"#/$defs/n","$defs":{"n":{"anyOf":[{"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},"required":["b"]},{"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},"required":["c"]}]}}}`)
	deep := strings.Repeat(`{"a":`, 40) + `{}` + strings.Repeat(`}`, 40)
	if wrong, err := v.CheckResult(json.RawMessage(deep)); wrong != nil || err == nil {
		t.Errorf("it is %+v, %v", wrong, err)
	}
}
