package main

import (
	"bytes"
	"cmp"
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

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolmesh/toolmesh/tool"
)

// given is the arguments of a call as the person typed them.
type given struct {
	object json.RawMessage // from JSON, - or @file; nil for none
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
		// JSON is UTF-8: other bytes would be replaced.
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
			return g, usage(nil, "%q is not an argument: write name=value, name:=json, one JSON object first, @file or -", arg)
		}
		p := pair{name: m[1], text: arg[len(m[0]):], raw: m[2] == ":="}
		if seen[p.name] {
			return g, usage(nil, "the argument %q is given twice", p.name)
		}
		seen[p.name] = true
		if p.raw && !json.Valid([]byte(p.text)) {
			return g, usage(nil, "%s:=%s: that is not JSON%s", p.name, p.text, quoteHint(p))
		}
		g.pairs = append(g.pairs, p)
	}
	return g, nil
}

// quoteHint is the advice for text in the place of JSON.
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
	data = bytes.TrimSpace(bytes.TrimPrefix(data, byteOrderMark))
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
		value, err := typed(known, p.name, p.text, func() bool { return fits(schema, p) })
		if err != nil {
			return nil, err
		}
		object[p.name] = value
	}
	return json.RawMessage(compact(object)), nil
}

// typed converts the text of one parameter by the schema. It keeps the text for a parameter that is
// unknown to the schema or of any type. fits reports whether the tool takes the text as JSON.
func typed(s *jsonschema.Schema, name, text string, fits func() bool) (json.RawMessage, error) {
	types, ok := typesOf(s, name)
	if !ok {
		return encodeText(text), nil
	}
	for _, kind := range kinds {
		value, ok := asType(kind[0], text)
		// Where the tool also takes text, 05 is text, and so is [1] for a list of texts.
		if ok && types[kind[0]] && (!types["string"] || fits()) {
			return value, nil
		}
	}
	if types["string"] {
		return encodeText(text), nil
	}
	if types["integer"] && !types["number"] {
		if value, ok := tool.WholeNumber(text); ok {
			return value, nil
		}
	}
	if types["null"] && text == "null" {
		return json.RawMessage(text), nil
	}
	return nil, usage(nil, "%s=%s: the tool takes %s there%s", name, text, article(types), jsonHint(s, name, types))
}

func encodeText(text string) json.RawMessage { return json.RawMessage(compact(text)) }

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

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

// kinds are the types that a text may be read as, in order of preference, and their names.
var kinds = [][2]string{
	{"boolean", "true or false"}, {"integer", "a whole number"}, {"number", "a number"},
	{"array", "a list"}, {"object", "an object"}, {"null", "null"},
}

func article(types map[string]bool) string {
	var parts []string
	for _, kind := range kinds {
		if types[kind[0]] && (kind[0] != "integer" || !types["number"]) {
			parts = append(parts, kind[1])
		}
	}
	return strings.Join(parts, " or ")
}

// fits reports whether the text of a parameter is JSON that the schema accepts.
func fits(schema json.RawMessage, p pair) bool {
	var alone map[string]json.RawMessage
	if json.Unmarshal(schema, &alone) != nil || !json.Valid([]byte(p.text)) {
		return false
	}
	delete(alone, "required")
	v, err := tool.Compile(json.RawMessage(compact(alone)))
	return err == nil && v.Validate(json.RawMessage(compact(map[string]json.RawMessage{p.name: json.RawMessage(p.text)}))) == nil
}

func jsonHint(s *jsonschema.Schema, name string, types map[string]bool) string {
	switch {
	case types["array"]:
		_, of, _ := strings.Cut(kindOf(partOf(s, name), 0), "array of ")
		of, _, _ = strings.Cut(of, "|")
		examples := map[string]string{"integer": "1", "number": "1.5", "boolean": "true", "object": `{"…":…}`}
		return "; write " + name + ":='[" + cmp.Or(examples[of], `"…"`) + "]'"
	case types["object"]:
		return "; write " + name + `:='{"…":…}'`
	}
	return ""
}
