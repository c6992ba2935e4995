package host

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// A Go function's nil slices and maps are results like the empty ones, and its
// output schema says array and object for both: encoding/json would write null.

// emptier fills values of one type; nil where the type holds no slice and no map.
type emptier struct{ t reflect.Type }

func newEmptier(t reflect.Type) *emptier {
	if !holds(t) {
		return nil
	}
	return &emptier{t: t}
}

// tooDeep is how far a value may be nested; encoding/json says what is wrong with
// one that is nested in itself.
const tooDeep = 1000

// fill returns v, a pointer to a value, or if something in that is nil that should
// be empty, a pointer to a copy with that put right. What v refers to is left
// alone: others may hold it.
func (e *emptier) fill(v any) any {
	if e == nil {
		return v
	}
	value := reflect.ValueOf(v).Elem()
	var look look
	look.at(value, 0)
	if look.deep || !look.lacking {
		return v
	}
	filled := reflect.New(value.Type()).Elem()
	filled.Set(value)
	empty(filled)
	return filled.Addr().Interface()
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	holding       sync.Map // reflect.Type to bool, of types that were looked at
	holdingFields sync.Map // reflect.Type to []holdingField, of structs
)

// opaque says that a type writes its own JSON.
func opaque(t reflect.Type) bool {
	if t.Implements(marshaler) || t.Implements(textMarshaler) {
		return true
	}
	p := reflect.PointerTo(t)
	return p.Implements(marshaler) || p.Implements(textMarshaler)
}

// holds reports whether values of a type can hold a slice or a map that its
// schema knows of: what an interface holds has no schema.
func holds(t reflect.Type) bool {
	if known, ok := holding.Load(t); ok {
		return known.(bool) //nolint:forcetypeassert // nothing else is stored
	}
	found := search(t, make(map[reflect.Type]bool))
	holding.Store(t, found)
	return found
}

func search(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] || opaque(t) {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Slice, reflect.Map:
		return true
	case reflect.Array, reflect.Pointer:
		return search(t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if written(f) && search(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// written reports whether encoding/json looks at a field.
func written(f reflect.StructField) bool {
	return (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-"
}

// holdingField is a field of a struct that can hold a slice or a map.
type holdingField struct {
	index int
	omit  bool // it is left out when it is nil, and would not be if it were empty
}

func fieldsOf(t reflect.Type) []holdingField {
	if known, ok := holdingFields.Load(t); ok {
		return known.([]holdingField) //nolint:forcetypeassert // nothing else is stored
	}
	var fields []holdingField
	for i := range t.NumField() {
		f := t.Field(i)
		if !written(f) || !holds(f.Type) {
			continue
		}
		_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields = append(fields, holdingField{index: i, omit: slices.Contains(strings.Split(options, ","), "omitzero")})
	}
	holdingFields.Store(t, fields)
	return fields
}

func (f holdingField) of(v reflect.Value) (field reflect.Value, ok bool) {
	field = v.Field(f.index)
	return field, !f.omit || !field.IsZero()
}

// look is what one look through a value finds.
type look struct {
	lacking bool // something is nil that should be empty
	deep    bool // it is nested deeper than anybody means it: the look ended there
}

func (l *look) at(v reflect.Value, depth int) {
	t := v.Type()
	if l.deep || !holds(t) {
		return
	}
	if depth > tooDeep {
		l.deep = true
		return
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		l.lacking = l.lacking || v.Kind() == reflect.Slice && v.IsNil()
		if holds(t.Elem()) {
			for i := range v.Len() {
				l.at(v.Index(i), depth+1)
			}
		}
	case reflect.Map:
		l.lacking = l.lacking || v.IsNil()
		if holds(t.Elem()) {
			for entries := v.MapRange(); entries.Next(); {
				l.at(entries.Value(), depth+1)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			l.at(v.Elem(), depth+1)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if field, ok := f.of(v); ok {
				l.at(field, depth+1)
			}
		}
	}
}

// empty puts right what v lacks. v may be changed; what it refers to is copied.
func empty(v reflect.Value) {
	t := v.Type()
	if !holds(t) || !v.CanSet() && v.Kind() != reflect.Struct {
		return
	}
	switch v.Kind() {
	case reflect.Slice:
		items := reflect.MakeSlice(t, v.Len(), v.Len())
		reflect.Copy(items, v)
		v.Set(items)
		fallthrough
	case reflect.Array:
		if holds(t.Elem()) {
			for i := range v.Len() {
				empty(v.Index(i))
			}
		}
	case reflect.Map:
		entries := reflect.MakeMapWithSize(t, v.Len())
		for old := v.MapRange(); old.Next(); {
			item := reflect.New(t.Elem()).Elem()
			item.Set(old.Value())
			empty(item)
			entries.SetMapIndex(old.Key(), item)
		}
		v.Set(entries)
	case reflect.Pointer:
		if !v.IsNil() {
			target := reflect.New(t.Elem())
			target.Elem().Set(v.Elem())
			empty(target.Elem())
			v.Set(target)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			if field, ok := f.of(v); ok {
				empty(field)
			}
		}
	}
}
