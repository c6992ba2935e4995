package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toolmesh/toolmesh"
)

// schemaURL is where a schema lives for the library; nothing else is loadable.
const schemaURL = "mem:///schema.json"

// Bounds on the work of one check. A recursive schema of overlapping
// alternatives takes exponential time: 110 bytes of arguments took 16 s.
const (
	baseWork    = 20_000 // visits of schema objects …
	workPerByte = 4      // … and as many more per byte of the arguments
	// maxObjects bounds a schema: the library compares each part with all others to compile it.
	maxObjects = 10_000
	// maxEnum bounds the lists and objects of one enum in drafts 4 and 6, which compare each with all
	// others: lists of 1 and -1 have one hash in the library.
	maxEnum    = 100
	idleChecks = 4
)

// Validator checks arguments against one schema. It is immutable: any number of
// goroutines may use it.
type Validator struct {
	fast     *jsonschema.Schema // of the first check, for the scanner
	readable readable
	doc      any
	checks   chan *check // idle ones
	unknown  []string    // the declared top-level names, to suggest one
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
	doc, err := readJSON(schema)
	if err != nil {
		return nil, refuse("the schema is unusable: %w", err)
	}
	// Schemas come from outside, and the library panics on some of them.
	defer func() {
		if r := recover(); r != nil {
			v, err = nil, refuse("the schema is unusable: %v", r)
		}
	}()
	v = &Validator{doc: doc, checks: make(chan *check, idleChecks)}
	if n := bytes.Count(schema, []byte("{")) + bytes.Count(schema, []byte("true")) + bytes.Count(schema, []byte("false")); n > maxObjects {
		return nil, refuse("the schema is unusable: it has %d objects and truth values, and at most %d are possible", n, maxObjects)
	}
	if n, older := longestEnum(doc); older && n > maxEnum {
		return nil, refuse("the schema is unusable: an enum has %d lists and objects, and at most %d are possible in drafts 4 and 6", n, maxEnum)
	}
	plain, warnings, err := compile(doc, false)
	if err != nil {
		var remote *jsonschema.LoadURLError
		if errors.As(err, &remote) {
			return nil, refuse("the schema refers to %s; only references inside the schema (#/$defs/…) are followed", remote.URL)
		}
		return nil, refuse("the schema is unusable: %w", schemaProblem(err))
	}
	v.fast, v.warnings, v.readable = plain.schema, warnings, readable{}
	v.readable.add(v.fast)
	v.unknown, _ = schemaProperties(schema)
	return v, nil
}

// longestEnum is the most lists and objects that an enum in a document has. older says that a part
// of it names draft 4 or 6.
func longestEnum(v any) (most int, older bool) {
	inside := func(one any) {
		n, old := longestEnum(one)
		most, older = max(most, n), older || old
	}
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			inside(one)
		}
	case map[string]any:
		draft, _ := v["$schema"].(string)
		older = strings.Contains(draft, "draft-04") || strings.Contains(draft, "draft-06")
		constants, _ := v["enum"].([]any)
		for _, one := range constants {
			most += min(depthOf(one), 1)
		}
		for _, one := range v {
			inside(one)
		}
	}
	return most, older
}

// Schema is the schema as the library compiled it. It must not be changed.
func (v *Validator) Schema() *jsonschema.Schema { return v.fast }

// Warnings are the parts of the schema that are not asserted, as texts for people.
func (v *Validator) Warnings() []string { return v.warnings }

// Validate checks an arguments object; empty args mean {}. The error is
// invalid_arguments, never started, origin agent, with details.errors listing
// every offending field as a [Problem] (the first 100).
//
// The work is bounded: arguments that a recursive schema of overlapping
// alternatives cannot decide in reasonable time are refused too.
//
// Repeated keys are refused: readers differ in which one counts, so the checked arguments
// might not be those that the tool gets. Numbers are compared exactly; 1.0 is an integer. A
// null is a value, not an absent field.
func (v *Validator) Validate(args json.RawMessage) error {
	if len(args) == 0 {
		args = json.RawMessage(`{}`)
	}
	certain, bad := scan(args, v.fast, v.readable)
	if bad != nil {
		return invalid([]Problem{bad.problem("the arguments", "are")})
	}
	if kind := jsontext.Value(args).Kind(); kind != '{' {
		got := article(kind)
		return invalid([]Problem{{Expected: "a JSON object", Got: got, Message: "the arguments must be a JSON object, not " + got}})
	}
	if certain {
		return nil
	}
	err := v.ask(args, func(failed *jsonschema.ValidationError, value any) error {
		return invalid(problemsOf(failed, value, "", v.unknown, v.fast))
	})
	if errors.Is(err, errBudget) {
		err = invalid([]Problem{{Expected: "arguments that can be checked", Got: "nested alternatives", Message: "the arguments are " + err.Error()}})
	}
	return err
}

// Mismatch is a fault of a result.
type Mismatch struct {
	// Text describes it to the caller, with the result's value.
	Text string
	// Public describes it by the schema only: it has neither texts nor keys of the result.
	Public string
}

// CheckResult returns how a result, or an item, does not fit the schema; nil if it fits. The
// error is why that cannot be decided: the work is bounded by the size, as that of
// [Validator.Validate].
func (v *Validator) CheckResult(result json.RawMessage) (wrong *Mismatch, err error) {
	certain, bad := scan(result, v.fast, v.readable)
	switch {
	case bad != nil:
		return &Mismatch{bad.problem("the result", "is").Message, "expected " + bad.expected}, nil
	case certain:
		return nil, nil
	}
	err = v.ask(result, func(failed *jsonschema.ValidationError, value any) error {
		wrong = &Mismatch{problemsOf(failed, value, "the result", nil, nil)[0].Message, public(failed, value)}
		return nil
	})
	if errors.Is(err, errBudget) {
		err = fmt.Errorf("the result is %w", err)
	}
	return wrong, err
}

// errBudget is the end of a check that takes too long.
var errBudget = errors.New("too complex to check: too large for the schema, or the alternatives of this overlap and are nested in themselves")

// ask has the library check a well-formed value, and calls mismatch with its error. A large value
// that fits costs no memory for errors of its alternatives.
func (v *Validator) ask(data json.RawMessage, mismatch func(*jsonschema.ValidationError, any) error) error {
	return v.checked(data, func(one *check, value any) error {
		most := min(one.left, maxWorded)
		if one.left > maxSmall && one.unfit.Validate(value) != nil {
			return nil
		}
		one.left = most
		var failed *jsonschema.ValidationError
		if err := one.schema.Validate(value); !errors.As(err, &failed) {
			return nil
		}
		restore(failed)
		return mismatch(failed, value)
	})
}

// checked calls run with arguments that are well-formed and a check of their own,
// whose work is bounded.
func (v *Validator) checked(args json.RawMessage, run func(*check, any) error) (err error) {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(args)) // it has been scanned
	if err != nil {
		return invalid([]Problem{{Expected: "a JSON object", Got: "malformed text", Message: "the arguments are not valid JSON: " + err.Error()}})
	}
	var one *check
	select {
	case one = <-v.checks:
	default: // all are at work
		if one, _, err = compile(v.doc, true); err != nil {
			return broken(err)
		}
	}
	depth := depthOf(value)
	one.left, one.unit = baseWork+workPerByte*len(args), 1+depth/levelsPerUnit
	if depth*len(one.plain) > maxNested {
		one.left = min(one.left, maxNested*one.unit)
	}
	defer func() {
		switch r := recover(); r {
		case nil:
		case budgetSpent{}:
			err = errBudget
		default:
			err = broken(fmt.Errorf("%v", r))
		}
		select {
		case v.checks <- one:
		default:
		}
	}()
	return run(one, value)
}

// broken is a fault of the check itself.
func broken(err error) error {
	return toolmesh.Errorf(toolmesh.CodeInternal, "checking the arguments failed: %w", err).
		WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
}

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
