package render

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh/tool"
)

// The limits that OpenAI documents for strict schemas.
const (
	strictDepth      = 10     // levels of nesting
	strictProperties = 5000   // of all objects together
	strictEnums      = 1000   // values of all enums together
	strictText       = 120000 // characters of all names and enum values together
	strictLongEnum   = 250    // an enum of text with more values than this …
	strictEnumText   = 15000  // … has at most this many characters
)

// strictFormats are the formats of text that strict schemas know.
var strictFormats = words("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")

// strictRefused are the words that strict schemas do not know and that refuse
// values: without them the schema would allow more than the tool does.
var strictRefused = []string{
	"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties", "propertyNames",
	"unevaluatedProperties", "unevaluatedItems", "maxProperties", "contains", "minContains", "maxContains",
	"minLength", "maxLength",
}

// maxReasons bounds the reasons that are told.
const maxReasons = 8

// strictWriter writes a schema in OpenAI's strict subset, or finds why it cannot be.
type strictWriter struct {
	in      *schema
	reasons notes // why it cannot be
	defs    *object
	started map[string]bool
	count   int
	notes   notes

	properties, enums, text int // as the limits count them
}

func (s *strictWriter) refuse(path, format string, args ...any) { s.reasons.add(path, format, args...) }

// arguments renders the root, which is flat and an object.
func (s *strictWriter) arguments(root *object) *object {
	out := s.schema(root, "", 0)
	if len(s.defs.keys) > 0 {
		out.set("$defs", s.defs)
	}
	if s.properties > strictProperties {
		s.refuse("", "it has more than %d properties", strictProperties)
	}
	if s.enums > strictEnums {
		s.refuse("", "its enums have more than %d values", strictEnums)
	}
	if s.text > strictText {
		s.refuse("", "its names and enum values have more than %d characters", strictText)
	}
	return out
}

// schema renders one schema. After a refusal its result is not used.
func (s *strictWriter) schema(o *object, path string, depth int) *object {
	s.count++
	if s.count > maxNodes {
		s.refuse("", "the schema is too large")
		return newObject()
	}
	if depth > strictDepth {
		s.refuse("", "it nests deeper than %d levels", strictDepth)
		return newObject()
	}
	if target, name := s.in.target(o); target != nil && !asserts(o, "$ref") {
		return s.reference(target, name, o.text("description"))
	}
	flat, exact := s.in.flat(o)
	if !exact {
		s.refuse(path, "allOf cannot be written as one schema")
		return newObject()
	}
	if isNever(flat) {
		s.refuse(path, "nothing is allowed here")
		return newObject()
	}
	for _, word := range strictRefused {
		if flat.has(word) {
			s.refuse(path, "strict has no %s", word)
		}
	}
	if n, ok := rational(flat.get("minProperties")); ok && n.Sign() > 0 {
		s.refuse(path, "strict has no minProperties")
	}
	if flat.get("uniqueItems") == true {
		s.refuse(path, "strict has no uniqueItems")
	}
	if len(s.reasons.texts) >= maxReasons {
		return newObject()
	}
	for _, word := range []string{"anyOf", "oneOf"} {
		if flat.has(word) {
			return s.alternatives(flat, word, path, depth)
		}
	}
	parts, listed := split(flat)
	switch {
	case len(parts) == 1:
		return s.typed(parts[0], path, depth)
	case len(parts) > 1:
		branches := make([]any, len(parts))
		for i, part := range parts {
			part.drop("description", "default", "title", "examples")
			if branches[i] = part; part.get("type") == "null" {
				branches[i] = newObject("type", "null")
			}
		}
		several := newObject("anyOf", branches)
		several.take(flat, "description", "default")
		return s.alternatives(several, "anyOf", path, depth)
	case listed:
		s.refuse(path, "no value is allowed here")
	default:
		s.refuse(path, "anything is allowed here, and strict needs a type")
	}
	return newObject()
}

// split returns the schemas of one type each that a flat schema stands for. listed reports whether it lists
// its values: those of its types are left, in an enum.
func split(o *object) (parts []*object, listed bool) {
	types, values := kindsOf(o.get("type")), o.list("enum")
	if listed = o.has("enum"); o.has("const") {
		values, listed = []any{o.get("const")}, true
	}
	part := func(kind string) *object {
		for _, one := range parts {
			if one.get("type") == kind {
				return one
			}
		}
		one := o.clone()
		one.drop("const", "enum")
		one.set("type", kind)
		parts = append(parts, one)
		return one
	}
	if !listed {
		for _, kind := range types {
			part(kind)
		}
		return parts, false
	}
	allowed := func(kind string) bool { return !o.has("type") || slices.Contains(types, kind) }
	// A whole number is a number where others are, too.
	number := !allowed("integer") || slices.ContainsFunc(values, func(v any) bool { return allowed("number") && tool.KindOf(v) == "number" })
	for _, value := range union(values, nil) {
		kind := tool.KindOf(value)
		if kind == "integer" && number {
			kind = "number"
		}
		if !allowed(kind) {
			continue
		}
		if one := part(kind); kind != "null" {
			one.set("enum", append(one.list("enum"), value))
		}
	}
	return parts, true
}

// reference keeps a $ref: strict schemas may be recursive. Nothing may stand
// beside it, so a description goes around it.
func (s *strictWriter) reference(target *object, name, text string) *object {
	if !s.started[name] {
		s.started[name] = true
		s.text += len(name)
		s.defs.set(name, newObject()) // its place
		s.defs.set(name, s.schema(target, name, 1))
	}
	out := newObject("$ref", "#/$defs/"+name)
	if text != "" {
		out = newObject("description", text, "anyOf", []any{out})
	}
	return out
}

// typed renders a schema of one type.
func (s *strictWriter) typed(o *object, path string, depth int) *object {
	kind, text := o.text("type"), o.text("description")
	out := newObject("type", kind)
	if values := o.list("enum"); values != nil {
		if kind == "object" || kind == "array" {
			s.refuse(path, "strict has no enum of objects or arrays")
		}
		out.set("enum", values)
		s.countEnum(values)
		out.setText(text, o)
		return out
	}
	switch kind {
	case "string":
		if format := o.text("format"); strictFormats[format] {
			out.set("format", format)
		} else if format != "" {
			text = joined(text, "Format: "+format+".")
		}
		if pattern, ok := o.get("pattern").(string); ok {
			if _, err := regexp.Compile(pattern); err != nil {
				s.refuse(path, "the pattern uses a construct that OpenAI's regular expressions do not allow")
			}
			out.set("pattern", pattern)
		}
		if encoding := o.text("contentEncoding"); encoding != "" {
			text = joined(text, "Encoded as "+encoding+".")
		}
	case "integer", "number":
		out.take(o, "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
	case "array":
		s.array(o, out, path, depth)
	case "object":
		s.members(o, out, path, depth)
	}
	out.setText(text, o)
	return out
}

func (s *strictWriter) countEnum(values []any) {
	length := 0
	for _, one := range values {
		if text, ok := one.(string); ok {
			length += len(text)
		} else {
			length += len(encodeText(one))
		}
	}
	s.enums, s.text = s.enums+len(values), s.text+length
	if len(values) > strictLongEnum && length > strictEnumText {
		s.refuse("", "an enum has more than %d values of more than %d characters together", strictLongEnum, strictEnumText)
	}
}

// joined puts a sentence behind a text.
func joined(text, sentence string) string {
	switch text = strings.TrimSpace(text); {
	case text == "":
		return sentence
	case strings.HasSuffix(text, "."), strings.HasSuffix(text, "!"), strings.HasSuffix(text, "?"), strings.HasSuffix(text, ")"):
		return text + " " + sentence
	default:
		return text + ". " + sentence
	}
}

// setText puts the description in front of the other words, and the default
// into it where the provider has no word for that.
func (o *object) setText(text string, from *object) {
	if value, ok := from.values["default"]; ok {
		if shown := encodeText(value); utf8.RuneCountInString(shown) <= 200 {
			text = joined(text, "Default: "+shown+".")
		}
	}
	if text == "" {
		return
	}
	o.drop("description")
	o.set("description", text)
}

func (s *strictWriter) array(o, out *object, path string, depth int) {
	item := o.object("items")
	out.take(o, "minItems", "maxItems")
	if prefix := o.list("prefixItems"); len(prefix) > 0 {
		same := alike(prefix)
		switch {
		case same && item != nil && isNever(item):
			item = prefix[0].(*object)
			if most, ok := size(o.get("maxItems")); !ok || most > len(prefix) {
				out.set("maxItems", number(len(prefix)))
			}
		case same && item != nil && equal(bare(item), bare(prefix[0])):
		default:
			s.refuse(path, "strict has no arrays with a type for each position")
			return
		}
	}
	if item == nil || len(item.keys) == 0 {
		s.refuse(path+"[]", "anything is allowed here, and strict needs a type")
		return
	}
	if isNever(item) {
		s.refuse(path, "strict has no array that is always empty")
		return
	}
	out.set("items", s.schema(item, path+"[]", depth+1))
}

// alike reports whether schemas are equal except for names and descriptions.
func alike(list []any) bool {
	return !slices.ContainsFunc(list, func(one any) bool { return !equal(bare(one), bare(list[0])) })
}

// bare is a schema without names and descriptions.
func bare(v any) any {
	o, ok := v.(*object)
	if !ok {
		return v
	}
	o = o.clone()
	o.drop("title", "description")
	return o
}

func (s *strictWriter) members(o, out *object, path string, depth int) {
	properties := o.object("properties")
	if properties == nil {
		properties = newObject()
	}
	more, open := o.get("additionalProperties"), o.object("additionalProperties")
	switch {
	case more == nil && len(properties.keys) == 0:
		s.refuse(path, "an object of any members is open, and strict has closed objects only")
		return
	case more == nil:
		s.notes.add(path, "further members, which the tool's schema does not forbid, are not offered")
	case more == true, open != nil && !isNever(open):
		s.refuse(path, "the object is open (additionalProperties), and strict has closed objects only")
		return
	}
	needed := o.list("required")
	for _, name := range needed {
		if !properties.has(name.(string)) {
			s.refuse(path, "%q is required and not described", name)
		}
	}
	shown, required, isNeeded := newObject(), []any{}, textsOf(needed)
	for _, name := range properties.keys {
		inner := properties.get(name).(*object)
		at := inside(path, name)
		optional := !isNeeded[encodeText(name)]
		if isNever(inner) && optional {
			continue // the one value that it may have is none
		}
		s.properties, s.text = s.properties+1, s.text+len(name)
		rendered := s.schema(inner, at, depth+1)
		if optional && !s.takesNull(rendered) {
			rendered = orNull(rendered)
			s.notes.add("", "strict has no optional members: they are required here, and null stands for one that is left out")
		}
		shown.set(name, rendered)
		required = append(required, name)
	}
	out.set("properties", shown)
	out.set("required", required)
	out.set("additionalProperties", false)
}

// inside is the place of a member, for people.
func inside(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// takesNull reports whether null fits a rendered schema.
func (s *strictWriter) takesNull(o *object) bool {
	o = s.resolve(o)
	return slices.Contains(kindsOf(o.get("type")), "null") ||
		slices.ContainsFunc(o.list("anyOf"), func(one any) bool { return one.(*object).get("type") == "null" })
}

// orNull allows null, which the schema does not take, as well.
func orNull(o *object) *object {
	out := o.clone()
	branches, types := o.list("anyOf"), kindsOf(o.get("type"))
	scalar := len(types) == 1 && types[0] != "object" && types[0] != "array"
	switch {
	case branches != nil:
		out.set("anyOf", append(slices.Clone(branches), newObject("type", "null")))
	case scalar:
		out.set("type", []any{types[0], "null"})
		if values := o.list("enum"); values != nil && !slices.Contains(values, nil) {
			out.set("enum", append(slices.Clone(values), nil))
		}
	default: // nothing may stand beside anyOf but a description
		inner := o.clone()
		inner.drop("description")
		out = newObject()
		out.take(o, "description")
		out.set("anyOf", []any{inner, newObject("type", "null")})
	}
	return out
}

// alternatives renders anyOf, and oneOf as anyOf.
func (s *strictWriter) alternatives(o *object, word, path string, depth int) *object {
	if asserts(o, word, "type") || o.has("type") && !s.implied(o, word) {
		s.refuse(path, "strict has no %s beside other words", word)
		return newObject()
	}
	var branches []any
	null := false
	for _, one := range o.list(word) {
		inner := one.(*object)
		if isNever(inner) {
			continue
		}
		if inner.get("type") == "null" && !asserts(inner, "type") {
			null = true
			continue
		}
		branch := s.schema(inner, path, depth)
		if slices.ContainsFunc(branches, func(other any) bool { return equal(other, branch) }) {
			continue
		}
		branches = append(branches, branch)
	}
	if len(s.reasons.texts) > 0 {
		return newObject()
	}
	if word == "oneOf" && len(branches) > 1 {
		s.notes.add(path, "oneOf is written as anyOf: a value that fits several alternatives is refused when it is called, not before")
	}
	var out *object
	switch len(branches) {
	case 0:
		if !null {
			s.refuse(path, "nothing is allowed here")
		}
		out = newObject("type", "null")
	case 1:
		out = branches[0].(*object)
	default:
		s.distinct(branches, path)
		out = newObject("anyOf", branches)
	}
	if text := o.text("description"); text != "" || o.has("default") {
		if out.has("$ref") {
			out = newObject("anyOf", []any{out})
		}
		out = out.clone()
		out.setText(cmp.Or(text, out.text("description")), o)
	}
	if null && !s.takesNull(out) {
		out = orNull(out)
	}
	return out
}

// implied says whether the type beside alternatives says nothing new.
func (s *strictWriter) implied(o *object, word string) bool {
	types := kindsOf(o.get("type"))
	for _, one := range o.list(word) {
		flat, _ := s.in.flat(one.(*object))
		parts, _ := split(flat)
		if len(parts) == 0 || slices.ContainsFunc(parts, func(part *object) bool {
			kind := part.text("type")
			return !slices.Contains(types, kind) && !(kind == "integer" && slices.Contains(types, "number"))
		}) {
			return false
		}
	}
	return true
}

// distinct refuses alternatives that OpenAI cannot tell apart: objects with the same first
// property, unless its values differ.
func (s *strictWriter) distinct(branches []any, path string) {
	type first struct {
		name   string
		values []any
	}
	var seen []first
	for _, one := range branches {
		o := s.resolve(one.(*object))
		properties := o.object("properties")
		if properties == nil || len(properties.keys) == 0 {
			continue
		}
		name := properties.keys[0]
		f := first{name: name, values: properties.object(name).list("enum")}
		for _, before := range seen {
			if before.name != f.name {
				continue
			}
			both := slices.Concat(before.values, f.values)
			apart := len(before.values) > 0 && len(f.values) > 0 && len(union(both, nil)) == len(both)
			if !apart {
				s.refuse(path, "two alternatives are objects that both begin with %q, which strict cannot tell apart", f.name)
				return
			}
		}
		seen = append(seen, f)
	}
}

func (s *strictWriter) resolve(o *object) *object {
	for range 32 {
		name, ok := strings.CutPrefix(o.text("$ref"), "#/$defs/")
		if !ok {
			if branches := o.list("anyOf"); len(branches) == 1 {
				o = branches[0].(*object)
				continue
			}
			return o
		}
		o = s.defs.object(name)
	}
	return newObject()
}
