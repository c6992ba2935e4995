package main

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolmesh/toolmesh/tool"
)

// newSchema compiles a tool's schema; an empty one if it cannot be compiled.
func newSchema(raw json.RawMessage) *jsonschema.Schema {
	if v, err := tool.Compile(raw); err == nil {
		return cmp.Or(follow(v.Schema()), &jsonschema.Schema{})
	}
	return &jsonschema.Schema{}
}

// mostDepth bounds schemas that refer to themselves.
const mostDepth = 20

// follow resolves a part of a schema; nil if it is unknown.
func follow(part *jsonschema.Schema) *jsonschema.Schema {
	for range mostDepth {
		if part == nil || part.Ref == nil {
			return part
		}
		part = part.Ref
	}
	return nil
}

// partOf returns the schema of a parameter; nil if it takes anything.
func partOf(s *jsonschema.Schema, name string) *jsonschema.Schema {
	part, ok := s.Properties[name]
	if !ok {
		part, _ = s.AdditionalProperties.(*jsonschema.Schema)
	}
	return part
}

// kindOf names a part in a word or two.
func kindOf(part *jsonschema.Schema) string {
	left := kindsMost
	return kindWithin(part, &left)
}

// kindsMost is how many parts of a schema [kindOf] names.
const kindsMost = 30

func kindWithin(part *jsonschema.Schema, left *int) string {
	part = follow(part)
	if *left--; part == nil || *left < 0 {
		return "any"
	}
	var kinds []string
	if part.Enum != nil {
		for _, value := range part.Enum.Values {
			kinds = append(kinds, compact(value))
		}
	}
	for _, one := range slices.Concat(part.AnyOf, part.OneOf) {
		if *left <= 0 {
			kinds = append(kinds, "…")
			break
		}
		kinds = append(kinds, kindWithin(one, left))
	}
	switch {
	case len(kinds) > 0:
	case part.Items2020 != nil && slices.Equal(part.Types.ToStrings(), []string{"array"}):
		return "array of " + kindWithin(part.Items2020, left)
	case tool.MayBe(part, ""):
		return "any"
	default:
		for _, kind := range []string{"boolean", "integer", "number", "string", "array", "object", "null"} {
			if tool.MayBe(part, kind) && (kind != "integer" || !tool.MayBe(part, "number")) {
				kinds = append(kinds, kind)
			}
		}
	}
	return strings.Join(kinds, "|")
}

// shapeOf describes the schema of a result in a line; "" if unknown.
func shapeOf(raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "{}" {
		return ""
	}
	s := newSchema(raw)
	if len(s.Properties) > 0 {
		return "object with " + strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", ")
	}
	return kindOf(s)
}

// compact encodes JSON for display and for the wire.
func compact(v any) string {
	data, _ := tool.MarshalPlain(v)
	return string(data)
}
