package tool

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// maxChanges bounds the reported changes of one call.
	maxChanges = 20
	// maxHeld is the longest text, in bytes, that is read as a value: more than a model writes in
	// one answer.
	maxHeld = 1 << 20
)

// Fit makes arguments that a model wrote fit the schema where their meaning is plain:
//
//   - text of a JSON list, object, number, boolean or null becomes that value,
//     where the schema accepts the value and no text;
//   - a null for an optional argument without null is removed;
//   - a name that differs from a declared one only by case or by - and _ becomes that name
//     where it would be refused or the declared one is missing.
//
// changed describes each change, as a text for people. Arguments that fit are returned
// unchanged, as are parts that cannot be made to fit: [Validator.Validate] reports them. The
// work has the bound of one check.
func (v *Validator) Fit(args json.RawMessage) (fitted json.RawMessage, changed []string) {
	if v.Validate(args) == nil {
		return args, nil
	}
	fitted = args
	_ = v.checked(args, func(one *check, value any) error { //nolint:errcheck // values that cannot be checked stay as they are
		f := fitter{check: one, texts: make(map[string]text)}
		value = f.value(one.schema, value, "")
		if data, err := MarshalPlain(value); err == nil && len(f.changed) > 0 {
			fitted, changed = data, f.changed
		}
		return nil
	})
	return fitted, changed
}

type fitter struct {
	check   *check
	changed []string
	texts   map[string]text // those that were read
}

// text is the value in a text, if it is one.
type text struct {
	value any
	ok    bool
}

func (f *fitter) note(at, format string, args ...any) {
	if len(f.changed) < maxChanges {
		f.changed = append(f.changed, at+": "+fmt.Sprintf(format, args...))
	}
}

// spend counts work that the library does not do: one visit, and n values that are looked at.
func (f *fitter) spend(n int) { f.check.spend(1 + n/perStep) }

func accepts(s *jsonschema.Schema, v any) bool { return s.Validate(v) == nil }

// value returns v, made to fit as far as it can be.
func (f *fitter) value(s *jsonschema.Schema, v any, at string) any {
	f.spend(len(s.AnyOf) + len(s.OneOf))
	before := len(f.changed)
	switch v := v.(type) {
	case map[string]any, []any:
		// Its content is visited in any case, unless one alternative may accept it as it is.
		if (s.AnyOf != nil || s.OneOf != nil) && accepts(s, v) {
			return v
		}
	case string:
		if accepts(s, v) {
			return v
		}
		if held, ok := f.held(v); ok && !f.takesText(s) {
			if made := f.value(s, held, at); accepts(s, made) {
				f.changed = f.changed[:before]
				f.note(at, "the text %s was read as %s", show(v), show(made))
				return made
			}
			f.changed = f.changed[:before]
		}
		return v
	default:
		return v
	}
	if s.Ref != nil {
		v = f.value(s.Ref, v, at)
	}
	for _, one := range s.AllOf {
		v = f.value(one, v, at)
	}
	for _, one := range slices.Concat(s.AnyOf, s.OneOf) {
		before := len(f.changed)
		if made := f.value(one, v, at); accepts(one, made) {
			v = made
			break
		}
		f.changed = f.changed[:before]
	}
	switch given := v.(type) {
	case map[string]any:
		return f.object(s, given, at)
	case []any:
		f.spend(len(given))
		made := slices.Clone(given)
		for i, one := range given {
			if inner := item(s, i); inner != nil {
				made[i] = f.value(inner, one, at+"/"+strconv.Itoa(i))
			}
		}
		return made
	}
	return v
}

func (f *fitter) object(s *jsonschema.Schema, given map[string]any, at string) any {
	f.spend(len(given) * (perStep + len(s.Required))) // each is sorted, and copied
	made := make(map[string]any, len(given))
	for _, key := range slices.Sorted(maps.Keys(given)) {
		name := key
		if meant := f.declaredAs(s, key, given); meant != "" && !has(made, meant) {
			name = meant
			f.note(at+"/"+escapePointer(key), "the name was read as %q", name)
		}
		one, inner, place := given[key], s.Properties[name], at+"/"+escapePointer(name)
		if inner != nil && !slices.Contains(s.Required, name) && f.isNull(inner, one) {
			f.note(place, "%s was left out", show(one))
			continue
		}
		if more, ok := s.AdditionalProperties.(*jsonschema.Schema); inner == nil && ok && len(s.PatternProperties) == 0 {
			inner = more
		}
		if inner != nil {
			one = f.value(inner, one, place)
		}
		made[name] = one
	}
	return made
}

// isNull says whether a value is null, or text for it, where the schema takes neither.
func (f *fitter) isNull(s *jsonschema.Schema, v any) bool {
	if text, ok := v.(string); ok {
		if one, ok := f.held(text); !ok || one != nil || f.takesText(s) {
			return false
		}
	} else if v != nil {
		return false
	}
	f.spend(0)
	return !accepts(s, nil)
}

// declaredAs returns the one declared member that an undeclared name may mean; else an empty text.
func (f *fitter) declaredAs(s *jsonschema.Schema, key string, given map[string]any) string {
	if s.Properties[key] != nil || len(s.PatternProperties) > 0 {
		return ""
	}
	f.spend(len(key) + perStep*len(s.Properties))
	found, plain := "", plainly(key)
	for name := range s.Properties {
		if plainly(name) == plain {
			if found != "" {
				return ""
			}
			found = name
		}
	}
	if found == "" || has(given, found) || s.AdditionalProperties != false && !slices.Contains(s.Required, found) {
		return ""
	}
	return found
}

func has(o map[string]any, key string) bool { _, ok := o[key]; return ok }

var separators = strings.NewReplacer(".", "", "-", "", "_", "")

// PlainName is a tool's name or id without the parts that models mangle: case and the separators .
// - _.
func PlainName(name string) string { return strings.ToLower(separators.Replace(name)) }

var betweenWords = strings.NewReplacer("_", "", "-", "")

func plainly(name string) string { return strings.ToLower(betweenWords.Replace(name)) }

// item is the schema of an array's member.
func item(s *jsonschema.Schema, i int) *jsonschema.Schema {
	list, rest := s.PrefixItems, s.Items2020
	switch items := s.Items.(type) { // before 2020-12
	case *jsonschema.Schema:
		rest = items
	case []*jsonschema.Schema:
		list = items
	}
	if i < len(list) {
		return list[i]
	}
	return rest
}

// held returns the value in a text, which is parsed once. The value is not changed: fitting
// copies it.
func (f *fitter) held(given string) (any, bool) {
	if len(given) > maxHeld {
		return nil, false
	}
	f.spend(len(given))
	read, ok := f.texts[given]
	if !ok {
		f.spend(perStep * len(given))
		read.value, read.ok = held(given)
		f.texts[given] = read
	}
	return read.value, read.ok
}

// held returns the JSON value that a text holds: no text, and within the bounds of
// arguments. True, False and None of Python count.
func held(text string) (any, bool) {
	text = strings.TrimSpace(text)
	switch {
	case text == "True" || text == "False":
		text = strings.ToLower(text)
	case text == "None":
		text = "null"
	case text == "" || text[0] == '"':
		return nil, false
	}
	value, err := readJSON([]byte(text))
	return value, err == nil
}

// takesText says whether some text may fit a schema. It says yes where it cannot tell.
func (f *fitter) takesText(s *jsonschema.Schema) bool {
	return mayBe(s, "string", maxSteps, func(s *jsonschema.Schema) *jsonschema.Schema { f.spend(0); return f.check.plain[s] })
}

// MayBe reports whether some value of a JSON type may fit a schema; number means one that is not
// whole. It is true if unknown. The empty type is one that no schema names: any value fits it.
func MayBe(s *jsonschema.Schema, kind string) bool {
	left := maxVisits
	return mayBe(s, kind, maxSteps, func(s *jsonschema.Schema) *jsonschema.Schema {
		if left--; left > 0 {
			return s
		}
		return nil
	})
}

// maxVisits is how many parts of a schema [MayBe] looks at.
const maxVisits = 1000

// mayBe reads of each schema what visit returns for it; nil if that is unknown.
func mayBe(s *jsonschema.Schema, kind string, steps int, visit func(*jsonschema.Schema) *jsonschema.Schema) bool {
	if s = visit(s); s == nil || steps == 0 {
		return true
	}
	is := func(v any) bool { return KindOf(v) == kind }
	refuses := func(one *jsonschema.Schema) bool { return !mayBe(one, kind, steps-1, visit) }
	switch {
	case s.Bool != nil:
		return *s.Bool
	case s.Types != nil && !slices.ContainsFunc(s.Types.ToStrings(), func(t string) bool { return t == kind || t == "number" && kind == "integer" }),
		s.Enum != nil && !slices.ContainsFunc(s.Enum.Values, is),
		s.Const != nil && !is(*s.Const),
		s.Ref != nil && refuses(s.Ref),
		slices.ContainsFunc(s.AllOf, refuses):
		return false
	}
	for _, list := range [][]*jsonschema.Schema{s.AnyOf, s.OneOf} {
		if len(list) > 0 && !slices.ContainsFunc(list, func(one *jsonschema.Schema) bool { return !refuses(one) }) {
			return false
		}
	}
	return true
}
