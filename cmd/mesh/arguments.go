package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh/tool"
)

// given is the arguments of a call as they were typed.
type given struct {
	object json.RawMessage // of JSON, - or @file; nil if there was none
	pairs  []pair
}

// pair is one k=v or k:=json.
type pair struct {
	name, text string
	raw        bool // text is JSON
}

// typed reports whether a value has to be typed by the tool's schema.
func (g given) typed() bool {
	return slices.ContainsFunc(g.pairs, func(p pair) bool { return !p.raw })
}

var pairForm = regexp.MustCompile(`^([^=]*?)(:?=)`)

// parseArguments reads [JSON|-|@file] [k=v|k:=json]…; all errors are wrong usage.
func parseArguments(args []string, stdin io.Reader) (given, error) {
	var g given
	seen := make(map[string]bool)
	for i, arg := range args {
		// JSON is UTF-8: what is not would arrive as something else.
		if !utf8.ValidString(arg) {
			return g, usage(nil, "the argument %q is not UTF-8", arg)
		}
		trimmed := strings.TrimSpace(arg)
		if i == 0 && (arg == "-" || strings.HasPrefix(arg, "@") || strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "[")) {
			object, err := readObject(arg, stdin)
			if err != nil {
				return g, err
			}
			g.object = object
			continue
		}
		m := pairForm.FindStringSubmatch(arg)
		if m == nil || m[1] == "" {
			return g, usage(nil, "%q is no argument: write name=value, name:=json, one JSON object first, @file or -", arg)
		}
		p := pair{name: m[1], text: arg[len(m[0]):], raw: m[2] == ":="}
		if seen[p.name] {
			return g, usage(nil, "the argument %q is given twice", p.name)
		}
		seen[p.name] = true
		if p.raw && !json.Valid([]byte(p.text)) {
			return g, usage(nil, "%s:=%s: that is no JSON%s", p.name, p.text, quoteHint(p))
		}
		g.pairs = append(g.pairs, p)
	}
	return g, nil
}

// quoteHint is the advice where text was written and JSON was wanted.
func quoteHint(p pair) string {
	if strings.ContainsAny(p.text, `"{}[]`) {
		return ""
	}
	return "; for text write " + p.name + "=" + p.text
}

func readObject(arg string, stdin io.Reader) (json.RawMessage, error) {
	what, data := "the arguments", []byte(arg)
	var err error
	switch {
	case arg == "-":
		what = "stdin"
		data, err = io.ReadAll(stdin)
	case strings.HasPrefix(arg, "@"):
		what = arg[1:]
		data, err = os.ReadFile(arg[1:])
	}
	if err != nil {
		return nil, usage(nil, "the arguments cannot be read: %s", err.Error())
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return nil, usage(nil, "%s: empty; no arguments are {}", what)
	}
	if !utf8.Valid(data) {
		return nil, usage(nil, "%s: not UTF-8", what)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, usage(nil, "%s: no JSON at byte %d: %s", what, syntax.Offset, syntax.Error())
		}
		return nil, usage(nil, "%s: the arguments are one JSON object, by parameter name", what)
	}
	return data, nil
}

// merge makes the arguments object; values of k=v are typed by the schema.
func (g given) merge(schema json.RawMessage) (json.RawMessage, error) {
	if len(g.pairs) == 0 {
		return g.object, nil
	}
	known := newSchema(schema)
	object := make(map[string]json.RawMessage)
	if g.object != nil {
		if err := json.Unmarshal(g.object, &object); err != nil {
			return nil, usage(nil, "the arguments are one JSON object, by parameter name")
		}
	}
	for _, p := range g.pairs {
		if p.raw {
			object[p.name] = json.RawMessage(p.text)
			continue
		}
		value, err := known.value(p.name, p.text)
		if err != nil {
			return nil, err
		}
		object[p.name] = value
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(object); err != nil {
		return nil, usage(nil, "the arguments cannot be written as JSON: %s", err.Error())
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

// schema is what the command needs to know of a tool's input schema: the types
// that a parameter takes. Everything else is the node's to check.
type schema struct{ root map[string]any }

func newSchema(raw json.RawMessage) schema {
	var s schema
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if dec.Decode(&s.root) != nil {
		s.root = nil
	}
	return s
}

// value types the text of one parameter. A parameter that the schema does not
// know, or of any type, takes it as text.
func (s schema) value(name, text string) (json.RawMessage, error) {
	types := s.typesOf(name)
	if len(types) == 0 {
		return encodeText(text), nil
	}
	for _, kind := range []string{"boolean", "integer", "number", "array", "object"} {
		if !types[kind] {
			continue
		}
		if value, ok := asType(kind, text); ok {
			return value, nil
		}
	}
	switch {
	case types["string"]:
		return encodeText(text), nil
	case types["integer"] && !types["number"]:
		if value, ok := tool.WholeNumber(text); ok {
			return value, nil
		}
	}
	switch {
	case types["null"] && text == "null":
		return json.RawMessage("null"), nil
	}
	return nil, usage(nil, "%s=%s: the tool takes %s there%s", name, text, article(types), jsonHint(name, types))
}

func encodeText(text string) json.RawMessage {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string always encodes
	return bytes.TrimSpace(buf.Bytes())
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// asType reads text as a value of one JSON type.
func asType(kind, text string) (json.RawMessage, bool) {
	switch kind {
	case "boolean":
		return json.RawMessage(text), text == "true" || text == "false"
	case "integer":
		n, ok := new(big.Int).SetString(text, 10)
		if !ok {
			return nil, false
		}
		return json.RawMessage(n.String()), true
	case "number":
		if jsonNumber.MatchString(text) {
			return json.RawMessage(text), true
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) || strings.ContainsAny(text, "xXpP_") {
			return nil, false
		}
		return json.RawMessage(strconv.FormatFloat(f, 'g', -1, 64)), true
	case "array", "object":
		first := map[string]string{"array": "[", "object": "{"}[kind]
		return json.RawMessage(text), strings.HasPrefix(strings.TrimSpace(text), first) && json.Valid([]byte(text))
	}
	return nil, false
}

func article(types map[string]bool) string {
	words := map[string]string{
		"boolean": "true or false", "integer": "a whole number", "number": "a number",
		"array": "a list", "object": "an object", "null": "null",
	}
	var parts []string
	for _, kind := range []string{"boolean", "integer", "number", "array", "object", "null"} {
		if types[kind] {
			parts = append(parts, words[kind])
		}
	}
	return strings.Join(parts, " or ")
}

func jsonHint(name string, types map[string]bool) string {
	switch {
	case types["array"]:
		return "; write " + name + `:='["…"]'`
	case types["object"]:
		return "; write " + name + `:='{"…":…}'`
	}
	return ""
}

// typesOf returns the JSON types that a parameter takes; nil is any.
func (s schema) typesOf(name string) map[string]bool {
	properties, _ := s.root["properties"].(map[string]any)
	property, ok := properties[name]
	if !ok {
		property = s.root["additionalProperties"]
	}
	types := make(map[string]bool)
	if !s.collect(property, types, 0) {
		return nil
	}
	return types
}

// collect adds the types of a schema, and reports false if it takes anything.
func (s schema) collect(node any, types map[string]bool, depth int) bool {
	m, ok := node.(map[string]any)
	if !ok || depth > 20 {
		return false
	}
	if ref, ok := m["$ref"].(string); ok {
		return s.collect(s.follow(ref), types, depth+1)
	}
	switch t := m["type"].(type) {
	case string:
		types[t] = true
		return true
	case []any:
		for _, one := range t {
			if name, ok := one.(string); ok {
				types[name] = true
			}
		}
		return len(t) > 0
	}
	if list, ok := m["enum"].([]any); ok {
		for _, one := range list {
			types[typeOf(one)] = true
		}
		return len(list) > 0
	}
	if one, ok := m["const"]; ok {
		types[typeOf(one)] = true
		return true
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if list, ok := m[key].([]any); ok && len(list) > 0 {
			for _, one := range list {
				if !s.collect(one, types, depth+1) {
					return false
				}
			}
			return true
		}
	}
	if list, ok := m["allOf"].([]any); ok {
		for _, one := range list { // the first part that says a type
			if s.collect(one, types, depth+1) {
				return true
			}
		}
	}
	return false
}

func typeOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return "number"
		}
		return "integer"
	case []any:
		return "array"
	}
	return "object"
}

// follow finds a reference inside the schema; nil if it is not there.
func (s schema) follow(ref string) any {
	path, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil
	}
	var node any = s.root
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if part == "" {
			continue
		}
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		m, ok := node.(map[string]any)
		if !ok {
			return nil
		}
		node = m[part]
	}
	return node
}
