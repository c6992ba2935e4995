package check

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// What cmd/schemas has kept of Kubernetes's, KEDA's and the Prometheus operator's own
// descriptions of their objects; `make k8s-schemas` makes it anew.
//
//go:embed schemas.json
var schemasJSON []byte

// Schemas describes objects.
type Schemas struct {
	From        map[string]string  `json:"from"`        // module -> version
	Kinds       map[string]*Schema `json:"kinds"`       // apiVersion/kind
	Definitions map[string]*Schema `json:"definitions"` // what Ref names
}

// Schema is the part of JSON Schema that Kubernetes writes its descriptions in.
type Schema struct {
	Ref        string             `json:"$ref,omitempty"`
	Type       string             `json:"type,omitempty"`
	Format     string             `json:"format,omitempty"`
	Properties map[string]*Schema `json:"properties,omitempty"`
	Required   []string           `json:"required,omitempty"`
	Items      *Schema            `json:"items,omitempty"`
	Additional *Additional        `json:"additionalProperties,omitempty"`
	Enum       []any              `json:"enum,omitempty"`
	Pattern    string             `json:"pattern,omitempty"`
	Minimum    *float64           `json:"minimum,omitempty"`
	Maximum    *float64           `json:"maximum,omitempty"`
	MinItems   *int               `json:"minItems,omitempty"`
	MaxItems   *int               `json:"maxItems,omitempty"`
	MinLength  *int               `json:"minLength,omitempty"`
	IntOrText  bool               `json:"x-kubernetes-int-or-string,omitempty"`
	Anything   bool               `json:"x-kubernetes-preserve-unknown-fields,omitempty"`
}

// Additional is additionalProperties: a schema, or true for anything.
type Additional struct{ *Schema }

// UnmarshalJSON reads either form.
func (a *Additional) UnmarshalJSON(data []byte) error {
	if string(data) == "true" || string(data) == "false" {
		return nil
	}
	a.Schema = new(Schema)
	return json.Unmarshal(data, a.Schema)
}

// MarshalJSON writes the form that it was.
func (a *Additional) MarshalJSON() ([]byte, error) {
	if a.Schema == nil {
		return []byte("true"), nil
	}
	return json.Marshal(a.Schema)
}

var schemas = sync.OnceValue(func() *Schemas {
	s := new(Schemas)
	if err := json.Unmarshal(schemasJSON, s); err != nil {
		panic(err) // a test reads it, too
	}
	return s
})

// schemaRule: each object is as its kind's description says: types, required fields,
// allowed values, and no field beyond.
func schemaRule(s *Set, _ *Facts) []string {
	var c complaints
	for _, o := range s.Objects {
		schema := schemas().Kinds[text(o.Raw, "apiVersion")+"/"+o.Kind()]
		if schema == nil {
			c.add(o, "nobody has described %s/%s", text(o.Raw, "apiVersion"), o.Kind())
			continue
		}
		for _, wrong := range schemas().check(schema, o.Raw, "") {
			c.add(o, "%s", wrong)
		}
	}
	return c
}

func (all *Schemas) check(s *Schema, v any, at string) (wrong []string) {
	if s.Ref != "" {
		return all.check(all.Definitions[s.Ref], v, at)
	}
	say := func(format string, args ...any) {
		wrong = append(wrong, strings.TrimPrefix(at, ".")+": "+fmt.Sprintf(format, args...))
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		say("is %v, want one of %v", v, s.Enum)
	}
	number, isNumber := v.(float64)
	if n, ok := v.(int64); ok {
		number, isNumber = float64(n), true
	}
	str, isText := v.(string)
	if s.IntOrText || s.Format == "int-or-string" {
		if !isText && !isNumber {
			say("is %v, want a number or a text", v)
		}
		return wrong
	}
	fits := true
	switch s.Type {
	case "object":
		_, fits = v.(map[string]any)
	case "array":
		_, fits = v.([]any)
	case "string":
		fits = isText
	case "boolean":
		_, fits = v.(bool)
	case "integer":
		fits = isNumber && number == math.Trunc(number)
	case "number":
		fits = isNumber
	}
	if !fits {
		say("is %v, want the type %s", v, s.Type)
		return wrong
	}
	if s.Pattern != "" && isText && !regexp.MustCompile(s.Pattern).MatchString(str) {
		say("is %q, want %s", str, s.Pattern)
	}
	if s.MinLength != nil && isText && len(str) < *s.MinLength {
		say("is %q, which is too short", str)
	}
	if isNumber && (s.Minimum != nil && number < *s.Minimum || s.Maximum != nil && number > *s.Maximum) {
		say("is %v, which is out of bounds", number)
	}
	switch v := v.(type) {
	case []any:
		if s.MinItems != nil && len(v) < *s.MinItems || s.MaxItems != nil && len(v) > *s.MaxItems {
			say("has %d items", len(v))
		}
		for i, item := range v {
			if s.Items != nil {
				wrong = append(wrong, all.check(s.Items, item, fmt.Sprintf("%s[%d]", at, i))...)
			}
		}
	case map[string]any:
		for _, name := range s.Required {
			if _, ok := v[name]; !ok {
				say("has no %s", name)
			}
		}
		for name, value := range v {
			switch property := s.Properties[name]; {
			case property != nil:
				wrong = append(wrong, all.check(property, value, at+"."+name)...)
			case s.Additional != nil && s.Additional.Schema != nil:
				wrong = append(wrong, all.check(s.Additional.Schema, value, at+"."+name)...)
			case s.Additional == nil && len(s.Properties) > 0 && !s.Anything && (at != "" || name != "metadata"):
				say("there is no field %s", name)
			}
		}
	}
	return wrong
}
