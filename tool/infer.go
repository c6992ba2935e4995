package tool

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// For returns the JSON Schema of T: [SchemaFor] with a type argument.
func For[T any]() (json.RawMessage, error) { return SchemaFor(reflect.TypeFor[T]()) }

// SchemaFor returns the JSON Schema (2020-12) of the JSON that encoding/json reads and writes
// for a Go type.
//
// Structs are closed objects whose properties are the exported fields under
// their json names, in field order; the tag `jsonschema:"…"` is a field's
// description. A field is required unless it is tagged omitempty or omitzero.
// A pointer may be null. Slices and maps are not nullable: a tool gets an empty
// one by [] and {}. []byte is base64 text, [time.Time] a date-time,
// [time.Duration] its number of nanoseconds, [json.RawMessage] and interfaces
// any value, [json.Number] a number, a [encoding.TextMarshaler] text, also by a
// method of its pointer: such values must then be addressable where they are
// written, which those of a map are not, so give a map pointers. A type that
// contains itself, or that occurs more than once, is a definition under $defs.
// Unsupported are functions, channels, complex numbers, maps whose keys
// are not text or integers, and types with a MarshalJSON of their own that are
// not listed here: the error names the field.
func SchemaFor(t reflect.Type) (json.RawMessage, error) {
	if t == nil {
		return nil, fmt.Errorf("schema of a nil type")
	}
	in := &inference{uses: map[reflect.Type]int{}, names: map[reflect.Type]string{}, taken: map[string]bool{}}
	if err := in.count(t, t.String()); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", t, err)
	}
	var root *inferred
	if base := indirect(t); base.Kind() == reflect.Struct && known(base) == nil && t.Kind() != reflect.Pointer {
		if in.uses[base] > 1 {
			in.name(base) // met again inside itself: the document's top stays an object with properties
		}
		root = in.shape(base)
	} else {
		root = in.schema(t, "")
	}
	defs := &members{}
	for i := 0; i < len(in.order); i++ { // building one may add others
		defs.add(in.names[in.order[i]], in.shape(in.order[i]))
		root.Defs = defs
	}
	return MarshalPlain(root)
}

// inferred is a JSON Schema, its words in the order in which they are written.
type inferred struct {
	Ref             string      `json:"$ref,omitempty"`
	Type            any         `json:"type,omitempty"` // a text, or texts
	AnyOf           []*inferred `json:"anyOf,omitempty"`
	Format          string      `json:"format,omitempty"`
	ContentEncoding string      `json:"contentEncoding,omitempty"`
	Minimum         *int64      `json:"minimum,omitempty"`
	Maximum         *int64      `json:"maximum,omitempty"`
	Properties      *members    `json:"properties,omitempty"`
	Required        []string    `json:"required,omitempty"`
	Additional      any         `json:"additionalProperties,omitempty"` // false, or an *inferred
	Items           *inferred   `json:"items,omitempty"`
	MinItems        *int        `json:"minItems,omitempty"`
	MaxItems        *int        `json:"maxItems,omitempty"`
	Description     string      `json:"description,omitempty"`
	Defs            *members    `json:"$defs,omitempty"`
}

// members are schemas by their names, in an order.
type members struct {
	names   []string
	schemas []*inferred
}

func (m *members) add(name string, schema *inferred) {
	m.names, m.schemas = append(m.names, name), append(m.schemas, schema)
}

// MarshalJSON writes an object in the order of its names.
func (m *members) MarshalJSON() ([]byte, error) {
	var buf bytes.Buffer
	buf.WriteByte('{')
	for i, name := range m.names {
		if i > 0 {
			buf.WriteByte(',')
		}
		key, _ := MarshalPlain(name) // a text always can be
		schema, err := MarshalPlain(m.schemas[i])
		if err != nil {
			return nil, err
		}
		buf.Write(key)
		buf.WriteByte(':')
		buf.Write(schema)
	}
	buf.WriteByte('}')
	return buf.Bytes(), nil
}

type inference struct {
	uses  map[reflect.Type]int // occurrences of named structs; recursion counts as one more
	names map[reflect.Type]string
	taken map[string]bool
	order []reflect.Type // types that need a definition
}

// count finds the types that occur more than once, and the unsupported ones.
func (in *inference) count(t reflect.Type, where string) error {
	t = indirect(t)
	if known(t) != nil {
		return nil
	}
	if t.Kind() == reflect.Struct || t.Name() != "" {
		in.uses[t]++
		if in.uses[t] > 1 {
			return nil
		}
	}
	if marshals(t) && !textual(t) {
		return fmt.Errorf("%s has type %s, which writes its own JSON: give the schema of the tool yourself", where, t)
	}
	if textual(t) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		for _, f := range jsonFields(t) {
			if err := in.count(f.typ, where+"."+f.name); err != nil {
				return err
			}
		}
		return nil
	case reflect.Map:
		if !validKey(t.Key()) {
			return fmt.Errorf("%s is a map with keys of type %s, which JSON does not have", where, t.Key())
		}
		return in.count(t.Elem(), where+"{}")
	case reflect.Slice, reflect.Array:
		return in.count(t.Elem(), where+"[]")
	case reflect.Func, reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return fmt.Errorf("%s has type %s, which JSON does not have", where, t)
	default:
		return nil
	}
}

func validKey(t reflect.Type) bool {
	return t.Kind() == reflect.String || wholeKind(t.Kind()) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// wholeKind says whether a kind is one of the integers, which stand together.
func wholeKind(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Uintptr }

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer && t.Name() == "" {
		t = t.Elem()
	}
	return t
}

// schema is the schema of one use of a type.
func (in *inference) schema(t reflect.Type, description string) *inferred {
	nullable := t.Kind() == reflect.Pointer
	t = indirect(t)
	var s *inferred
	if in.uses[t] > 1 && composite(t) && known(t) == nil && !textual(t) {
		s = &inferred{Ref: "#/$defs/" + in.name(t)}
	} else {
		s = in.shape(t)
	}
	if nullable && s.Type != nil {
		s.Type = []any{s.Type, "null"}
	} else if nullable && s.Ref != "" { // an empty schema allows null already
		s = &inferred{AnyOf: []*inferred{s, {Type: "null"}}}
	}
	s.Description = description
	return s
}

// composite says whether a type is worth a definition.
func composite(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice, reflect.Array:
		return t.Name() != "" || t.Kind() == reflect.Struct
	}
	return false
}

// unnamable matches characters that a definition's name must not have.
var unnamable = regexp.MustCompile(`[^A-Za-z0-9_]`)

// name returns the definition's name of a type and notes that it is needed.
func (in *inference) name(t reflect.Type) string {
	if n, ok := in.names[t]; ok {
		return n
	}
	base := unnamable.ReplaceAllString(t.Name(), "_")
	if base == "" {
		base = "Type"
	}
	n := base
	for i := 2; in.taken[n]; i++ {
		n = base + strconv.Itoa(i)
	}
	in.names[t], in.taken[n] = n, true
	in.order = append(in.order, t)
	return n
}

// shape is the schema of a type that is not a pointer, without references to
// itself at the top.
func (in *inference) shape(t reflect.Type) *inferred {
	if s := known(t); s != nil {
		return s
	}
	if textual(t) {
		return &inferred{Type: "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return &inferred{Type: "boolean"}
	case reflect.String:
		return &inferred{Type: "string"}
	case reflect.Float32, reflect.Float64:
		return &inferred{Type: "number"}
	case reflect.Int, reflect.Int64:
		return &inferred{Type: "integer"}
	case reflect.Int8, reflect.Int16, reflect.Int32:
		most := int64(1)<<(t.Bits()-1) - 1
		least := -most - 1
		return &inferred{Type: "integer", Minimum: &least, Maximum: &most}
	case reflect.Uint, reflect.Uint64, reflect.Uintptr:
		return &inferred{Type: "integer", Minimum: new(int64)}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		most := int64(1)<<t.Bits() - 1
		return &inferred{Type: "integer", Minimum: new(int64), Maximum: &most}
	case reflect.Map:
		return &inferred{Type: "object", Additional: in.schema(t.Elem(), "")}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 && !marshals(t.Elem()) && !textual(t.Elem()) {
			return &inferred{Type: "string", ContentEncoding: "base64"}
		}
		return &inferred{Type: "array", Items: in.schema(t.Elem(), "")}
	case reflect.Array:
		n := t.Len()
		return &inferred{Type: "array", Items: in.schema(t.Elem(), ""), MinItems: &n, MaxItems: &n}
	case reflect.Struct:
		s := &inferred{Type: "object", Properties: &members{}, Additional: false}
		if t == reflect.TypeFor[File]() {
			s.Format = FileFormat
		}
		for _, f := range jsonFields(t) {
			s.Properties.add(f.name, in.field(f))
			if !f.optional {
				s.Required = append(s.Required, f.name)
			}
		}
		return s
	}
	return &inferred{} // an interface: anything
}

func (in *inference) field(f field) *inferred {
	switch {
	case !f.quoted:
		return in.schema(f.typ, f.description)
	case f.typ.Kind() == reflect.Pointer:
		return &inferred{Type: []string{"string", "null"}, Description: f.description} // a nil one is not quoted
	}
	return &inferred{Type: "string", Description: f.description}
}

// known returns the schema of the standard types that write their own JSON, nil
// for any other type. Every call returns a new one.
func known(t reflect.Type) *inferred {
	switch t {
	case reflect.TypeFor[time.Time]():
		return &inferred{Type: "string", Format: "date-time"}
	case reflect.TypeFor[uuid.UUID]():
		return &inferred{Type: "string", Format: "uuid"}
	case reflect.TypeFor[big.Int]():
		return &inferred{Type: "integer"}
	case reflect.TypeFor[json.Number]():
		return &inferred{Type: "number"}
	case reflect.TypeFor[json.RawMessage]():
		return &inferred{}
	}
	return nil
}

func marshals(t reflect.Type) bool {
	i := reflect.TypeFor[json.Marshaler]()
	return t.Kind() != reflect.Interface && (t.Implements(i) || reflect.PointerTo(t).Implements(i))
}

func textual(t reflect.Type) bool {
	i := reflect.TypeFor[encoding.TextMarshaler]()
	return t.Kind() != reflect.Interface && !marshals(t) && (t.Implements(i) || reflect.PointerTo(t).Implements(i))
}

// field is one property of a struct.
type field struct {
	name        string
	typ         reflect.Type
	description string
	optional    bool
	quoted      bool // the json tag's "string" option
	rank        int  // of fields of one name the least counts: the shallowest, of these a tagged one
	place       int
}

// jsonFields returns the fields of a struct as encoding/json sees them: embedded
// structs flattened, a shallower or tagged field before a deeper one, clashes
// dropped.
func jsonFields(t reflect.Type) []field {
	all := collectFields(nil, t, 0, false, map[reflect.Type]bool{})
	return slices.DeleteFunc(slices.Clone(all), func(f field) bool {
		return slices.ContainsFunc(all, func(other field) bool {
			return other.name == f.name && other.place != f.place && other.rank <= f.rank
		})
	})
}

func collectFields(all []field, t reflect.Type, depth int, optional bool, open map[reflect.Type]bool) []field {
	if open[t] {
		return all
	}
	open[t] = true
	defer delete(open, t)
	for i := range t.NumField() {
		sf := t.Field(i)
		tag := sf.Tag.Get("json")
		if tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		base := sf.Type
		pointer := base.Kind() == reflect.Pointer
		if pointer {
			base = base.Elem()
		}
		if sf.Anonymous && name == "" && base.Kind() == reflect.Struct && known(base) == nil {
			// The fields of an embedded pointer are absent when it is nil.
			all = collectFields(all, base, depth+1, optional || pointer, open)
			continue
		}
		if !sf.IsExported() {
			continue
		}
		f := field{name: cmp.Or(name, sf.Name), typ: sf.Type, description: sf.Tag.Get("jsonschema"), optional: optional, rank: 2 * depth, place: len(all)}
		if name == "" {
			f.rank++
		}
		for option := range strings.SplitSeq(options, ",") {
			switch option {
			case "omitempty", "omitzero":
				f.optional = true
			case "string":
				k := base.Kind()
				f.quoted = k == reflect.Bool || k == reflect.String || wholeKind(k) || k == reflect.Float32 || k == reflect.Float64
			}
		}
		all = append(all, f)
	}
	return all
}
