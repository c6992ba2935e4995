package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolmesh/toolmesh/tool"
)

// newSchema compiles a tool's schema; of one that cannot be compiled nothing is known.
func newSchema(raw json.RawMessage) *jsonschema.Schema {
	v, err := tool.Compile(raw)
	if err != nil {
		return &jsonschema.Schema{}
	}
	return follow(v.Schema())
}

// mostDepth ends what refers to itself.
const mostDepth = 20

// follow returns what a part of a schema stands for; nil if nothing is known of it.
func follow(part *jsonschema.Schema) *jsonschema.Schema {
	for range mostDepth {
		if part == nil || part.Ref == nil {
			return part
		}
		part = part.Ref
	}
	return nil
}

// typesOf returns the JSON types that a parameter takes; false is any.
func typesOf(s *jsonschema.Schema, name string) (types map[string]bool, ok bool) {
	types = make(map[string]bool)
	return types, collect(partOf(s, name), types, 0)
}

// partOf is the schema of a parameter; nil if it takes anything.
func partOf(s *jsonschema.Schema, name string) *jsonschema.Schema {
	part, ok := s.Properties[name]
	if !ok {
		part, _ = s.AdditionalProperties.(*jsonschema.Schema)
	}
	return part
}

// collect adds the types of a part, and reports false if it takes anything.
func collect(part *jsonschema.Schema, types map[string]bool, depth int) bool {
	part = follow(part)
	if part == nil || depth > mostDepth {
		return false
	}
	values := enumOf(part)
	if part.Const != nil {
		values = append(slices.Clip(values), *part.Const)
	}
	either := slices.Concat(part.AnyOf, part.OneOf)
	switch {
	case part.Types != nil:
		for _, name := range part.Types.ToStrings() {
			types[name] = true
		}
		return true
	case len(values) > 0:
		for _, value := range values {
			types[tool.KindOf(value)] = true
		}
		return true
	case len(either) > 0:
		return !slices.ContainsFunc(either, func(one *jsonschema.Schema) bool { return !collect(one, types, depth+1) })
	}
	// The first part that says a type.
	return slices.ContainsFunc(part.AllOf, func(one *jsonschema.Schema) bool { return collect(one, types, depth+1) })
}

func enumOf(part *jsonschema.Schema) []any {
	if part.Enum == nil {
		return nil
	}
	return part.Enum.Values
}

// kindOf names a part in a word or two.
func kindOf(part *jsonschema.Schema, depth int) string {
	part = follow(part)
	if part == nil || depth > 5 {
		return "any"
	}
	var kinds []string
	for _, value := range enumOf(part) {
		kinds = append(kinds, compact(value))
	}
	for _, one := range slices.Concat(part.AnyOf, part.OneOf) {
		kinds = append(kinds, kindOf(one, depth+1))
	}
	switch {
	case len(kinds) > 0:
	case part.Items2020 != nil && slices.Equal(part.Types.ToStrings(), []string{"array"}):
		return "array of " + kindOf(part.Items2020, depth+1)
	case part.Types != nil:
		kinds = part.Types.ToStrings()
	default:
		return "any"
	}
	return strings.Join(kinds, "|")
}

// shapeOf describes a result's schema in a line; "" if nothing is known of it.
func shapeOf(raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "{}" {
		return ""
	}
	s := newSchema(raw)
	if s != nil && len(s.Properties) > 0 {
		return "object with " + strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", ")
	}
	return kindOf(s, 0)
}

// compact is JSON as it is shown, and sent.
func compact(v any) string {
	data, _ := tool.MarshalPlain(v)
	return string(data)
}
