package codec

import (
	"bytes"
	jsonv1 "encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolmesh/toolmesh"
)

// ParseBody reads a request that is not a call: it checks the version and the required features,
// and then decodes the body, a JSON object, into the struct that into points to. An empty body has
// no fields. Names are exact, unlike with encoding/json alone, and unknown fields are ignored.
//
// The error is invalid_request or protocol_error, with started:false, in the protocol's words. It
// has no origin.
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
	err := unmarshal(body, into)
	if wrong, ok := errors.AsType[*json.SemanticError](err); ok {
		return invalid("%s must be %s", strings.TrimPrefix(string(wrong.JSONPointer), "/"), wanted(wrong.GoType.Kind()))
	}
	switch {
	case err == nil:
		return nil
	case jsontext.Value(body).IsValid(anyText):
		return invalid("the body must be an object")
	}
	return invalid("the body is not valid JSON")
}

// anyText takes JSON as encoding/json does.
var anyText = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

var errNoObject = errors.New("no object")

// unmarshal reads a JSON object into the struct that into points to. Names are exact, and the
// last value of a repeated one counts. The error is a [json.SemanticError] for a value that
// does not fit its field.
func unmarshal(body []byte, into any) error {
	if jsontext.Value(body).Kind() != '{' {
		return errNoObject
	}
	return json.Unmarshal(body, into, anyText)
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

// ReadItems reads the first items of a list, up to most, or of null. Of a list that is too long for
// its reader no more are read than tell that: an item may take many times the memory of its text.
func ReadItems[T any](list []byte, most int) (items []T, err error) {
	in := jsonv1.NewDecoder(bytes.NewReader(list))
	begin, err := in.Token()
	switch {
	case err != nil || begin == nil:
		return nil, err
	case begin != jsonv1.Delim('['):
		return nil, jsonv1.Unmarshal(list, &items) // it says what the value is
	}
	items = []T{}
	for err == nil && len(items) < most && in.More() {
		var one T
		err = in.Decode(&one)
		items = append(items, one)
	}
	return items, err
}
