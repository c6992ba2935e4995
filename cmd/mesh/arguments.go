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
			return g, usage(nil, "%s:=%s: that is not JSON; for text write %s=%s", p.name, p.text, p.name, p.text)
		}
		g.pairs = append(g.pairs, p)
	}
	return g, nil
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
		value := json.RawMessage(p.text)
		if !p.raw {
			var err error
			if value, err = p.typed(known, schema); err != nil {
				return nil, err
			}
		}
		object[p.name] = value
	}
	return json.RawMessage(compact(object)), nil
}

// typed converts the text of a parameter by the schema. It keeps the text for a parameter that is
// unknown to the schema or of any type, and where the tool takes text and not that text as JSON: 05 is
// text there, and so is [1] for a list of texts.
func (p pair) typed(known *jsonschema.Schema, schema json.RawMessage) (json.RawMessage, error) {
	part := partOf(known, p.name)
	if part == nil || tool.MayBe(part, "") {
		return json.RawMessage(compact(p.text)), nil
	}
	value, kind := readJSON(p.text)
	if whole, ok := tool.WholeNumber(string(value)); ok && !tool.MayBe(part, "number") {
		value = whole // 3.0 and 1e3 are integers to a schema
	}
	takesText := tool.MayBe(part, "string")
	switch {
	case kind != "" && tool.MayBe(part, kind) && (!takesText || kind != "null" && string(value) == p.text && fits(schema, p)):
		return value, nil
	case takesText:
		return json.RawMessage(compact(p.text)), nil
	}
	wants, hint := kindOf(part), ""
	if example := written(p.name, wants); strings.Contains(example, ":=") {
		hint = "; write " + example
	}
	return nil, usage(nil, "%s=%s: the tool takes the type %s there%s", p.name, p.text, wants, hint)
}

// readJSON reads a text as JSON that is no text, and returns its type, "" for none. It takes numbers that people
// write and JSON does not have, too: 007 and .5.
func readJSON(text string) (value json.RawMessage, kind string) {
	value = json.RawMessage(strings.TrimSpace(text))
	if d := json.NewDecoder(bytes.NewReader(value)); json.Valid(value) && value[0] != '"' {
		d.UseNumber()
		var is any
		_ = d.Decode(&is)
		return value, tool.KindOf(is)
	}
	if n, ok := new(big.Int).SetString(text, 10); ok {
		return json.RawMessage(n.String()), "integer"
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) || strings.ContainsAny(text, "xXpP_") {
		return nil, ""
	}
	return json.RawMessage(strconv.FormatFloat(f, 'g', -1, 64)), "number"
}

// fits reports whether the text of a parameter is JSON that the schema accepts.
func fits(schema json.RawMessage, p pair) bool {
	var alone map[string]json.RawMessage
	if json.Unmarshal(schema, &alone) != nil {
		return false
	}
	delete(alone, "required")
	v, err := tool.Compile(json.RawMessage(compact(alone)))
	return err == nil && v.Validate(json.RawMessage(compact(map[string]json.RawMessage{p.name: json.RawMessage(p.text)}))) == nil
}

// written is how an argument of a type is written on the command line of a shell. Its name may be
// any text.
func written(name, kind string) string {
	switch {
	case strings.HasPrefix(kind, "array"):
		return shellQuote(name + ":=[…]")
	case kind == "object":
		return shellQuote(name + ":={…}")
	}
	return shellQuote(name + "=…")
}
