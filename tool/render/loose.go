package render

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
)

// arguments returns the root as one object schema without references and alternatives at its top,
// which OpenAI, Anthropic and Gemini all refuse there. They are widened into one object, with a
// note.
func (s *schema) arguments() *object {
	flat, exact := s.flat(s.root)
	if !exact {
		s.notes.add("", "allOf is written as one object that allows more")
	}
	out := flat.clone()
	out.drop("title")
	for _, word := range []string{"anyOf", "oneOf"} {
		if out.has(word) {
			out = s.joinAlternatives(out, word)
		}
	}
	for _, word := range []string{"not", "enum", "const"} {
		if out.has(word) {
			s.notes.add("", "%s of the whole arguments is left out", word)
			out.drop(word)
		}
	}
	ordered := newObject("type", "object", "properties", newObject())
	if !s.asObject(out, ordered) {
		return newObject("type", "object", "properties", newObject(), "additionalProperties", false)
	}
	return ordered
}

// asObject adds the words of o but its type to out, an object, and reports whether o allows one.
func (s *schema) asObject(o, out *object) bool {
	for _, key := range o.keys {
		if key != "type" {
			out.set(key, o.get(key))
		}
	}
	allows := !o.has("type") || slices.Contains(kindsOf(o.get("type")), "object")
	if !allows {
		s.notes.add("", "the schema does not allow an object, and arguments always are one: no call can fit it")
	}
	return allows
}

// joinAlternatives makes one object of alternatives: a member of any of them is
// a member, one that all require is required.
func (s *schema) joinAlternatives(o *object, word string) *object {
	out := o.clone()
	out.drop(word)
	var branches []*object
	for _, one := range o.list(word) {
		flat, _ := s.flat(one.(*object))
		if types := kindsOf(flat.get("type")); isNever(flat) || flat.has("type") && !slices.Contains(types, "object") {
			continue // no object fits it
		}
		branches = append(branches, flat)
	}
	if len(branches) == 0 {
		return out
	}
	s.notes.add("", "%s of the whole arguments is written as one object: which arguments go together is checked when it is called, not before", word)
	members := newObject()
	if given := o.object("properties"); given != nil {
		members = given.clone()
	}
	var required []any
	closed := true
	for i, branch := range branches {
		if given := branch.object("properties"); given != nil {
			for _, name := range given.keys {
				inner := given.get(name)
				switch old, ok := members.values[name]; {
				case !ok:
					members.set(name, inner)
				case equal(old, inner), o.object("properties") != nil && o.object("properties").has(name):
				default:
					members.set(name, newObject("anyOf", []any{old, inner}))
				}
			}
		}
		mine := branch.list("required")
		if i == 0 {
			required = slices.Clone(mine)
		} else {
			all := textsOf(mine)
			required = slices.DeleteFunc(required, func(name any) bool { return !all[encodeText(name)] })
		}
		closed = closed && branch.get("additionalProperties") == false
	}
	out.set("properties", members)
	if all := union(o.list("required"), required); len(all) > 0 {
		out.set("required", all)
	}
	if closed && !o.has("additionalProperties") {
		out.set("additionalProperties", false)
	}
	return out
}

// looseWriter is how a provider that takes most of JSON Schema wants it.
type looseWriter struct {
	in *schema
	// complete: every object has properties and every array has items, which
	// OpenAI and Gemini ask for.
	complete bool
	// gemini: the words that Gemini documents, and no circles of references.
	gemini  bool
	open    map[string]bool // definitions that are being written, for Gemini
	defs    *object
	started map[string]bool
	count   int
	depth   int
}

// geminiWords are the words of JSON Schema that Gemini documents.
var geminiWords = words("$ref", "$defs", "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems", "maxItems",
	"minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required")

// geminiDepth bounds the levels that are written out in place of references.
const geminiDepth = 32

func (l *looseWriter) schema(o *object) *object {
	l.count++
	if l.count > 4*maxNodes {
		l.in.notes.add("", "the schema is too large to be shown as a whole: parts of it are left open")
		return newObject()
	}
	out := newObject()
	if l.gemini {
		if l.depth++; l.depth > geminiDepth {
			l.depth--
			l.in.notes.add("", "the schema is too deep to be shown as a whole: parts of it are left open")
			return out
		}
		defer func() { l.depth-- }()
		o = l.forGemini(o)
	}
	for _, key := range o.keys {
		value := o.get(key)
		if key == "$ref" {
			l.reference(o)
		}
		out.set(key, inner(key, value, l.value))
	}
	if l.complete {
		l.finish(o, out)
	}
	return out
}

// forGemini returns a schema in the words that Gemini documents: nothing beside a
// $ref, no circles, enum for const, and a default in the description.
func (l *looseWriter) forGemini(o *object) *object {
	if o.has("allOf") || o.has("$ref") && asserts(o, "$ref") {
		flat, exact := l.in.flat(o)
		if o = flat; !exact {
			l.in.notes.add("", "allOf is written as one schema that allows more")
		}
	}
	out := newObject()
	for _, key := range o.keys {
		value := o.get(key)
		switch {
		case key == "$ref":
			target, name := l.in.target(o)
			switch {
			case l.open[name]:
				l.in.notes.add("", "%s is recursive, and Gemini takes no circles: deeper values are not described", name)
				out.take(target, "type")
			case len(o.keys) > 1:
				out.set("anyOf", []any{newObject("$ref", value)})
			default:
				out.set(key, value)
			}
		case key == "const":
			out.set("enum", []any{value})
		case geminiWords[key]:
			out.set(key, value)
		case !annotationWords[key] && !isNever(o):
			l.in.notes.add("", "Gemini documents no %s: it is checked when the tool is called", key)
		}
	}
	out.setText(o.text("description"), o)
	return out
}

// value renders a schema where false may be written as such.
func (l *looseWriter) value(v any) any {
	o, ok := v.(*object)
	switch {
	case !ok:
		return v // additionalProperties
	case isNever(o) && len(o.keys) == 1 && !l.complete:
		return false
	}
	return l.schema(o)
}

func (l *looseWriter) finish(o, out *object) {
	types := kindsOf(out.get("type"))
	if slices.Contains(types, "object") && !out.has("properties") {
		out.set("properties", newObject())
	}
	if !slices.Contains(types, "array") {
		return
	}
	prefix := out.list("prefixItems")
	items := o.object("items")
	if items != nil && (!isNever(items) || len(prefix) == 0) {
		return
	}
	// Of a tuple: with maxItems the word items is about nothing.
	if most, ok := size(out.get("maxItems")); items != nil && (!ok || most > len(prefix)) {
		out.set("maxItems", number(len(prefix)))
	}
	out.set("items", newObject())
}

// reference renders the definition that o refers to, once.
func (l *looseWriter) reference(o *object) {
	target, name := l.in.target(o)
	if target == nil || l.started[name] {
		return
	}
	l.started[name] = true
	if l.gemini {
		l.open[name] = true
		defer delete(l.open, name)
	}
	l.defs.set(name, newObject()) // its place
	l.defs.set(name, l.schema(target))
}

// loose renders a root and puts the definitions below it.
func (s *schema) loose(root *object, l *looseWriter) *object {
	l.in, l.defs, l.started = s, newObject(), map[string]bool{}
	out := l.schema(root)
	if len(l.defs.keys) > 0 {
		out.set("$defs", l.defs)
	}
	return out
}

// safeNames renames the members of a root that Anthropic and Gemini refuse, and returns their
// original names.
func (s *schema) safeNames(root *object) (*object, map[string]string) {
	properties := root.object("properties")
	safe, back := map[string]string{}, map[string]string{} // by their own names, and by their safe ones
	renamed := newObject()
	for _, name := range properties.keys {
		shown := name
		if !plainName.MatchString(name) {
			shown = safeName(name, func(n string) bool { return properties.has(n) || renamed.has(n) })
			safe[name], back[shown] = shown, name
			s.notes.add("", "the argument %q is called %q: the provider refuses its name", name, shown)
		}
		renamed.set(shown, properties.get(name))
	}
	if len(safe) == 0 {
		return root, nil
	}
	out := root.clone()
	out.set("properties", renamed)
	if required := root.list("required"); required != nil {
		needed := slices.Clone(required)
		for i, name := range needed {
			if other, ok := safe[name.(string)]; ok {
				needed[i] = other
			}
		}
		out.set("required", needed)
	}
	// Other words name members inside; without them more is allowed.
	for _, word := range []string{"dependentRequired", "dependentSchemas", "if", "then", "else", "propertyNames"} {
		if out.has(word) {
			s.notes.add("", "%s is left out, because an argument has another name here", word)
			out.drop(word)
		}
	}
	return out, back
}

var unsafeRunes = regexp.MustCompile(`[^A-Za-z0-9_]`)

// safeName makes a name of letters, digits and _ that is not taken.
func safeName(name string, taken func(string) bool) string {
	b := unsafeRunes.ReplaceAllString(name, "_")
	if b == "" || b[0] >= '0' && b[0] <= '9' {
		b = "_" + b
	}
	sum := sha256.Sum256([]byte(name))
	suffix := "_" + hex.EncodeToString(sum[:4])
	candidate := b[:min(len(b), 64-len(suffix))] + suffix
	for i := 2; taken(candidate); i++ {
		end := fmt.Sprintf("%s_%d", suffix, i)
		candidate = b[:min(len(b), 64-len(end))] + end
	}
	return candidate
}
