package render_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

// The rules of the providers follow, from their documentation and from refusals that users report.
// The checker reads only the JSON and shares nothing with the code that wrote it.

var providerName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// breaches returns the parts of a declaration that a provider would refuse.
func breaches(format render.Format, data json.RawMessage) []string {
	c := &checker{}
	var v any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return []string{err.Error()}
	}
	declaration, ok := v.(map[string]any)
	if !ok {
		return []string{"no object"}
	}
	switch format {
	case render.OpenAI:
		c.only("", declaration, "type", "function")
		function, _ := declaration["function"].(map[string]any)
		c.only("function", function, "name", "description", "parameters", "strict")
		c.is(declaration["type"] == "function", "type is %v", declaration["type"])
		c.openAI(function)
	case render.OpenAIResponses:
		c.only("", declaration, "type", "name", "description", "parameters", "strict")
		c.is(declaration["type"] == "function", "type is %v", declaration["type"])
		c.openAI(declaration)
	case render.Anthropic:
		c.only("", declaration, "name", "description", "input_schema")
		c.name(declaration["name"])
		c.anthropic(declaration["input_schema"])
	case render.Gemini:
		c.only("", declaration, "name", "description", "parametersJsonSchema")
		c.name(declaration["name"])
		name, _ := declaration["name"].(string)
		c.is(name != "" && name[0] != '-' && (name[0] < '0' || name[0] > '9'), "the name %q begins with neither a letter nor _", name)
		text, _ := declaration["description"].(string)
		c.is(text != "", "no description")
		c.gemini(declaration["parametersJsonSchema"])
	case render.MCP:
		c.only("", declaration, "name", "title", "description", "inputSchema", "outputSchema", "annotations")
		c.name(declaration["name"])
		c.mcp("inputSchema", declaration["inputSchema"])
		if output, ok := declaration["outputSchema"]; ok {
			c.mcp("outputSchema", output)
		}
		if hints, ok := declaration["annotations"].(map[string]any); ok {
			c.only("annotations", hints, "title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
		}
	}
	return c.found
}

type checker struct{ found []string }

func (c *checker) is(ok bool, format string, args ...any) {
	if !ok {
		c.found = append(c.found, fmt.Sprintf(format, args...))
	}
}

func (c *checker) only(at string, o map[string]any, allowed ...string) {
	c.is(o != nil, "%s is no object", at)
	for key := range o {
		c.is(slices.Contains(allowed, key), "%s has %q", at, key)
	}
}

func (c *checker) name(v any) {
	name, _ := v.(string)
	c.is(providerName.MatchString(name), "the name is %q", name)
}

// compiles checks a schema against JSON Schema 2020-12, references included.
func (c *checker) compiles(at string, v any) {
	data, err := json.Marshal(v)
	if err == nil {
		_, err = tool.Compile(data)
	}
	c.is(err == nil, "%s: %v", at, err)
}

func typesOf(o map[string]any) []string {
	switch t := o["type"].(type) {
	case string:
		return []string{t}
	case []any:
		var list []string
		for _, one := range t {
			list = append(list, fmt.Sprint(one))
		}
		return list
	}
	return nil
}

// subschemas calls visit for a schema and all below it.
func subschemas(at string, v any, visit func(at string, o map[string]any)) {
	o, ok := v.(map[string]any)
	if !ok {
		return
	}
	visit(at, o)
	for _, key := range []string{"items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"} {
		subschemas(at+"/"+key, o[key], visit)
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf", "prefixItems", "items"} {
		if list, ok := o[key].([]any); ok {
			for i, one := range list {
				subschemas(fmt.Sprintf("%s/%s/%d", at, key, i), one, visit)
			}
		}
	}
	for _, key := range []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"} {
		if members, ok := o[key].(map[string]any); ok {
			for name, one := range members {
				subschemas(at+"/"+key+"/"+name, one, visit)
			}
		}
	}
}

func (c *checker) openAI(function map[string]any) {
	c.name(function["name"])
	text, _ := function["description"].(string)
	c.is(utf8.RuneCountInString(text) <= 1024, "a description of %d characters", utf8.RuneCountInString(text))
	strict, ok := function["strict"].(bool)
	c.is(ok, "strict is %v", function["strict"]) // responses takes a missing one for true
	parameters, ok := function["parameters"].(map[string]any)
	c.is(ok && parameters["type"] == "object", "parameters must be of type object")
	for _, key := range []string{"oneOf", "anyOf", "allOf", "enum", "not", "const", "$ref"} {
		_, has := parameters[key]
		c.is(!has, "%s at the top", key)
	}
	_, has := parameters["properties"].(map[string]any)
	c.is(has, "object schema missing properties")
	c.compiles("parameters", parameters)
	subschemas("parameters", parameters, func(at string, o map[string]any) {
		if slices.Contains(typesOf(o), "array") {
			_, has := o["items"]
			c.is(has, "%s: array schema missing items", at)
		}
		if slices.Contains(typesOf(o), "object") {
			_, has := o["properties"]
			c.is(has, "%s: object schema missing properties", at)
		}
		for key := range o {
			c.is(jsonSchemaWords[key], "%s: %q is no word of JSON Schema", at, key)
		}
	})
	if strict {
		c.strict("parameters", parameters, 0)
		c.strictLimits(parameters)
	}
}

var jsonSchemaWords = set("$ref $defs type enum const title description default examples deprecated readOnly writeOnly format pattern " +
	"minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum multipleOf items prefixItems contains minContains maxContains " +
	"minItems maxItems uniqueItems properties patternProperties additionalProperties propertyNames required minProperties maxProperties " +
	"dependentRequired dependentSchemas unevaluatedItems unevaluatedProperties allOf anyOf oneOf not if then else contentEncoding " +
	"contentMediaType contentSchema")

func set(text string) map[string]bool {
	m := map[string]bool{}
	for word := range strings.FieldsSeq(text) {
		m[word] = true
	}
	return m
}

var strictWords = map[string]map[string]bool{
	"object":  set("type description properties required additionalProperties $defs"),
	"array":   set("type description items minItems maxItems"),
	"string":  set("type description enum pattern format"),
	"number":  set("type description enum multipleOf minimum maximum exclusiveMinimum exclusiveMaximum"),
	"integer": set("type description enum multipleOf minimum maximum exclusiveMinimum exclusiveMaximum"),
	"boolean": set("type description enum"),
	"null":    set("type description"),
}

// strict checks OpenAI's subset for structured outputs.
func (c *checker) strict(at string, v any, depth int) {
	o, ok := v.(map[string]any)
	c.is(ok, "%s is no object", at)
	if !ok {
		return
	}
	c.is(depth <= 10, "%s: deeper than 10 levels", at)
	if defs, ok := o["$defs"].(map[string]any); ok {
		c.is(at == "parameters", "%s has $defs", at)
		for name, def := range defs {
			c.strict(at+"/$defs/"+name, def, 1)
		}
	}
	if _, has := o["$ref"]; has {
		c.is(len(o) == 1, "%s: $ref with siblings: %v", at, o)
		return
	}
	if list, has := o["anyOf"].([]any); has {
		c.only(at, o, "anyOf", "description")
		c.is(len(list) > 0, "%s: empty anyOf", at)
		for i, one := range list {
			c.strict(fmt.Sprintf("%s/anyOf/%d", at, i), one, depth)
		}
		return
	}
	types := typesOf(o)
	if len(types) == 2 && slices.Contains(types, "null") {
		types = slices.DeleteFunc(types, func(t string) bool { return t == "null" })
	}
	c.is(len(types) == 1, "%s: type is %v", at, o["type"])
	if len(types) != 1 {
		return
	}
	for key := range o {
		c.is(strictWords[types[0]][key], "%s: %q is not permitted", at, key)
	}
	if list, has := o["enum"].([]any); has {
		c.is(len(list) > 0, "%s: empty enum", at)
		if slices.Contains(typesOf(o), "null") {
			c.is(slices.Contains(list, any(nil)), "%s: nullable, and null is no value of its enum", at)
		}
		for _, one := range list {
			switch one.(type) {
			case map[string]any, []any:
				c.is(false, "%s: enum has %v", at, one)
			}
		}
	}
	if format, has := o["format"]; has {
		c.is(set("date-time time date duration email hostname ipv4 ipv6 uuid")[fmt.Sprint(format)], "%s: %v is not a valid format", at, format)
	}
	switch types[0] {
	case "object":
		c.is(o["additionalProperties"] == false, "%s: additionalProperties must be false", at)
		properties, ok := o["properties"].(map[string]any)
		c.is(ok, "%s: no properties", at)
		required, ok := o["required"].([]any)
		c.is(ok && len(required) == len(properties), "%s: required has %d of %d properties", at, len(required), len(properties))
		for _, name := range required {
			_, has := properties[fmt.Sprint(name)]
			c.is(has, "%s: %v is required and no property", at, name)
		}
		for name, one := range properties {
			c.strict(at+"/"+name, one, depth+1)
		}
	case "array":
		c.strict(at+"/items", o["items"], depth+1)
	}
}

func (c *checker) strictLimits(parameters map[string]any) {
	properties, enums, text := 0, 0, 0
	subschemas("", parameters, func(at string, o map[string]any) {
		for _, key := range []string{"properties", "$defs"} {
			members, _ := o[key].(map[string]any)
			for name := range members {
				text += len(name)
				if key == "properties" {
					properties++
				}
			}
		}
		values, _ := o["enum"].([]any)
		enums += len(values)
		length := 0
		for _, one := range values {
			length += len(fmt.Sprint(one))
		}
		text += length
		c.is(len(values) <= 250 || length <= 15000, "%s: a long enum of %d characters", at, length)
	})
	c.is(properties <= 5000, "%d properties", properties)
	c.is(enums <= 1000, "%d values of enums", enums)
	c.is(text <= 120000, "%d characters of names and values", text)
}

var anthropicKey = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

func (c *checker) anthropic(v any) {
	o, ok := v.(map[string]any)
	c.is(ok && o["type"] == "object", "input_schema must be of type object")
	for _, key := range []string{"oneOf", "allOf", "anyOf", "$ref", "$schema"} {
		_, has := o[key]
		c.is(!has, "input_schema has %s at the top level", key)
	}
	properties, _ := o["properties"].(map[string]any)
	for name := range properties {
		c.is(anthropicKey.MatchString(name), "the property key %q", name)
	}
	for _, name := range anyList(o["required"]) {
		c.is(anthropicKey.MatchString(fmt.Sprint(name)), "the required key %q", name)
	}
	c.compiles("input_schema", o)
	subschemas("input_schema", o, func(at string, o map[string]any) {
		_, tuple := o["items"].([]any)
		c.is(!tuple, "%s: items is an array, as before 2020-12", at)
		for _, key := range []string{"definitions", "dependencies", "additionalItems", "id"} {
			_, has := o[key]
			c.is(!has, "%s: %s is not of 2020-12", at, key)
		}
	})
}

func anyList(v any) []any { list, _ := v.([]any); return list }

// geminiWords are those that Gemini's documentation names of JSON Schema.
var geminiWords = set("$ref $defs type format title description enum items prefixItems minItems maxItems minimum maximum anyOf oneOf " +
	"properties additionalProperties required")

func (c *checker) gemini(v any) {
	root, ok := v.(map[string]any)
	c.is(ok && root["type"] == "object", "the schema must describe an object: %v", root["type"])
	c.compiles("parametersJsonSchema", root)
	leads := map[string][]string{} // definition -> those that it refers to
	subschemas("", root, func(at string, o map[string]any) {
		for key := range o {
			c.is(geminiWords[key], "%s: %q is not documented", at, key)
		}
		if ref, ok := o["$ref"].(string); ok {
			c.is(len(o) == 1, "%s: $ref was set alongside %v", at, o)
			from := ""
			if rest, ok := strings.CutPrefix(at, "/$defs/"); ok {
				from, _, _ = strings.Cut(rest, "/")
			}
			leads[from] = append(leads[from], strings.TrimPrefix(ref, "#/$defs/"))
		}
	})
	var walk func(name string, above []string)
	seen := map[string]bool{}
	walk = func(name string, above []string) {
		c.is(!slices.Contains(above, name), "a circle: %v %s", above, name)
		if slices.Contains(above, name) || seen[name] {
			return
		}
		for _, next := range leads[name] {
			walk(next, append(slices.Clone(above), name))
		}
		seen[name] = true
	}
	walk("", nil)
	properties, _ := root["properties"].(map[string]any)
	for name := range properties {
		c.is(anthropicKey.MatchString(name) && (name[0] < '-' || name[0] > '9'), "the property %q", name)
	}
}

func (c *checker) mcp(at string, v any) {
	o, ok := v.(map[string]any)
	c.is(ok && o["type"] == "object", "%s must be of type object", at)
	c.compiles(at, o)
}

// The checker refuses bad declarations, so that its approval counts.
func TestTheRulesRefuse(t *testing.T) {
	t.Parallel()
	strict := func(schema string) string {
		return `{"type":"function","function":{"name":"x","description":"d","strict":true,"parameters":` + schema + `}}`
	}
	loose := func(schema string) string {
		return strings.Replace(strict(schema), `"strict":true`, `"strict":false`, 1)
	}
	gemini := func(schema string) string {
		return `{"name":"x","description":"d","parametersJsonSchema":{"type":"object","properties":{"a":` + schema + `},"$defs":{"A":{"items":{"$ref":"#/$defs/B"}},"B":{"$ref":"#/$defs/A"}}}}`
	}
	for _, bad := range []struct {
		format render.Format
		json   string
	}{
		{render.OpenAI, strict(`{"type":"object","properties":{"a":{"type":"string"}},"required":[],"additionalProperties":false}`)},
		{render.OpenAI, strict(`{"type":"object","properties":{},"required":[]}`)},
		{render.OpenAI, strict(`{"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false}`)},
		{render.OpenAI, strict(`{"type":"object","properties":{"a":{"type":"string","minLength":1}},"required":["a"],"additionalProperties":false}`)},
		{render.OpenAI, strict(`{"type":"object","properties":{"a":{"type":"string","format":"uri"}},"required":["a"],"additionalProperties":false}`)},
		{render.OpenAI, strict(`{"type":"object","properties":{"a":{"oneOf":[{"type":"string"}]}},"required":["a"],"additionalProperties":false}`)},
		{render.OpenAI, strict(`{"type":"object","properties":{"a":{"$ref":"#","description":"x"}},"required":["a"],"additionalProperties":false}`)},
		{render.OpenAI, loose(`{"type":"object","properties":{"a":{"type":"array"}}}`)},
		{render.OpenAI, loose(`{"type":"object"}`)},
		{render.OpenAI, loose(`{"type":"object","properties":{"a":{"type":"object"}}}`)},
		{render.OpenAI, loose(`{"type":"object","properties":{},"anyOf":[{}]}`)},
		{render.OpenAI, loose(`{"type":"object","properties":{"a":{"$ref":"#/$defs/A"}}}`)},
		{render.OpenAIResponses, `{"type":"function","name":"x","parameters":{"type":"object","properties":{}}}`},
		{render.Anthropic, `{"name":"a.b","description":"d","input_schema":{"type":"object"}}`},
		{render.Anthropic, `{"name":"x","description":"d","input_schema":{"type":"object","oneOf":[{}]}}`},
		{render.Anthropic, `{"name":"x","description":"d","input_schema":{"type":"object","properties":{"$top":{}}}}`},
		{render.Anthropic, `{"name":"x","description":"d","input_schema":{"type":"object","properties":{"a":{"type":"array","items":[{}]}}}}`},
		{render.Gemini, gemini(`{"const":1}`)},
		{render.Gemini, gemini(`{"type":"string","pattern":"a"}`)},
		{render.Gemini, gemini(`{"$ref":"#/$defs/C"}`)},
		{render.Gemini, gemini(`{"$ref":"#/$defs/A"}`)}, // a circle
		{render.Gemini, `{"name":"x","description":"d","parameters":{"type":"object"}}`},
		{render.Gemini, `{"name":"1x","description":"d"}`},
		{render.Gemini, `{"name":"x"}`},
		{render.MCP, `{"name":"x","inputSchema":{"anyOf":[{"type":"object"}]}}`},
		{render.MCP, `{"name":"x","inputSchema":{"type":"object"},"outputSchema":{"type":"string"}}`},
	} {
		if len(breaches(bad.format, json.RawMessage(bad.json))) == 0 {
			t.Errorf("%s: nothing is found in %s", bad.format, bad.json)
		}
	}
}
