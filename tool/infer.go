package tool

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
)

// For returns the JSON Schema of T: [SchemaFor] with a type argument.
func For[T any]() (json.RawMessage, error) { return SchemaFor(reflect.TypeFor[T]()) }

// SchemaFor returns the JSON Schema (2020-12) of what encoding/json reads and
// writes for a Go type.
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
	in := &inference{root: t, uses: map[reflect.Type]int{}, names: map[reflect.Type]string{}, taken: map[string]bool{}}
	if err := in.count(t, t.String()); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", t, err)
	}
	var body bytes.Buffer
	rootType := indirect(t)
	if in.uses[rootType] > 1 && rootType.Kind() == reflect.Struct {
		// The root is met again inside itself: it refers to "#/$defs/…" too, so
		// that the document's top stays an object with properties.
		in.name(rootType)
	}
	obj := in.structOrOther(t, "")
	obj.writeTo(&body, in)
	return body.Bytes(), nil
}

// object is a JSON object under construction, in the order of its keys.
type object struct {
	keys   []string
	values []any // bool, string, int, json.RawMessage, []string, *object
}

func (o *object) set(key string, value any) *object {
	o.keys, o.values = append(o.keys, key), append(o.values, value)
	return o
}

func (o *object) get(key string) any {
	for i, k := range o.keys {
		if k == key {
			return o.values[i]
		}
	}
	return nil
}

func (o *object) replace(key string, value any) {
	for i, k := range o.keys {
		if k == key {
			o.values[i] = value
		}
	}
}

func (o *object) write(buf *bytes.Buffer) {
	buf.WriteByte('{')
	for i, key := range o.keys {
		if i > 0 {
			buf.WriteByte(',')
		}
		writeValue(buf, key)
		buf.WriteByte(':')
		writeValue(buf, o.values[i])
	}
	buf.WriteByte('}')
}

func writeValue(buf *bytes.Buffer, v any) {
	switch v := v.(type) {
	case *object:
		v.write(buf)
	case []*object:
		buf.WriteByte('[')
		for i, o := range v {
			if i > 0 {
				buf.WriteByte(',')
			}
			o.write(buf)
		}
		buf.WriteByte(']')
	default:
		data, err := marshalPlain(v)
		if err != nil { // texts, numbers and lists of texts always marshal
			panic(err)
		}
		buf.Write(data)
	}
}

// writeTo writes the root and the definitions that it turned out to need.
func (o *object) writeTo(buf *bytes.Buffer, in *inference) {
	defs := &object{}
	for i := 0; i < len(in.order); i++ { // building one may add others
		t := in.order[i]
		defs.set(in.names[t], in.shape(t))
	}
	if len(defs.keys) > 0 {
		o.set("$defs", defs)
	}
	o.write(buf)
}

type inference struct {
	root  reflect.Type
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
	switch t.Kind() {
	case reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return true
	}
	return t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer && t.Name() == "" {
		t = t.Elem()
	}
	return t
}

// structOrOther is the schema of the document's root.
func (in *inference) structOrOther(t reflect.Type, description string) *object {
	if base := indirect(t); base.Kind() == reflect.Struct && known(base) == nil && t.Kind() != reflect.Pointer {
		return in.shape(base)
	}
	return in.schema(t, description)
}

// schema is the schema of one use of a type.
func (in *inference) schema(t reflect.Type, description string) *object {
	nullable := t.Kind() == reflect.Pointer
	t = indirect(t)
	var o *object
	if in.uses[t] > 1 && composite(t) && known(t) == nil && !textual(t) {
		o = (&object{}).set("$ref", "#/$defs/"+in.name(t))
	} else {
		o = in.shape(t)
	}
	if nullable {
		switch kind := o.get("type").(type) {
		case string:
			o.replace("type", []string{kind, "null"})
		case nil:
			if len(o.keys) > 0 { // a reference; an empty schema allows null already
				o = (&object{}).set("anyOf", []*object{o, (&object{}).set("type", "null")})
			}
		}
	}
	if description != "" {
		o.set("description", description)
	}
	return o
}

// composite says whether a type is worth a definition.
func composite(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice, reflect.Array:
		return t.Name() != "" || t.Kind() == reflect.Struct
	}
	return false
}

// name returns the definition's name of a type and notes that it is needed.
func (in *inference) name(t reflect.Type) string {
	if n, ok := in.names[t]; ok {
		return n
	}
	base := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, t.Name())
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

// shape is the schema of a type that is no pointer, without references to
// itself at the top.
func (in *inference) shape(t reflect.Type) *object {
	if o := known(t); o != nil {
		return o
	}
	o := &object{}
	if textual(t) {
		return o.set("type", "string")
	}
	switch t.Kind() {
	case reflect.Bool:
		o.set("type", "boolean")
	case reflect.String:
		o.set("type", "string")
	case reflect.Float32, reflect.Float64:
		o.set("type", "number")
	case reflect.Int, reflect.Int64:
		o.set("type", "integer")
	case reflect.Int8, reflect.Int16, reflect.Int32:
		o.set("type", "integer").set("minimum", -(int64(1)<<(t.Bits()-1))).set("maximum", int64(1)<<(t.Bits()-1)-1)
	case reflect.Uint, reflect.Uint64, reflect.Uintptr:
		o.set("type", "integer").set("minimum", 0)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		o.set("type", "integer").set("minimum", 0).set("maximum", uint64(1)<<t.Bits()-1)
	case reflect.Map:
		o.set("type", "object").set("additionalProperties", in.schema(t.Elem(), ""))
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 && !marshals(t.Elem()) && !textual(t.Elem()) {
			return o.set("type", "string").set("contentEncoding", "base64")
		}
		o.set("type", "array").set("items", in.schema(t.Elem(), ""))
	case reflect.Array:
		o.set("type", "array").set("items", in.schema(t.Elem(), "")).set("minItems", t.Len()).set("maxItems", t.Len())
	case reflect.Struct:
		props, need := &object{}, []string{}
		for _, f := range jsonFields(t) {
			s := in.schema(f.typ, f.description)
			if f.quoted {
				s = (&object{}).set("type", "string")
				if f.typ.Kind() == reflect.Pointer {
					s.replace("type", []string{"string", "null"}) // a nil one is not quoted
				}
				if f.description != "" {
					s.set("description", f.description)
				}
			}
			props.set(f.name, s)
			if !f.optional {
				need = append(need, f.name)
			}
		}
		o.set("type", "object").set("properties", props)
		if len(need) > 0 {
			o.set("required", need)
		}
		o.set("additionalProperties", false)
	}
	return o // an interface: anything
}

// known returns the schema of the standard types that write their own JSON, nil
// for any other type. Every call returns a new object.
func known(t reflect.Type) *object {
	text := func(format string) *object {
		o := (&object{}).set("type", "string")
		if format != "" {
			o.set("format", format)
		}
		return o
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return text("date-time")
	case reflect.TypeFor[uuid.UUID]():
		return text("uuid")
	case reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.Prefix](), reflect.TypeFor[netip.AddrPort]():
		return text("")
	case reflect.TypeFor[url.URL]():
		return nil // an ordinary struct to encoding/json
	case reflect.TypeFor[big.Int]():
		return (&object{}).set("type", "integer")
	case reflect.TypeFor[json.Number]():
		return (&object{}).set("type", "number")
	case reflect.TypeFor[json.RawMessage]():
		return &object{}
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
	tagged      bool
	depth       int
}

// jsonFields returns the fields of a struct as encoding/json sees them: embedded
// structs flattened, a shallower or tagged field before a deeper one, clashes
// dropped.
func jsonFields(t reflect.Type) []field {
	var all []field
	collectFields(t, 0, false, map[reflect.Type]bool{}, &all)
	byName := map[string][]int{}
	for i, f := range all {
		byName[f.name] = append(byName[f.name], i)
	}
	var fields []field
	for i, f := range all {
		if dominant(all, byName[f.name]) == i {
			fields = append(fields, f)
		}
	}
	return fields
}

// dominant returns which of the fields of one name counts, -1 if none does.
func dominant(all []field, same []int) int {
	depth := math.MaxInt
	for _, i := range same {
		depth = min(depth, all[i].depth)
	}
	var tagged, plain []int
	for _, i := range same {
		switch f := all[i]; {
		case f.depth == depth && f.tagged:
			tagged = append(tagged, i)
		case f.depth == depth:
			plain = append(plain, i)
		}
	}
	switch {
	case len(tagged) == 1:
		return tagged[0]
	case len(tagged) == 0 && len(plain) == 1:
		return plain[0]
	}
	return -1
}

// validName reports whether encoding/json takes a name from a tag; it goes by the
// field's own if not.
func validName(name string) bool {
	for _, c := range name {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return false
		}
	}
	return true
}

func collectFields(t reflect.Type, depth int, optional bool, open map[reflect.Type]bool, all *[]field) {
	if open[t] {
		return
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
		if !validName(name) {
			name = ""
		}
		base := sf.Type
		pointer := base.Kind() == reflect.Pointer
		if pointer {
			base = base.Elem()
		}
		if sf.Anonymous {
			if !sf.IsExported() && base.Kind() != reflect.Struct {
				continue
			}
			if name == "" && base.Kind() == reflect.Struct && known(base) == nil {
				// The fields of an embedded pointer are absent when it is nil.
				collectFields(base, depth+1, optional || pointer, open, all)
				continue
			}
		}
		if !sf.IsExported() {
			continue
		}
		f := field{name: name, typ: sf.Type, description: sf.Tag.Get("jsonschema"), tagged: name != "", depth: depth, optional: optional}
		if name == "" {
			f.name = sf.Name
		}
		for option := range strings.SplitSeq(options, ",") {
			switch option {
			case "omitempty", "omitzero":
				f.optional = true
			case "string":
				switch base.Kind() {
				case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
					reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
					reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
					f.quoted = true
				}
			}
		}
		*all = append(*all, f)
	}
}
