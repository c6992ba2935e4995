package render_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

// described is a tool as the worker describes it.
type described struct {
	Name         string          `json:"name"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema"`
}

func (d described) descriptor() *tool.Descriptor {
	out := &tool.Descriptor{
		ID: subjects.ToolID("index.module." + d.Name), Name: "module." + d.Name,
		Description: d.Description, InputSchema: d.InputSchema, Source: tool.SourceImport,
	}
	if string(d.OutputSchema) != "null" {
		out.OutputSchema = d.OutputSchema
	}
	return out
}

// workerTools are schemas that the worker made of functions: testdata/worker.py.
func workerTools(t testing.TB) []described {
	t.Helper()
	data, err := os.ReadFile("testdata/worker.json")
	if err != nil {
		t.Fatal(err)
	}
	var tools []described
	if err := json.Unmarshal(data, &tools); err != nil {
		t.Fatal(err)
	}
	return tools
}

func one(schema string) *tool.Descriptor {
	return &tool.Descriptor{ID: "index.module.x", Name: "module.x", Description: "Does one thing.", InputSchema: json.RawMessage(schema)}
}

// rendered renders and checks the provider's rules.
func rendered(t testing.TB, format render.Format, d *tool.Descriptor) render.Rendered {
	t.Helper()
	r, err := render.Tool(format, d)
	if err != nil {
		t.Fatalf("%s of %s: %v\n%s", format, d.ID, err, d.InputSchema)
	}
	if found := breaches(format, r.JSON); len(found) > 0 {
		t.Fatalf("%s refuses\n%s\nmade of\n%s\n%s", format, r.JSON, d.InputSchema, strings.Join(found, "\n"))
	}
	return r
}

func TestNoSchemaOfTheWorkerIsRefused(t *testing.T) {
	t.Parallel()
	for _, d := range workerTools(t) {
		for _, format := range render.Formats() {
			rendered(t, format, d.descriptor())
		}
	}
}

// Which of the worker's schemas are strict for OpenAI, and why the others are not.
func TestStrictIsDecidedPerTool(t *testing.T) {
	t.Parallel()
	reasons := map[string]string{
		"unannotated_default": "anything", "unannotated": "anything", "list_bare": "anything", "list_typing": "anything",
		"list_any": "anything", "tuple_bare": "anything", "any": "anything", "object": "anything", "custom": "anything",
		"complex": "anything", "unresolved": "anything",
		"dict_bare": "open", "dict_int": "open", "dict_optional": "open", "dict_nested": "open", "dict_of_int_keys": "open",
		"dict_of_literals": "open", "ordered": "open", "dog": "open", "pets": "open", "owner": "open", "everything": "open", "free": "open",
		"tuple_two": "each position", "tuple_nested": "each position", "named_tuple": "each position",
		"set": "uniqueItems", "set_str": "uniqueItems", "frozenset": "uniqueItems", "field_text": "minLength",
	}
	for _, d := range workerTools(t) {
		r := rendered(t, render.OpenAI, d.descriptor())
		reason, loose := reasons[d.Name]
		if r.Strict == loose {
			t.Errorf("%s: strict is %t: %q", d.Name, r.Strict, r.Notes)
			continue
		}
		if notes := strings.Join(r.Notes, "\n"); loose && !strings.Contains(notes, "not strict: ") || !strings.Contains(notes, reason) {
			t.Errorf("%s: the notes are %q, want one with %q", d.Name, r.Notes, reason)
		}
		again, err := render.Tool(render.OpenAIResponses, d.descriptor())
		if err != nil || again.Strict != r.Strict {
			t.Errorf("%s: strict is %t for chat, %t for responses (%v)", d.Name, r.Strict, again.Strict, err)
		}
	}
}

func TestShapesOfTheProviders(t *testing.T) {
	t.Parallel()
	d := one(`{"type":"object","properties":{"city":{"type":"string","description":"where"},"days":{"type":"integer","default":3}},"required":["city"],"additionalProperties":false}`)
	d.OutputSchema = json.RawMessage(`{"type":"string"}`)
	d.Annotations.ReadOnly, d.Annotations.Idempotent = true, true
	strict := `{"type":"object","properties":{"city":{"type":"string","description":"where"},"days":{"type":["integer","null"],"description":"Default: 3."}},"required":["city","days"],"additionalProperties":false}`
	for format, want := range map[render.Format]string{
		render.OpenAI:          `{"type":"function","function":{"name":"index-module-x","description":"Does one thing.","parameters":` + strict + `,"strict":true}}`,
		render.OpenAIResponses: `{"type":"function","name":"index-module-x","description":"Does one thing.","parameters":` + strict + `,"strict":true}`,
		render.Anthropic:       `{"name":"index-module-x","description":"Does one thing.","input_schema":` + string(d.InputSchema) + `}`,
		render.Gemini:          `{"name":"index-module-x","description":"Does one thing.","parametersJsonSchema":{"type":"object","properties":{"city":{"type":"string","description":"where"},"days":{"type":"integer","description":"Default: 3."}},"required":["city"],"additionalProperties":false}}`,
		render.MCP: `{"name":"index-module-x","title":"index.module.x","description":"Does one thing.","inputSchema":` + string(d.InputSchema) +
			`,"outputSchema":{"type":"object","properties":{"result":{"type":"string"}},"required":["result"]},"annotations":{"readOnlyHint":true,"idempotentHint":true}}`,
	} {
		r := rendered(t, format, d)
		if diff := cmp.Diff(want, string(r.JSON)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
		if r.Name != "index-module-x" || r.ID != d.ID || r.Format != format {
			t.Errorf("%s: %q %q %q", format, r.Name, r.ID, r.Format)
		}
	}
}

func TestAnUnknownFormatIsRefusedByTheNamesOfAll(t *testing.T) {
	t.Parallel()
	_, err := render.Tool("cohere", one(`{"type":"object"}`))
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "openai, openai-responses, anthropic, gemini, mcp") {
		t.Error(err)
	}
}

func TestUnrenderableToolsAreRefused(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{`{"type":"objekt"}`, `{`, `[]`, `{"$ref":"https://example.com/x.json"}`} {
		if _, err := render.Tool(render.OpenAI, one(schema)); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("the schema %s: %v", schema, err)
		}
	}
}

func TestALongDescriptionIsCutForOpenAI(t *testing.T) {
	t.Parallel()
	d := one(`{"type":"object","properties":{},"additionalProperties":false}`)
	d.Description = strings.Repeat("é", 2000)
	for _, format := range render.Formats() {
		r := rendered(t, format, d)
		cut := format == render.OpenAI || format == render.OpenAIResponses
		if got := strings.Contains(strings.Join(r.Notes, "\n"), "cut from 2000 to 1024"); got != cut {
			t.Errorf("%s: %q", format, r.Notes)
		}
		if cut != r.Strict {
			t.Errorf("%s: a long description made strict %t", format, r.Strict)
		}
		if whole := strings.Contains(string(r.JSON), d.Description); whole == cut {
			t.Errorf("%s: the whole description is there: %t", format, whole)
		}
	}
}

// A model's answer to any provider's declaration becomes arguments of the tool.
func TestArguments(t *testing.T) {
	t.Parallel()
	worker := map[string]json.RawMessage{}
	for _, d := range workerTools(t) {
		worker[d.Name] = d.InputSchema
	}
	for _, c := range []struct {
		tool       string // of the worker, or a schema
		from, want string
		changed    string // is in the list of changes; empty: no changes
	}{
		// A strict schema has null for an absent value.
		{"int_default", `{"x":null}`, `{}`, "/x: null was left out"},
		{"int_default", `{"x":0}`, `{"x":0}`, ""},
		{"optional_default", `{"x":null}`, `{"x":null}`, ""},
		{"literal_mixed", `{"x":null}`, `{"x":null}`, ""},
		{"typed_dict_partial", `{"x":{"a":null,"b":null}}`, `{"x":{"b":null}}`, "/x/a"},
		{"union_movie_point", `{"x":{"x":1,"y":null,"color":"red"}}`, `{"x":{"color":"red","x":1}}`, "/x/y"},
		{"node", `{"x":{"value":1,"next":{"value":2,"next":null}}}`, `{"x":{"value":1,"next":{"value":2,"next":null}}}`, ""},
		{"old_person", `{"x":{"name":"n","home":{"street":"s","zip":null}}}`, `{"x":{"home":{"street":"s"},"name":"n"}}`, "/x/home/zip"},
		{"many", `{"query":"q","limit":null,"since":null,"tags":null,"point":{"x":1,"y":null,"color":null},"mode":null,"box":null}`,
			`{"point":{"x":1},"query":"q","since":null}`, "/point/y"},
		// Names that Anthropic and Gemini do not take.
		{"unicode_names", `{"gr__e_d353a267":1,"na_ve_option_0859444d":"b"}`, `{"größe":1,"naïve_option":"b"}`, ""},
		{"unicode_names", `{"größe":1}`, `{"größe":1}`, ""},
		{`{"type":"object","properties":{"größe":{"type":"integer"}}}`, `{"gr__e_d353a267":1}`, `{"größe":1}`, ""},
		// Text, where none is taken.
		{"list_literal_int", `{"x":"[1, 2]"}`, `{"x":[1,2]}`, `/x: the text "[1, 2]" was read as an array of 2 items`},
		{"list_literal_int", `{"x":["1","2"]}`, `{"x":[1,2]}`, "/x/0"},
		{"dict_int", `{"x":"{\"a\": \"1\"}"}`, `{"x":{"a":1}}`, "/x"},
		{"int", `{"x":"5"}`, `{"x":5}`, "/x"},
		{"int", `{"x":"5.0"}`, `{"x":5.0}`, "/x"},
		{"optional_literal_int", `{"x":"None"}`, `{"x":null}`, "/x"},
		{"int_default", `{"x":"null"}`, `{}`, `/x: "null" was left out`},
		{`{"type":"object","properties":{"on":{"type":"boolean"}}}`, `{"on":"True"}`, `{"on":true}`, "/on"},
		{`{"type":"object","properties":{"n":{"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"integer"}}]}}}`, `{"n":"[\"1\"]"}`, `{"n":[1]}`, "/n"},
		{"tree", `{"x":"{\"name\":\"a\",\"children\":\"[]\"}"}`, `{"x":{"children":[],"name":"a"}}`, "/x"},
		// Text, where it is allowed, or where its parsed value does not fit.
		{"union_str_int", `{"x":"5"}`, `{"x":"5"}`, ""},
		{`{"type":"object","properties":{"x":{"anyOf":[{"type":"string","minLength":3},{"type":"integer"}]}}}`, `{"x":"5"}`, `{"x":"5"}`, ""},
		{`{"type":"object","properties":{"x":{"enum":["a","b"]}}}`, `{"x":"1"}`, `{"x":"1"}`, ""},
		{"literal_collide", `{"x":"1"}`, `{"x":"1"}`, ""},
		{"int", `{"x":"1.5"}`, `{"x":"1.5"}`, ""},
		{"int", `{"x":"true"}`, `{"x":"true"}`, ""},
		{"int", `{"x":true}`, `{"x":true}`, ""},
		{"int", `{"x":"\"5\""}`, `{"x":"\"5\""}`, ""},
		{"int", `{"x":"five"}`, `{"x":"five"}`, ""},
		{"int", `{"x":null}`, `{"x":null}`, ""},
		// Names in another case.
		{`{"type":"object","properties":{"city":{"type":"string"},"max_days":{"type":"integer"}},"additionalProperties":false}`,
			`{"City":"Oslo","maxDays":"3"}`, `{"city":"Oslo","max_days":3}`, `/City: the name was read as "city"`},
		{`{"type":"object","properties":{"city":{}},"required":["city"]}`, `{"CITY":1}`, `{"city":1}`, "/CITY"},
		{`{"type":"object","properties":{"city":{}}}`, `{"CITY":1}`, `{"CITY":1}`, ""},
		{`{"type":"object","properties":{"city":{}},"additionalProperties":false}`, `{"City":1,"CITY":2}`, `{"City":1,"city":2}`, "/CITY"},
		{`{"type":"object","properties":{"city":{},"City":{}},"additionalProperties":false}`, `{"CITY":2}`, `{"CITY":2}`, ""},
		// One fault does not keep another from being mended.
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}}}`, `{"a":"1","b":"x"}`, `{"a":1,"b":"x"}`, "/a"},
		{"int", ``, `{}`, ""},
		// Equal keys by another name, numbers as written, text that needs escapes.
		{"dict_bare", `{"x":{"a":1.0,"b":1e3,"<":"<é\u0000>"}}`, `{"x":{"a":1.0,"b":1e3,"<":"<é\u0000>"}}`, ""},
		{"union_int_float", `{"x":12345678901234567890}`, `{"x":12345678901234567890}`, ""},
	} {
		schema, ok := worker[c.tool]
		if !ok {
			schema = json.RawMessage(c.tool)
		}
		got, changed, err := render.Arguments(one(string(schema)), json.RawMessage(c.from))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s became %s, %v, want %s", c.tool, c.from, got, err, c.want)
		}
		if all := strings.Join(changed, "\n"); !strings.Contains(all, c.changed) || (c.changed == "") != (all == "") {
			t.Errorf("%s: %s: %q is said, want %q", c.tool, c.from, all, c.changed)
		}
	}
}

func TestArgumentsThatMeanNothingSayWhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ schema, from, pointer string }{
		{`{}`, `{`, ""},
		{`{}`, `{"x":1,"x":2}`, "/x"},
		{`{}`, `{"x":1} 2`, ""},
		{`{}`, `[1]`, ""},
		{`{}`, `null`, ""},
		{`{}`, `{"x":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, ""},
		{`{"properties":{"a/b":{"type":"integer"}}}`, `{"a_b_c14cddc0":1,"a/b":2}`, "/a~1b"},
	} {
		got, _, err := render.Arguments(one(c.schema), json.RawMessage(c.from))
		var e *toolmesh.Error
		if !errors.As(err, &e) || e.Code != toolmesh.CodeInvalidArguments || e.Started != toolmesh.StartedNo {
			t.Errorf("%s became %s, %v", c.from, got, err)
			continue
		}
		if problems := tool.Problems(err); len(problems) != 1 || problems[0].Pointer != c.pointer || problems[0].Message == "" ||
			problems[0].Expected == "" || problems[0].Got == "" {
			t.Errorf("%s: %+v, want the pointer %q", c.from, problems, c.pointer)
		}
	}
}

func TestStructuredContentFitsTheOutputSchema(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		schema             string
		streaming, collect bool
		result, want       string
	}{
		{`{"type":"object","properties":{"a":{"type":"integer"}}}`, false, false, `{"a":1}`, `{"a":1}`},
		{`{"type":"integer"}`, false, false, `1`, `{"result":1}`},
		{`{"anyOf":[{"type":"object"},{"type":"null"}]}`, false, false, `null`, `{"result":null}`},
		{`{"$ref":"#/$defs/T","$defs":{"T":{"type":"object","properties":{"t":{"$ref":"#/$defs/T"}}}}}`, false, false, `{"t":{"t":{}}}`, `{"t":{"t":{}}}`},
		{`{"$ref":"#/$defs/T","$defs":{"T":{"type":"array","items":{"$ref":"#/$defs/T"}}}}`, false, false, `[[],[[]]]`, `{"result":[[],[[]]]}`},
		{`{"type":"object","properties":{"self":{"$ref":"#"},"n":{"type":"integer"}}}`, true, false, `{"self":{"n":1}}`, `{"result":{"self":{"n":1}}}`},
		{`{"type":"object"}`, true, false, `null`, `{"result":null}`},
		{`{"type":"object"}`, true, true, `[{},{}]`, `{"result":[{},{}]}`},
	} {
		d := one(`{"type":"object"}`)
		d.OutputSchema = json.RawMessage(c.schema)
		d.Annotations.Streaming, d.Annotations.Collect = c.streaming, c.collect
		r := rendered(t, render.MCP, d)
		got, err := r.StructuredContent(json.RawMessage(c.result))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s became %s, %v; want %s", c.schema, c.result, got, err, c.want)
			continue
		}
		var declared struct{ OutputSchema json.RawMessage }
		if err := json.Unmarshal(r.JSON, &declared); err != nil {
			t.Fatal(err)
		}
		v, err := tool.Compile(declared.OutputSchema)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Validate(got); err != nil {
			t.Errorf("%s does not fit %s: %v", got, declared.OutputSchema, err)
		}
	}
	r := rendered(t, render.MCP, func() *tool.Descriptor {
		d := one(`{"type":"object"}`)
		d.OutputSchema = json.RawMessage(`{"type":"integer"}`)
		return d
	}())
	if _, err := r.StructuredContent(json.RawMessage(`{"a"`)); toolmesh.CodeOf(err) != toolmesh.CodeProtocolError {
		t.Errorf("a result that is not JSON: %v", err)
	}
}

// TestMCPWordsOfTheAuthor: metadata.mcp is for MCP alone, and words that the mesh uses take
// precedence.
func TestMCPWordsOfTheAuthor(t *testing.T) {
	d := &tool.Descriptor{
		ID: "i.m.f", Name: "m.f", InputSchema: json.RawMessage(`{"type":"object"}`), Source: tool.SourceImport,
		Annotations: tool.Annotations{ReadOnly: true},
		Metadata: json.RawMessage(`{"team":"a","mcp":{"name":"other","icons":[{"src":"https://x.example/i.png"}],"_meta":{"a.example/b":1},
			"annotations":{"title":"F","readOnlyHint":false,"openWorldHint":true},"inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}}}`),
	}
	r, err := render.Tool(render.MCP, d)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"i-m-f","title":"i.m.f","description":"The tool i.m.f.","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}},` +
		`"annotations":{"title":"F","readOnlyHint":true,"openWorldHint":true},"icons":[{"src":"https://x.example/i.png"}],"_meta":{"a.example/b":1}}`
	got := new(any)
	if err := json.Unmarshal(r.JSON, got); err != nil {
		t.Fatal(err)
	}
	wanted := new(any)
	if err := json.Unmarshal([]byte(want), wanted); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	d.Metadata = json.RawMessage(`{"mcp":{"inputSchema":{"type":"string"},"annotations":3,"icons":null}}`)
	if r, err = render.Tool(render.MCP, d); err != nil || len(r.Notes) != 1 || !strings.Contains(string(r.JSON), `"inputSchema":{"type":"object"}`) {
		t.Errorf("%s, %v, %v", r.JSON, r.Notes, err)
	}
}
