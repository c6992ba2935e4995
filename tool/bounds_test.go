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
		"alternatives of another kind": {
			`{"type":"object","properties":{"x":{"type":"array","items":{"anyOf":[` + strings.Repeat(`{"type":"string"},`, 999) + `{"type":"string"}]}}}}`,
			`{"x":[` + strings.Repeat("1,", 30_000) + `1]}`,
		},
		"alternatives that are false": {
			`{"type":"object","properties":{"x":{"type":"array","items":{"anyOf":[` + strings.Repeat(`false,`, 999) + `false]}}}}`,
			`{"x":[` + strings.Repeat("1,", 30_000) + `1]}`,
		},
		"missing names": {
			`{"type":"object","properties":{"x":{"type":"array","items":{"required":[` + strings.ReplaceAll(strings.Join(keys, ","), ":{}", "") + `]}}}}`,
			`{"x":[` + strings.Repeat("{},", 30_000) + `{}]}`,
		},
		"wrong at many deep places": {
			`{"type":"object","properties":{"x":{"$ref":"#/$defs/y"}},"$defs":{"y":{"anyOf":[{"type":"string"},{"items":{"$ref":"#/$defs/y"},"type":"array"}]}}}`,
			`{"x":` + strings.Repeat("[", 200) + strings.Repeat("1,", 50_000) + `1` + strings.Repeat("]", 200) + `}`,
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

// Work that the library does without a word about it has the bound of a check, too.
func TestSilentWorkIsBounded(t *testing.T) {
	t.Parallel()
	deep := func(begin, end string) string {
		return `{"x":` + strings.Repeat(begin, 60) + `1` + strings.Repeat(end, 60) + `}`
	}
	long := `{"x":"` + strings.Repeat("y", 100_000) + `"}`
	chain := strings.Builder{}
	for i := range 4500 {
		fmt.Fprintf(&chain, `"d%d":{"$ref":"#/$defs/d%d"},`, i, i+1)
	}
	wide := strings.Repeat(`{"pattern":"^(?:[x-z]{0,500}){2}$"},`, 5)
	for what, one := range map[string]struct{ schema, args string }{
		"two ways to a member, behind a not":                      {`{"properties":{"x":{"not":{"$ref":"#/$defs/S"}}},"$defs":{"S":{"type":"object","properties":{"a":{"$ref":"#/$defs/S"}},"patternProperties":{"a":{"$ref":"#/$defs/S"}}}}}`, deep(`{"a":`, `}`)},
		"two ways to an item, behind an if":                       {`{"properties":{"x":{"if":{"$ref":"#/$defs/S"},"then":false}},"$defs":{"S":{"type":"array","items":{"$ref":"#/$defs/S"},"contains":{"$ref":"#/$defs/S"}}}}`, deep(`[`, `]`)},
		"types of long numbers":                                   {alternatives(500, `{"type":"integer"}`), `{"x":0.` + strings.Repeat("7", 990) + `}`},
		"members that are noted":                                  {`{"properties":{"x":{"unevaluatedItems":true,"allOf":[` + strings.Repeat(`{"minItems":1},`, 1000) + `{}]}}}`, `{"x":[` + strings.Repeat("1,", 10_000) + `1]}`},
		"a chain of references at each level, as deep as a stack": {`{"properties":{"x":{"$ref":"#/$defs/d0"}},"$defs":{` + chain.String() + `"d4500":{"properties":{"a":{"$ref":"#/$defs/d0"}}}}}`, `{"y":"` + strings.Repeat("y", 12<<20) + `","x":` + strings.Repeat(`{"a":`, 250) + `1` + strings.Repeat(`}`, 251)},
		"large patterns":                                          {`{"properties":{"x":{"allOf":[` + wide + `{}]}}}`, long},
	} {
		v := compile(t, one.schema)
		if err := v.Validate(json.RawMessage(one.args)); err == nil || !strings.Contains(err.Error(), "too complex") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Honest values are decided, however many constants or items are compared.
func TestComparisonsAreLinear(t *testing.T) {
	t.Parallel()
	codes := strings.Repeat(`2.5,`, 20_000)
	for schema, x := range map[string]string{
		`{"uniqueItems":true}`:                                                         signs(4000),
		`{"$ref":"http://json-schema.org/draft-04/schema#"}`:                           `{"enum":` + signs(4000) + `}`,
		`{"items":{"not":{"enum":[` + codes + `3.5]}}}`:                                `[` + strings.Repeat("1,", 20_000) + `1]`,
		`{"items":{"properties":{"c":{"enum":[` + codes + `1.0]}},"minProperties":1}}`: `[` + strings.Repeat(`{"c":1},`, 20_000) + `{"c":1e0}]`,
	} {
		if err := compile(t, `{"properties":{"x":`+schema+`}}`).Validate(json.RawMessage(`{"x":` + x + `}`)); err != nil {
			t.Errorf("%.40s: %v", schema, err)
		}
	}
}

// signs is a list of different lists, which have one hash in the library.
func signs(n int) string {
	lists := make([]string, n)
	for i := range lists {
		lists[i] = "[" + strings.NewReplacer("0", "1,", "1", "-1,").Replace(fmt.Sprintf("%020b", i)) + "0]"
	}
	return "[" + strings.Join(lists, ",") + "]"
}

// A schema costs what its size costs, whatever its author writes.
func TestSchemasAreBounded(t *testing.T) { //nolint:paralleltest // it counts allocations
	large := `{"pattern":"(?:` + strings.Repeat("xy", 1500) + `){1000}"},`
	var v *tool.Validator
	n := allocated(func() {
		v = compile(t, `{"properties":{"x":{"allOf":[`+strings.Repeat(large, 20)+`{"pattern":"^x{1,1000}$"}]}}}`)
		if err := v.Validate(json.RawMessage(`{"x":"y"}`)); err == nil || !strings.Contains(err.Error(), "{1,1000}") {
			t.Errorf("a pattern of usual size is not asserted beside large ones: %v", err)
		}
	})
	if w := v.Warnings(); n > 64<<20 || len(w) != 1 || !strings.Contains(w[0], "too large") || len(w[0]) > 300 {
		t.Errorf("large patterns take %d MB, warnings: %.400q", n>>20, w)
	}
	if _, err := tool.Compile(json.RawMessage(alternatives(100_000, `{"a":1}`))); err == nil || !strings.Contains(err.Error(), "at most 10000 are possible") {
		t.Errorf("100,000 alternatives: %v", err)
	}
	for _, n := range []int{100, 100_000} { // the schema of draft 4 wants constants that are unique
		_, err := tool.Compile(json.RawMessage(`{"$schema":"http://json-schema.org/draft-04/schema#","properties":{"x":{"enum":` + signs(n) + `}}}`))
		if (err == nil) != (n == 100) {
			t.Errorf("an enum of %d lists: %v", n, err)
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
