package registry_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// shelf serves the registry of a mesh with one index, whose tools take the schemas.
func shelf(t *testing.T, index subjects.IndexName, schemas map[string]string) *bus.Bus {
	t.Helper()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	respond(t, b, v, store)
	r := registry.ToolsRecord{Index: index, Revision: "r1"}
	for name, schema := range schemas {
		id := subjects.ToolID(string(index) + "." + name)
		digests, err := store.PutDescriptors(t.Context(), &tool.Descriptor{
			ID: id, Name: id.Local(), Description: "Does " + name, InputSchema: json.RawMessage(schema), Source: tool.SourceGo,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Tools = append(r.Tools, registry.ToolRoute{ID: id, Digest: digests[0]})
	}
	r.Tools = append(r.Tools, registry.ToolRoute{ID: subjects.ToolID(string(index) + ".unread"), State: registry.ToolUnavailable, Reason: "No module named 'x'"})
	if err := acquire(t, b, record("n1", "boot1")).Publish(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the view knows the tools", func() bool { return nodesOf(v, "s1", string(r.Tools[0].ID)) != "unknown" })
	return b
}

const oneInteger = `{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"],"additionalProperties":false}`

func TestToolsAreRenderedTogether(t *testing.T) {
	t.Parallel()
	b := shelf(t, "a", map[string]string{"b-c": oneInteger, "b.c": oneInteger, "d": oneInteger})
	for _, provider := range []string{"openai", "openai-responses", "anthropic", "gemini", "mcp"} {
		var got registry.RenderAnswer
		// A short id, one twice, and two that would share a name.
		q := registry.Request{Provider: provider, Tools: []string{"d", "a.b-c", "a.d", "a.b.c"}}
		if err := ask(t, b, "s1", registry.VerbRender, q, &got); err != nil {
			t.Fatal(err)
		}
		var ids []subjects.ToolID
		for _, declaration := range got.Tools {
			var shown struct {
				Name     string
				Function struct{ Name string }
			}
			if err := json.Unmarshal(declaration, &shown); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, got.Names[shown.Name+shown.Function.Name])
		}
		if diff := cmp.Diff([]subjects.ToolID{"a.d", "a.b-c", "a.b.c"}, ids); diff != "" || len(got.Names) != 3 || got.Next != "" {
			t.Errorf("%s: %s\n%s", provider, diff, got.Names)
		}
	}
	var none registry.RenderAnswer
	if err := ask(t, b, "s1", registry.VerbRender, `{"provider":"mcp","tools":[]}`, &none); err != nil || none.Tools == nil || len(none.Tools) != 0 {
		t.Errorf("no tools: %+v, %v", none, err)
	}
}

// A rendering above a message's size comes in several pages, with names that are unique across
// them.
func TestRenderedToolsThatDoNotFitComeInPages(t *testing.T) {
	t.Parallel()
	schemas := map[string]string{"x-y": oneInteger, "x.y": oneInteger}
	want := []string{"big.x-y"}
	for i := range 5 {
		name := fmt.Sprintf("t%d", i)
		schemas[name] = fmt.Sprintf(`{"type":"object","properties":{"p":{"type":"string","description":%q}}}`, strings.Repeat("d", 300_000))
		want = append(want, "big."+name)
	}
	want = append(want, "big.x.y")
	b := shelf(t, "big", schemas)
	q := registry.Request{Provider: "anthropic", Tools: want}
	var ids, names []string
	for pages := 0; ; pages++ {
		var got registry.RenderAnswer
		if err := ask(t, b, "s1", registry.VerbRender, q, &got); err != nil {
			t.Fatal(err)
		}
		for _, declaration := range got.Tools {
			var shown struct{ Name string }
			if err := json.Unmarshal(declaration, &shown); err != nil {
				t.Fatal(err)
			}
			ids, names = append(ids, string(got.Names[shown.Name])), append(names, shown.Name)
		}
		if q.After = got.Next; got.Next == "" {
			if pages == 0 {
				t.Error("all came in one message")
			}
			break
		}
	}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != len(want) {
		t.Errorf("two tools of different pages share a name: %v", names)
	}
	// The same of descriptions; a tool without a known description has null.
	var told []string
	for rest := slices.Concat(want, []string{"big.none", "big.unread"}); len(rest) > 0; {
		var got registry.DescribedAnswer
		if err := ask(t, b, "s1", registry.VerbDescribe, registry.Request{Tools: rest}, &got); err != nil || len(got.Tools) == 0 {
			t.Fatal(got, err)
		}
		for _, raw := range got.Tools {
			var one *registry.DescribeAnswer
			if err := json.Unmarshal(raw, &one); err != nil {
				t.Fatal(err)
			}
			if one != nil {
				told = append(told, string(one.Descriptor.ID))
			}
		}
		if rest = rest[len(got.Tools):]; len(rest) == 0 && len(told) == len(got.Tools) {
			t.Error("all came in one message")
		}
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAModelsArgumentsBecomeTheTools(t *testing.T) {
	t.Parallel()
	b := shelf(t, "a", map[string]string{
		"one":     oneInteger,
		"default": `{"type":"object","properties":{"n":{"type":"integer","default":3}},"additionalProperties":false}`,
		"größe":   `{"type":"object","properties":{"größe":{"type":"integer"}}}`,
	})
	for _, c := range []struct{ tool, given, want, changed string }{
		{"a.one", `"{\"x\": 1}"`, `{"x":1}`, ""},
		{"one", `{"x":1}`, `{"x":1}`, ""},
		{"a-one", `{"x":"2"}`, `{"x":2}`, `/x: the text "2" was read as 2`},
		{"a.default", `"{\"n\":null}"`, `{}`, "/n: null was left out"},
		{"a.default", `""`, `{}`, ""},
		{"a-default", `null`, `{}`, ""},
		{"a.one", `{"x":"a fault for the call"}`, `{"x":"a fault for the call"}`, ""},
		{tool.ProviderName("a.größe"), `{"gr__e_d353a267":1}`, `{"größe":1}`, ""},
	} {
		var got registry.ArgumentsAnswer
		q := registry.Request{Tool: c.tool, Arguments: json.RawMessage(c.given)}
		if err := ask(t, b, "s1", registry.VerbArguments, q, &got); err != nil {
			t.Errorf("%s %s: %v", c.tool, c.given, err)
		} else if string(got.Arguments) != c.want || !strings.HasPrefix(string(got.Tool), "a.") || strings.Join(got.Changed, "\n") != c.changed {
			t.Errorf("%s: %s became %s of %s: %q", c.tool, c.given, got.Arguments, got.Tool, got.Changed)
		}
	}
}

// A declared name means the declared tool, even if other tools are served, were rendered or match
// the name in part.
func TestADeclaredNameMeansOneTool(t *testing.T) {
	t.Parallel()
	b := shelf(t, "a", map[string]string{
		"b.c.pay": oneInteger, "b-c.pay": oneInteger, "b.c-pay": oneInteger, "x.a-b-c-pay": oneInteger, "x.a.gone.tool": oneInteger, "gone-tool": oneInteger,
	})
	for _, id := range []subjects.ToolID{"a.b.c.pay", "a.b-c.pay", "a.b.c-pay", "a.x.a-b-c-pay", "a.gone-tool"} {
		var got registry.ArgumentsAnswer
		if err := ask(t, b, "s1", registry.VerbArguments, registry.Request{Tool: tool.ProviderName(id)}, &got); err != nil || got.Tool != id {
			t.Errorf("%s is declared as %s, which means %s: %v", id, tool.ProviderName(id), got.Tool, err)
		}
	}
	for name, id := range map[string]subjects.ToolID{"a-gone-tool": "a.gone-tool", "A_Gone_Tool": "a.gone-tool", "A.X.a-b_c.PAY": "a.x.a-b-c-pay"} {
		var got registry.ArgumentsAnswer
		if err := ask(t, b, "s1", registry.VerbArguments, registry.Request{Tool: name}, &got); err != nil || got.Tool != id {
			t.Errorf("%s, which differs from one id in case and separators, means %s: %v", name, got.Tool, err)
		}
		if err := ask(t, b, "s1", registry.VerbArguments, registry.Request{Tool: name, Tools: []string{"b.**"}}, &got); toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound {
			t.Errorf("%s, for a caller of other tools, means %s: %v", name, got.Tool, err)
		}
	}
	for _, name := range []string{"A_B_C_Pay", "b-c-pay", "gone-tool", "a-gone-tool---0123456789abcdef"} {
		var got registry.ArgumentsAnswer
		if err := ask(t, b, "s1", registry.VerbArguments, registry.Request{Tool: name}, &got); toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound {
			t.Errorf("%s, which is declared nowhere, means %s: %v", name, got.Tool, err)
		}
	}
}

// Tools that the caller declares are rendered in one set with the mesh's, and before them.
func TestToolsOfTheAskerAreRenderedToo(t *testing.T) {
	t.Parallel()
	b := shelf(t, "a", map[string]string{"one": oneInteger, "two": oneInteger})
	own := []*tool.Descriptor{
		{ID: "a.two", Description: "Mine", InputSchema: json.RawMessage(`{"type":"object","properties":{"y":{"enum":[1,2]}}}`)},
		{ID: "<lambda>"},
	}
	var got registry.RenderAnswer
	q := registry.Request{Provider: "gemini", Tools: []string{"<lambda>", "a.two", "a.one", "a.two"}, Declared: own}
	if err := ask(t, b, "s1", registry.VerbRender, q, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Tools) != 3 || len(got.Names) != 3 || !strings.Contains(string(got.Tools[1]), `"Mine"`) || !strings.Contains(string(got.Tools[2]), `"Does one"`) {
		t.Errorf("%s %v", got.Tools, got.Names)
	}
	var meant registry.ArgumentsAnswer
	q = registry.Request{Tool: "a.two", Declared: own, Arguments: json.RawMessage(`{"y":"2"}`)}
	if err := ask(t, b, "s1", registry.VerbArguments, q, &meant); err != nil || string(meant.Arguments) != `{"y":2}` {
		t.Errorf("%s, %v", meant.Arguments, err)
	}
	q.Declared = []*tool.Descriptor{nil, {}, {ID: "a.two", InputSchema: json.RawMessage(`{"type":5}`)}}
	if err := ask(t, b, "s1", registry.VerbArguments, q, &meant); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("a schema that is none: %v", err)
	}
}

func TestRenderingRefuses(t *testing.T) {
	t.Parallel()
	b := shelf(t, "a", map[string]string{"one": oneInteger})
	many, err := json.Marshal(slices.Repeat([]string{"a.one"}, 501))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		verb, body string
		code       toolmesh.Code
		text       string // in the message
	}{
		"no provider":          {registry.VerbRender, `{"tools":["a.one"]}`, toolmesh.CodeInvalidRequest, "provider is missing"},
		"another provider":     {registry.VerbRender, `{"provider":"zz","tools":["a.one"]}`, toolmesh.CodeInvalidRequest, `"zz"`},
		"no tools":             {registry.VerbRender, `{"provider":"mcp"}`, toolmesh.CodeInvalidRequest, "tools is missing"},
		"tools as text":        {registry.VerbRender, `{"provider":"mcp","tools":"a.one"}`, toolmesh.CodeInvalidRequest, "tools must be a list of texts"},
		"an unknown tool":      {registry.VerbRender, `{"provider":"mcp","tools":["a.one","a.two"]}`, toolmesh.CodeToolNotFound, "a.two"},
		"a tool nobody read":   {registry.VerbRender, `{"provider":"mcp","tools":["a.one","a.unread"]}`, toolmesh.CodeUnavailable, "No module named 'x'"},
		"too many tools":       {registry.VerbRender, `{"provider":"mcp","tools":` + string(many) + `}`, toolmesh.CodePayloadTooLarge, "501 tools"},
		"after what is not":    {registry.VerbRender, `{"provider":"mcp","tools":["a.one"],"after":"a.two"}`, toolmesh.CodeInvalidRequest, "after"},
		"too many described":   {registry.VerbDescribe, `{"tools":` + string(many) + `}`, toolmesh.CodePayloadTooLarge, "501 tools"},
		"too many declared":    {registry.VerbRender, `{"provider":"mcp","tools":["a.one"],"declared":[{}` + strings.Repeat(`,{}`, 100_000) + `,5]}`, toolmesh.CodePayloadTooLarge, "more than 500"},
		"long globs":           {registry.VerbArguments, `{"tool":"a.one","tools":["` + strings.Repeat("*a", 3000) + `"]}`, toolmesh.CodeInvalidRequest, "patterns of tools"},
		"arguments of no tool": {registry.VerbArguments, `{"arguments":{}}`, toolmesh.CodeInvalidRequest, "tool is missing"},
		"of an unknown tool":   {registry.VerbArguments, `{"provider":"mcp","tool":"a.two","arguments":{}}`, toolmesh.CodeToolNotFound, "a.two"},
		"broken JSON":          {registry.VerbArguments, `{"provider":"openai","tool":"a.one","arguments":"{'x': 1}"}`, toolmesh.CodeInvalidArguments, "the arguments are not valid JSON: invalid character"},
		"JSON that is cut off": {registry.VerbArguments, `{"provider":"openai","tool":"a.one","arguments":"{\"x\": "}`, toolmesh.CodeInvalidArguments, "the text ends too early at byte"},
		"no object":            {registry.VerbArguments, `{"provider":"openai","tool":"a.one","arguments":"[1]"}`, toolmesh.CodeInvalidArguments, "not a JSON object"},
	} {
		var answer any
		err := ask(t, b, "s1", tt.verb, tt.body, &answer)
		if toolmesh.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, tt.code, tt.text)
		}
		if e := toolmesh.AsError(err); e.Started != toolmesh.StartedNo || e.Origin == "" {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
