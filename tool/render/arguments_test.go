package render_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

// author writes random schemas.
type author struct {
	*rand.Rand
	// hostile uses every word, in every place, with odd values; otherwise only those that every
	// rendering can express.
	hostile bool
}

type dict = map[string]any

func (a author) pick(list ...any) any { return list[a.IntN(len(list))] }

func (a author) chance(percent int) bool { return a.IntN(100) < percent }

func (a author) root() dict {
	out := a.object(3)
	if a.hostile && a.chance(30) {
		for range a.IntN(3) {
			a.decorate(out, 2)
		}
	}
	if a.hostile && a.chance(20) {
		delete(out, "type")
	}
	if a.hostile && a.chance(20) {
		out["$schema"] = a.pick("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#",
			"https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema")
	}
	defs := dict{}
	for _, name := range []string{"A", "B", "a/b~c"} {
		defs[name] = a.schema(3)
	}
	defs["Node"] = dict{"type": "object", "properties": dict{"v": dict{"type": "integer"}, "next": dict{"anyOf": []any{dict{"$ref": "#/$defs/Node"}, dict{"type": "null"}}}},
		"required": []any{"v"}, "additionalProperties": false}
	out["$defs"] = defs
	if a.hostile && a.chance(10) {
		return dict{"$ref": "#/$defs/" + a.pick("A", "B", "Node").(string), "$defs": defs}
	}
	return out
}

func (a author) name() string {
	if a.hostile && a.chance(10) {
		return a.pick("", "größe", "a b", "$top", strings.Repeat("n", 80), "1", "-", "additional_arguments", "~/").(string)
	}
	return fmt.Sprintf("p%d", a.IntN(6))
}

func (a author) object(depth int) dict {
	properties := dict{}
	var required []any
	for range a.IntN(5) {
		name := a.name()
		if _, ok := properties[name]; ok {
			continue
		}
		properties[name] = a.schema(depth - 1)
		if a.chance(60) {
			required = append(required, name)
		}
	}
	out := dict{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		out["required"] = required
	}
	if a.chance(15) {
		out["additionalProperties"] = a.schema(depth - 1)
	}
	if a.hostile {
		switch a.IntN(6) {
		case 0:
			delete(out, "additionalProperties")
		case 1:
			delete(out, "properties")
			delete(out, "required")
		case 2:
			out["required"] = []any{"nowhere"}
		case 3:
			out["additionalProperties"] = true
		}
	}
	return out
}

func (a author) schema(depth int) any {
	var out dict
	if a.hostile && a.chance(5) {
		return a.chance(50)
	}
	kind := a.IntN(13)
	if depth <= 0 {
		kind = a.IntN(7)
	}
	switch kind {
	case 0:
		out = dict{"type": "string"}
	case 1:
		out = dict{"type": "integer"}
		if a.chance(40) {
			out["minimum"] = a.IntN(5)
			out["maximum"] = 5 + a.IntN(5)
		}
	case 2:
		out = dict{"type": "number"}
	case 3:
		out = dict{"type": "boolean"}
	case 4:
		out = dict{"enum": a.values()}
	case 5:
		out = dict{"type": []any{a.pick("string", "integer", "boolean"), "null"}}
	case 6:
		out = dict{"const": a.values()[0]}
	case 7:
		out = dict{"type": "array", "items": a.schema(depth - 1)}
		if a.chance(30) {
			out["minItems"], out["maxItems"] = 1, 3
		}
	case 8:
		n := 1 + a.IntN(3)
		prefix := make([]any, n)
		for i := range prefix {
			prefix[i] = a.schema(depth - 1)
		}
		out = dict{"type": "array", "prefixItems": prefix, "items": false, "minItems": a.IntN(n + 1), "maxItems": n}
	case 9:
		out = a.object(depth)
	case 10:
		branches := []any{}
		for range 1 + a.IntN(3) {
			branches = append(branches, a.schema(depth-1))
		}
		out = dict{"anyOf": branches}
	case 11:
		out = dict{"$ref": "#/$defs/" + a.pick("Node", "Node", "A", "B", "a~1b~0c").(string)}
		if !a.hostile {
			out["$ref"] = "#/$defs/Node"
		}
	case 12:
		out = dict{}
	}
	if a.chance(30) {
		out["description"] = a.pick("a text", "What it is.", "ünïcode \"quoted\" <b>")
	}
	if a.hostile && a.chance(40) {
		a.decorate(out, depth)
	}
	return out
}

func (a author) values() []any {
	all := []any{"a", "b", "1", 1, 2, true, nil, 1.5}
	if a.hostile {
		all = append(all, "", "true", false, 1e9, []any{1}, dict{"a": 1}, dict{}, "null", strings.Repeat("v", 300))
	}
	a.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:1+a.IntN(4)]
}

// decorate adds a word that may stand anywhere.
func (a author) decorate(out dict, depth int) {
	schemas := func() []any {
		list := []any{}
		for range 1 + a.IntN(2) {
			list = append(list, a.schema(depth-1))
		}
		return list
	}
	type word struct {
		key   string
		value func() any
	}
	fixed := func(v any) func() any { return func() any { return v } }
	words := []word{
		{"allOf", func() any { return schemas() }}, {"anyOf", func() any { return schemas() }}, {"oneOf", func() any { return schemas() }},
		{"not", func() any { return a.schema(depth - 1) }}, {"if", func() any { return a.schema(depth - 1) }},
		{"then", func() any { return a.schema(depth - 1) }}, {"else", func() any { return a.schema(depth - 1) }},
		{"minLength", fixed(1)}, {"maxLength", fixed(10)}, {"pattern", fixed(a.pick("^a", "(?=x)y", "[0-9]+"))},
		{"format", fixed(a.pick("date", "uri", "path", "email", "date-time", "int32", "unheard-of"))},
		{"minimum", fixed(a.pick(-1, 2.5, json.Number("1e999"), json.Number("123456789012345678901234567890")))},
		{"exclusiveMaximum", fixed(100)}, {"multipleOf", fixed(0.5)}, {"uniqueItems", fixed(true)},
		{"minItems", fixed(2)}, {"maxItems", fixed(a.pick(0, 1, 7))}, {"contains", func() any { return a.schema(depth - 1) }},
		{"minProperties", fixed(1)}, {"maxProperties", fixed(3)}, {"patternProperties", func() any { return dict{"^x": a.schema(depth - 1)} }},
		{"propertyNames", fixed(dict{"maxLength": 5})}, {"dependentRequired", fixed(dict{"p1": []any{"p2"}})},
		{"dependentSchemas", func() any { return dict{"p1": a.schema(depth - 1)} }}, {"unevaluatedProperties", fixed(false)},
		{"title", fixed("T")}, {"default", fixed(a.pick(1, "x", nil, dict{"a": []any{}}))}, {"examples", fixed([]any{1})},
		{"type", fixed(a.pick("null", "object", "array", []any{"string", "array", "null"}, []any{"object", "integer"}))},
		{"$ref", fixed(a.pick("#", "#/$defs/A", "#/properties/p1", "#/$defs/B"))}, {"contentEncoding", fixed("base64")},
		{"enum", func() any { return a.values() }}, {"x-foreign", fixed(1)}, {"nullable", fixed(true)}, {"deprecated", fixed(true)},
		{"$comment", fixed("c")}, {"items", func() any { return a.schema(depth - 1) }}, {"required", fixed([]any{"p1"})},
	}
	w := words[a.IntN(len(words))]
	out[w.key] = w.value()
}

// descriptorOf is a tool with a schema, nil if the schema does not compile: such
// a tool is not published.
func descriptorOf(t testing.TB, schema any) *tool.Descriptor {
	t.Helper()
	data, err := json.Marshal(schema)
	if err != nil {
		return nil
	}
	if _, err := tool.Compile(data); err != nil {
		return nil
	}
	return one(string(data))
}

// answerer writes a model's possible answers to a declaration.
type answerer struct {
	*rand.Rand
	root map[string]any
}

var textFormat = regexp.MustCompile(`Format: ([a-z0-9-]+)\.`)

// value returns a value that fits a rendered schema, and whether there is one
// that is not too deep.
func (a answerer) value(o map[string]any, depth int) (any, bool) {
	if depth > 12 {
		return nil, false
	}
	if ref, ok := o["$ref"].(string); ok {
		defs, _ := a.root["$defs"].(map[string]any)
		target, _ := defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
		return a.value(target, depth+1)
	}
	if list := anyList(o["anyOf"]); list != nil {
		for _, i := range a.Perm(len(list)) {
			if v, ok := a.value(list[i].(map[string]any), depth+1); ok {
				return v, true
			}
		}
		return nil, false
	}
	types := typesOf(o)
	kind := types[a.IntN(len(types))]
	text, _ := o["description"].(string)
	if slices.Contains(types, "null") && a.IntN(3) == 0 {
		return nil, true
	}
	if values := anyList(o["enum"]); values != nil {
		return values[a.IntN(len(values))], true
	}
	switch kind {
	case "null":
		return nil, true
	case "boolean":
		return a.IntN(2) == 0, true
	case "integer", "number":
		low, high := bound(o["minimum"], -5), bound(o["maximum"], 20)
		if n := o["exclusiveMaximum"]; n != nil {
			high = bound(n, 0) - 1
		}
		high = max(low, high)
		n := low + float64(a.IntN(int(min(high-low, 1e6))+1))
		if o["multipleOf"] != nil {
			n -= float64(int(n) % 2)
			if n < low {
				n += 2
			}
		}
		if kind == "integer" || n+0.5 > high || a.IntN(2) == 0 {
			return json.Number(fmt.Sprintf("%.0f", n)), true
		}
		return json.Number(fmt.Sprintf("%.1f", n+0.5)), true
	case "string":
		return a.text(o, text), true
	case "array":
		least := int(bound(o["minItems"], 0))
		most := max(int(bound(o["maxItems"], 3)), least)
		list := []any{}
		for range least + a.IntN(most-least+1) {
			one, ok := a.value(o["items"].(map[string]any), depth+1)
			if !ok {
				return list, len(list) >= least
			}
			list = append(list, one)
		}
		return list, true
	default:
		return a.object(o, depth)
	}
}

func bound(v any, absent float64) float64 {
	n, ok := v.(json.Number)
	if !ok {
		return absent
	}
	f, err := n.Float64()
	if err != nil {
		return absent
	}
	return f
}

func (a answerer) object(o map[string]any, depth int) (any, bool) {
	properties, _ := o["properties"].(map[string]any)
	out := dict{}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		required := slices.Contains(anyList(o["required"]), any(name))
		if !required && a.IntN(2) == 0 {
			continue
		}
		v, ok := a.value(properties[name].(map[string]any), depth+1)
		if !ok && required {
			return nil, false
		}
		if ok {
			out[name] = v
		}
	}
	return out, true
}

func (a answerer) text(o map[string]any, text string) string {
	format, _ := o["format"].(string)
	if m := textFormat.FindStringSubmatch(text); m != nil {
		format = m[1]
	}
	switch {
	case format == "date":
		return "2026-01-31"
	case format == "date-time":
		return "2026-01-31T12:00:00Z"
	case format == "time":
		return "12:30:00Z"
	case format == "uuid":
		return "12345678-1234-5678-1234-567812345678"
	case strings.Contains(text, "Encoded as base64"):
		return "aGk="
	case o["pattern"] != nil, o["minLength"] != nil:
		return "abc"
	}
	return []string{"", "abc", "5", "null", "ü<>&"}[a.IntN(5)]
}

// answer makes arguments for a rendered tool; ok is false if it made none.
func answer(t testing.TB, random *rand.Rand, r render.Rendered) (json.RawMessage, bool) {
	t.Helper()
	var declaration map[string]any
	dec := json.NewDecoder(strings.NewReader(string(r.JSON)))
	dec.UseNumber()
	if err := dec.Decode(&declaration); err != nil {
		t.Fatal(err)
	}
	if function, ok := declaration["function"].(map[string]any); ok {
		declaration = function
	}
	parameters, ok := declaration["parameters"].(map[string]any)
	if !ok {
		return json.RawMessage(`{}`), true
	}
	value, ok := answerer{random, parameters}.value(parameters, 0)
	if !ok {
		return nil, false
	}
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return data, true
}

// fits says whether a schema may be answered with what its declaration allows.
func checkAnswers(t *testing.T, random *rand.Rand, d *tool.Descriptor, times int) (made int) {
	t.Helper()
	r := rendered(t, render.OpenAI, d)
	if !r.Strict {
		return 0
	}
	v, err := tool.Compile(d.InputSchema)
	if err != nil {
		t.Fatal(err)
	}
	for range times {
		given, ok := answer(t, random, r)
		if !ok {
			continue
		}
		made++
		got, _, err := render.Arguments(d, given)
		if err == nil {
			err = v.Validate(got)
		}
		if err != nil {
			t.Fatalf("the answer %s became %s: %v\nschema %s\nshown as %s", given, got, err, d.InputSchema, r.JSON)
		}
	}
	return made
}

// A model's answer that fits a declaration fits the tool.
func TestAnswersToTheWorkersToolsAreArguments(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, d := range workerTools(t) {
		r := rendered(t, render.OpenAI, d.descriptor())
		if made := checkAnswers(t, random, d.descriptor(), 20); made == 0 && r.Strict {
			t.Errorf("%s: no answer was made to %s", d.Name, r.JSON)
		}
	}
}

func TestAnswersToRandomToolsAreArguments(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	a := author{Rand: rand.New(rand.NewPCG(seed, 0))}
	made := 0
	for range 300 {
		if d := descriptorOf(t, a.root()); d != nil {
			made += checkAnswers(t, a.Rand, d, 5)
		}
	}
	if made == 0 {
		t.Error("nothing was tested")
	}
}

// No rendered schema is one that its provider refuses, and no answer makes a mapping panic, for any
// author's schema.
func FuzzNoSchemaIsRefused(f *testing.F) {
	for seed := range uint64(150) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		a := author{rand.New(rand.NewPCG(seed, 1)), true}
		d := descriptorOf(t, a.root())
		if d == nil {
			return
		}
		d.ID = subjects.ToolID(a.pick("index.module.x", "söng.a-b.c", "1.2.3").(string))
		if a.chance(30) {
			d.OutputSchema = d.InputSchema
		}
		for _, format := range render.Formats() {
			r := rendered(t, format, d)
			if !r.Strict {
				continue
			}
			if given, ok := answer(t, a.Rand, r); ok {
				if got, _, err := render.Arguments(d, given); err == nil && !json.Valid(got) {
					t.Fatalf("%s became %s", given, got)
				}
			}
		}
	})
}

// For any answer to any schema the result is JSON, in bounded time: either as written, or with each
// change listed; arguments that fit are never changed.
func FuzzArguments(f *testing.F) {
	f.Add(uint64(1), `{"p1":"[1,2]","p2":null,"P3":"{\"a\":\"1\"}"}`)
	f.Add(uint64(2), `{"p0":"`+strings.Repeat("[", 1000)+`"}`)
	f.Add(uint64(3), `{"p0":"`+strings.Repeat("9", 10_000)+`","p1":"-1e999"}`)
	for seed := range uint64(100) {
		f.Add(seed, `{"p0":"5","p1":"null","p2":"[\"1\"]","p3":{"p0":"true","p1":null},"p4":["{}","x"],"p5":"1"}`)
	}
	f.Fuzz(func(t *testing.T, seed uint64, text string) {
		d := descriptorOf(t, author{rand.New(rand.NewPCG(seed, 1)), true}.root())
		if d == nil {
			return
		}
		got, changed, err := render.Arguments(d, json.RawMessage(text))
		if err != nil {
			return
		}
		v, err := tool.Compile(d.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		if len(changed) > 0 && (v.Validate(json.RawMessage(text)) == nil || !json.Valid(got)) {
			t.Fatalf("%s became %s: %q", text, got, changed)
		}
		again, more, err := render.Arguments(d, got)
		if err != nil || v.Validate(got) == nil && len(more) > 0 {
			t.Fatalf("%s became %s, and %s again: %q, %v", text, got, again, more, err)
		}
	})
}

// The cost of large, deep or long text, and of schemas that branch without end, is that of one
// check.
func TestArgumentsOfHostileModelsAreBounded(t *testing.T) {
	t.Parallel()
	const list = `{"type":"object","properties":{"x":{"type":"array","items":{"type":"array"}}}}`
	bomb := `{"type":"object","properties":{"x":{"$ref":"#/$defs/a"}},"$defs":{"a":{"anyOf":[` +
		strings.Repeat(`{"type":"object","properties":{"x":{"$ref":"#/$defs/a"},"y":{"type":"integer"}},"required":["y"]},`, 6) + `{"$ref":"#/$defs/a"}]}}}`
	for name, c := range map[string]struct{ schema, from string }{
		"deep":      {list, `{"x":"` + strings.Repeat("[", 500_000) + strings.Repeat("]", 500_000) + `"}`},
		"in itself": {list, `{"x":` + texts(12) + `}`},
		"digits":    {`{"type":"object","properties":{"x":{"type":"integer"}}}`, `{"x":"` + strings.Repeat("9", 10_000) + `"}`},
		"bomb":      {bomb, `{"x":` + strings.Repeat(`{"x":`, 60) + `"5"` + strings.Repeat(`}`, 60) + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, changed, err := render.Arguments(one(c.schema), json.RawMessage(c.from))
			if err != nil || name != "in itself" && (string(got) != c.from || len(changed) > 0) {
				t.Errorf("%.80s became %.80s: %q, %v", c.from, got, changed, err)
			}
		})
	}
	wide := `{"x":[` + strings.Repeat(`"1",`, 100_000) + `"1"]}`
	got, changed, err := render.Arguments(one(`{"type":"object","properties":{"x":{"type":"array","items":{"type":"integer"}}}}`), json.RawMessage(wide))
	if err != nil || string(got) != strings.ReplaceAll(wide, `"1"`, "1") || len(changed) != 20 {
		t.Errorf("a long list became %.80s: %d, %v", got, len(changed), err)
	}
}

// texts is a list in a text in a list in a text, and so on.
func texts(levels int) string {
	out := "[[1]]"
	for range levels {
		text, _ := json.Marshal("[" + out + "]") //nolint:errchkjson // text always is
		out = string(text)
	}
	return out
}
