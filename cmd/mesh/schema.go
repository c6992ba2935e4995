package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh/tool"
)

// schema is what the command needs to know of a tool's schema: which arguments
// there are, and of which types. Everything else is the node's to check.
type schema struct {
	Ref         string             `json:"$ref"`
	Defs        map[string]*schema `json:"$defs"`
	Definitions map[string]*schema `json:"definitions"`

	Type        typeNames          `json:"type"`
	Enum        []json.RawMessage  `json:"enum"`
	Const       json.RawMessage    `json:"const"`
	AnyOf       []*schema          `json:"anyOf"`
	OneOf       []*schema          `json:"oneOf"`
	AllOf       []*schema          `json:"allOf"`
	Items       *schema            `json:"items"`
	Properties  map[string]*schema `json:"properties"`
	Additional  *schema            `json:"additionalProperties"`
	Required    []string           `json:"required"`
	Default     json.RawMessage    `json:"default"`
	Description string             `json:"description"`
}

// typeNames is one type or several.
type typeNames []string

func (t *typeNames) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		*t = make(typeNames, 1)
		return json.Unmarshal(data, &(*t)[0])
	}
	return json.Unmarshal(data, (*[]string)(t))
}

// UnmarshalJSON takes true and false, too, of which it knows no type.
func (s *schema) UnmarshalJSON(data []byte) error {
	if data[0] != '{' {
		return nil
	}
	type object schema
	return json.Unmarshal(data, (*object)(s))
}

// newSchema reads a tool's schema; of one that cannot be read nothing is known.
func newSchema(raw json.RawMessage) *schema {
	s := new(schema)
	if json.Unmarshal(raw, s) != nil {
		s = new(schema)
	}
	return s
}

// mostDepth ends what refers to itself.
const mostDepth = 20

// follow returns what a part of the schema stands for; nil if nothing is known of it.
func (s *schema) follow(part *schema) *schema {
	for range mostDepth {
		if part == nil || part.Ref == "" {
			return part
		}
		if part.Ref == "#" {
			return s
		}
		name, _ := strings.CutPrefix(part.Ref, "#/$defs/")
		if old, ok := strings.CutPrefix(part.Ref, "#/definitions/"); ok {
			part = s.Definitions[unescape(old)]
		} else {
			part = s.Defs[unescape(name)]
		}
	}
	return nil
}

func unescape(pointer string) string {
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(pointer)
}

// typesOf returns the JSON types that a parameter takes; false is any.
func (s *schema) typesOf(name string) (types map[string]bool, ok bool) {
	part, ok := s.Properties[name]
	if !ok {
		part = s.Additional
	}
	types = make(map[string]bool)
	return types, s.collect(part, types, 0)
}

// collect adds the types of a part, and reports false if it takes anything.
func (s *schema) collect(part *schema, types map[string]bool, depth int) bool {
	part = s.follow(part)
	if part == nil || depth > mostDepth {
		return false
	}
	values := part.Enum
	if part.Const != nil {
		values = append(values, part.Const)
	}
	either := slices.Concat(part.AnyOf, part.OneOf)
	switch {
	case len(part.Type) > 0:
		for _, name := range part.Type {
			types[name] = true
		}
		return true
	case len(values) > 0:
		for _, value := range values {
			types[typeOf(value)] = true
		}
		return true
	case len(either) > 0:
		return !slices.ContainsFunc(either, func(one *schema) bool { return !s.collect(one, types, depth+1) })
	}
	// The first part that says a type.
	return slices.ContainsFunc(part.AllOf, func(one *schema) bool { return s.collect(one, types, depth+1) })
}

func typeOf(value json.RawMessage) string {
	switch value[0] {
	case 'n':
		return "null"
	case 't', 'f':
		return "boolean"
	case '"':
		return "string"
	case '[':
		return "array"
	case '{':
		return "object"
	}
	if bytes.ContainsAny(value, ".eE") {
		return "number"
	}
	return "integer"
}

// kindOf names a part in a word or two.
func (s *schema) kindOf(part *schema, depth int) string {
	part = s.follow(part)
	if part == nil || depth > 5 {
		return "any"
	}
	var kinds []string
	for _, value := range part.Enum {
		kinds = append(kinds, string(value))
	}
	for _, one := range slices.Concat(part.AnyOf, part.OneOf) {
		kinds = append(kinds, s.kindOf(one, depth+1))
	}
	switch {
	case len(kinds) > 0:
	case part.Items != nil && slices.Equal(part.Type, []string{"array"}):
		return "array of " + s.kindOf(part.Items, depth+1)
	case len(part.Type) > 0:
		kinds = part.Type
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
	if part := s.follow(s); part != nil && len(part.Properties) > 0 {
		return "object with " + strings.Join(slices.Sorted(maps.Keys(part.Properties)), ", ")
	}
	return s.kindOf(s, 0)
}

// compact is JSON as it is shown, and sent.
func compact(v any) string {
	data, _ := tool.MarshalPlain(v)
	return string(data)
}
