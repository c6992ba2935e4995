package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolmesh/toolmesh"
)

// draft2020 is the dialect of schemas that name none.
const draft2020 = "https://json-schema.org/draft/2020-12/schema"

// schemaURL is where a schema lives for the library; nothing else is loadable.
const schemaURL = "mem:///schema.json"

// Validator checks arguments against one schema. It is immutable: any number of
// goroutines may use it.
type Validator struct {
	fast     *node // nil: every object fits
	schema   *jsonschema.Schema
	unknown  []string // the declared top-level names, to suggest one
	warnings []string
}

// Compile makes a Validator of a JSON Schema: 2020-12 unless "$schema" says
// otherwise. An empty schema allows any object. Formats are asserted, and
// base64 texts of contentEncoding. References must stay inside the schema; a
// remote one, an unknown type, or JSON that is malformed or nested deeper than
// 256 levels is invalid_request. A regular expression that Go's engine does not
// have (look-around, back references) is not asserted: see
// [Validator.Warnings].
func Compile(schema json.RawMessage) (v *Validator, err error) {
	if len(schema) == 0 {
		schema = anyObject
	}
	refuse := func(format string, args ...any) error {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, format, args...)
	}
	if err := checkJSON(schema); err != nil {
		return nil, refuse("the schema is unusable: %w", err)
	}
	doc, err := decodeNumbers(schema)
	if err != nil {
		return nil, refuse("the schema is unusable: %w", err)
	}
	// Schemas come from strangers, and the library panics on some of them.
	defer func() {
		if r := recover(); r != nil {
			v, err = nil, refuse("the schema is unusable: %v", r)
		}
	}()
	v = &Validator{}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.AssertContent()
	c.UseLoader(noLoader{})
	c.UseRegexpEngine(func(pattern string) (jsonschema.Regexp, error) {
		re, err := regexp.Compile(pattern)
		if err != nil {
			warning := fmt.Sprintf("pattern %q is not checked before a call: %v", pattern, err)
			if !slices.Contains(v.warnings, warning) { // the library asks more than once
				v.warnings = append(v.warnings, warning)
			}
			return anyText(pattern), nil
		}
		return re, nil
	})
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, refuse("the schema is unusable: %w", err)
	}
	if v.schema, err = c.Compile(schemaURL); err != nil {
		var remote *remoteError
		if errors.As(err, &remote) {
			return nil, refuse("the schema refers to %s; only references inside the schema (#/$defs/…) are followed", remote.url)
		}
		return nil, refuse("the schema is unusable: %w", schemaProblem(err))
	}
	v.fast = buildNode(doc)
	v.unknown, _ = schemaProperties(schema)
	return v, nil
}

// Warnings returns what of the schema is not asserted, as texts for people.
func (v *Validator) Warnings() []string { return v.warnings }

// Validate checks an arguments object; empty args mean {}. The error is
// invalid_arguments, never started, origin agent, with details.errors listing
// every offending field as a [Problem] (the first 100).
//
// Repeated keys are refused: which one counts differs between readers, so what
// was checked might not be what runs. Numbers are compared exactly; 1.0 is an
// integer. A null is a value, not an absent field.
func (v *Validator) Validate(args json.RawMessage) error {
	if len(args) == 0 {
		args = json.RawMessage(`{}`)
	}
	s := scan(args, v.fast)
	defer s.release()
	switch {
	case s.err != nil:
		return invalid([]Problem{{Expected: "a JSON object", Got: "malformed text", Message: "the arguments are " + s.err.Error()}})
	case kindOf(args) != kindObject:
		got := article(kindOf(args))
		return invalid([]Problem{{Expected: "a JSON object", Got: got, Message: "the arguments must be a JSON object, not " + got}})
	case len(s.repeated) > 0:
		return invalid(s.repeated)
	case !s.unsure:
		return nil
	}
	return v.ask(args)
}

// ask has the library judge arguments that are well-formed.
func (v *Validator) ask(args json.RawMessage) (err error) {
	value, err := decodeNumbers(args)
	if err != nil {
		return invalid([]Problem{{Expected: "a JSON object", Got: "malformed text", Message: "the arguments are not valid JSON: " + err.Error()}})
	}
	defer func() {
		if r := recover(); r != nil {
			err = toolmesh.Errorf(toolmesh.CodeInternal, "checking the arguments failed: %v", r).
				WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
		}
	}()
	err = v.schema.Validate(value)
	if err == nil {
		return nil
	}
	var failed *jsonschema.ValidationError
	if !errors.As(err, &failed) {
		return toolmesh.Errorf(toolmesh.CodeInternal, "checking the arguments failed: %w", err).
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
	}
	return invalid(problemsOf(failed, value, v.unknown))
}

// noLoader refuses every schema that is not in the compiler already; the
// library itself knows the official meta-schemas.
type noLoader struct{}

type remoteError struct{ url string }

func (e *remoteError) Error() string { return "remote reference " + e.url }

func (noLoader) Load(url string) (any, error) { return nil, &remoteError{url} }

// anyText stands for a pattern that Go's engine cannot express.
type anyText string

func (a anyText) String() string        { return string(a) }
func (anyText) MatchString(string) bool { return true }

// schemaProblem shortens the library's report on a schema to its first cause.
func schemaProblem(err error) error {
	var invalidSchema *jsonschema.SchemaValidationError
	if !errors.As(err, &invalidSchema) {
		return err
	}
	var failed *jsonschema.ValidationError
	if !errors.As(invalidSchema.Err, &failed) {
		return err
	}
	for len(failed.Causes) > 0 {
		failed = failed.Causes[0]
	}
	return fmt.Errorf("at %q: %s", pointerOf(failed.InstanceLocation), failed.ErrorKind.LocalizedString(english))
}
