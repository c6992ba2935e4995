package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds on checked JSON, independent of the schema.
const (
	// maxDepth is how deep arrays and objects may nest. Python's own reader
	// gives up near 1,000; a recursive reader must give up before its stack does.
	maxDepth = 256
	// maxNumber is how long a number's text may be: Python refuses integers of
	// more than 4,300 digits, and exact comparison is quadratic.
	maxNumber = 1000
	// maxProblems bounds the list of problems of one call.
	maxProblems = 100
	// maxRequired is up to how many required members are compared one by one.
	maxRequired = 64
	// maxSteps is how many references and alternatives lead to a schema.
	maxSteps = 16
)

// scanner reads JSON text in one pass: it checks the syntax (UTF-8 and repeated keys
// included) and our bounds, and whether the value certainly fits a compiled schema. It
// never reports that a value does not fit: where it is unsure, the library decides.
type scanner struct {
	dec      *jsontext.Decoder
	readable readable
	unsure   bool
}

var decoders = sync.Pool{New: func() any { return jsontext.NewDecoder(new(bytes.Buffer)) }}

// scan reads data against a schema (nil: anything) and says whether it certainly
// fits.
func scan(data []byte, schema *jsonschema.Schema, known readable) (fits bool, err *malformed) {
	if !utf8.Valid(data) {
		return false, syntax("text that is not UTF-8", bytes.IndexRune(data, utf8.RuneError))
	}
	s := scanner{dec: decoders.Get().(*jsontext.Decoder), readable: known} //nolint:forcetypeassert // the pool holds nothing else
	defer decoders.Put(s.dec)
	// Half a surrogate, written as an escape, is not for the decoder to refuse.
	s.dec.Reset(bytes.NewBuffer(data), jsontext.AllowInvalidUTF8(true))
	if err := s.value(schema); err != nil {
		return false, err
	}
	if rest := bytes.TrimLeft(s.dec.UnreadBuffer(), " \t\r\n"); len(rest) > 0 {
		return false, syntax("more text after the value", len(data)-len(rest))
	}
	return !s.unsure, nil
}

// readJSON decodes one JSON value within our bounds, without repeated keys; numbers are [json.Number].
func readJSON(data []byte) (any, error) {
	if _, bad := scan(data, nil, nil); bad != nil { // a nil *malformed would be an error
		return nil, bad
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(data))
}

// malformed is an error in a text that is not JSON, or exceeds our bounds.
type malformed struct {
	pointer       string // "" for the text as a whole
	what          string
	expected, got string
}

func syntax(what string, at int) *malformed {
	return &malformed{what: fmt.Sprintf("not valid JSON: %s at byte %d", what, at), expected: "valid JSON", got: "malformed text"}
}

func (m *malformed) Error() string { return strings.TrimPrefix(m.pointer+" is "+m.what, " is ") }

// problem tells of the text as a whole, such as "the arguments", or of a place
// in it. verb is "is" or "are".
func (m *malformed) problem(whole, verb string) Problem {
	if m.pointer != "" {
		whole, verb = m.pointer, "is"
	}
	return Problem{Pointer: m.pointer, Expected: m.expected, Got: m.got, Message: whole + " " + verb + " " + m.what}
}

// fail returns the decoder's error.
func (s *scanner) fail(err error) *malformed {
	var bad *jsontext.SyntacticError
	switch {
	case !errors.As(err, &bad): // io.EOF: there is nothing at all
		return syntax("the text ends too early", int(s.dec.InputOffset()))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return syntax("the text ends too early", int(bad.ByteOffset))
	case errors.Is(err, jsontext.ErrDuplicateName):
		return &malformed{pointer: string(bad.JSONPointer), what: "given more than once", expected: "one value", got: "several"}
	}
	return syntax(bad.Err.Error(), int(bad.ByteOffset))
}

// value scans one value against a schema.
func (s *scanner) value(schema *jsonschema.Schema) *malformed {
	kind := s.dec.PeekKind()
	schema = s.resolve(schema, kind)
	if kind == '{' || kind == '[' {
		if s.dec.StackDepth() == maxDepth {
			return syntax(fmt.Sprintf("nested deeper than %d levels", maxDepth), int(s.dec.InputOffset()))
		}
		if schema != nil && (!allows(schema, kind, nil) || schema.Enum != nil || schema.Const != nil) {
			s.unsure, schema = true, nil
		}
		if kind == '{' {
			return s.object(schema)
		}
		return s.array(schema)
	}
	text, err := s.dec.ReadValue()
	if err != nil {
		return s.fail(err)
	}
	if kind == '0' {
		if err := s.bounded(text); err != nil {
			return err
		}
	}
	s.unsure = s.unsure || schema != nil && !fits(schema, kind, text)
	return nil
}

func (s *scanner) object(schema *jsonschema.Schema) *malformed {
	if _, err := s.dec.ReadToken(); err != nil {
		return s.fail(err)
	}
	count, required := 0, 0
	for ; s.dec.PeekKind() != '}'; count++ {
		name, err := s.dec.ReadValue()
		if err != nil {
			return s.fail(err)
		}
		var member *jsonschema.Schema
		if schema != nil {
			key := name[1 : len(name)-1]
			if bytes.IndexByte(key, '\\') >= 0 {
				key, _ = jsontext.AppendUnquote(nil, name) //nolint:errcheck // an error is of half a surrogate, which the decoder lets pass
			}
			if slices.ContainsFunc(schema.Required, func(r string) bool { return r == string(key) }) {
				required++
			}
			member = s.member(schema, key)
		}
		if err := s.value(member); err != nil {
			return err
		}
	}
	s.unsure = s.unsure || schema != nil && (required < len(schema.Required) || outside(count, schema.MinProperties, schema.MaxProperties))
	_, err := s.dec.ReadToken()
	if err != nil {
		return s.fail(err)
	}
	return nil
}

// member returns the schema of an object's member.
func (s *scanner) member(object *jsonschema.Schema, key []byte) *jsonschema.Schema {
	if declared, ok := object.Properties[string(key)]; ok {
		return declared
	}
	switch more := object.AdditionalProperties.(type) {
	case *jsonschema.Schema:
		return more
	case bool:
		s.unsure = s.unsure || !more
	}
	return nil
}

func (s *scanner) array(schema *jsonschema.Schema) *malformed {
	if _, err := s.dec.ReadToken(); err != nil {
		return s.fail(err)
	}
	var item *jsonschema.Schema
	if schema != nil {
		item = schema.Items2020
	}
	count := 0
	for ; s.dec.PeekKind() != ']'; count++ {
		if err := s.value(item); err != nil {
			return err
		}
	}
	s.unsure = s.unsure || schema != nil && outside(count, schema.MinItems, schema.MaxItems)
	if _, err := s.dec.ReadToken(); err != nil {
		return s.fail(err)
	}
	return nil
}

// bounded limits numbers to those that Python's float and exact arithmetic can handle: not
// 1e999999999, and not 1e-999999999 either, which rounds to 0 without an error.
func (s *scanner) bounded(text []byte) *malformed {
	refuse := func(what, expected string) *malformed {
		got := string(text[:min(len(text), 40)])
		if len(text) > 40 {
			got += "…"
		}
		return &malformed{pointer: string(s.dec.StackPointer()), what: what, expected: expected, got: got}
	}
	if len(text) > maxNumber {
		return refuse(fmt.Sprintf("a number of more than %d characters", maxNumber), fmt.Sprintf("a number of at most %d characters", maxNumber))
	}
	if integer(text) {
		return nil
	}
	_, err := strconv.ParseFloat(string(text), 64)
	if i := bytes.IndexAny(text, "eE"); err != nil || i >= 0 && len(bytes.TrimLeft(text[i+1:], "+-0")) > len("999") {
		return refuse("a number outside the range of a double", "a number in the range of a double")
	}
	return nil
}

// integer says whether a number is written as an integer.
func integer(text []byte) bool { return !bytes.ContainsAny(text, ".eE") }

// readable are the schemas of which every word is known here. Only of these the
// scanner says that a value fits.
type readable map[*jsonschema.Schema]bool

var (
	silentWords = []string{
		"DraftVersion", "Location", "ID", "Anchor", "Extensions", "Title", "Description", "Default", "Comment", "ReadOnly", "WriteOnly",
		"Examples", "Deprecated",
	}
	knownWords = append([]string{
		"Types", "Enum", "Const", "Properties", "Required", "AdditionalProperties", "MinProperties", "MaxProperties",
		"Items2020", "MinItems", "MaxItems", "MinLength", "MaxLength", "Minimum", "Maximum", "ExclusiveMinimum", "ExclusiveMaximum",
	}, silentWords...)
	boolWords      = append([]string{"Bool"}, silentWords...)
	referenceWords = append([]string{"Ref"}, silentWords...)
	unionWords     = append([]string{"AnyOf"}, silentWords...)
)

// add looks at a schema and at those that it leads to.
func (r readable) add(schema *jsonschema.Schema) {
	if _, seen := r[schema]; seen || schema == nil {
		return
	}
	r[schema] = len(schema.Required) <= maxRequired && slices.ContainsFunc(
		[][]string{knownWords, boolWords, referenceWords, unionWords},
		func(words []string) bool { return saysOnly(schema, words) })
	r.add(schema.Ref)
	for _, one := range schema.AnyOf {
		r.add(one)
	}
	for _, one := range schema.Properties {
		r.add(one)
	}
	if more, ok := schema.AdditionalProperties.(*jsonschema.Schema); ok {
		r.add(more)
	}
	r.add(schema.Items2020)
}

// saysOnly says whether a schema has no other words than those.
func saysOnly(schema *jsonschema.Schema, words []string) bool {
	v := reflect.ValueOf(schema).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.IsExported() && !v.Field(i).IsZero() && !slices.Contains(words, field.Name) {
			return false
		}
	}
	return true
}

// resolve returns the schema that a value of this kind has to fit, behind references and
// alternatives. A value that fits the first alternative of its kind fits the whole. nil: any
// value fits, or the library must decide.
func (s *scanner) resolve(schema *jsonschema.Schema, kind jsontext.Kind) *jsonschema.Schema {
	for range maxSteps {
		switch {
		case schema == nil || schema.Bool != nil && *schema.Bool:
			return nil
		case !s.readable[schema] || schema.Bool != nil:
			s.unsure = true
			return nil
		case schema.Ref != nil:
			schema = schema.Ref
		case schema.AnyOf != nil:
			i := slices.IndexFunc(schema.AnyOf, func(one *jsonschema.Schema) bool {
				for steps := 0; one.Ref != nil && steps < maxSteps; steps++ {
					one = one.Ref
				}
				return one.Types == nil || *one.Types&types[kind] != 0
			})
			if i < 0 {
				s.unsure = true
				return nil
			}
			schema = schema.AnyOf[i]
		default:
			return schema
		}
	}
	s.unsure = true // a circle of references
	return nil
}

var (
	// types are a schema's possible types of the values of each kind.
	types = [256]jsonschema.Types{
		'n': typesOf("null"), 't': typesOf("boolean"), 'f': typesOf("boolean"), '"': typesOf("string"),
		'0': typesOf("number", "integer"), '{': typesOf("object"), '[': typesOf("array"),
	}
	numbers = typesOf("number")
)

func typesOf(names ...string) (t jsonschema.Types) {
	for _, name := range names {
		t.Add(name)
	}
	return t
}

// allows says whether a value is of a type that the schema allows; 1.0, which is
// an integer too, is left to the library.
func allows(schema *jsonschema.Schema, kind jsontext.Kind, text []byte) bool {
	if schema.Types == nil {
		return true
	}
	if kind == '0' && !integer(text) {
		return *schema.Types&numbers != 0
	}
	return *schema.Types&types[kind] != 0
}

// fits says whether a scalar certainly fits a schema.
func fits(schema *jsonschema.Schema, kind jsontext.Kind, text []byte) bool {
	if !allows(schema, kind, text) ||
		schema.Enum != nil && !slices.ContainsFunc(schema.Enum.Values, func(v any) bool { return writtenAs(v, text) }) ||
		schema.Const != nil && !writtenAs(*schema.Const, text) {
		return false
	}
	switch {
	case kind == '"' && (schema.MinLength != nil || schema.MaxLength != nil):
		return bytes.IndexByte(text, '\\') < 0 && !outside(utf8.RuneCount(text)-len(`""`), schema.MinLength, schema.MaxLength)
	case kind == '0' && (schema.Minimum != nil || schema.Maximum != nil || schema.ExclusiveMinimum != nil || schema.ExclusiveMaximum != nil):
		n, ok := new(big.Rat).SetString(string(text))
		return ok && (schema.Minimum == nil || n.Cmp(schema.Minimum) >= 0) && (schema.Maximum == nil || n.Cmp(schema.Maximum) <= 0) &&
			(schema.ExclusiveMinimum == nil || n.Cmp(schema.ExclusiveMinimum) > 0) && (schema.ExclusiveMaximum == nil || n.Cmp(schema.ExclusiveMaximum) < 0)
	}
	return true
}

// writtenAs says whether text is the plain JSON of a scalar.
func writtenAs(v any, text []byte) bool {
	switch v := v.(type) {
	case nil:
		return string(text) == "null"
	case bool:
		return string(text) == strconv.FormatBool(v)
	case json.Number:
		return string(text) == string(v)
	case string:
		return text[0] == '"' && string(text[1:len(text)-1]) == v
	}
	return false
}

// outside reports whether a count is not within bounds; nil is no bound.
func outside(n int, least, most *int) bool {
	return least != nil && n < *least || most != nil && n > *most
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func escapePointer(key string) string { return pointerEscapes.Replace(key) }

// article names a kind of value in a sentence.
func article(kind jsontext.Kind) string { return articles[kind.String()] }

// articles are the names of kinds and of JSON types in a sentence.
var articles = map[string]string{
	"null": "null", "true": "a boolean", "false": "a boolean", "boolean": "a boolean", "string": "a string", "number": "a number", "integer": "a number",
	"{": "an object", "object": "an object", "[": "an array", "array": "an array",
}
