package tool

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Source says where a descriptor's schemas come from.
type Source string

// The sources of a descriptor.
const (
	// SourceImport: the index was imported in its own environment and inspected.
	SourceImport Source = "import"
	// SourceStatic: the index's files say it, nothing was imported: of a program
	// its declaration, of a function that is not served here its source text.
	SourceStatic Source = "static"
	// SourceGo: a Go service registered a function.
	SourceGo Source = "go"
	// SourceProgram: a program registered it through a bridge.
	SourceProgram Source = "program"
)

// IndexRef names the index, and its revision, that a tool came from.
type IndexRef struct {
	Name     subjects.IndexName `json:"name"`
	Revision string             `json:"revision"`
}

// Descriptor is everything that is known about a tool without running it. Its
// JSON names are those of `mesh info --json`. It is plain data: treat one that
// was published, or handed to another goroutine, as immutable.
type Descriptor struct {
	// ID is the full id, e.g. "weather.forecast.today".
	ID subjects.ToolID `json:"id"`
	// Name is the id below its index, e.g. "forecast.today"; a session's own
	// tool has the same id and name.
	Name string `json:"name"`
	// Description is the text that people and models read.
	Description string `json:"description"`
	// InputSchema is the author's JSON Schema (2020-12) of the arguments
	// object, key order and number literals kept. Empty means: any object.
	InputSchema json.RawMessage `json:"input_schema"`
	// OutputSchema is the JSON Schema of the result (of one item, for a
	// streaming tool). Empty means: unknown.
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	// Positional are the parameters that the envelope form's positional
	// arguments fill, in the order of the signature.
	Positional []string `json:"positional,omitempty"`
	// VarArgs is the name of a Python tool's *args parameter, "" without one.
	VarArgs string `json:"varargs,omitempty"`
	// Annotations say how the tool behaves and how it wants to be run.
	Annotations Annotations `json:"annotations"`
	// Metadata is the author's own JSON object, passed through. Empty means {}.
	Metadata json.RawMessage `json:"metadata"`
	// Source says where the schemas come from.
	Source Source `json:"source"`
	// Warnings are texts for people, e.g. about a type that has no schema.
	Warnings []string `json:"warnings"`
	// Index is the index of the tool, nil for a session's own tool. It is not part of the
	// digest: see [Descriptor.Digest].
	Index *IndexRef `json:"index,omitempty"`
}

// anyObject is the schema of a tool that declares none.
var anyObject = json.RawMessage(`{"type":"object"}`)

// MarshalJSON writes the form of `mesh info --json` without the keys that the command adds
// ("digest", "nodes"). Absent parts have their empty value, so that scripts
// find every key except output_schema, positional, varargs and index.
func (d Descriptor) MarshalJSON() ([]byte, error) {
	type plain Descriptor // without this method
	w := plain(d)
	if len(w.InputSchema) == 0 {
		w.InputSchema = anyObject
	}
	if len(w.Metadata) == 0 {
		w.Metadata = json.RawMessage(`{}`)
	}
	if w.Warnings == nil {
		w.Warnings = []string{}
	}
	return MarshalPlain(w)
}

// UnmarshalJSON reads the form of MarshalJSON. Unknown fields are ignored: a
// newer node may have written them.
func (d *Descriptor) UnmarshalJSON(data []byte) error {
	type plain Descriptor
	var w plain
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	if len(w.Warnings) == 0 {
		w.Warnings = nil
	}
	if string(w.Metadata) == "{}" || string(w.Metadata) == "null" {
		w.Metadata = nil
	}
	*d = Descriptor(w)
	return nil
}

// Encode returns the form to store under [Descriptor.Digest]: the JSON form
// without the index. It is lossless: [Decode] of it and the same index give the
// same descriptor.
func (d *Descriptor) Encode() ([]byte, error) {
	stored := *d
	stored.Index = nil
	data, err := stored.MarshalJSON()
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the descriptor of tool %q is not JSON: %w", d.ID, err)
	}
	return data, nil
}

// Decode reads a stored descriptor and verifies it against the digest that it
// was stored under. Fields of a later version count in the digest, and are left out otherwise. The
// errors are protocol_error.
func Decode(data []byte, digest string) (*Descriptor, error) {
	d := new(Descriptor)
	got, err := digestOf(data)
	if err == nil {
		err = json.Unmarshal(data, d)
	}
	switch {
	case err != nil:
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "a stored descriptor is not readable: %w", err)
	case got != digest:
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError,
			"the stored descriptor of tool %q has digest %s, not %s: the store is damaged, or its writer made the digest in another way", d.ID, got, digest)
	}
	return d, nil
}

// Digest returns the hex SHA-256 of the canonical form: the encoded descriptor with sorted keys and
// without white space. The key order of schemas does not change it; a number literal is compared as
// written (1.0 and 1 differ).
//
// The index is left out. Its name is in the id, and the revision must not count: an upgrade
// that does not change a tool must not change its descriptor in any cache. The
// revision travels in the route, next to the digest.
func (d *Descriptor) Digest() (string, error) {
	data, err := d.Encode()
	if err != nil {
		return "", err
	}
	digest, err := digestOf(data)
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the descriptor of tool %q is not JSON: %w", d.ID, err)
	}
	return digest, nil
}

func digestOf(data []byte) (string, error) {
	if _, bad := scan(data, nil, nil); bad != nil {
		return "", bad
	}
	text, err := canonical(data, true)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// Check says whether the descriptor can be published: the id and name are
// there, the schemas compile, positional parameters and the placeholders of the
// resource key exist, metadata is an object. The error is invalid_request and
// names the tool.
func (d *Descriptor) Check() error {
	fail := func(format string, args ...any) error {
		err := toolmesh.Errorf(toolmesh.CodeInvalidRequest, format, args...)
		for _, arg := range args {
			if cause, ok := arg.(*toolmesh.Error); ok { // its code is said already
				err.Message = strings.Replace(err.Message, cause.Error(), cause.Message, 1)
			}
		}
		err.Message = fmt.Sprintf("tool %q: %s", d.ID, err.Message)
		return err
	}
	if err := d.ID.Validate(); err != nil {
		return fail("%w", err)
	}
	if d.Name != d.ID.Local() {
		return fail("the name is %q, but the id below the index is %q", d.Name, d.ID.Local())
	}
	if _, err := Compile(d.InputSchema); err != nil {
		return fail("input_schema: %w", err)
	}
	if len(d.OutputSchema) > 0 {
		if _, err := Compile(d.OutputSchema); err != nil {
			return fail("output_schema: %w", err)
		}
	}
	if len(d.Metadata) > 0 {
		if _, err := readJSON(d.Metadata); err != nil {
			return fail("metadata: %w", err)
		}
		if kind := jsontext.Value(d.Metadata).Kind(); kind != '{' {
			return fail("metadata must be a JSON object, not %s", article(kind))
		}
		if err := checkMCP(d.Metadata); err != nil {
			return fail("%w", err)
		}
	}
	if err := d.Annotations.check(); err != nil {
		return fail("%w", err)
	}
	if d.Annotations.Streaming && d.Annotations.CacheTTL > 0 {
		return fail("cache_ttl is for tools that return one result, and this one yields items: leave it out")
	}
	switch d.Source {
	case SourceImport, SourceStatic, SourceGo, SourceProgram:
	default:
		return fail("source is %q, but must be one of import, static, go, program", d.Source)
	}
	properties, open := schemaProperties(d.InputSchema)
	for _, name := range d.Positional {
		if !open && !slices.Contains(properties, name) {
			return fail("positional parameter %q is not in the input schema", name)
		}
	}
	for _, name := range d.Annotations.ResourceKey.placeholders() {
		if !open && !slices.Contains(properties, name) {
			return fail("resource_key names the parameter {%s}, which the input schema does not have (it has: %s)",
				name, strings.Join(properties, ", "))
		}
	}
	return nil
}

// schemaProperties returns the names of a schema's top-level properties in the
// author's order, and whether other names are possible.
func schemaProperties(schema json.RawMessage) (names []string, open bool) {
	var top struct {
		Properties json.RawMessage  `json:"properties"`
		Additional *json.RawMessage `json:"additionalProperties"`
		Ref        string           `json:"$ref"`
	}
	if len(schema) == 0 || json.Unmarshal(schema, &top) != nil {
		return nil, true
	}
	open = top.Ref != "" || top.Additional == nil || string(*top.Additional) != "false"
	return objectKeys(top.Properties), open
}

// objectKeys returns the keys of a JSON object in their order; nil for anything else.
func objectKeys(data json.RawMessage) (keys []string) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if start, err := dec.ReadToken(); err != nil || start.Kind() != '{' {
		return nil
	}
	for dec.PeekKind() == '"' {
		if key, err := dec.ReadToken(); err == nil {
			keys = append(keys, key.String())
		}
		if dec.SkipValue() != nil {
			break
		}
	}
	return keys
}

// MarshalPlain is json.Marshal without escaping <, > and & for HTML.
func MarshalPlain(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}

// Canonical rewrites a JSON text with sorted keys, one form for each string and no white space,
// so that equal texts become identical. Numbers stay as they are written: 1.0 and 1 differ to a
// Python function. Texts that two readers may understand differently are an error: repeated
// keys, and strings that are not Unicode.
func Canonical(data json.RawMessage) (json.RawMessage, error) { return canonical(data, false) }

// canonical replaces what is not Unicode where lax allows that.
func canonical(data []byte, lax bool) (json.RawMessage, error) {
	v := jsontext.Value(bytes.Clone(data))
	err := v.Compact(jsontext.ReorderRawObjects(true), jsontext.PreserveRawStrings(false),
		jsontext.AllowDuplicateNames(false), jsontext.AllowInvalidUTF8(lax))
	return json.RawMessage(v), err
}
