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
	refuse := func(p Problem) (object, varargs json.RawMessage, err error) { return nil, nil, invalid([]Problem{p}) }
	if trimmed := bytes.TrimSpace(kwargs); len(trimmed) == 0 || string(trimmed) == "null" {
		kwargs = json.RawMessage(`{}`)
	}
	if _, bad := scan(kwargs, nil, nil); bad != nil {
		return refuse(bad.problem("kwargs", "are"))
	}
	if kind := jsontext.Value(kwargs).Kind(); kind != '{' {
		return refuse(Problem{Expected: "a JSON object", Got: article(kind), Message: "kwargs must be a JSON object, not " + article(kind)})
	}
	if len(args) == 0 {
		return kwargs, nil, nil
	}
	named := min(len(args), len(d.Positional))
	if rest := args[named:]; len(rest) > 0 && d.VarArgs == "" {
		takes := "no positional arguments"
		if named > 0 {
			takes = plural("at most", named, "positional argument")
		}
		return refuse(Problem{
			Expected: takes, Got: fmt.Sprint(len(args)),
			Message: fmt.Sprintf("%s takes %s, but %d were given", cmp.Or(string(d.ID), "the tool"), takes, len(args)),
		})
	}
	given := objectKeys(kwargs)
	var members [][]byte
	for i, arg := range args {
		var name, pointer string
		if i < named {
			name = d.Positional[i]
			pointer = "/" + escapePointer(name)
		}
		if _, bad := scan(arg, nil, nil); bad != nil {
			bad.pointer = pointer + bad.pointer
			return refuse(bad.problem(fmt.Sprintf("positional argument %d", i+1), "is"))
		}
		if i < named && slices.Contains(given, name) {
			return refuse(Problem{Pointer: pointer, Expected: "one value", Got: "several", Message: fmt.Sprintf("%q is given both by position and by name", name)})
		}
		if i < named {
			key, _ := MarshalPlain(name) // a text always can be
			members = append(members, slices.Concat(key, []byte(":"), []byte(arg)))
		}
	}
	inner := bytes.TrimSpace(kwargs)
	if inner = bytes.TrimSpace(inner[1 : len(inner)-1]); len(inner) > 0 {
		members = append(members, inner)
	}
	if rest := args[named:]; len(rest) > 0 {
		varargs, _ = MarshalPlain(rest) // each has been scanned
	}
	return slices.Concat([]byte("{"), bytes.Join(members, []byte(",")), []byte("}")), varargs, nil
}
