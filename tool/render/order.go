package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolmesh/toolmesh/tool"
)

// maxNesting is how deep a value may nest; a recursive reader must give up
// before its stack does.
const maxNesting = 256

// object is a JSON object whose members keep their order: a model reads a
// schema from top to bottom, as its author wrote it.
type object struct {
	keys   []string
	values map[string]any
}

func newObject(pairs ...any) *object {
	o := &object{values: map[string]any{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		o.set(pairs[i].(string), pairs[i+1])
	}
	return o
}

func (o *object) has(key string) bool { _, ok := o.values[key]; return ok }

// get returns a member, nil for an absent one.
func (o *object) get(key string) any { return o.values[key] }

// text returns a member that is text, "" for anything else.
func (o *object) text(key string) string { s, _ := o.values[key].(string); return s }

// list returns a member that is an array, nil for anything else.
func (o *object) list(key string) []any { l, _ := o.values[key].([]any); return l }

// object returns a member that is an object, nil for anything else.
func (o *object) object(key string) *object { m, _ := o.values[key].(*object); return m }

// set puts a member at its place, a new one at the end.
func (o *object) set(key string, value any) {
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

func (o *object) drop(keys ...string) {
	for _, key := range keys {
		if _, ok := o.values[key]; ok {
			delete(o.values, key)
			o.keys = slices.DeleteFunc(o.keys, func(k string) bool { return k == key })
		}
	}
}

// clone copies the object, not its values.
func (o *object) clone() *object {
	return &object{keys: slices.Clone(o.keys), values: maps.Clone(o.values)}
}

// take sets those of some members that another object has.
func (o *object) take(from *object, keys ...string) {
	for _, key := range keys {
		if from.has(key) {
			o.set(key, from.get(key))
		}
	}
}

// MarshalJSON writes the members in their order.
func (o *object) MarshalJSON() ([]byte, error) {
	var buf bytes.Buffer
	buf.WriteByte('{')
	for i, key := range o.keys {
		if i > 0 {
			buf.WriteByte(',')
		}
		buf.WriteString(encodeText(key))
		buf.WriteByte(':')
		value, err := tool.MarshalPlain(o.values[key])
		if err != nil {
			return nil, err
		}
		buf.Write(value)
	}
	buf.WriteByte('}')
	return buf.Bytes(), nil
}

// encodeText is [tool.MarshalPlain] for a value of decode, which cannot fail.
func encodeText(v any) string {
	data, err := tool.MarshalPlain(v)
	if err != nil {
		return "null"
	}
	return string(data)
}

// decode reads one JSON value: objects as *object, numbers as json.Number. A
// repeated key is an error: two readers would see two things.
func decode(data []byte) (v any, err error) {
	err = jsonv2.Unmarshal(data, &v, jsontext.AllowInvalidUTF8(true), inOrder)
	return v, err
}

// inOrder is how values of any type are read.
var inOrder = jsonv2.WithUnmarshalers(jsonv2.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *any) error {
	switch dec.PeekKind() {
	case '0':
		number, err := dec.ReadValue()
		*v = json.Number(number)
		return err
	case '{', '[':
		if dec.StackDepth() >= maxNesting {
			return fmt.Errorf("nested deeper than %d levels", maxNesting)
		}
	}
	if dec.PeekKind() != '{' {
		return errors.ErrUnsupported
	}
	o := newObject()
	*v = o
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() != '}' {
		var name jsontext.Token
		if name, err = dec.ReadToken(); err != nil {
			break
		}
		key, value := name.String(), any(nil)
		err = jsonv2.UnmarshalDecode(dec, &value)
		o.set(key, value)
	}
	if err == nil {
		_, err = dec.ReadToken()
	}
	return err
}))
