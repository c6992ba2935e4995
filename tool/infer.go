package tool

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
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
	// The first pass counts, and finds what JSON does not have.
	in := &inference{uses: map[reflect.Type]int{}, names: map[reflect.Type]string{}}
	in.document(t)
	if in.err != nil {
		return nil, fmt.Errorf("schema of %s: %w", t, in.err)
	}
	in.counted = true
	root := in.document(t)
	var defs object
	for _, one := range in.order {
		defs = append(defs, member{in.names[one], in.shape(one, "")})
	}
	if defs != nil {
		root = append(root, member{"$defs", defs})
	}
	return MarshalPlain(root)
}

// object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	var buf bytes.Buffer
	for _, m := range o {
		key, _ := MarshalPlain(m.name) // a text always can be
		value, err := MarshalPlain(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&buf, ",%s:%s", key, value)
	}
	return append(append([]byte{'{'}, bytes.TrimPrefix(buf.Bytes(), []byte(","))...), '}'), nil
}

// typed is the schema of a type, with further words.
func typed(name string, words ...member) object {
	return append(object{{"type", name}}, words...)
}

type inference struct {
	uses    map[reflect.Type]int // occurrences; of a type that occurs in itself its last one, too
	counted bool
	names   map[reflect.Type]string
	order   []reflect.Type // types that need a definition
	err     error          // the first
}

// document is the schema of the whole: an object with properties at its top, even where the type occurs
// in itself.
func (in *inference) document(t reflect.Type) object {
	if t.Kind() != reflect.Struct {
		return in.schema(t, t.String())
	}
	in.again(t)
	return in.shape(t, t.String())
}

// again reports whether a type occurs more than once, in the first pass up to now.
func (in *inference) again(t reflect.Type) bool {
	composite := t.Kind() == reflect.Struct || t.Name() != "" && slices.Contains([]reflect.Kind{reflect.Map, reflect.Slice, reflect.Array}, t.Kind())
	if !composite || known(t) != nil || textual(t) {
		return false
	}
	if !in.counted {
		in.uses[t]++
	}
	return in.uses[t] > 1
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer && t.Name() == "" {
		t = t.Elem()
	}
	return t
}

// schema is the schema of one use of a type, at a place that errors name.
func (in *inference) schema(t reflect.Type, where string) (s object) {
	nullable := t.Kind() == reflect.Pointer
	if t = indirect(t); in.again(t) {
		s = object{{"$ref", "#/$defs/" + in.name(t)}}
	} else {
		s = in.shape(t, where)
	}
	if nullable && len(s) > 0 { // an empty schema allows null already
		if s[0].name == "$ref" {
			s = object{{"anyOf", []object{s, typed("null")}}}
		} else {
			s[0].value = []any{s[0].value, "null"}
		}
	}
	return s
}

// unnamable matches characters that a definition's name must not have.
var unnamable = regexp.MustCompile(`[^A-Za-z0-9_]`)

// name returns the definition's name of a type and notes that it is needed.
func (in *inference) name(t reflect.Type) string {
	if n, ok := in.names[t]; ok {
		return n
	}
	base := cmp.Or(unnamable.ReplaceAllString(t.Name(), "_"), "Type")
	n := base
	for i := 2; slices.Contains(slices.Collect(maps.Values(in.names)), n); i++ {
		n = base + strconv.Itoa(i)
	}
	in.names[t], in.order = n, append(in.order, t)
	return n
}

// shape is the schema of a type that is not a pointer, without references to
// itself at the top.
func (in *inference) shape(t reflect.Type, where string) object {
	fail := func(format string, args ...any) object {
		in.err = cmp.Or(in.err, fmt.Errorf("%s "+format, append([]any{where}, args...)...))
		return object{}
	}
	switch s := known(t); {
	case s != nil:
		return s
	case textual(t):
		return typed("string")
	case marshals(t):
		return fail("has type %s, which writes its own JSON: give the schema of the tool yourself", t)
	}
	switch t.Kind() {
	case reflect.Bool:
		return typed("boolean")
	case reflect.String:
		return typed("string")
	case reflect.Float32, reflect.Float64:
		return typed("number")
	case reflect.Int, reflect.Int64:
		return typed("integer")
	case reflect.Int8, reflect.Int16, reflect.Int32:
		most := int64(1)<<(t.Bits()-1) - 1
		return typed("integer", member{"minimum", -most - 1}, member{"maximum", most})
	case reflect.Uint, reflect.Uint64, reflect.Uintptr:
		return typed("integer", member{"minimum", 0})
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return typed("integer", member{"minimum", 0}, member{"maximum", int64(1)<<t.Bits() - 1})
	case reflect.Map:
		if key := t.Key(); key.Kind() != reflect.String && !wholeKind(key.Kind()) && !key.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return fail("is a map with keys of type %s, which JSON does not have", key)
		}
		return typed("object", member{"additionalProperties", in.schema(t.Elem(), where+"{}")})
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 && !marshals(t.Elem()) && !textual(t.Elem()) {
			return typed("string", member{"contentEncoding", "base64"})
		}
		return typed("array", member{"items", in.schema(t.Elem(), where+"[]")})
	case reflect.Array:
		return typed("array", member{"items", in.schema(t.Elem(), where+"[]")}, member{"minItems", t.Len()}, member{"maxItems", t.Len()})
	case reflect.Struct:
		s, properties, required := typed("object"), object{}, []string{}
		if t == reflect.TypeFor[File]() {
			s = append(s, member{"format", FileFormat})
		}
		for _, f := range jsonFields(t) {
			properties = append(properties, member{f.name, in.field(f, where)})
			if !f.optional {
				required = append(required, f.name)
			}
		}
		s = append(s, member{"properties", properties})
		if len(required) > 0 {
			s = append(s, member{"required", required})
		}
		return append(s, member{"additionalProperties", false})
	case reflect.Func, reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return fail("has type %s, which JSON does not have", t)
	}
	return object{} // an interface: anything
}

// wholeKind says whether a kind is one of the integers, which stand together.
func wholeKind(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Uintptr }

func (in *inference) field(f field, where string) object {
	s := in.schema(f.typ, where+"."+f.name)
	if f.quoted {
		s[0].value = "string"
		s = s[:1]
		if f.typ.Kind() == reflect.Pointer { // a nil one is not quoted
			s[0].value = []string{"string", "null"}
		}
	}
	if f.description != "" {
		s = append(s, member{"description", f.description})
	}
	return s
}

// known returns the schema of the standard types that write their own JSON, nil
// for any other type. Every call returns a new one.
func known(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return typed("string", member{"format", "date-time"})
	case reflect.TypeFor[uuid.UUID]():
		return typed("string", member{"format", "uuid"})
	case reflect.TypeFor[big.Int]():
		return typed("integer")
	case reflect.TypeFor[json.Number]():
		return typed("number")
	case reflect.TypeFor[json.RawMessage]():
		return object{}
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
