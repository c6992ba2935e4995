package tool

import (
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolmesh/toolmesh"
)

// FuzzScan checks that encoding/json and the library accept each value that the scanner
// accepts. The other direction is not promised.
func FuzzScan(f *testing.F) {
	for _, schema := range []string{
		`{"type":"object","properties":{"a":{"type":"integer","minimum":-2,"exclusiveMaximum":2.5},"b":{"enum":["x",1,null,true]}},"required":["a"],"additionalProperties":false}`,
		`{"properties":{"a":{"anyOf":[{"type":"string","maxLength":2},{"type":["null","number"]},{"type":"array","items":{"const":"x"}}]}}}`,
		`{"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"a":{"$ref":"#/$defs/t"},"b":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"null"}]}},"maxProperties":2}}}`,
		`{"additionalProperties":{"type":"array","minItems":1,"maxItems":2,"items":{"type":"boolean"}},"minProperties":1}`,
		`{"required":["a","b"],"allOf":[{"required":["c"]}]}`,
		`{"properties":{"default":{"$id":"http://x/y","properties":{"a":{"$ref":"#/$defs/t"}},"$defs":{"t":false}}},"$defs":{"t":true}}`,
		`{"properties":{"a":{"$ref":"#"}},"additionalProperties":false}`,
		`{"properties":{"a":{"minimum":9007199254740993,"maximum":9007199254740993}}}`,
		`true`, `false`, `{"type":[]}`, `{"definitions":{"a":{"$ref":"#/definitions/a"}},"$ref":"#/definitions/a"}`,
		`{"properties":{"a":{"if":{"const":1},"then":false}}}`,
		`{"$schema":"http://json-schema.org/draft-04/schema#","properties":{"a":{"minimum":1,"exclusiveMinimum":true}}}`,
	} {
		for _, args := range []string{
			`{"a":1,"b":"x"}`, `{"a":{"b":null,"a":{}},"b":{"b":{}}}`, `{"a":["x"],"b":[true]}`, `{"a":2.5}`, `{"a":-2e0}`,
			`{"a":1.5,"b":null,"c":{}}`, `{"a":"äö","c":[]}`, `{"\u0061":1}`, `{"default":{"a":1}}`, `{"a":9007199254740993}`, `{"a":"\ud800"}`,
		} {
			f.Add(schema, args)
		}
	}
	f.Fuzz(func(t *testing.T, schema, args string) {
		v, err := Compile(json.RawMessage(schema))
		if err != nil {
			if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
				t.Fatalf("Compile(%s): %v, want invalid_request", schema, err)
			}
			return
		}
		err = v.Validate(json.RawMessage(args))
		if err != nil {
			if code := toolmesh.CodeOf(err); code != toolmesh.CodeInvalidArguments {
				t.Fatalf("Validate(%s) with %s: %v, want invalid_arguments", args, schema, err)
			}
			return
		}
		if args == "" {
			args = "{}"
		}
		if !json.Valid([]byte(args)) {
			t.Fatalf("%q passed, but is not JSON", args)
		}
		if err := v.ask(json.RawMessage(args), func(e *jsonschema.ValidationError, _ any) error { return e }); err != nil {
			t.Fatalf("%s passed with %s, but the library says: %v", args, schema, err)
		}
	})
}

// TestFastPath pins which everyday schemas never reach the library: a change
// that sends them there costs every call several microseconds.
func TestFastPath(t *testing.T) {
	t.Parallel()
	for schema, args := range map[string]string{
		`{"type":"object"}`: `{"a":[1,{"b":null}]}`,
		`true`:              `{"a":1}`,
		`{"type":"object","properties":{"a":{"type":"integer","minimum":1},"b":{"type":"number","maximum":1.5}},"required":["a"],"additionalProperties":false}`:                           `{"a":1,"b":0.25}`,
		`{"type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}],"default":null,"description":"d","title":"t"}}}`:                                                 `{"a":null}`,
		`{"type":"object","properties":{"a":{"enum":["x","y"]},"b":{"type":"array","items":{"type":"string","maxLength":3}}}}`:                                                            `{"a":"y","b":["abc"]}`,
		`{"type":"object","properties":{"p":{"$ref":"#/$defs/P","description":"d"}},"$defs":{"P":{"type":"object","properties":{"q":{"anyOf":[{"$ref":"#/$defs/P"},{"type":"null"}]}}}}}`: `{"p":{"q":{"q":null}}}`,
	} {
		v, err := Compile(json.RawMessage(schema))
		if err != nil {
			t.Fatal(err)
		}
		if fits, err := scan([]byte(args), v.fast, v.readable); err != nil || !fits {
			t.Errorf("%s with %s: %t, %v, want a certain yes", args, schema, fits, err)
		}
	}
}

func TestFastPathAllocates(t *testing.T) {
	v, err := Compile(json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1},"units":{"enum":["metric"]}},"required":["city"],"additionalProperties":false}`))
	if err != nil {
		t.Fatal(err)
	}
	args := json.RawMessage(`{"city":"Oslo","days":3,"units":"metric"}`)
	if n := testing.AllocsPerRun(100, func() { _ = v.Validate(args) }); n > 12 { // the library's are 50
		t.Errorf("%v allocations per call, want at most 12", n)
	}
}
