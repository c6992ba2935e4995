package render

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolmesh/toolmesh/tool"
)

// maxNodes bounds the schema objects of one rendering. References make a short
// schema long: eleven definitions that each name the next one twice are 2,047.
const maxNodes = 5000

// maxMerges bounds how many schemas are put together into others. Two that both
// describe a member are put together anew inside it, and so on without an end.
const maxMerges = 20000

// schema is an author's schema made uniform: the words of 2020-12 from any dialect, every reference
// as "#/$defs/<name>" into defs, and no boolean schema except additionalProperties (true is {},
// false is {"not":{}}).
type schema struct {
	root  *object
	defs  map[string]*object
	notes *notes
	flats map[*object]flattened
	work  int // how often flatten may still work
}

// flattened is the result of flat.
type flattened struct {
	out   *object
	exact bool
}

// notes collects texts for people about a rendering, each once. The last one says if there were
// more than most.
type notes struct {
	texts []string
	most  int
}

// maxNotes bounds the notes of one rendering.
const maxNotes = 40

func (n *notes) add(path, format string, args ...any) {
	if len(n.texts) == n.most {
		return
	}
	text := fmt.Sprintf(format, args...)
	if path != "" {
		text = path + ": " + text
	}
	if slices.Contains(n.texts, text) {
		return
	}
	if len(n.texts) == n.most-1 {
		text = "there is more of this kind"
	}
	n.texts = append(n.texts, text)
}

// reader makes a schema of JSON.
type reader struct {
	doc   *object
	old   bool // a dialect before 2019-09: words next to a $ref are ignored
	tuple bool // a dialect before 2020-12: items may be an array
	out   *schema
	names map[string]string // pointer -> name in defs
	count int
}

// read checks and reads an author's schema. Empty text means: any object.
func read(text json.RawMessage, n *notes) (*schema, error) {
	if _, err := tool.Compile(text); err != nil {
		return nil, err
	}
	return parse(text, n), nil
}

// parse reads a schema that compiles.
func parse(text json.RawMessage, n *notes) *schema {
	if len(text) == 0 {
		text = json.RawMessage(`{"type":"object"}`)
	}
	value, _ := decode(text) //nolint:errcheck // it compiles, so it is JSON
	out := &schema{defs: map[string]*object{}, notes: n, flats: map[*object]flattened{}, work: maxMerges}
	doc, ok := value.(*object)
	if !ok { // true or false
		out.root = plain(value == true)
		return out
	}
	r := &reader{doc: doc, out: out, names: map[string]string{}}
	dialect := doc.text("$schema")
	for _, draft := range []string{"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"} {
		r.old = r.old || strings.Contains(dialect, draft)
	}
	r.tuple = r.old || strings.Contains(dialect, "2019-09")
	out.root = r.schema(doc, true)
	return out
}

// plain is a boolean schema as an object.
func plain(all bool) *object {
	if all {
		return newObject()
	}
	return newObject("not", newObject())
}

// isNever says whether a schema is that of false.
func isNever(o *object) bool {
	not := o.object("not")
	return not != nil && len(not.keys) == 0
}

// The keywords of 2020-12, by the kind of their values.
var (
	schemaWords = words("additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames",
		"unevaluatedItems", "unevaluatedProperties", "contentSchema")
	listWords  = words("allOf", "anyOf", "oneOf", "prefixItems")
	mapWords   = words("properties", "patternProperties", "dependentSchemas")
	plainWords = words("type", "enum", "const", "title", "description", "default", "examples", "deprecated", "readOnly",
		"writeOnly", "format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
		"exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains",
		"required", "minProperties", "maxProperties", "dependentRequired", "contentEncoding", "contentMediaType")
	// annotationWords assert nothing.
	annotationWords = words("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
		"contentEncoding", "contentMediaType", "contentSchema", "format")
	// oldWords are seldom used, and assert something.
	oldWords = words("dependencies", "$dynamicRef", "$recursiveRef")
)

// number makes a json.Number.
func number(n int) json.Number { return json.Number(fmt.Sprint(n)) }

func words(list ...string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, w := range list {
		m[w] = true
	}
	return m
}

func (r *reader) value(v any) *object {
	switch v := v.(type) {
	case *object:
		return r.schema(v, false)
	case bool:
		return plain(v)
	default:
		return newObject()
	}
}

func (r *reader) schema(o *object, root bool) *object {
	r.count++
	if r.count > maxNodes {
		r.out.notes.add("", "the schema is too large to be shown as a whole: parts of it are left open")
		return newObject()
	}
	if _, own := o.get("$id").(string); own && !root {
		r.out.notes.add("", "a part of the schema has an $id of its own, so that its references cannot be followed: it is left open")
		return newObject()
	}
	out := newObject()
	for _, key := range o.keys {
		value := o.get(key)
		switch {
		case key == "$ref":
			r.reference(out, value)
		case strings.HasPrefix(key, "exclusiveM") && value == false: // of draft-04: it says nothing
		case oldWords[key], strings.HasPrefix(key, "exclusiveM") && isBool(value): // of draft-04
			r.out.notes.add("", "%s is left out: it is checked when the tool is called", key)
		case r.old && o.has("$ref") && !annotationWords[key]:
		case key == "items" && r.tuple && isList(value):
			out.set("prefixItems", inner("prefixItems", value, func(v any) any { return r.value(v) }))
			if rest, ok := o.values["additionalItems"]; ok {
				out.set("items", r.value(rest))
			}
		case plainWords[key], schemaWords[key], listWords[key], mapWords[key]: // others say nothing, or where a schema lives
			if !isBool(value) || key != "additionalProperties" {
				value = inner(key, value, func(v any) any { return r.value(v) })
			}
			out.set(key, value)
		}
	}
	return out
}

func isList(v any) bool { _, ok := v.([]any); return ok }

func isBool(v any) bool { _, ok := v.(bool); return ok }

// inner is the value of a word with each schema in it turned by f.
func inner(key string, value any, f func(v any) any) any {
	switch {
	case schemaWords[key]:
		return f(value)
	case listWords[key]:
		given, _ := value.([]any)
		out := make([]any, len(given))
		for i, one := range given {
			out[i] = f(one)
		}
		return out
	case mapWords[key]:
		out := newObject()
		if given, ok := value.(*object); ok {
			for _, name := range given.keys {
				out.set(name, f(given.get(name)))
			}
		}
		return out
	}
	return value
}

// reference turns a $ref into one to a definition; one that cannot be followed allows any value.
func (r *reader) reference(out *object, value any) {
	ref, _ := value.(string)
	path, ok := strings.CutPrefix(ref, "#")
	if path, err := url.PathUnescape(path); ok && err == nil && (path == "" || path[0] == '/') {
		if name, ok := r.names[path]; ok {
			out.set("$ref", "#/$defs/"+name)
			return
		}
		if target, label, ok := r.follow(path); ok {
			name := r.name(label)
			r.names[path] = name
			r.out.defs[name] = newObject() // before its content: it may name itself
			out.set("$ref", "#/$defs/"+name)
			r.out.defs[name] = r.value(target)
			return
		}
	}
	r.out.notes.add("", "the reference %q is not followed: what it stands for is left open", ref)
}

// follow walks a JSON Pointer through the document.
func (r *reader) follow(path string) (target any, label string, ok bool) {
	target, label = r.doc, "arguments"
	for token := range jsontext.Pointer(path).Tokens() {
		switch at := target.(type) {
		case *object:
			if target, ok = at.values[token]; !ok {
				return nil, "", false
			}
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(at) {
				return nil, "", false
			}
			target = at[i]
		default:
			return nil, "", false
		}
		label = token
	}
	switch target.(type) {
	case *object, bool:
		return target, label, true
	}
	return nil, "", false
}

// name makes the name of a definition, unlike those there are.
func (r *reader) name(label string) string {
	base := unsafeRunes.ReplaceAllString(label, "_")
	if base == "" {
		base = "definition"
	}
	base = base[:min(len(base), 48)]
	name := base
	for i := 2; r.out.defs[name] != nil; i++ {
		name = fmt.Sprintf("%s_%d", base, i)
	}
	return name
}

// target returns the definition that a schema refers to, nil without one.
func (s *schema) target(o *object) (*object, string) {
	name, ok := strings.CutPrefix(o.text("$ref"), "#/$defs/")
	if !ok {
		return nil, ""
	}
	return s.defs[name], name
}

// asserts says whether a schema has a word that can refuse a value, besides
// those given.
func asserts(o *object, except ...string) bool {
	for _, key := range o.keys {
		if !annotationWords[key] && !slices.Contains(except, key) {
			return true
		}
	}
	return false
}

// flat returns the schema without $ref and allOf at its top, and whether it
// still says the same; if not, it allows more.
func (s *schema) flat(o *object) (*object, bool) { return s.flatten(o, map[*object]bool{}) }

func (s *schema) flatten(o *object, open map[*object]bool) (*object, bool) {
	if !o.has("$ref") && !o.has("allOf") {
		return o, true
	}
	if known, ok := s.flats[o]; ok {
		return known.out, known.exact
	}
	if s.work--; s.work < 0 || open[o] || len(open) > 64 {
		return newObject(), false // a circle that never reaches a type, or nearly
	}
	open[o] = true
	defer delete(open, o)
	out, exact := o.clone(), true
	defer func() { s.flats[o] = flattened{out, exact} }()
	out.drop("$ref", "allOf")
	var parts []*object
	if target, _ := s.target(o); target != nil {
		parts = append(parts, target)
	}
	for _, one := range o.list("allOf") {
		if part, ok := one.(*object); ok {
			parts = append(parts, part)
		}
	}
	for _, part := range parts {
		part, same := s.flatten(part, open)
		exact = exact && same
		if !merge(out, part) {
			exact = false
		}
	}
	return out, exact
}

// merge narrows a by b, and says whether the result allows just what both
// allow; if not, it allows more. Annotations of a come first.
func merge(a, b *object) bool {
	exact := true
	closedA, closedB := a.get("additionalProperties") == false, b.get("additionalProperties") == false
	if closedA != closedB || closedA && closedB {
		exact = sameNames(a.object("properties"), b.object("properties")) || !a.has("properties") && !closedA || !b.has("properties") && !closedB
	}
	for _, key := range b.keys {
		value := b.get(key)
		mine, both := a.values[key]
		if !both {
			a.set(key, value)
			continue
		}
		if equal(mine, value) {
			continue
		}
		switch key {
		case "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly":
		case "properties":
			joined := mine.(*object).clone()
			for _, name := range value.(*object).keys {
				if old, ok := joined.values[name]; ok {
					joined.set(name, newObject("allOf", []any{old, value.(*object).get(name)}))
				} else {
					joined.set(name, value.(*object).get(name))
				}
			}
			a.set(key, joined)
		case "required":
			if mine := mine.([]any); len(mine) > maxNodes { // each part of an allOf would read them again
				exact = false
			} else {
				a.set(key, union(mine, value.([]any)))
			}
		default:
			exact = false
		}
	}
	return exact
}

func sameNames(a, b *object) bool {
	if a == nil || b == nil {
		return a == b
	}
	return len(a.keys) == len(b.keys) && !slices.ContainsFunc(a.keys, func(key string) bool { return !b.has(key) })
}

// rational reads a number of a schema, which tool.Compile has bounded.
func rational(v any) (*big.Rat, bool) {
	n, _ := v.(json.Number)
	return new(big.Rat).SetString(string(n))
}

// size reads a count of a schema, unless it is absurdly large.
func size(v any) (int, bool) {
	r, ok := rational(v)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return int(r.Num().Int64()), true
}

// union returns the values of both lists, each once.
func union(a, b []any) []any {
	have := make(map[string]bool)
	return slices.DeleteFunc(slices.Concat(a, b), func(one any) bool {
		text := encodeText(one)
		again := have[text]
		have[text] = true
		return again
	})
}

// textsOf is a list as a set: lists of an author may have many thousands of values.
func textsOf(list []any) map[string]bool {
	texts := make(map[string]bool, len(list))
	for _, one := range list {
		texts[encodeText(one)] = true
	}
	return texts
}

// equal compares JSON values as they are written.
func equal(a, b any) bool { return reflect.DeepEqual(a, b) }

// kindsOf reads the value of "type".
func kindsOf(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var kinds []string
		for _, one := range v {
			if kind, ok := one.(string); ok && !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
		}
		return kinds
	}
	return nil
}
