package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	fault "github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/toolmesh/toolmesh"
)

var english = message.NewPrinter(language.English)

// Problem is one entry of details.errors of an invalid_arguments error.
type Problem struct {
	// Pointer is the JSON Pointer into the arguments; of a missing field, to
	// where it would be; "" is the arguments object itself.
	Pointer string `json:"pointer"`
	// Expected describes the allowed values, e.g. "integer".
	Expected string `json:"expected"`
	// Got describes the value, e.g. `"three"` or "nothing".
	Got string `json:"got"`
	// Message is a complete sentence.
	Message string `json:"message"`
}

// Problems returns the entries of details.errors of err, also of one that came
// over the wire; nil if it has none.
func Problems(err error) []Problem {
	var e *toolmesh.Error
	if !errors.As(err, &e) || e.Details["errors"] == nil {
		return nil
	}
	data, err := json.Marshal(e.Details["errors"])
	var list []Problem
	if err != nil || json.Unmarshal(data, &list) != nil {
		return nil
	}
	return list
}

// invalid makes the one error of arguments that do not fit.
func invalid(problems []Problem) error {
	text := problems[0].Message
	if more := len(problems) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return toolmesh.Errorf(toolmesh.CodeInvalidArguments, "%s", text).
		WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo).
		WithDetail("errors", problems)
}

// collector flattens the library's tree of errors.
type collector struct {
	root     any
	result   string             // how the whole is called, of a result; empty for arguments
	declared []string           // names of the top-level properties
	schema   *jsonschema.Schema // of the arguments; nil: of something else
	most     int                // as many problems are collected
	problems []Problem
	seen     map[Problem]bool
}

func problemsOf(failed *jsonschema.ValidationError, root any, result string, declared []string, schema *jsonschema.Schema) []Problem {
	c := &collector{root: root, result: result, declared: declared, schema: schema, most: 10 * maxProblems, seen: map[Problem]bool{}}
	c.collect(failed)
	// The library walks maps: sort, so that the same call gives the same answer.
	slices.SortStableFunc(c.problems, func(a, b Problem) int { return strings.Compare(a.Pointer, b.Pointer) })
	if len(c.problems) == 0 {
		whole := cmp.Or(result, "the arguments object")
		c.problems = []Problem{{Expected: "a value that fits the schema", Got: "another", Message: whole + " does not fit the schema"}}
	}
	return c.problems[:min(len(c.problems), maxProblems)]
}

func (c *collector) add(p Problem) {
	if !c.seen[p] && len(c.problems) < c.most {
		c.seen[p] = true
		c.problems = append(c.problems, p)
	}
}

func pointerOf(location []string) string {
	var b strings.Builder
	for _, token := range location {
		b.WriteByte('/')
		b.WriteString(escapePointer(token))
	}
	return b.String()
}

// name is how a message calls the value at pointer.
func (c *collector) name(pointer string) string {
	return cmp.Or(pointer, c.result, "the arguments object")
}

func (c *collector) collect(e *jsonschema.ValidationError) {
	if len(c.problems) >= c.most {
		return
	}
	at := pointerOf(e.InstanceLocation)
	put := func(expected, got, format string, args ...any) {
		c.add(Problem{Pointer: at, Expected: expected, Got: got, Message: fmt.Sprintf(format, args...)})
	}
	must := func(expected string) {
		got := c.show(e.InstanceLocation)
		put(expected, got, "%s must be %s, not %s", c.name(at), expected, got)
	}
	count := func(limit string, want, got int, noun string) {
		expected := plural(limit, want, noun)
		put(expected, strconv.Itoa(got), "%s must have %s, but has %d", c.name(at), expected, got)
	}
	switch k := e.ErrorKind.(type) {
	case *fault.Required:
		c.missing(e.InstanceLocation, k.Missing, "")
	case *fault.DependentRequired:
		c.missing(e.InstanceLocation, k.Missing, k.Prop)
	case *fault.Dependency:
		c.missing(e.InstanceLocation, k.Missing, k.Prop)
	case *fault.AdditionalProperties:
		for _, prop := range k.Properties {
			c.unknown(e.InstanceLocation, prop)
		}
	case *fault.FalseSchema:
		if len(e.InstanceLocation) > 0 {
			last := len(e.InstanceLocation) - 1
			c.unknown(e.InstanceLocation[:last], e.InstanceLocation[last])
		} else {
			put("nothing", c.show(e.InstanceLocation), "the schema allows no %s at all", cmp.Or(strings.TrimPrefix(c.result, "the "), "arguments"))
		}
	case *fault.Type:
		want := strings.Join(k.Want, " or ")
		got := c.show(e.InstanceLocation)
		put(want, got, "%s must be %s, not %s", c.name(at), want, withKind(k.Got, got))
	case *fault.Enum:
		must("one of " + list(k.Want))
	case *fault.Const:
		must(show(k.Want))
	case *fault.Format:
		must("a string in the format " + k.Want)
	case *fault.Pattern:
		must("a string that matches " + strconv.Quote(k.Want))
	case *fault.ContentEncoding:
		must("a string in the encoding " + k.Want)
	case *fault.Minimum:
		must("at least " + decimal(k.Want))
	case *fault.Maximum:
		must("at most " + decimal(k.Want))
	case *fault.ExclusiveMinimum:
		must("more than " + decimal(k.Want))
	case *fault.ExclusiveMaximum:
		must("less than " + decimal(k.Want))
	case *fault.MultipleOf:
		must("a multiple of " + decimal(k.Want))
	case *fault.MinLength:
		count("at least", k.Want, k.Got, "character")
	case *fault.MaxLength:
		count("at most", k.Want, k.Got, "character")
	case *fault.MinItems:
		count("at least", k.Want, k.Got, "item")
	case *fault.MaxItems:
		count("at most", k.Want, k.Got, "item")
	case *fault.UniqueItems:
		put("items that differ", "equal items", "%s has equal items at %d and %d", c.name(at), k.Duplicates[0], k.Duplicates[1])
	case *fault.MinProperties:
		count("at least", k.Want, k.Got, "field")
	case *fault.MaxProperties:
		count("at most", k.Want, k.Got, "field")
	case *fault.PropertyNames:
		c.add(Problem{
			Pointer: at + "/" + escapePointer(k.Property), Expected: "another name", Got: show(k.Property),
			Message: fmt.Sprintf("%q is not an allowed name in %s", k.Property, c.name(at)),
		})
	case *fault.AnyOf:
		c.alternatives(e)
	case *fault.OneOf:
		if len(k.Subschemas) > 0 {
			put("exactly one of the alternatives", "several", "%s fits several alternatives of the schema, but must fit exactly one", c.name(at))
		} else {
			c.alternatives(e)
		}
	case *fault.Not:
		put("another value", c.show(e.InstanceLocation), "%s must not be %s", c.name(at), c.show(e.InstanceLocation))
	default: // groups: schema, $ref, allOf
		if len(e.Causes) == 0 {
			put("a value that fits the schema", c.show(e.InstanceLocation), "%s: %s", c.name(at), e.ErrorKind.LocalizedString(english))
		}
		for _, cause := range e.Causes {
			c.collect(cause)
		}
	}
}

func (c *collector) missing(location, names []string, because string) {
	at := pointerOf(location)
	for _, n := range names {
		text, expected := fmt.Sprintf("%q is required", n), "a value"
		if at != "" {
			text = fmt.Sprintf("%q is required in %s", n, at)
		}
		if because != "" {
			text += fmt.Sprintf(" when %q is given", because)
		}
		if kind := c.typeOf(location, n); kind != "" {
			text, expected = text+": "+kind, kind
		}
		c.add(Problem{Pointer: at + "/" + escapePointer(n), Expected: expected, Got: "nothing", Message: text})
	}
}

// typeOf is the JSON type of a field of the object at location, empty if its schema does not name one.
func (c *collector) typeOf(location []string, field string) string {
	s := plain(c.schema)
	for _, step := range append(slices.Clone(location), field) {
		if s == nil {
			return ""
		}
		further, _ := s.AdditionalProperties.(*jsonschema.Schema)
		s = plain(cmp.Or(s.Properties[step], s.Items2020, further))
	}
	if s == nil || s.Types == nil || s.Types.IsEmpty() {
		return ""
	}
	return strings.Join(s.Types.ToStrings(), " or ")
}

// plain is the schema that s refers to, or that it allows next to null; nil otherwise.
func plain(s *jsonschema.Schema) *jsonschema.Schema {
	for range maxSteps {
		switch {
		case s == nil || s.Types != nil && !s.Types.IsEmpty():
			return s
		case s.Ref == nil && len(s.AnyOf) == 2 && isNull(s.AnyOf[0]):
			s = s.AnyOf[1]
		case s.Ref == nil && len(s.AnyOf) == 2 && isNull(s.AnyOf[1]):
			s = s.AnyOf[0]
		default:
			s = s.Ref
		}
	}
	return nil
}

func isNull(s *jsonschema.Schema) bool {
	return s.Types != nil && slices.Equal(s.Types.ToStrings(), []string{"null"})
}

func (c *collector) unknown(parent []string, prop string) {
	at := pointerOf(parent)
	got := c.show(append(slices.Clone(parent), prop))
	text := fmt.Sprintf("%q is not an argument of this tool", prop)
	if at != "" || c.result != "" {
		text = fmt.Sprintf("%q is not a field of %s", prop, c.name(at))
	} else if near := Nearest(prop, c.declared, 1); len(near) > 0 {
		text += fmt.Sprintf("; did you mean %q?", near[0])
	} else if len(c.declared) > 0 && len(c.declared) <= 12 {
		text += "; it takes " + strings.Join(c.declared, ", ")
	} else if len(c.declared) == 0 {
		text += "; it takes none"
	}
	c.add(Problem{Pointer: at + "/" + escapePointer(prop), Expected: "nothing", Got: got, Message: text})
}

// alternatives reports a value that fits no branch of an anyOf or oneOf: by the
// problems of the one branch of its kind, if there is one, else as a whole.
func (c *collector) alternatives(e *jsonschema.ValidationError) {
	var near []*jsonschema.ValidationError
	var wanted []string
	for _, cause := range e.Causes {
		if want, wrongKind := c.wrongKind(cause, e.InstanceLocation); wrongKind {
			for _, w := range want {
				if !slices.Contains(wanted, w) {
					wanted = append(wanted, w)
				}
			}
			continue
		}
		near = append(near, cause)
	}
	at, got := pointerOf(e.InstanceLocation), c.show(e.InstanceLocation)
	switch {
	case len(near) == 1:
		c.collect(near[0])
	case len(near) == 0 && len(wanted) > 0:
		want := strings.Join(wanted, " or ")
		c.add(Problem{Pointer: at, Expected: want, Got: got, Message: fmt.Sprintf("%s must be %s, not %s", c.name(at), want, got)})
	default:
		var reasons []string
		for _, n := range near[:min(len(near), 4)] { // of many none says much
			sub := &collector{root: c.root, result: c.result, most: 1, seen: map[Problem]bool{}}
			if sub.collect(n); len(sub.problems) > 0 {
				reasons = append(reasons, sub.problems[0].Message)
			}
		}
		c.add(Problem{
			Pointer: at, Expected: "one of the alternatives", Got: got,
			Message: fmt.Sprintf("%s fits none of its alternatives: %s", c.name(at), strings.Join(reasons, "; or ")),
		})
	}
}

// wrongKind reports whether a branch failed because the value at location is of another kind, and
// returns the kinds that it wants.
func (c *collector) wrongKind(e *jsonschema.ValidationError, location []string) ([]string, bool) {
	for {
		if k, ok := e.ErrorKind.(*fault.Type); ok && slices.Equal(e.InstanceLocation, location) {
			return k.Want, true
		}
		if len(e.Causes) != 1 {
			return nil, false
		}
		e = e.Causes[0]
	}
}

// show returns the value at a location as short JSON text.
func (c *collector) show(location []string) string {
	v, ok := valueAt(c.root, location)
	if !ok {
		return "nothing"
	}
	return show(v)
}

// valueAt is the value at a location.
func valueAt(v any, location []string) (any, bool) {
	for _, token := range location {
		switch parent := v.(type) {
		case map[string]any:
			v = parent[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(parent) {
				return nil, false
			}
			v = parent[i]
		}
	}
	return v, true
}

// public describes a failed check by the schema and the kind of the value.
func public(e *jsonschema.ValidationError, root any) string {
	for group := true; group && len(e.Causes) > 0; {
		switch e.ErrorKind.(type) {
		case *fault.Schema, *fault.Group, *fault.Reference, *fault.AllOf: // the library walks maps
			e = slices.MinFunc(e.Causes, func(a, b *jsonschema.ValidationError) int { return strings.Compare(a.SchemaURL, b.SchemaURL) })
		default:
			group = false
		}
	}
	c := &collector{root: root, result: "the result", most: 1, seen: map[Problem]bool{}}
	c.collect(e)
	expected, got := "a value that fits", "nothing"
	if len(c.problems) > 0 {
		expected = c.problems[0].Expected
	}
	if v, ok := valueAt(root, e.InstanceLocation); ok {
		got = articles[KindOf(v)]
	}
	switch k := e.ErrorKind.(type) {
	case *fault.Required:
		expected, got = show(k.Missing[0]), got+" without"
	case *fault.AdditionalProperties:
		expected = "no field that is not declared"
	case *fault.PropertyNames:
		expected = "other names of fields"
	}
	return fmt.Sprintf("%s: expected %s, got %s", strings.TrimPrefix(e.SchemaURL, schemaURL), expected, got)
}

// KindOf returns the JSON type of a decoded value as a schema names it, also of a package's own
// objects: a whole number is an integer.
func KindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case json.Number:
		if _, whole := WholeNumber(string(v)); whole {
			return "integer"
		}
		return "number"
	default:
		return "object"
	}
}

const maxShown = 80

// show returns a scalar as JSON text, cut to maxShown characters, and names other values. The cost
// does not depend on the size.
func show(v any) string {
	switch given := v.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return plural("an array of", len(given), "item")
	case string:
		v = given[:min(len(given), utf8.UTFMax*maxShown)]
	}
	data, err := MarshalPlain(v)
	if err != nil {
		return "something"
	}
	text := []rune(string(data))
	if len(text) > maxShown {
		return string(text[:maxShown]) + "…"
	}
	return string(text)
}

// withKind puts the kind before a shown scalar: string "three".
func withKind(got, shown string) string {
	if slices.Contains([]string{"object", "array", "null", "boolean"}, got) {
		return shown
	}
	return got + " " + shown
}

func list(values []any) string {
	texts := make([]string, 0, len(values))
	for i, v := range values {
		if i == 20 {
			texts = append(texts, fmt.Sprintf("… (%d in all)", len(values)))
			break
		}
		texts = append(texts, show(v))
	}
	return strings.Join(texts, ", ")
}

func decimal(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

func plural(limit string, n int, noun string) string {
	text := strings.TrimSpace(limit + " " + strconv.Itoa(n) + " " + noun)
	if n != 1 {
		text += "s"
	}
	return text
}
