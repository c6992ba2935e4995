package tool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Bind turns the envelope form's positional args and kwargs into one arguments
// object: args fill d.Positional in order, kwargs the rest. Surplus args are for the
// tool's *args parameter and are returned as a JSON array, nil without any. Values are
// unchanged; empty kwargs mean {}.
//
// The error is invalid_arguments with details.errors: too many positional
// arguments, a repeated name, or kwargs that are not an object. The object is not
// checked against the schema: [Validator.Validate] does that.
func Bind(d *Descriptor, args []json.RawMessage, kwargs json.RawMessage) (object, varargs json.RawMessage, err error) {
	if trimmed := bytes.TrimSpace(kwargs); len(trimmed) == 0 || string(trimmed) == "null" {
		kwargs = json.RawMessage(`{}`)
	}
	if _, bad := scan(kwargs, nil, nil); bad != nil {
		return nil, nil, invalid([]Problem{bad.problem("kwargs", "are")})
	}
	if kind := jsontext.Value(kwargs).Kind(); kind != '{' {
		return nil, nil, invalid([]Problem{{
			Expected: "a JSON object", Got: article(kind), Message: "kwargs must be a JSON object, not " + article(kind),
		}})
	}
	if len(args) == 0 {
		return kwargs, nil, nil
	}
	var problems []Problem
	named := min(len(args), len(d.Positional))
	if rest := args[named:]; len(rest) > 0 && d.VarArgs == "" {
		takes := "no positional arguments"
		if named > 0 {
			takes = plural("at most", named, "positional argument")
		}
		problems = append(problems, Problem{
			Expected: takes, Got: fmt.Sprint(len(args)),
			Message: fmt.Sprintf("%s takes %s, but %d were given", cmp.Or(string(d.ID), "the tool"), takes, len(args)),
		})
	}
	given := objectKeys(kwargs)
	for _, name := range d.Positional[:named] {
		if slices.Contains(given, name) {
			problems = append(problems, Problem{
				Pointer: "/" + escapePointer(name), Expected: "one value", Got: "several",
				Message: fmt.Sprintf("%q is given both by position and by name", name),
			})
		}
	}
	for i, arg := range args {
		_, bad := scan(arg, nil, nil)
		if bad == nil {
			continue
		}
		if i < named {
			bad.pointer = "/" + escapePointer(d.Positional[i]) + bad.pointer
		}
		problems = append(problems, bad.problem(fmt.Sprintf("positional argument %d", i+1), "is"))
	}
	if len(problems) > 0 {
		return nil, nil, invalid(problems)
	}
	var buf bytes.Buffer
	buf.WriteByte('{')
	for i, name := range d.Positional[:named] {
		if i > 0 {
			buf.WriteByte(',')
		}
		key, _ := MarshalPlain(name) // a text always can be
		buf.Write(key)
		buf.WriteByte(':')
		buf.Write(args[i])
	}
	inner := bytes.TrimSpace(kwargs)
	inner = bytes.TrimSpace(inner[1 : len(inner)-1])
	if len(inner) > 0 {
		if named > 0 {
			buf.WriteByte(',')
		}
		buf.Write(inner)
	}
	buf.WriteByte('}')
	if rest := args[named:]; len(rest) > 0 {
		varargs, _ = MarshalPlain(rest) // each has been scanned
	}
	return buf.Bytes(), varargs, nil
}
