package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
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

// clone copies the object, not what is in it.
func (o *object) clone() *object {
	c := &object{keys: slices.Clone(o.keys), values: make(map[string]any, len(o.values))}
	for k, v := range o.values {
		c.values[k] = v
	}
	return c
}

// MarshalJSON writes the members in their order, without escaping for HTML.
func (o *object) MarshalJSON() ([]byte, error) {
	var buf bytes.Buffer
	if err := write(&buf, o); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// encode writes a value of decode's kinds as JSON.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	if err := write(&buf, v); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// encodeText is encode for what decode returned, which cannot fail.
func encodeText(v any) string {
	data, err := encode(v)
	if err != nil {
		return "null"
	}
	return string(data)
}

func write(buf *bytes.Buffer, v any) error {
	switch v := v.(type) {
	case *object:
		buf.WriteByte('{')
		for i, key := range v.keys {
			if i > 0 {
				buf.WriteByte(',')
			}
			if err := writePlain(buf, key); err != nil {
				return err
			}
			buf.WriteByte(':')
			if err := write(buf, v.values[key]); err != nil {
				return err
			}
		}
		buf.WriteByte('}')
		return nil
	case []any:
		buf.WriteByte('[')
		for i, one := range v {
			if i > 0 {
				buf.WriteByte(',')
			}
			if err := write(buf, one); err != nil {
				return err
			}
		}
		buf.WriteByte(']')
		return nil
	default:
		return writePlain(buf, v)
	}
}

func writePlain(buf *bytes.Buffer, v any) error {
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	buf.Truncate(buf.Len() - 1) // the encoder's line end
	return nil
}

// decode reads one JSON value: objects as *object, numbers as json.Number. A
// repeated key is an error: two readers would see two things.
func decode(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := decodeValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("more text after the value")
	}
	return v, nil
}

func decodeValue(dec *json.Decoder, depth int) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return token, nil
	}
	if depth >= maxNesting {
		return nil, fmt.Errorf("nested deeper than %d levels", maxNesting)
	}
	if delim == '[' {
		list := []any{}
		for dec.More() {
			one, err := decodeValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, one)
		}
		_, err := dec.Token()
		return list, err
	}
	o := newObject()
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key, _ := token.(string)
		if o.has(key) {
			return nil, fmt.Errorf("%q is given more than once", key)
		}
		one, err := decodeValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		o.set(key, one)
	}
	_, err = dec.Token()
	return o, err
}
