package codec

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

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
// object, as they stand there but for escapes in keys. It returns false, and
// calls nothing, for anything else. Keys and values are parts of the body, not
// copies.
func eachField(body []byte, each func(key, value []byte)) bool {
	body = bytes.TrimLeft(body, " \t\r\n")
	if len(body) == 0 || body[0] != '{' || !json.Valid(body) {
		return false
	}
	// The body is valid: what follows only has to find where things end.
	for i := 1; ; {
		for body[i] != '"' && body[i] != '}' {
			i++ // spaces and commas
		}
		if body[i] == '}' {
			return true
		}
		end := i + valueLen(body[i:])
		key := unquoted(body[i:end])
		for i = end; body[i] == ':' || body[i] <= ' '; i++ {
		}
		end = i + valueLen(body[i:])
		each(key, body[i:end:end])
		i = end
	}
}
