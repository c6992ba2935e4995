package tool

import (
	"errors"
	"fmt"
	"regexp"
	parser "regexp/syntax"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Prices of the work of a check, in visits of schema objects.
const (
	// perStep is how many bytes, members, names or constants are looked at for the price of a visit.
	perStep = 16
	// textPerVisit is how many bytes of a text are looked at for the price of a visit: each is
	// looked at 256 times at most.
	textPerVisit = 64
	// patternPerVisit is how many bytes, times the instructions of a pattern, are matched for the
	// price of a visit.
	patternPerVisit = 1024
	// levelsPerUnit is how many levels of the value make each visit dearer by another one: an error
	// names the place, and so takes memory for each level.
	levelsPerUnit = 16
	// maxWorded is the work of a check that keeps its errors, which take some 300 bytes for each visit.
	maxWorded = 1_000_000
)

// Bounds on one schema. The library compares each schema object with all others to compile it.
const (
	maxObjects = 10_000
	// maxInstructions bounds the compiled patterns together. Go compiles 3 KB of a pattern to 130 MB.
	maxInstructions = 50_000
)

// check is the library's compiled schema with a budget of work, for one check at a time. The
// library has neither limit nor context, but asks for the format of a value before it looks into it.
type check struct {
	schema  *jsonschema.Schema
	unfit   *jsonschema.Schema // accepts each value that schema refuses, and makes no errors of it
	left    int
	unit    int // the price of a visit
	entries map[*jsonschema.Schema]int
}

// budgetSpent is the value with which a check panics, through the library.
type budgetSpent struct{}

func newCheck(doc any) (one *check, err error) {
	one = &check{entries: map[*jsonschema.Schema]int{}}
	one.schema, _, err = compile(doc, one)
	return one, err
}

// spend takes visits off the budget.
func (c *check) spend(visits int) {
	if c.left -= visits * c.unit; c.left < 0 {
		panic(budgetSpent{})
	}
}

// compile compiles a schema, whose work one counts; without one it is to be read, and matches no pattern. The warnings name the
// patterns that are not asserted.
func compile(doc any, one *check) (s *jsonschema.Schema, warnings []string, err error) {
	if n := objectsIn(doc); n > maxObjects {
		return nil, nil, fmt.Errorf("it has %d objects and truth values, and at most %d are possible", n, maxObjects)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	registerFormats(c)
	c.AssertContent()
	c.RegisterContentMediaType(&jsonschema.MediaType{Name: "application/json", Validate: func([]byte) error { return nil }})
	c.UseLoader(jsonschema.SchemeURLLoader{}) // the library has the official meta-schemas, and nothing else is loaded
	instructions := 0
	c.UseRegexpEngine(func(text string) (jsonschema.Regexp, error) {
		p := &pattern{check: one}
		tree, err := parser.Parse(text, parser.Perl)
		if err == nil {
			if p.size = instructionsOf(tree); instructions+p.size > maxInstructions {
				err = errors.New("it is too large")
			}
		}
		if err != nil {
			warning := fmt.Sprintf("pattern %s is not checked before a call: %v", show(text), err)
			if !slices.Contains(warnings, warning) { // the library asks more than once
				warnings = append(warnings, warning)
			}
		}
		if err != nil || one == nil {
			return anyText(text), nil
		}
		instructions += p.size
		p.Regexp, err = regexp.Compile(text)
		return p, err
	})
	var all []*jsonschema.Schema
	c.RegisterVocabulary(&jsonschema.Vocabulary{
		URL: "mem:///budget",
		Compile: func(ctx *jsonschema.CompilerContext, _ map[string]any) (jsonschema.SchemaExt, error) {
			all = append(all, ctx.Enqueue(nil))
			return nil, nil //nolint:nilnil // there is no further check
		},
	})
	c.AssertVocabs()
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, nil, err
	}
	if s, err = c.Compile(schemaURL); err != nil || one == nil {
		return s, warnings, err
	}
	const unfitURL = "mem:///unfit.json"
	if err := c.AddResource(unfitURL, map[string]any{"not": map[string]any{"$ref": schemaURL}}); err != nil {
		return nil, nil, err
	}
	if one.unfit, err = c.Compile(unfitURL); err != nil {
		return nil, nil, err
	}
	for _, schema := range all {
		one.meter(schema)
	}
	one.entries = nil
	return s, warnings, nil
}

// meter has a schema object count the work of its visits.
func (c *check) meter(s *jsonschema.Schema) {
	price, own := c.priceOf(s), s.Format
	s.Format = &jsonschema.Format{Validate: func(v any) error {
		c.spend(price.of(v))
		if own == nil {
			return nil
		}
		return own.Validate(v)
	}}
	if own != nil {
		s.Format.Name = own.Name
	}
}

// price is what a visit of a schema object costs: all the work that no other visit counts. A value
// of a wrong type, or that is none of the constants, is refused before its schema is asked for a
// format, so the visit around it pays.
type price struct {
	visit  int  // whatever the value
	member int  // for each member of the value
	beside int  // schemas of the same value
	unique bool // all members are compared
}

func (p price) of(v any) int {
	members := 0
	switch v := v.(type) {
	case string:
		return p.visit + len(v)/textPerVisit
	case []any:
		members = len(v)
	case map[string]any:
		members = len(v)
	}
	cost := p.visit + members*p.member + members*p.beside/perStep
	if p.unique {
		cost += weigh(v) / perStep
	}
	return cost
}

func (c *check) priceOf(s *jsonschema.Schema) price {
	p := price{visit: 1, unique: s.UniqueItems}
	beside := slices.Concat(s.AllOf, s.AnyOf, s.OneOf, []*jsonschema.Schema{s.Not, s.If, s.Then, s.Else, s.Ref, s.RecursiveRef})
	if s.DynamicRef != nil {
		beside = append(beside, s.DynamicRef.Ref)
	}
	names := len(s.Required)
	for _, one := range s.DependentRequired {
		names += len(one)
	}
	for _, one := range s.DependentSchemas {
		beside = append(beside, one)
	}
	for _, one := range s.Dependencies {
		if list, ok := one.([]string); ok {
			names += len(list)
		}
		beside = append(beside, schemaIn(one))
	}
	for _, one := range beside {
		p.visit += c.entry(one)
		p.beside += min(1, c.entry(one))
	}
	p.visit += names / perStep
	members := []*jsonschema.Schema{
		s.PropertyNames, s.Contains, s.Items2020, s.UnevaluatedItems, s.UnevaluatedProperties,
		schemaIn(s.Items), schemaIn(s.AdditionalItems), schemaIn(s.AdditionalProperties),
	}
	for _, one := range s.PatternProperties {
		members = append(members, one)
	}
	for _, one := range members {
		p.member += c.entry(one)
	}
	most := 0 // of schemas of single members
	list, _ := s.Items.([]*jsonschema.Schema)
	for _, one := range slices.Concat(s.PrefixItems, list) {
		most = max(most, c.entry(one))
	}
	for _, one := range s.Properties {
		most = max(most, c.entry(one))
	}
	p.member += most
	return p
}

// schemaIn is the schema in a part that may be another kind; nil if it is.
func schemaIn(part any) *jsonschema.Schema {
	s, _ := part.(*jsonschema.Schema)
	return s
}

// entry is the work on a value before its schema is asked for a format; 0 without a schema.
func (c *check) entry(s *jsonschema.Schema) int {
	if s == nil {
		return 0
	}
	n, known := c.entries[s]
	if !known {
		n = 1
		if s.Enum != nil {
			n += weigh(s.Enum.Values) / perStep
		}
		if s.Const != nil {
			n += weigh(*s.Const) / perStep
		}
		c.entries[s] = n
	}
	return n
}

// weigh is how many steps it takes to compare a value with another. Numbers are parsed for it.
func weigh(v any) int {
	n := 1
	switch v := v.(type) {
	case nil, bool:
	case string:
		n += len(v) / textPerVisit
	case []any:
		for _, one := range v {
			n += weigh(one)
		}
	case map[string]any:
		for key, one := range v {
			n += weigh(key) + weigh(one)
		}
	default:
		n = 4
	}
	return n
}

// depthOf is how many lists and objects nest in a value.
func depthOf(v any) (depth int) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			depth = max(depth, depthOf(one))
		}
	case map[string]any:
		for _, one := range v {
			depth = max(depth, depthOf(one))
		}
	default:
		return 0
	}
	return depth + 1
}

// objectsIn is how many parts of a document may be schemas.
func objectsIn(v any) (n int) {
	switch v := v.(type) {
	case bool:
		n = 1
	case []any:
		for _, one := range v {
			n += objectsIn(one)
		}
	case map[string]any:
		n = 1
		for _, one := range v {
			n += objectsIn(one)
		}
	}
	return n
}

// instructionsOf is about how many instructions a pattern is compiled to. Repetitions are copies.
func instructionsOf(tree *parser.Regexp) int {
	n := 2
	switch tree.Op { //nolint:exhaustive // the rest takes one or two
	case parser.OpLiteral:
		n += len(tree.Rune)
	case parser.OpCharClass:
		n += len(tree.Rune) / perStep // its table is used by all copies, and searched
	}
	for _, one := range tree.Sub {
		n += instructionsOf(one)
	}
	if tree.Op == parser.OpRepeat {
		n *= max(tree.Min, tree.Max) + 1
	}
	return n
}

// pattern is a regular expression that counts the work of a match.
type pattern struct {
	*regexp.Regexp
	check *check
	size  int
}

// MatchString implements jsonschema.Regexp.
func (p *pattern) MatchString(text string) bool {
	p.check.spend(1 + len(text)*p.size/patternPerVisit)
	return p.Regexp.MatchString(text)
}

// anyText replaces a pattern that Go's engine cannot express, or that is too large. Each is a value
// of its own: the library has the patterns of names as keys.
type anyText string

func (a anyText) String() string        { return string(a) }
func (anyText) MatchString(string) bool { return true }
