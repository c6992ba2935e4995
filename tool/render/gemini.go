package render

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
)

// Bounds of a Gemini schema. It has no references: definitions are written out
// where they are used.
const (
	geminiUnroll = 2  // how often a definition may stand inside itself
	geminiDepth  = 12 // levels, before values are JSON in a text
	geminiNodes  = 1000
)

// geminiFormats are the formats that Gemini takes, by type; for any other it
// refuses the request.
var geminiFormats = map[string][]string{
	"string": {"date-time"}, "number": {"float", "double"}, "integer": {"int32", "int64"},
}

// gemini renders for Gemini: types and nullable, no null type, no alternatives,
// no references, no open objects, enums of text alone.
func (r *Rendered) gemini(text string, in *schema) *object {
	out := newObject("name", r.Name, "description", text)
	w := &geminiWriter{in: in, open: map[string]int{}}
	root := in.arguments()
	parameters, b := w.root(root)
	if parameters != nil {
		out.set("parameters", parameters)
	}
	r.back = b
	return out
}

// geminiWriter writes schemas in Gemini's subset.
type geminiWriter struct {
	in    *schema
	open  map[string]int // definitions being written out
	count int
}

// root renders the arguments; nil for a tool that takes none.
func (w *geminiWriter) root(o *object) (*object, back) {
	w.leftOut(o, "", "patternProperties", "maxProperties", "minProperties")
	out, b := w.record(o, "", 0, "additional_arguments")
	if out != nil && o.text("description") != "" {
		out.set("description", o.text("description"))
	}
	return out, b
}

// unused is a name that is not taken.
func unused(name string, taken func(string) bool) string {
	candidate := name
	for i := 2; taken(candidate); i++ {
		candidate = fmt.Sprintf("%s_%d", name, i)
	}
	return candidate
}

// leftOut tells which words of a schema Gemini does not have.
func (w *geminiWriter) leftOut(o *object, path string, more ...string) {
	left := append([]string{"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
		"unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems", "multipleOf"}, more...)
	for _, word := range left {
		if value, ok := o.values[word]; ok && value != false && !(word == "minProperties" && encodeText(value) == "0") {
			w.in.notes.add(path, "Gemini has no %s: it is checked when the tool is called", word)
		}
	}
}

// schema renders one schema that is not the root.
func (w *geminiWriter) schema(o *object, path string, depth int) (*object, back) {
	w.count++
	if target, name := w.in.target(o); target != nil {
		if w.open[name] >= geminiUnroll {
			w.in.notes.add(path, "it is recursive, and Gemini has no references: deeper values are JSON in a text")
			return w.json(joined(o.text("description"), "JSON text of the same shape as "+name+" above.")), parseBack
		}
		w.open[name]++
		defer func() { w.open[name]-- }()
	}
	flat, exact := w.in.flat(o)
	if !exact {
		w.in.notes.add(path, "allOf is written as one schema that allows more")
	}
	if depth > geminiDepth || w.count > geminiNodes && !simple(flat) {
		w.in.notes.add(path, "it is too deep or too large for Gemini: the value is JSON in a text")
		return w.json(joined(flat.text("description"), "JSON text.")), parseBack
	}
	branches, null := w.branches(flat, path)
	var out *object
	var b back
	switch {
	case len(branches) == 0 && null:
		out = newObject("type", "string", "enum", []any{"null"})
		b = lookupBack(map[string]any{"null": nil})
	case len(branches) == 0: // nothing fits
		w.in.notes.add(path, "nothing is allowed here")
		out, b = w.json("No value is allowed here."), parseBack
	case len(branches) == 1:
		out, b = w.single(branches[0], path, depth)
	default:
		out, b = w.union(branches, path, depth)
	}
	out = w.finish(out, flat, branches)
	if null {
		out.set("nullable", true)
	}
	return out, b
}

// simple says whether a schema is that of one text, number or boolean.
func simple(flat *object) bool {
	types, _ := kinds(flat)
	return len(types) == 1 && types[0] != "object" && types[0] != "array" && !flat.has("anyOf") && !flat.has("oneOf")
}

// finish puts the words of a whole schema onto its rendering.
func (w *geminiWriter) finish(out, flat *object, branches []*object) *object {
	text := flat.text("description")
	if text == "" && len(branches) == 1 {
		text = branches[0].text("description")
	}
	if own := out.text("description"); own != "" && own != text {
		text = joined(text, own)
	}
	shown := newObject("type", out.get("type"))
	if title := flat.text("title"); title != "" {
		shown.set("title", title)
	}
	from := flat
	if !flat.has("default") && len(branches) == 1 {
		from = branches[0]
	}
	shown.setText(text, from)
	for _, key := range out.keys {
		if !shown.has(key) {
			shown.set(key, out.get(key))
		}
	}
	return shown
}

// json is a value written as JSON in a text.
func (w *geminiWriter) json(text string) *object {
	return newObject("type", "string", "description", text)
}

// branches are the alternatives of a flat schema without null, each of at most
// one type, and whether null is one.
func (w *geminiWriter) branches(flat *object, path string) (list []*object, null bool) {
	visits := 256
	var collect func(o *object)
	collect = func(o *object) {
		if visits--; visits < 0 || isNever(o) {
			return
		}
		for _, word := range []string{"anyOf", "oneOf"} {
			if !o.has(word) {
				continue
			}
			rest := o.clone()
			rest.drop("anyOf", "oneOf", "description", "title", "default", "examples")
			if word == "anyOf" && o.has("oneOf") {
				w.in.notes.add(path, "oneOf beside anyOf is checked when the tool is called")
			}
			for _, one := range o.list(word) {
				inner := one.(*object)
				if _, name := w.in.target(inner); name != "" && w.open[name] >= geminiUnroll {
					list = append(list, inner) // its turn to be cut
					continue
				}
				part, _ := w.in.flat(inner)
				if asserts(rest) {
					part = part.clone()
					if !merge(part, rest) {
						w.in.notes.add(path, "what stands beside %s is checked when the tool is called", word)
					}
				}
				// Alternatives that are definitions keep their names, to be cut when they recur.
				if !asserts(rest) && !part.has("anyOf") && !part.has("oneOf") && inner.has("$ref") {
					if types, _ := kinds(part); !slices.Contains(types, "null") {
						list = append(list, inner)
						continue
					}
				}
				collect(part)
			}
			return
		}
		if values, ok := choices(o); ok {
			kept := slices.DeleteFunc(slices.Clone(values), func(v any) bool { return v == nil })
			null = null || len(kept) < len(values)
			if len(kept) > 0 {
				o = o.clone()
				o.drop("const", "type")
				o.set("enum", kept)
				list = append(list, o)
			}
			return
		}
		types, _ := kinds(o)
		if len(types) == 0 { // anything
			list = append(list, o)
			return
		}
		for _, kind := range types {
			if kind == "null" {
				null = true
				continue
			}
			part := o
			if len(types) > 1 || !o.has("type") {
				part = o.clone()
				part.set("type", kind)
			}
			list = append(list, part)
		}
	}
	collect(flat)
	return w.joinEnums(list), null
}

// joinEnums makes one enum of several, and drops what is there twice and
// integers beside numbers.
func (w *geminiWriter) joinEnums(list []*object) []*object {
	var out []*object
	var all []any
	at := -1
	for _, one := range list {
		if one.has("enum") && !one.has("$ref") {
			if at < 0 {
				at = len(out)
				out = append(out, one)
			}
			all = union(all, one.list("enum"))
			continue
		}
		if !slices.ContainsFunc(out, func(other *object) bool { return equal(other, one) }) {
			out = append(out, one)
		}
	}
	if at >= 0 {
		joined := out[at].clone()
		joined.set("enum", all)
		out[at] = joined
	}
	if len(out) == 2 && bareType(out[0]) == "integer" && bareType(out[1]) == "number" {
		return out[1:]
	}
	if len(out) == 2 && bareType(out[0]) == "number" && bareType(out[1]) == "integer" {
		return out[:1]
	}
	return out
}

// bareType is the type of a schema that says nothing else.
func bareType(o *object) string {
	if asserts(o, "type") {
		return ""
	}
	return o.text("type")
}

// single renders a schema of one type, an enum, or anything.
func (w *geminiWriter) single(o *object, path string, depth int) (*object, back) {
	if o.has("$ref") {
		return w.schema(o, path, depth)
	}
	w.leftOut(o, path)
	if o.has("enum") {
		return w.enum(o.list("enum"), path)
	}
	switch kind := o.text("type"); kind {
	case "string":
		return w.text(o), nil
	case "integer", "number":
		return w.number(o, kind, path), nil
	case "boolean":
		return newObject("type", "boolean"), nil
	case "array":
		return w.array(o, path, depth)
	case "object":
		return w.object(o, path, depth)
	default:
		return w.json(`Any JSON value, written as JSON text: "\"a text\"", "5", "{\"a\": 1}". Text that is no JSON is itself.`), parseBack
	}
}

// enum renders values as texts, each unlike the others, and maps them back.
func (w *geminiWriter) enum(values []any, path string) (*object, back) {
	texts, lookup := make([]any, 0, len(values)), map[string]any{}
	for _, value := range values { // texts that are themselves come first
		if text, ok := value.(string); ok && text != "" {
			lookup[text] = value
		}
	}
	taken := func(text string) bool { _, ok := lookup[text]; return ok }
	for _, value := range values {
		text, ok := value.(string)
		if !ok || text == "" {
			if text = encodeText(value); text == `""` { // Gemini refuses an empty one
				text = "(empty)"
			}
			if taken(text) {
				text = unused(text+" ("+kindOf(value)+")", taken)
			}
			w.in.notes.add(path, "Gemini has enums of text alone: %q stands for %s", text, encodeText(value))
			lookup[text] = value
		}
		texts = append(texts, text)
	}
	return newObject("type", "string", "enum", texts), lookupBack(lookup)
}

func (w *geminiWriter) text(o *object) *object {
	out := newObject("type", "string")
	var hints []string
	if format := o.text("format"); slices.Contains(geminiFormats["string"], format) {
		out.set("format", format)
	} else if format != "" {
		hints = append(hints, "Format: "+format+".")
	}
	if encoding := o.text("contentEncoding"); encoding != "" {
		hints = append(hints, "Encoded as "+encoding+".")
	}
	for _, word := range []string{"minLength", "maxLength"} {
		if n, ok := size(o.get(word)); ok {
			out.set(word, number(n))
		}
	}
	if pattern, ok := o.get("pattern").(string); ok {
		if _, err := regexp.Compile(pattern); err == nil {
			out.set("pattern", pattern)
		} else {
			hints = append(hints, "Matches "+pattern+".")
		}
	}
	if len(hints) > 0 {
		out.set("description", strings.Join(hints, " "))
	}
	return out
}

func (w *geminiWriter) number(o *object, kind, path string) *object {
	out := newObject("type", kind)
	if format := o.text("format"); slices.Contains(geminiFormats[kind], format) {
		out.set("format", format)
	}
	var hints []string
	for _, bound := range []struct {
		word, exclusive, sign string
		step                  int64
	}{{"minimum", "exclusiveMinimum", "above", 1}, {"maximum", "exclusiveMaximum", "below", -1}} {
		limit, ok := rational(o.get(bound.exclusive))
		inclusive, both := rational(o.get(bound.word))
		switch {
		case !ok:
			if n, ok := o.get(bound.word).(json.Number); ok && both {
				out.set(bound.word, n)
			}
		case kind == "integer" && limit.IsInt() && limit.Num().IsInt64() && limit.Num().BitLen() < 60:
			next := new(big.Rat).SetInt64(limit.Num().Int64() + bound.step)
			if both && inclusive.Cmp(next) == int(bound.step) {
				out.set(bound.word, o.get(bound.word))
			} else {
				out.set(bound.word, json.Number(next.Num().String()))
			}
		default:
			if both {
				out.set(bound.word, o.get(bound.word))
			}
			hints = append(hints, fmt.Sprintf("It is %s %s.", bound.sign, o.get(bound.exclusive)))
			w.in.notes.add(path, "Gemini has no %s: it is in the description", bound.exclusive)
		}
	}
	if n, ok := o.get("multipleOf").(json.Number); ok {
		hints = append(hints, "It is a multiple of "+string(n)+".")
	}
	if len(hints) > 0 {
		out.set("description", strings.Join(hints, " "))
	}
	return out
}

func (w *geminiWriter) array(o *object, path string, depth int) (*object, back) {
	item, prefix := o.object("items"), o.list("prefixItems")
	out := newObject("type", "array")
	for _, word := range []string{"minItems", "maxItems"} {
		if n, ok := size(o.get(word)); ok {
			out.set(word, number(n))
		}
	}
	if len(prefix) > 0 {
		same := alike(prefix)
		closed := item != nil && isNever(item)
		if most, ok := size(o.get("maxItems")); ok && most <= len(prefix) {
			closed = true
		}
		switch {
		case closed && !same:
			return w.tuple(o, prefix, path, depth)
		case closed:
			item = prefix[0].(*object)
			if most, ok := size(o.get("maxItems")); !ok || most > len(prefix) {
				out.set("maxItems", number(len(prefix)))
			}
		case same && item != nil && equal(bare(item), bare(prefix[0])):
		default:
			w.in.notes.add(path, "Gemini has no types for the first items of an open array: each is JSON in a text")
			item = newObject()
		}
	}
	if item == nil {
		item = newObject()
	}
	if isNever(item) {
		out.set("maxItems", number(0))
		item = newObject()
	}
	items, b := w.schema(item, path+"[]", depth+1)
	if o.get("uniqueItems") == true {
		out.set("description", "No item twice.")
	}
	out.set("items", items)
	return out, listBack(b)
}

// tuple renders an array with a type for each position as an object.
func (w *geminiWriter) tuple(o *object, prefix []any, path string, depth int) (*object, back) {
	least, _ := size(o.get("minItems"))
	if most, ok := size(o.get("maxItems")); ok && most < len(prefix) {
		prefix = prefix[:most]
	}
	if len(prefix) == 0 {
		return newObject("type", "array", "maxItems", number(0), "items", w.json("JSON text.")), nil
	}
	w.in.notes.add(path, "Gemini has no array with a type for each position: it is an object with a member for each")
	shown, names, required := newObject(), []string{}, []any{}
	backs, optional := []back{}, []bool{}
	for i, one := range prefix {
		inner := one.(*object)
		name := inner.text("title")
		if !geminiName.MatchString(name) || shown.has(name) {
			name = unused(fmt.Sprintf("item_%d", i+1), shown.has)
		}
		rendered, b := w.schema(inner, fmt.Sprintf("%s[%d]", path, i), depth+1)
		rendered.drop("title")
		shown.set(name, rendered)
		names, backs = append(names, name), append(backs, b)
		optional = append(optional, i >= least && !w.in.takesNull(inner))
		if i < least {
			required = append(required, name)
		}
	}
	out := newObject("type", "object", "description", "The items of a list, in this order.", "properties", shown)
	if len(required) > 0 {
		out.set("required", required)
	}
	if len(names) > 1 {
		out.set("propertyOrdering", slices.Clone(shown.ordering()))
	}
	return out, tupleBack(names, backs, optional)
}

func (o *object) ordering() []any {
	list := make([]any, len(o.keys))
	for i, key := range o.keys {
		list[i] = key
	}
	return list
}

func (w *geminiWriter) object(o *object, path string, depth int) (*object, back) {
	w.leftOut(o, path, "patternProperties", "maxProperties")
	properties, rest := o.object("properties"), w.rest(o, path)
	if properties == nil || len(properties.keys) == 0 {
		switch {
		case rest != nil && !asserts(rest):
			w.in.notes.add(path, "Gemini has no open objects: it is JSON in a text")
			return w.json("A JSON object, written as JSON text."), parseBack
		case rest != nil:
			w.in.notes.add(path, "Gemini has no open objects: it is a list of entries, each with key and value")
			entries, value := w.entries(o, rest, path, depth)
			return entries, entriesBack(value)
		}
	} else if o.has("minProperties") {
		w.leftOut(o, path, "minProperties")
	}
	out, b := w.record(o, path, depth, "additional_members")
	if out == nil { // Gemini refuses an object without members
		return newObject("type", "string", "enum", []any{"{}"}), lookupBack(map[string]any{"{}": newObject()})
	}
	return out, b
}

// rest is what an object's further members may be, nil if it has none.
func (w *geminiWriter) rest(o *object, path string) *object {
	if o.has("patternProperties") {
		return newObject()
	}
	switch more := o.get("additionalProperties").(type) {
	case *object:
		if isNever(more) {
			return nil
		}
		return more
	case bool:
		if !more {
			return nil
		}
	case nil:
		if properties := o.object("properties"); properties != nil && len(properties.keys) > 0 {
			w.in.notes.add(path, "further members, which the tool's schema does not forbid, are not offered")
			return nil
		}
	}
	return newObject()
}

// entries renders an object's further members as a list of key and value.
func (w *geminiWriter) entries(o, rest *object, path string, depth int) (*object, back) {
	key := newObject("type", "string")
	if names := o.object("propertyNames"); names != nil {
		if flat, exact := w.in.flat(names); exact && flat.has("enum") && !asserts(flat, "enum", "type") &&
			!slices.ContainsFunc(flat.list("enum"), func(v any) bool { text, ok := v.(string); return !ok || text == "" }) {
			key.set("enum", flat.list("enum"))
		} else {
			w.leftOut(o, path, "propertyNames")
		}
	}
	value, b := w.schema(rest, path+"[key]", depth+1)
	entry := newObject("type", "object", "properties", newObject("key", key, "value", value),
		"required", []any{"key", "value"}, "propertyOrdering", []any{"key", "value"})
	out := newObject("type", "array", "items", entry)
	if properties := o.object("properties"); properties == nil || len(properties.keys) == 0 {
		for _, pair := range [][2]string{{"minProperties", "minItems"}, {"maxProperties", "maxItems"}} {
			if n, ok := size(o.get(pair[0])); ok {
				out.set(pair[1], number(n))
			}
		}
	}
	return out, b
}

// record renders an object with its described members, and further ones as
// entries of one more member; nil if it has none at all.
func (w *geminiWriter) record(o *object, path string, depth int, extra string) (*object, back) {
	properties := o.object("properties")
	if properties == nil {
		properties = newObject()
	}
	shown, required, members := newObject(), []any{}, map[string]member{}
	for _, name := range properties.keys {
		inner, at := properties.object(name), inside(path, name)
		optional := !contains(o.list("required"), name)
		if isNever(inner) && optional {
			continue // the one value that it may have is none
		}
		safe := name
		if !geminiName.MatchString(name) || shown.has(name) {
			safe = safeName(name, func(n string) bool { return properties.has(n) || shown.has(n) })
			w.in.notes.add(path, "%q is called %q: not every provider takes its name", name, safe)
		}
		rendered, b := w.schema(inner, at, depth+1)
		m := member{name: name, back: b}
		if optional && !w.in.takesNull(inner) {
			m.dropNull = true
		}
		if !optional {
			required = append(required, safe)
		}
		shown.set(safe, rendered)
		members[safe] = m
	}
	for _, name := range o.list("required") {
		if !properties.has(name.(string)) {
			w.in.notes.add(path, "%q is required and not described", name)
		}
	}
	rest := w.rest(o, path)
	if rest == nil {
		return objectOf(shown, required), objectBack(members, "", nil)
	}
	w.in.notes.add(path, "Gemini has no open objects: further members are a list of entries, each with key and value")
	extra = unused(extra, func(name string) bool { return shown.has(name) || properties.has(name) })
	more, value := w.entries(o, rest, path, depth)
	more.set("description", "Further members, by their names.")
	shown.set(extra, more)
	return objectOf(shown, required), objectBack(members, extra, value)
}

// objectOf is an object schema; nil without members, which Gemini refuses.
func objectOf(shown *object, required []any) *object {
	if len(shown.keys) == 0 {
		return nil
	}
	out := newObject("type", "object", "properties", shown)
	if len(required) > 0 {
		out.set("required", required)
	}
	if len(shown.keys) > 1 {
		out.set("propertyOrdering", shown.ordering())
	}
	return out
}

// union renders alternatives: of scalars as text, of anything else as an object
// with a member for each, of which one is given.
func (w *geminiWriter) union(branches []*object, path string, depth int) (*object, back) {
	takes := map[string]bool{}
	scalars := true
	for _, one := range branches {
		types, _ := kinds(one)
		if one.has("$ref") || len(types) == 0 {
			scalars = false
			break
		}
		for _, kind := range types {
			takes[kind] = true
			scalars = scalars && kind != "object" && kind != "array"
		}
	}
	if slices.ContainsFunc(branches, func(one *object) bool { return !asserts(one) }) {
		return w.single(newObject(), path, depth) // one of them takes anything
	}
	if scalars {
		w.in.notes.add(path, "Gemini has no alternatives: the value is a text that stands for one of several types")
		return w.json(w.describe(branches, takes)), scalarBack(takes)
	}
	w.in.notes.add(path, "Gemini has no alternatives: it is an object with a member for each, of which one is given")
	shown, members := newObject(), map[string]back{}
	for _, one := range branches {
		label := "value"
		if types, _ := kinds(one); len(types) == 1 {
			label = map[string]string{"string": "text", "array": "list"}[types[0]]
			if label == "" {
				label = types[0]
			}
		}
		if _, name := w.in.target(one); name != "" && geminiName.MatchString(name) {
			label = name
		} else if title := one.text("title"); geminiName.MatchString(title) {
			label = title
		}
		label = unused(label, shown.has)
		rendered, b := w.schema(one, path+"("+label+")", depth+1)
		shown.set(label, rendered)
		members[label] = b
	}
	out := objectOf(shown, nil)
	out.set("description", "Exactly one of: "+strings.Join(shown.keys, ", ")+".")
	return out, choiceBack(members, shown.keys)
}

// describe says what a text may stand for.
func (w *geminiWriter) describe(branches []*object, takes map[string]bool) string {
	var parts []string
	for _, one := range branches {
		part := map[string]string{"string": "a text", "integer": "an integer", "number": "a number", "boolean": "true or false"}[one.text("type")]
		if values, ok := choices(one); ok {
			shown := make([]string, len(values))
			for i, value := range values {
				shown[i] = encodeText(value)
			}
			part = strings.Join(shown, ", ")
		}
		var limits []string
		for _, word := range []string{"format", "pattern", "minLength", "maxLength", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf", "contentEncoding"} {
			if value, ok := one.values[word]; ok {
				limits = append(limits, word+" "+encodeText(value))
			}
		}
		if len(limits) > 0 {
			part += " (" + strings.Join(limits, " and ") + ")"
		}
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	text := "One of: " + strings.Join(parts, ", ") + "."
	if takes["string"] {
		text += ` A text that reads like a number, true or false stands in quotes: "\"5\"".`
	}
	return text
}
