package tool_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

const forecastSchema = `{"type":"object","properties":{
  "city":{"type":"string","minLength":1},
  "days":{"type":"integer","minimum":1,"maximum":14},
  "units":{"enum":["metric","imperial"]}
 },"required":["city"],"additionalProperties":false}`

func compile(t testing.TB, schema string) *tool.Validator {
	t.Helper()
	v, err := tool.Compile(json.RawMessage(schema))
	if err != nil {
		t.Fatalf("Compile(%s): %v", schema, err)
	}
	return v
}

// pointers returns the pointers of an invalid_arguments error, and fails the
// test if err is anything else than one as docs/protocol, section 4, has it, or nil.
func pointers(t testing.TB, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var e *toolmesh.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %T, want *toolmesh.Error: %v", err, err)
	}
	if e.Code != toolmesh.CodeInvalidArguments || e.Origin != toolmesh.OriginAgent || e.Started != toolmesh.StartedNo || e.Retryable {
		t.Fatalf("error is %+v, want invalid_arguments from the agent, never started", e)
	}
	problems := tool.Problems(err)
	if len(problems) == 0 {
		t.Fatalf("error %v has no details.errors", err)
	}
	var out []string
	for _, p := range problems {
		if p.Expected == "" || p.Got == "" || p.Message == "" {
			t.Errorf("problem %+v has an empty field", p)
		}
		out = append(out, p.Pointer)
	}
	return out
}

func TestValidate(t *testing.T) {
	t.Parallel()
	object := func(props string) string { return `{"type":"object","properties":{` + props + `}}` }
	tests := []struct {
		name, schema, args string
		want               []string // pointers; nil: valid
	}{
		{"fits", forecastSchema, `{"city":"Oslo","days":3,"units":"metric"}`, nil},
		{"empty body means no arguments", object(``), ``, nil},
		{"empty body lacks what is required", forecastSchema, ``, []string{"/city"}},
		{"every field is reported", forecastSchema, `{"days":"x","units":"kelvin","dys":1}`, []string{"/city", "/days", "/dys", "/units"}},
		{"not an object", forecastSchema, `[1]`, []string{""}},
		{"null is not an object", object(``), `null`, []string{""}},
		{"not JSON", forecastSchema, `{"city":`, []string{""}},
		{"two values", forecastSchema, `{"city":"x"} {}`, []string{""}},
		{"comment", object(``), `{} // x`, []string{""}},
		{"repeated key", forecastSchema, `{"city":"Oslo","city":"Rome"}`, []string{"/city"}},
		{"repeated key in other spelling", object(``), `{"a":{"b":1,"\u0062":2}}`, []string{"/a/b"}},
		{"repeated key in an open schema", `true`, `{"a":[0,{"b":1,"b":2}]}`, []string{"/a/1/b"}},
		{"1.0 is an integer", object(`"n":{"type":"integer"}`), `{"n":1.0}`, nil},
		{"1e2 is an integer", object(`"n":{"type":"integer"}`), `{"n":1e2}`, nil},
		{"1.5 is none", object(`"n":{"type":"integer"}`), `{"n":1.5}`, []string{"/n"}},
		{"2^53+1 is above 2^53", object(`"n":{"type":"integer","maximum":9007199254740992}`), `{"n":9007199254740993}`, []string{"/n"}},
		{"2^53+1 is not 2^53", object(`"n":{"const":9007199254740992}`), `{"n":9007199254740993}`, []string{"/n"}},
		{"1.0 equals 1", object(`"n":{"enum":[1]}`), `{"n":1.0}`, nil},
		{"integer of 30 digits", object(`"n":{"type":"integer"}`), `{"n":123456789012345678901234567890}`, nil},
		{"bound of a fraction", object(`"n":{"exclusiveMinimum":0.5,"maximum":2.5}`), `{"n":0.5}`, []string{"/n"}},
		{"inside fractions", object(`"n":{"exclusiveMinimum":0.5,"maximum":2.5}`), `{"n":1}`, nil},
		{"below a fraction", object(`"n":{"minimum":-1.5}`), `{"n":-2}`, []string{"/n"}},
		{"null is a value", object(`"n":{"type":"integer"}`), `{"n":null}`, []string{"/n"}},
		{"absent is not null", object(`"n":{"type":"integer"}`), `{}`, nil},
		{"nullable", object(`"n":{"type":["integer","null"]}`), `{"n":null}`, nil},
		{"required takes null if the type does", `{"type":"object","properties":{"n":{"type":["integer","null"]}},"required":["n"]}`, `{}`, []string{"/n"}},
		{"boolean is no integer", object(`"n":{"type":"integer"}`), `{"n":true}`, []string{"/n"}},
		{"date", object(`"d":{"type":"string","format":"date"}`), `{"d":"2026-02-30"}`, []string{"/d"}},
		{"date fits", object(`"d":{"type":"string","format":"date"}`), `{"d":"2026-02-28"}`, nil},
		{"date-time", object(`"d":{"type":"string","format":"date-time"}`), `{"d":"2026-02-28"}`, []string{"/d"}},
		{"uuid", object(`"d":{"type":"string","format":"uuid"}`), `{"d":"nope"}`, []string{"/d"}},
		{"unknown format is an annotation", object(`"d":{"type":"string","format":"colour"}`), `{"d":"x"}`, nil},
		{"base64", object(`"d":{"type":"string","contentEncoding":"base64"}`), `{"d":"%%"}`, []string{"/d"}},
		{"base64 fits", object(`"d":{"type":"string","contentEncoding":"base64"}`), `{"d":"aGk="}`, nil},
		{"pattern", object(`"d":{"pattern":"^a+$"}`), `{"d":"b"}`, []string{"/d"}},
		{"items", object(`"l":{"type":"array","items":{"type":"integer"}}`), `{"l":[1,"x",2,null]}`, []string{"/l/1", "/l/3"}},
		{"item counts", object(`"l":{"minItems":1},"m":{"maxItems":1}`), `{"l":[],"m":[1,2]}`, []string{"/l", "/m"}},
		{"prefixItems", object(`"l":{"prefixItems":[{"type":"string"},{"type":"integer"}],"items":false}`), `{"l":["a","b",3]}`, []string{"/l/1", "/l/2"}},
		{"uniqueItems", object(`"l":{"uniqueItems":true}`), `{"l":[1,2,1.0]}`, []string{"/l"}},
		{"lengths count characters", object(`"s":{"maxLength":3}`), `{"s":"äöü"}`, nil},
		{"length of an escape", object(`"s":{"maxLength":3}`), `{"s":"\u00e4\u00f6\u00fc"}`, nil},
		{"too long", object(`"s":{"maxLength":3}`), `{"s":"äöüß"}`, []string{"/s"}},
		{"map", object(`"m":{"type":"object","additionalProperties":{"type":"integer"}}`), `{"m":{"a":1,"b":"x"}}`, []string{"/m/b"}},
		{"pointer escapes", object(`"m":{"additionalProperties":{"type":"integer"}}`), `{"m":{"a/b~c":"x"}}`, []string{"/m/a~1b~0c"}},
		{"missing deep inside", object(`"m":{"type":"object","properties":{"x":{"type":"object","required":["y"]}}}`), `{"m":{"x":{}}}`, []string{"/m/x/y"}},
		{"optional object names the field", object(`"m":{"anyOf":[{"type":"object","properties":{"x":{"type":"integer"}},"additionalProperties":false},{"type":"null"}]}`), `{"m":{"x":"q"}}`, []string{"/m/x"}},
		{"optional takes null", object(`"m":{"anyOf":[{"type":"object"},{"type":"null"}]}`), `{"m":null}`, nil},
		{"union of kinds", object(`"m":{"anyOf":[{"type":"integer"},{"type":"boolean"}]}`), `{"m":"x"}`, []string{"/m"}},
		{"oneOf fits several", object(`"m":{"oneOf":[{"type":"integer"},{"minimum":0}]}`), `{"m":1}`, []string{"/m"}},
		{"not", object(`"m":{"not":{"const":1}}`), `{"m":1}`, []string{"/m"}},
		{"definition", `{"type":"object","properties":{"p":{"$ref":"#/$defs/P"}},"$defs":{"P":{"type":"object","properties":{"n":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/P"}}},"required":["n"]}}}`,
			`{"p":{"n":1,"kids":[{"n":2,"kids":[{"kids":[]}]}]}}`, []string{"/p/kids/0/kids/0/n"}},
		{"definition fits", `{"type":"object","properties":{"p":{"$ref":"#/$defs/P"}},"$defs":{"P":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/P"},{"type":"null"}]}},"required":["next"]}}}`,
			`{"p":{"next":{"next":null}}}`, nil},
		{"circle that asserts nothing", `{"type":"object","properties":{"p":{"$ref":"#/$defs/P"}},"$defs":{"P":{"anyOf":[{"$ref":"#/$defs/P"},{"type":"null"}]}}}`,
			`{"p":7}`, []string{"/p"}},
		{"sibling of a reference", object(`"p":{"$ref":"#/$defs/P","maximum":3}`)[:len(object(`"p":{"$ref":"#/$defs/P","maximum":3}`))-1] + `,"$defs":{"P":{"type":"integer"}}}`, `{"p":4}`, []string{"/p"}},
		{"draft-07", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"l":{"items":[{"type":"integer"}]}}}`, `{"l":["x"]}`, []string{"/l/0"}},
		{"no arguments allowed", `{"type":"object","additionalProperties":false}`, `{"x":1}`, []string{"/x"}},
		{"false refuses all", `false`, `{}`, []string{""}},
		{"propertyNames", `{"type":"object","propertyNames":{"maxLength":1}}`, `{"ab":1}`, []string{"/ab"}},
		{"dependentRequired", `{"type":"object","dependentRequired":{"a":["b"]}}`, `{"a":1}`, []string{"/b"}},
		{"invalid UTF-8", object(``), "{\"a\":\"\xff\"}", []string{""}},
		{"not a number", object(``), `{"a":NaN}`, []string{""}},
		{"number outside every range", object(`"n":{"maximum":4}`), `{"n":1e999999999}`, []string{"/n"}},
		{"number near zero", object(`"n":{"maximum":4}`), `{"n":1e-999999999}`, []string{"/n"}},
		{"leading zero", object(``), `{"a":01}`, []string{""}},
		{"control character", object(``), "{\"a\":\"\x01\"}", []string{""}},
		{"bad escape", object(``), `{"a":"\x"}`, []string{""}},
		{"trailing comma", object(``), `{"a":1,}`, []string{""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := pointers(t, compile(t, tt.schema).Validate(json.RawMessage(tt.args)))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("pointers (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateMessages(t *testing.T) {
	t.Parallel()
	v := compile(t, forecastSchema)
	err := v.Validate(json.RawMessage(`{"days":"three","units":"kelvin","ctiy":"Oslo"}`))
	want := []tool.Problem{
		{Pointer: "/city", Expected: "string", Got: "nothing", Message: `"city" is required: string`},
		{Pointer: "/ctiy", Expected: "nothing", Got: `"Oslo"`, Message: `"ctiy" is not an argument of this tool; did you mean "city"?`},
		{Pointer: "/days", Expected: "integer", Got: `"three"`, Message: `/days must be integer, not string "three"`},
		{Pointer: "/units", Expected: `one of "metric", "imperial"`, Got: `"kelvin"`, Message: `/units must be one of "metric", "imperial", not "kelvin"`},
	}
	if diff := cmp.Diff(want, tool.Problems(err)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if got, want := err.Error(), `invalid_arguments: "city" is required: string (and 3 more)`; got != want {
		t.Errorf("error is %q, want %q", got, want)
	}
	wire, jsonErr := json.Marshal(toolmesh.AsError(err))
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	var received toolmesh.Error
	if err := json.Unmarshal(wire, &received); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, tool.Problems(&received)); diff != "" {
		t.Errorf("problems after the wire (-want +got):\n%s", diff)
	}
}

func TestMissingFieldNamesItsType(t *testing.T) {
	t.Parallel()
	v := compile(t, `{"type":"object","properties":{
		"order":{"anyOf":[{"$ref":"#/$defs/Order"},{"type":"null"}]},"lines":{"type":"array","items":{"$ref":"#/$defs/Order"}},
		"by":{"type":"object","additionalProperties":{"$ref":"#/$defs/Order"}}},
		"$defs":{"Order":{"type":"object","required":["id","any"],"properties":{"id":{"$ref":"#/$defs/ID"},"any":{"anyOf":[{"type":"string"},{"type":"integer"}]}}},"ID":{"type":["string","integer"]}}}`)
	for _, args := range []string{`{"order":{"any":1}}`, `{"lines":[{"any":1}]}`, `{"by":{"a":{"any":1}}}`} {
		problems := tool.Problems(v.Validate(json.RawMessage(args)))
		if len(problems) != 1 || problems[0].Expected != "integer or string" || !strings.HasSuffix(problems[0].Message, ": integer or string") {
			t.Errorf("%s: %+v", args, problems)
		}
	}
	if problems := tool.Problems(v.Validate(json.RawMessage(`{"order":{"id":"a"}}`))); len(problems) != 1 || problems[0].Expected != "a value" {
		t.Errorf("a field of one of two types: %+v", problems)
	}
}

// Valid JSON that we do not accept is a problem with its place; in invalid JSON the place is
// counted in bytes.
func TestValidateMalformed(t *testing.T) {
	t.Parallel()
	v, err := tool.Compile(nil)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("1", 1001)
	for args, want := range map[string]tool.Problem{
		`{"a":{"b~/":[1,-2e400]}}`: {"/a/b~0~1/1", "a number in the range of a double", "-2e400", "/a/b~0~1/1 is a number outside the range of a double"},
		`{"n":` + long + `}`:       {"/n", "a number of at most 1000 characters", long[:40] + "…", "/n is a number of more than 1000 characters"},
		`1e400`:                    {"", "a number in the range of a double", "1e400", "the arguments are a number outside the range of a double"},
		"{\"n\":\"a\xff\"}":        {"", "valid JSON", "malformed text", "the arguments are not valid JSON: text that is not UTF-8 at byte 7"},
		`{"n":1`:                   {"", "valid JSON", "malformed text", "the arguments are not valid JSON: the text ends too early at byte 6"},
	} {
		got := tool.Problems(v.Validate(json.RawMessage(args)))
		if diff := cmp.Diff([]tool.Problem{want}, got); diff != "" {
			t.Errorf("%.60s (-want +got):\n%s", args, diff)
		}
	}
	d := &tool.Descriptor{ID: "a.b", Positional: []string{"x"}}
	for kwargs, want := range map[string]tool.Problem{
		`{"n":1e400}`:  {"/n", "a number in the range of a double", "1e400", "/n is a number outside the range of a double"},
		"{\"\xff\":1}": {"", "valid JSON", "malformed text", "kwargs are not valid JSON: text that is not UTF-8 at byte 2"},
		`[]`:           {"", "a JSON object", "an array", "kwargs must be a JSON object, not an array"},
	} {
		_, _, err := tool.Bind(d, []json.RawMessage{json.RawMessage(`1`)}, json.RawMessage(kwargs))
		if diff := cmp.Diff([]tool.Problem{want}, tool.Problems(err)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kwargs, diff)
		}
	}
	_, _, err = tool.Bind(d, []json.RawMessage{json.RawMessage(`[1e400]`)}, nil)
	if want := []tool.Problem{{"/x/0", "a number in the range of a double", "1e400", "/x/0 is a number outside the range of a double"}}; cmp.Diff(want, tool.Problems(err)) != "" {
		t.Errorf("positional: %+v", tool.Problems(err))
	}
}

func TestValidateDepth(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{`true`, `{"type":"object","properties":{"a":{"type":"array","items":{"pattern":"x"}}}}`} {
		v := compile(t, schema)
		deep := `{"a":` + strings.Repeat(`[`, 10_000) + strings.Repeat(`]`, 10_000) + `}`
		err := v.Validate(json.RawMessage(deep))
		if got := pointers(t, err); len(got) != 1 || !strings.Contains(err.Error(), "nested deeper") {
			t.Errorf("10,000 arrays: %v, want a refusal that says nested deeper", err)
		}
		fine := `{"a":` + strings.Repeat(`[`, 250) + strings.Repeat(`]`, 250) + `}`
		if err := v.Validate(json.RawMessage(fine)); err != nil {
			t.Errorf("250 arrays: %v, want no error", err)
		}
	}
	if _, err := tool.Compile(json.RawMessage(strings.Repeat(`{"not":`, 10_000) + `{}` + strings.Repeat(`}`, 10_000))); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("schema of 10,000 levels: %v, want invalid_request", err)
	}
}

func TestValidateManyProblems(t *testing.T) {
	t.Parallel()
	v := compile(t, `{"type":"object","properties":{"l":{"items":{"type":"integer"}}}}`)
	args := `{"l":[` + strings.Repeat(`"x",`, 50_000) + `0]}`
	if got := len(pointers(t, v.Validate(json.RawMessage(args)))); got != 100 {
		t.Errorf("%d problems, want the first 100", got)
	}
	keys := make([]string, 0, 2000)
	for i := range 1000 {
		keys = append(keys, fmt.Sprintf(`"k%d":1`, i))
	}
	keys = append(keys, `"k500":2`)
	if diff := cmp.Diff([]string{"/k500"}, pointers(t, v.Validate(json.RawMessage(`{`+strings.Join(keys, ",")+`}`)))); diff != "" {
		t.Errorf("repeated key among many (-want +got):\n%s", diff)
	}
}

// TestValidateExponential guards against a schema of a recursive union, with
// which a caller could keep a processor busy for ever (60 levels: 2^60 steps).
func TestValidateExponential(t *testing.T) {
	t.Parallel()
	branch := func(name string) string {
		return `{"type":"object","properties":{"c":{"$ref":"#/$defs/T"}},"required":["` + name + `"]}`
	}
	for _, dialect := range []string{"", `"$schema":"http://json-schema.org/draft-07/schema#",`} {
		v := compile(t, `{`+dialect+`"type":"object","properties":{"a":{"$ref":"#/$defs/T"}},"$defs":{"T":{"anyOf":[`+branch("x")+`,`+branch("y")+`]}}}`)
		err := v.Validate(json.RawMessage(`{"a":` + strings.Repeat(`{"c":`, 60) + `{}` + strings.Repeat(`}`, 60) + `}`))
		if got := pointers(t, err); len(got) != 1 || !strings.Contains(err.Error(), "too complex") {
			t.Errorf("60 levels: %v, want a refusal that says too complex", err)
		}
		// The budget is per call: the next one is checked with a full budget.
		if diff := cmp.Diff([]string{"/a"}, pointers(t, v.Validate(json.RawMessage(`{"a":{"c":{}}}`)))); diff != "" {
			t.Errorf("pointers of 2 levels (-want +got):\n%s", diff)
		}
	}
	// Large, but plain: never refused for its size.
	v := compile(t, `{"type":"object","properties":{"l":{"type":"array","items":{"anyOf":[{"type":"integer","multipleOf":1},{"type":"string","pattern":"."},{"type":"null"}]}}}}`)
	if err := v.Validate(json.RawMessage(`{"l":[` + strings.Repeat(`1,"x",null,`, 30_000) + `1]}`)); err != nil {
		t.Errorf("90,001 items: %v, want no error", err)
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ schema, message string }{
		"malformed":        {`{"type":`, "not valid JSON"},
		"unknown type":     {`{"type":"strin"}`, "/type"},
		"remote reference": {`{"$ref":"https://example.com/x.json"}`, "https://example.com/x.json"},
		"file reference":   {`{"properties":{"a":{"$ref":"file:///etc/passwd"}}}`, "file:///etc/passwd"},
		"missing def":      {`{"$ref":"#/$defs/x"}`, "$defs/x"},
		"not a schema":     {`7`, "schema"},
		"huge bound":       {`{"maximum":1e999999999}`, "range"},
		"repeated key":     {`{"type":"object","type":"array"}`, "more than once"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := tool.Compile(json.RawMessage(tt.schema))
			if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("Compile: %v, want invalid_request with %q", err, tt.message)
			}
		})
	}
}

func TestUnsupportedPatternWarns(t *testing.T) {
	t.Parallel()
	v := compile(t, `{"type":"object","properties":{"a":{"type":"string","pattern":"^(?!x)"},"n":{"type":"integer"}}}`)
	if w := v.Warnings(); len(w) != 1 || !strings.Contains(w[0], "(?!x)") {
		t.Errorf("warnings are %q, want one that names the pattern", w)
	}
	if diff := cmp.Diff([]string{"/n"}, pointers(t, v.Validate(json.RawMessage(`{"a":"x","n":""}`)))); diff != "" {
		t.Errorf("pointers (-want +got):\n%s", diff)
	}
}

func TestUnsupportedPatternsOfNamesAreApart(t *testing.T) {
	t.Parallel()
	v := compile(t, `{"type":"object","patternProperties":{"^(?=a)":{"maximum":5},"^(?!b)":{"multipleOf":2}}}`)
	for _, args := range []string{`{"a":6}`, `{"a":3}`} {
		if v.Validate(json.RawMessage(args)) == nil {
			t.Errorf("%s fits, as one pattern took the place of the other", args)
		}
	}
}

// TestValidateConcurrently is for the race detector as much as for its result.
func TestValidateConcurrently(t *testing.T) {
	t.Parallel()
	v := compile(t, forecastSchema)
	done := make(chan error)
	for i := range 8 {
		go func() {
			args := json.RawMessage(`{"city":"Oslo"}`)
			if i%2 == 1 {
				args = json.RawMessage(`{"city":1.5}`)
			}
			for range 200 {
				if err := v.Validate(args); (err == nil) != (i%2 == 0) {
					done <- fmt.Errorf("goroutine %d: %v", i, err)
					return
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkValidate(b *testing.B) {
	for _, bb := range []struct{ name, schema, args string }{
		{"three fields", forecastSchema, `{"city":"Oslo","days":3,"units":"metric"}`},
		{"three fields by the library", strings.Replace(forecastSchema, `"minLength":1`, `"pattern":"."`, 1), `{"city":"Oslo","days":3,"units":"metric"}`},
		{"open", `{"type":"object"}`, `{"city":"Oslo","days":3,"units":"metric"}`},
		{"1 MB of text", forecastSchema, `{"city":"` + strings.Repeat("x", 1<<20) + `"}`},
		{"invalid", forecastSchema, `{"city":7,"days":3,"units":"metric"}`},
	} {
		b.Run(bb.name, func(b *testing.B) {
			v := compile(b, bb.schema)
			args := json.RawMessage(bb.args)
			b.SetBytes(int64(len(args)))
			b.ReportAllocs()
			for b.Loop() {
				if err := v.Validate(args); (err != nil) != (bb.name == "invalid") {
					b.Fatal(err)
				}
			}
		})
	}
}
