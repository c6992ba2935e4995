package codec

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolmesh/toolmesh"
)

// ParseBody reads a request that is no call: it checks the version and what the
// request requires, and then reads its body, a JSON object,
// into the struct that into points to. An empty body has no fields. Names are
// exact, as those of an envelope are, and unknown fields are ignored; with
// encoding/json alone a field would also be taken under a name of another case.
//
// The error is invalid_request or protocol_error, with started:false, and says
// what is wrong in the protocol's words. It has no origin.
func ParseBody(h Header, body []byte, into any) *toolmesh.Error {
	err := h.checkVersion()
	if err == nil {
		err = readBody(body, into)
	}
	if err != nil {
		return toolmesh.AsError(err).WithStarted(toolmesh.StartedNo)
	}
	return nil
}

func readBody(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	target := reflect.ValueOf(into).Elem()
	var wrong error
	object := eachField(body, func(key, value []byte) {
		for i := range target.NumField() {
			name, _, _ := strings.Cut(target.Type().Field(i).Tag.Get("json"), ",")
			if name == "" || name != string(key) {
				continue
			}
			field := target.Field(i)
			field.SetZero() // of a repeated key the last counts
			if json.Unmarshal(value, field.Addr().Interface()) != nil && wrong == nil {
				wrong = invalid("%s must be %s", name, wanted(field.Kind()))
			}
		}
	})
	switch {
	case object:
		return wrong
	case json.Valid(body):
		return invalid("the body must be an object")
	}
	return invalid("the body is not valid JSON")
}

// wanted names the values of a field in words, without its Go type.
func wanted(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Map:
		return "an object of texts"
	case reflect.Slice:
		return "a list of texts"
	}
	return "a whole number"
}

// eachField calls each with every key and value of the top level of a JSON
// object, values as they stand there. It returns false, and calls nothing, for
// anything else. Values are parts of the body, not copies.
func eachField(body []byte, each func(key, value []byte)) bool {
	return json.Valid(body) && fieldsOf(body, each)
}

// fieldsOf is eachField for what is JSON.
func fieldsOf(body []byte, each func(key, value []byte)) bool {
	if jsontext.Value(body).Kind() != '{' {
		return false
	}
	dec := decoder(body)
	for _, err := dec.ReadToken(); err == nil && dec.PeekKind() == '"'; {
		var name, value jsontext.Value
		if name, err = dec.ReadValue(); err != nil {
			return false
		}
		key, _ := jsontext.AppendUnquote(nil, name) //nolint:errcheck // an error is of half a surrogate, which is no name of ours
		if value, err = dec.ReadValue(); err != nil {
			return false
		}
		each(key, value)
	}
	return true
}

// elementsOf returns copies of the elements of what is JSON, if it is a list.
func elementsOf(list []byte) (elements []json.RawMessage, ok bool) {
	if jsontext.Value(list).Kind() != '[' {
		return nil, false
	}
	dec := decoder(list)
	for _, err := dec.ReadToken(); err == nil && dec.PeekKind() != ']'; {
		var value jsontext.Value
		if value, err = dec.ReadValue(); err != nil {
			return nil, false
		}
		elements = append(elements, bytes.Clone(value))
	}
	return elements, true
}

func decoder(body []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}
