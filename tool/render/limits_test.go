package render_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/tool/render"
)

// A short schema may stand for an endless one. Its rendering is bounded in size and time; without
// bounds these would fill the memory.
func TestSchemasThatGrowAreBounded(t *testing.T) {
	t.Parallel()
	chain := func(word string) string {
		var b strings.Builder
		b.WriteString(`{"type":"object","properties":{"x":{"$ref":"#/$defs/d0"}},"$defs":{`)
		for i := range 40 {
			next := fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i+1)
			switch word {
			case "properties":
				fmt.Fprintf(&b, `"d%d":{"type":"object","properties":{"a":%s,"b":%s}},`, i, next, next)
			case "items":
				fmt.Fprintf(&b, `"d%d":{"type":"array","prefixItems":[%s,%s,{"type":"null"}],"maxItems":3},`, i, next, next)
			default:
				fmt.Fprintf(&b, `"d%d":{%q:[%s,%s]},`, i, word, next, next)
			}
		}
		b.WriteString(`"d40":{"type":"string"}}}`)
		return b.String()
	}
	wide := func() string {
		var b strings.Builder
		b.WriteString(`{"type":"object","additionalProperties":false,"properties":{"p":{}`)
		for i := range 5500 {
			fmt.Fprintf(&b, `,"p%d":{"type":"string"}`, i)
		}
		b.WriteString(`}}`)
		return b.String()
	}
	for name, schema := range map[string]string{
		"properties": chain("properties"), "anyOf": chain("anyOf"), "allOf": chain("allOf"), "oneOf": chain("oneOf"), "items": chain("items"),
		"wide":      wide(),
		"deep":      `{"type":"object","properties":{"x":` + strings.Repeat(`{"type":"array","items":`, 120) + `{}` + strings.Repeat(`}`, 120) + `}}`,
		"circle":    `{"type":"object","properties":{"x":{"$ref":"#/$defs/a"}},"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`,
		"itself":    `{"type":"object","properties":{"x":{"allOf":[{"$ref":"#"},{"properties":{"x":{"minLength":1}}}]}}}`,
		"any":       `{"type":"object","properties":{"x":{"anyOf":[{"$ref":"#/properties/x"},{"type":"string"}]}}}`,
		"conflict":  `{"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{"x":{"allOf":[{"$ref":"#/$defs/a"},{"properties":{"x":{"$ref":"#/$defs/a"}}}]}}}}}`,
		"all":       `{"allOf":[{"$ref":"#"},{"type":"object"}]}`,
		"enum":      `{"type":"object","properties":{"x":{"enum":[` + strings.Repeat(`"0123456789",`, 500) + `""]}}}`,
		"root":      `{"anyOf":[{"$ref":"#"},{"type":"object","properties":{"a":{"$ref":"#"}}}]}`,
		"escapes":   `{"type":"object","properties":{"a\\\"b\u0000</script>":{"description":"\u2028<&>\ud800","type":"string"}}}`,
		"booleans":  `{"type":"object","properties":{"a":true,"b":false,"c":{"items":true,"type":"array"},"d":{"items":false,"type":"array"}},"required":["b"]}`,
		"true":      `true`,
		"false":     `false`,
		"text only": `{"type":"string"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := one(schema)
			d.OutputSchema = d.InputSchema
			for _, format := range render.Formats() {
				r := rendered(t, format, d)
				if limit := 2*len(schema) + 1_000_000; len(r.JSON) > limit {
					t.Errorf("%s: %d bytes of JSON are shown of %d", format, len(r.JSON), len(schema))
				}
			}
		})
	}
}

// Dialects before 2020-12 say the same in other words; seldom used ones are left out, with a note.
func TestOlderDialectsAreWrittenInToday(t *testing.T) {
	t.Parallel()
	old := one(`{"$schema":"http://json-schema.org/draft-04/schema#","id":"http://example.com/x","type":"object",
		"definitions":{"p":{"type":"integer","minimum":0,"exclusiveMinimum":true}},
		"properties":{"pair":{"type":"array","items":[{"$ref":"#/definitions/p","description":"ignored","type":"string"},{"type":"string"}],"additionalItems":false}},
		"dependencies":{"pair":["other"]}}`)
	r := rendered(t, render.Anthropic, old)
	const want = `{"name":"index-module-x","description":"Does one thing.","input_schema":{"type":"object","properties":{"pair":{"type":"array",` +
		`"prefixItems":[{"$ref":"#/$defs/p","description":"ignored"},{"type":"string"}],"items":false}},` +
		`"$defs":{"p":{"type":"integer","minimum":0}}}}`
	if string(r.JSON) != want {
		t.Errorf("got  %s\nwant %s", r.JSON, want)
	}
	for _, word := range []string{"dependencies", "exclusiveMinimum"} {
		if !slices.ContainsFunc(r.Notes, func(note string) bool { return strings.Contains(note, word+" is left out") }) {
			t.Errorf("no note on %s: %q", word, r.Notes)
		}
	}
	for _, format := range render.Formats() {
		rendered(t, format, old)
	}
}

// A bound of draft-04 that is not exclusive says nothing: the tool stays strict.
func TestFalseBoundOfDraft04(t *testing.T) {
	t.Parallel()
	r := rendered(t, render.OpenAI, one(`{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","required":["a"],
		"properties":{"a":{"type":"integer","minimum":0,"exclusiveMinimum":false}},"additionalProperties":false}`))
	if !r.Strict || len(r.Notes) > 0 {
		t.Errorf("strict %v, notes %q", r.Strict, r.Notes)
	}
}

func TestOmittedSchemaPartsAreNoted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		format       render.Format
		schema, note string
	}{
		{render.Anthropic, `{"type":"object","anyOf":[{"properties":{"a":{}},"required":["a"]},{"properties":{"b":{}}}]}`, "anyOf of the whole arguments"},
		{render.Anthropic, `{"type":"object","properties":{"$top":{"type":"integer"}}}`, `"$top" is called "_top_`},
		{render.OpenAI, `{"type":"object","properties":{"a":{}},"not":{"required":["a"]}}`, "not of the whole arguments"},
		{render.OpenAI, `{"type":"object","properties":{"a":{"type":"string"}}}`, "further members"},
		{render.OpenAI, `{"type":"object","properties":{"a":{"oneOf":[{"type":"string"},{"type":"integer"}]}},"additionalProperties":false}`, "oneOf is written as anyOf"},
		{render.OpenAI, `{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`, "null stands for one that is left out"},
		{render.Gemini, `{"type":"object","properties":{"a":{"type":"string","not":{"const":"x"}}}}`, "Gemini documents no not"},
		{render.Gemini, `{"type":"object","properties":{"a":{"type":"number","exclusiveMinimum":1.5}}}`, "Gemini documents no exclusiveMinimum"},
		{render.Gemini, `{"type":"object","properties":{"a":{"$ref":"#/$defs/T"}},"$defs":{"T":{"type":"array","items":{"$ref":"#/$defs/T"}}}}`, "T is recursive"},
		{render.MCP, `{"type":"string"}`, "no call can fit it"},
	} {
		r := rendered(t, c.format, one(c.schema))
		if !strings.Contains(strings.Join(r.Notes, "\n"), c.note) {
			t.Errorf("%s of %s: the notes are %q, want %q", c.format, c.schema, r.Notes, c.note)
		}
	}
	// A complete rendering needs no note.
	for _, format := range render.Formats() {
		r := rendered(t, format, one(`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`))
		if len(r.Notes) > 0 {
			t.Errorf("%s: %q", format, r.Notes)
		}
	}
}

// A root with anyOf and oneOf shows the members of both.
func TestRootHasTwoKindsOfAlternatives(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"object","anyOf":[{"properties":{"a":{"type":"string"}},"required":["a"]}],"oneOf":[{"properties":{"b":{"type":"string"}}},{"properties":{"b":{"type":"integer"}}}]}`
	const want = `{"type":"object","properties":{"a":{"type":"string"},"b":{"anyOf":[{"type":"string"},{"type":"integer"}]}},"required":["a"]}`
	if r := rendered(t, render.Anthropic, one(schema)); !strings.Contains(string(r.JSON), `"input_schema":`+want) || len(r.Notes) != 2 {
		t.Errorf("%s, notes %q", r.JSON, r.Notes)
	}
}

// Just within OpenAI's limits a tool is strict, just beyond it is not.
func TestStrictEndsAtItsLimits(t *testing.T) {
	t.Parallel()
	closed := func(properties string) string {
		return `{"type":"object","additionalProperties":false,"properties":{` + properties + `},"required":["a"]}`
	}
	nested := func(levels int) string {
		schema := `{"type":"string"}`
		for range levels {
			schema = closed(`"a":` + schema)
		}
		return schema
	}
	enum := func(values, length int) string {
		list := make([]string, values)
		for i := range list {
			list[i] = fmt.Sprintf("%q", fmt.Sprintf("%0*d", length, i))
		}
		return closed(`"a":{"enum":[` + strings.Join(list, ",") + `]}`)
	}
	properties := func(n int) string {
		list := []string{`"a":{"type":"string"}`}
		for i := range n - 1 {
			list = append(list, fmt.Sprintf(`"p%d":{"type":"string"}`, i))
		}
		return closed(strings.Join(list, ","))
	}
	apart := func(first, second string) string {
		return closed(`"a":{"anyOf":[` +
			`{"type":"object","additionalProperties":false,"properties":{"kind":` + first + `,"x":{"type":"string"}},"required":["kind"]},` +
			`{"type":"object","additionalProperties":false,"properties":{"kind":` + second + `,"y":{"type":"string"}},"required":["kind"]}]}`)
	}
	for name, c := range map[string]struct {
		schema string
		reason string // empty: strict
	}{
		"10 levels":                 {nested(10), ""},
		"11 levels":                 {nested(11), "deeper than 10"},
		"1000 values":               {enum(1000, 5), ""},
		"1001 values":               {enum(1001, 5), "more than 1000 values"},
		"a long enum":               {enum(251, 60), "more than 250 values"},
		"an enum long enough":       {enum(250, 61), ""},
		"much text":                 {properties(4000), ""},
		"names of 120,001":          {closed(`"a":{"type":"string"},"` + strings.Repeat("n", 120_000) + `":{"type":"string"}`), "more than 120000 characters"},
		"names of 120,000":          {closed(`"a":{"type":"string"},"` + strings.Repeat("n", 119_999) + `":{"type":"string"}`), ""},
		"too many properties":       {properties(5001), "too large"},
		"alternatives by value":     {apart(`{"const":"x"}`, `{"const":"y"}`), ""},
		"alternatives alike":        {apart(`{"type":"string"}`, `{"type":"string"}`), `both begin with "kind"`},
		"alternatives that overlap": {apart(`{"enum":["x","y"]}`, `{"enum":["y","z"]}`), `both begin with "kind"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rendered(t, render.OpenAI, one(c.schema))
			notes := strings.Join(r.Notes, "\n")
			if r.Strict != (c.reason == "") || !strings.Contains(notes, c.reason) {
				t.Errorf("strict is %t, want the reason %q of %.300s", r.Strict, c.reason, notes)
			}
		})
	}
}

// Long lists cost no more than their size: an index's author chooses them, and routers and gateways render
// them. An enum of 40,000 values took 50 s.
func TestLongListsAreRenderedOnce(t *testing.T) {
	t.Parallel()
	texts := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`"v%d"`, i))
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	many, parts := texts(20_000), strings.Repeat(`{"required":["a","b","c"]},`, 1000)
	for _, schema := range []string{
		`{"type":"object","properties":{"a":{"enum":` + many + `}},"required":["a"],"additionalProperties":false}`,
		`{"type":"object","properties":{"a":{"type":"string","anyOf":[{"enum":` + many + `},{"type":"null"}]}},"required":["a"],"additionalProperties":false}`,
		`{"type":"object","properties":{"a":{"type":"string"}},"required":` + many + `,"additionalProperties":false}`,
		`{"type":"object","anyOf":[{"required":` + many + `},{"required":` + many + `}]}`,
		`{"type":"object","required":` + many + `,"allOf":[` + parts + `{"required":` + many + `}]}`,
	} {
		for _, format := range []render.Format{render.OpenAI, render.Gemini} {
			rendered(t, format, one(schema))
		}
	}
}
