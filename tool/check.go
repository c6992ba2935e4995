package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	parser "regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	fault "github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Prices of the work of a check, in visits of schema objects.
const (
	// perStep is how many members, names or digits are looked at for the price of a visit.
	perStep = 16
	// perNoted is how many members are, with words such as unevaluatedProperties: each visit notes all.
	perNoted = 2
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
	// maxSmall is the work of a check that keeps its errors at once.
	maxSmall = maxWorded / 10
	// maxNested is how many visits may be nested. Each takes a KB of the stack, and a stack of 1 GB ends the process.
	maxNested = 200_000
)

// maxInstructions bounds the compiled patterns of a schema. Go compiles 3 KB of a pattern to 130 MB.
const maxInstructions = 50_000

// check is the library's compiled schema with a budget of work, for one check at a time. The
// library has neither limit nor context, but asks for the format of a value before it looks into it.
type check struct {
	schema *jsonschema.Schema
	unfit  *jsonschema.Schema // accepts each value that schema refuses, and makes no errors of it
	left   int
	unit   int // the price of a visit
	// perMember is how many members are looked at for the price of a visit.
	perMember int
	plain     map[*jsonschema.Schema]*jsonschema.Schema // as the library compiled them
}

// budgetSpent is the value with which a check panics, through the library.
type budgetSpent struct{}

// spend takes visits off the budget.
func (c *check) spend(visits int) {
	if c.left -= visits * c.unit; c.left < 0 {
		panic(budgetSpent{})
	}
}

// compile compiles a schema to be read, which matches no pattern, or, metered, for checks. The
// warnings name the patterns that are not asserted.
func compile(doc any, metered bool) (one *check, warnings []string, err error) {
	one = &check{perMember: perStep, plain: map[*jsonschema.Schema]*jsonschema.Schema{}}
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
		if err != nil || !metered {
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
	const unfitURL = "mem:///unfit.json"
	if err := errors.Join(c.AddResource(schemaURL, doc), c.AddResource(unfitURL, map[string]any{"not": map[string]any{"$ref": schemaURL}})); err != nil {
		return nil, nil, err
	}
	if !metered {
		one.schema, err = c.Compile(schemaURL)
		return one, warnings, err
	}
	if one.unfit, err = c.Compile(unfitURL); err != nil {
		return nil, nil, err
	}
	one.schema = one.unfit.Not.Ref
	for _, schema := range all {
		all = append(all, truthsIn(schema)...)
	}
	for _, schema := range all {
		if schema.UnevaluatedItems != nil || schema.UnevaluatedProperties != nil {
			one.perMember = perNoted
		}
		one.meter(schema)
	}
	return one, warnings, nil
}

// truthsIn are true and false among the schemas in one: the library compiles these without our vocabulary.
func truthsIn(s *jsonschema.Schema) []*jsonschema.Schema {
	items, _ := s.Items.(*jsonschema.Schema)
	tuple, _ := s.Items.([]*jsonschema.Schema)
	more, _ := s.AdditionalItems.(*jsonschema.Schema)
	parts := slices.Concat(s.AllOf, s.AnyOf, s.OneOf, s.PrefixItems, tuple,
		[]*jsonschema.Schema{items, more, s.Items2020, s.Contains, s.PropertyNames, s.UnevaluatedItems, s.UnevaluatedProperties},
		slices.Collect(maps.Values(s.Properties)), slices.Collect(maps.Values(s.PatternProperties)), slices.Collect(maps.Values(s.DependentSchemas)))
	return slices.DeleteFunc(parts, func(one *jsonschema.Schema) bool { return one == nil || one.Bool == nil })
}

// meter has each visit of a schema pay before any other work. The library tests some words before
// it asks for a format, and compares constants and unique items with each other: this is done here.
func (c *check) meter(s *jsonschema.Schema) {
	price := perStep + len(s.Required) + len(s.DependentSchemas) + len(s.Dependencies)
	for _, names := range s.DependentRequired {
		price += 1 + len(names)
	}
	for _, one := range s.Dependencies {
		names, _ := one.([]string)
		price += len(names)
	}
	own, constants := *s, map[string]bool{}
	c.plain[s] = &own
	if s.Enum != nil {
		for _, one := range s.Enum.Values {
			constants[string(c.key(nil, one))] = true
		}
	}
	constant := ""
	if s.Const != nil {
		constant = string(c.key(nil, *s.Const))
	}
	s.Bool, s.Types, s.Enum, s.Const, s.UniqueItems = nil, nil, nil, nil, false
	s.Format = &jsonschema.Format{Validate: func(v any) error {
		c.spend(price/perStep + c.sizeOf(v))
		if own.Types != nil {
			if wrong := wrongType(v, *own.Types); wrong != nil {
				return refusal{wrong}
			}
		}
		switch list, _ := v.([]any); {
		case own.Bool != nil && !*own.Bool:
			return refusal{&fault.FalseSchema{}}
		case own.Const != nil && string(c.key(nil, v)) != constant:
			return refusal{&fault.Const{Got: v, Want: *own.Const}}
		case own.Enum != nil && !constants[string(c.key(nil, v))]:
			return refusal{&fault.Enum{Got: v, Want: own.Enum.Values}}
		case own.UniqueItems:
			if i, j := c.equalItems(list); j > 0 {
				return refusal{&fault.UniqueItems{Duplicates: [2]int{i, j}}}
			}
		}
		if own.Format == nil || own.Format.Name == "regex" { // that is a pattern of the tool's language, not of ours
			return nil
		}
		return own.Format.Validate(v)
	}}
	if own.Format != nil {
		s.Format.Name = own.Format.Name
	}
}

// refusal is a format's error for what the library refuses otherwise.
type refusal struct{ jsonschema.ErrorKind }

func (refusal) Error() string { return "refused" }

// restore makes errors those of the library again.
func restore(e *jsonschema.ValidationError) {
	if format, ok := e.ErrorKind.(*fault.Format); ok {
		if early, ok := format.Err.(refusal); ok { //nolint:errorlint // it is never wrapped
			e.ErrorKind = early.ErrorKind
		}
	}
	for _, cause := range e.Causes {
		restore(cause)
	}
}

// sizeOf is the price of a look at a value, without its members' content.
func (c *check) sizeOf(v any) int {
	switch v := v.(type) {
	case string:
		return len(v) / textPerVisit
	case json.Number:
		n := len(v)
		if i := strings.IndexAny(string(v), "eE"); i >= 0 {
			exponent, _ := strconv.Atoi(string(v[i+1:])) // it has three digits
			n += max(exponent, -exponent)
		}
		return n / perStep
	case []any:
		return len(v) / c.perMember
	case map[string]any:
		return len(v) / c.perMember
	}
	return 0
}

// wrongType returns the error of a value that is of none of the types.
func wrongType(v any, allowed jsonschema.Types) jsonschema.ErrorKind {
	got := "number" // an integer, too
	number, ok := v.(json.Number)
	if !ok {
		got = KindOf(v)
	}
	if allowed&typesOf(got) != 0 {
		return nil
	}
	if ok && allowed&typesOf("integer") != 0 {
		if n, ok := new(big.Rat).SetString(string(number)); ok && n.IsInt() {
			return nil
		}
	}
	return &fault.Type{Got: got, Want: allowed.ToStrings()}
}

// equalItems returns the first two equal items of a list; 0 and 0 if there are none.
func (c *check) equalItems(list []any) (int, int) {
	seen := make(map[string]int, len(list))
	for i, one := range list {
		key := string(c.key(nil, one))
		if first, ok := seen[key]; ok {
			return first, i
		}
		seen[key] = i
	}
	return 0, 0
}

// key appends a text that a value has in common with its equals, and with nothing else.
func (c *check) key(to []byte, v any) []byte {
	c.spend(1 + c.sizeOf(v))
	switch v := v.(type) {
	case string:
		return fmt.Appendf(to, "%d:%s", len(v), v)
	case json.Number:
		n, _ := new(big.Rat).SetString(string(v))
		return fmt.Appendf(to, "n%s", n.RatString())
	case []any:
		to = append(to, '[')
		for _, one := range v {
			to = append(c.key(to, one), ',')
		}
		return append(to, ']')
	case map[string]any:
		to = append(to, '{')
		for _, name := range slices.Sorted(maps.Keys(v)) {
			to = append(c.key(c.key(to, name), v[name]), ',')
		}
		return append(to, '}')
	}
	return fmt.Append(to, v)
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
