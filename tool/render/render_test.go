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
	r, err := render.Tool(format, d, nil)
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
		again, err := render.Tool(render.OpenAIResponses, d.descriptor(), nil)
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
		render.Gemini:          `{"name":"index-module-x","description":"Does one thing.","parameters":{"type":"object","properties":{"city":{"type":"string","description":"where"},"days":{"type":"integer","description":"Default: 3."}},"required":["city"],"propertyOrdering":["city","days"]}}`,
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
	_, err := render.Tool("cohere", one(`{"type":"object"}`), nil)
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "openai, openai-responses, anthropic, gemini, mcp") {
		t.Error(err)
	}
}

func TestWhatCannotBeRenderedIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a.b", "1a", "-a", strings.Repeat("a", 65), "é"} {
		if _, err := render.Tool(render.OpenAI, one(`{"type":"object"}`), &render.Options{Name: name}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	for _, schema := range []string{`{"type":"objekt"}`, `{`, `[]`, `{"$ref":"https://example.com/x.json"}`} {
		if _, err := render.Tool(render.OpenAI, one(schema), nil); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
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

// What a model answers becomes what the tool takes.
func TestArguments(t *testing.T) {
	t.Parallel()
	worker := map[string]json.RawMessage{}
	for _, d := range workerTools(t) {
		worker[d.Name] = d.InputSchema
	}
	for _, c := range []struct {
		format     render.Format
		tool       string // of the worker, or a schema
		from, want string
	}{
		{render.Gemini, "literal_int", `{"x":"1"}`, `{"x":1}`},
		{render.Gemini, "list_literal_int", `{"x":["1","2","1"]}`, `{"x":[1,2,1]}`},
		{render.Gemini, "optional_literal_int", `{"x":null}`, `{"x":null}`},
		{render.Gemini, "optional_literal_int", `{"x":"2"}`, `{"x":2}`},
		{render.Gemini, "literal_collide", `{"x":"1"}`, `{"x":"1"}`},
		{render.Gemini, "literal_collide", `{"x":"1 (integer)"}`, `{"x":1}`},
		{render.Gemini, "literal_collide", `{"x":"true (boolean)"}`, `{"x":true}`},
		{render.Gemini, "literal_collide", `{"x":"null"}`, `{"x":"null"}`},
		{render.Gemini, "literal_collide", `{"x":null}`, `{"x":null}`},
		{render.Gemini, "literal_empty", `{"x":"(empty)"}`, `{"x":""}`},
		{render.Gemini, "mixed_enum", `{"x":"two"}`, `{"x":"two"}`},
		{render.Gemini, "union_str_int", `{"x":"5"}`, `{"x":5}`},
		{render.Gemini, "union_str_int", `{"x":"\"5\""}`, `{"x":"5"}`},
		{render.Gemini, "union_str_int", `{"x":"1.5"}`, `{"x":"1.5"}`},
		{render.Gemini, "union_str_int", `{"x":"{\"a\":1}"}`, `{"x":"{\"a\":1}"}`},
		{render.Gemini, "union_str_int", `{"x":"hello"}`, `{"x":"hello"}`},
		{render.Gemini, "union_bool_str", `{"x":"true"}`, `{"x":true}`},
		{render.Gemini, "union_int_float", `{"x":12345678901234567890}`, `{"x":12345678901234567890}`},
		{render.Gemini, "dict_int", `{"x":[{"key":"a","value":1},{"key":"","value":2}]}`, `{"x":{"a":1,"":2}}`},
		{render.Gemini, "dict_bare", `{"x":"{\"a\":[1,{\"b\":null}]}"}`, `{"x":{"a":[1,{"b":null}]}}`},
		{render.Gemini, "any", `{"x":"[1,\"a\"]"}`, `{"x":[1,"a"]}`},
		{render.Gemini, "any", `{"x":"just text"}`, `{"x":"just text"}`},
		{render.Gemini, "tuple_two", `{"x":{"item_1":1,"item_2":"a"}}`, `{"x":[1,"a"]}`},
		{render.Gemini, "named_tuple", `{"x":{"a":1}}`, `{"x":[1]}`},
		{render.Gemini, "named_tuple", `{"x":{"b":"y","a":1}}`, `{"x":[1,"y"]}`},
		{render.Gemini, "named_tuple", `{"x":{"a":1,"b":null}}`, `{"x":[1]}`},
		{render.Gemini, "union_list_str", `{"x":{"list":[1]}}`, `{"x":[1]}`},
		{render.Gemini, "union_list_str", `{"x":{"text":"a","list":null}}`, `{"x":"a"}`},
		{render.Gemini, "typed_dict_empty", `{"x":"{}"}`, `{"x":{}}`},
		{render.Gemini, "none", `{"x":"null"}`, `{"x":null}`},
		{render.Gemini, "int_default", `{"x":null}`, `{}`},
		{render.Gemini, "optional_default", `{"x":null}`, `{"x":null}`},
		{render.Gemini, "tree", `{"x":{"name":"a","children":[{"name":"b","children":["{\"name\":\"c\",\"children\":[]}"]}]}}`,
			`{"x":{"name":"a","children":[{"name":"b","children":[{"name":"c","children":[]}]}]}}`},
		{render.Gemini, "unicode_names", `{"gr__e_d353a267":1,"na_ve_option_0859444d":"b"}`, `{"größe":1,"naïve_option":"b"}`},
		{render.Gemini, "everything", `{"a":"1","d":"x","additional_arguments":[{"key":"k","value":"red"}]}`, `{"a":1,"d":"x","k":"red"}`},
		{render.Gemini, "nothing", `{}`, `{}`},
		{render.OpenAI, "int_default", `{"x":null}`, `{}`},
		{render.OpenAI, "int_default", `{"x":0}`, `{"x":0}`},
		{render.OpenAI, "optional_default", `{"x":null}`, `{"x":null}`},
		{render.OpenAI, "literal_mixed", `{"x":null}`, `{"x":null}`},
		{render.OpenAI, "typed_dict_partial", `{"x":{"a":null,"b":null}}`, `{"x":{"b":null}}`},
		{render.OpenAI, "union_movie_point", `{"x":{"x":1,"y":null,"color":"red"}}`, `{"x":{"x":1,"color":"red"}}`},
		{render.OpenAI, "node", `{"x":{"value":1,"next":{"value":2,"next":null}}}`, `{"x":{"value":1,"next":{"value":2,"next":null}}}`},
		{render.OpenAI, "old_person", `{"x":{"name":"n","home":{"street":"s","zip":null}}}`, `{"x":{"name":"n","home":{"street":"s"}}}`},
		{render.OpenAI, "many", `{"query":"q","limit":null,"since":null,"tags":null,"point":{"x":1,"y":null,"color":null},"mode":null,"box":null}`,
			`{"query":"q","since":null,"point":{"x":1}}`},
		{render.Anthropic, "unicode_names", `{"gr__e_d353a267":1}`, `{"größe":1}`},
		{render.MCP, "unicode_names", `{"größe":1}`, `{"größe":1}`},
		{render.OpenAI, "int", ``, `{}`},
		// Equal keys by another name, numbers as written, text that needs escapes.
		{render.OpenAI, "dict_bare", `{"x":{"a":1.0,"b":1e3,"<":"<é\u0000>"}}`, `{"x":{"a":1.0,"b":1e3,"<":"<é\u0000>"}}`},
		{render.Gemini, `{"type":"object","properties":{"a":{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":{"type":"string"}}}}`,
			`{"a":{"n":1,"additional_members":[{"key":"k","value":"v"}]}}`, `{"a":{"n":1,"k":"v"}}`},
		{render.Gemini, `{"type":"object","additionalProperties":{"enum":[1,2]}}`, `{"additional_arguments":[{"key":"k","value":"2"}]}`, `{"k":2}`},
	} {
		schema, ok := worker[c.tool]
		if !ok {
			schema = json.RawMessage(c.tool)
		}
		d := one(string(schema))
		r := rendered(t, c.format, d)
		got, err := r.Arguments(json.RawMessage(c.from))
		if err != nil {
			t.Errorf("%s %s: %s: %v", c.format, c.tool, c.from, err)
			continue
		}
		if string(got) != c.want {
			t.Errorf("%s %s: %s became %s, want %s\n%s", c.format, c.tool, c.from, got, c.want, r.JSON)
		}
	}
}

func TestArgumentsThatCannotBeMappedSayWhere(t *testing.T) {
	t.Parallel()
	worker := map[string]*tool.Descriptor{}
	for _, d := range workerTools(t) {
		worker[d.Name] = d.descriptor()
	}
	for _, c := range []struct{ tool, from, pointer string }{
		{"union_list_str", `{"x":{"list":[1],"text":"a"}}`, "/x"},
		{"union_list_str", `{"x":{}}`, "/x"},
		{"named_tuple", `{"x":{"b":"y"}}`, "/x"},
		{"dict_int", `{"x":[{"key":"a/b","value":1},{"key":"a/b","value":2}]}`, "/x/a~1b"},
		{"dict_int", `{"x":[{"value":1}]}`, "/x"},
		{"dict_int", `{"x":[1]}`, "/x"},
		{"everything", `{"a":"1","additional_arguments":[{"key":"a","value":"red"}]}`, "/a"},
		{"int", `{`, ""},
		{"int", `{"x":1,"x":2}`, ""},
		{"int", `{"x":1} 2`, ""},
		{"int", `[1]`, ""},
		{"int", `null`, ""},
	} {
		r := rendered(t, render.Gemini, worker[c.tool])
		got, err := r.Arguments(json.RawMessage(c.from))
		var e *toolmesh.Error
		if !errors.As(err, &e) || e.Code != toolmesh.CodeInvalidArguments || e.Started != toolmesh.StartedNo {
			t.Errorf("%s: %s became %s, %v", c.tool, c.from, got, err)
			continue
		}
		if problems := tool.Problems(err); len(problems) != 1 || problems[0].Pointer != c.pointer || problems[0].Message == "" ||
			problems[0].Expected == "" || problems[0].Got == "" {
			t.Errorf("%s: %s: %+v, want the pointer %q", c.tool, c.from, problems, c.pointer)
		}
	}
}

func TestStructuredContentIsWhatTheOutputSchemaSays(t *testing.T) {
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
		t.Errorf("a result that is no JSON: %v", err)
	}
}
