package render

import (
	"encoding/json"
	"regexp"

	"github.com/toolmesh/toolmesh/tool"
)

// plainName is a name of an argument that Anthropic and Gemini take.
var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)

// openAI renders for OpenAI: strict if the schema can be, else as it is with the words that OpenAI
// requires of any schema.
func (r *Rendered) openAI(text string, in *schema) *object {
	root := in.arguments()
	parameters := in.loose(root, &looseWriter{complete: true})
	s := &strictWriter{in: in, reasons: notes{most: maxReasons}, notes: notes{most: maxNotes}, defs: newObject(), started: map[string]bool{}}
	for _, text := range in.notes.texts { // parts that the root has lost
		s.refuse("", "%s", text)
	}
	strict := s.arguments(root)
	if len(s.reasons.texts) == 0 {
		r.Strict, parameters = true, strict
		in.notes.texts = append(in.notes.texts, s.notes.texts...)
	}
	for _, reason := range s.reasons.texts {
		in.notes.add("", "not strict: %s", reason)
	}
	if r.Format == OpenAIResponses {
		return newObject("type", "function", "name", r.Name, "description", text, "parameters", parameters, "strict", r.Strict)
	}
	return newObject("type", "function", "function",
		newObject("name", r.Name, "description", text, "parameters", parameters, "strict", r.Strict))
}

// anthropic renders for Anthropic, which takes JSON Schema 2020-12 but for
// alternatives at the top and unusual names of arguments.
func (r *Rendered) anthropic(text string, in *schema) *object {
	root, _ := in.safeNames(in.arguments())
	return newObject("name", r.Name, "description", text, "input_schema", in.loose(root, &looseWriter{}))
}

// gemini renders for Gemini, which takes some words of JSON Schema in
// parametersJsonSchema (decision 133).
func (r *Rendered) gemini(text string, in *schema) *object {
	root, _ := in.safeNames(in.arguments())
	return newObject("name", r.Name, "description", text,
		"parametersJsonSchema", in.loose(root, &looseWriter{complete: true, gemini: true, open: map[string]bool{}}))
}

// mcp renders for MCP, which takes any JSON Schema whose root is an object's.
func (r *Rendered) mcp(text string, in *schema, d *tool.Descriptor) (*object, error) {
	out := newObject("name", r.Name, "title", string(d.ID), "description", text)
	input, err := decode(d.InputSchema)
	if own, ok := input.(*object); err == nil && ok && own.get("type") == "object" {
		out.set("inputSchema", own) // as its author wrote it
	} else {
		out.set("inputSchema", in.loose(in.objectRoot(), &looseWriter{}))
	}
	if len(d.OutputSchema) > 0 {
		output, err := r.output(in.notes, d)
		if err != nil {
			return nil, err
		}
		out.set("outputSchema", output)
	}
	hints := newObject()
	if d.Annotations.ReadOnly {
		hints.set("readOnlyHint", true)
	}
	if d.Annotations.Idempotent {
		hints.set("idempotentHint", true)
	}
	if len(hints.keys) > 0 {
		out.set("annotations", hints)
	}
	in.ownWords(out, d.Metadata)
	return out, nil
}

// ownWords adds the author's words for MCP alone: icons, _meta and annotations of metadata.mcp, and
// a schema that says more than the tool's own. Words that the mesh itself uses take precedence.
func (s *schema) ownWords(out *object, metadata json.RawMessage) {
	value, err := decode(metadata)
	all, ok := value.(*object)
	if err != nil || !ok {
		return
	}
	words := all.object("mcp")
	if words == nil {
		return
	}
	out.take(words, "icons", "_meta")
	if hints := words.object("annotations"); hints != nil {
		if declared := out.object("annotations"); declared != nil {
			hints.take(declared, declared.keys...)
		}
		out.set("annotations", hints)
	}
	if input := words.object("inputSchema"); input != nil {
		if input.get("type") == "object" {
			out.set("inputSchema", input)
		} else {
			s.notes.add("", "metadata.mcp.inputSchema is left out: its type is not object")
		}
	}
}

// objectRoot is the root with "type":"object" in it.
func (s *schema) objectRoot() *object {
	flat, exact := s.flat(s.root)
	if !exact && !s.root.has("$ref") {
		flat = s.root // alternatives may stay where they are
	} else if !exact {
		s.notes.add("", "allOf is written as one object that allows more")
	}
	out := newObject("type", "object")
	s.asObject(flat, out)
	return out
}

// output renders the result's schema. Before its revision of 2026-07-28 MCP takes only objects, so
// other values are in a member "result".
func (r *Rendered) output(n *notes, d *tool.Descriptor) (*object, error) {
	in, err := read(d.OutputSchema, n)
	if err != nil {
		return nil, err
	}
	if flat, exact := in.flat(in.root); exact && flat.get("type") == "object" && !d.Annotations.Streaming {
		return in.loose(flat, &looseWriter{}), nil
	}
	r.result = true
	result := in.root
	switch {
	case d.Annotations.Streaming && d.Annotations.Collect:
		result = newObject("type", "array", "items", result)
	case d.Annotations.Streaming: // its last item, or null if there is none
		result = newObject("anyOf", []any{result, newObject("type", "null")})
	}
	n.add("", `the result is not always an object: structured content is {"result": …}`)
	return in.loose(newObject("type", "object", "properties", newObject("result", result), "required", []any{"result"}), &looseWriter{}), nil
}
