package render

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Format names the shape of one provider.
type Format string

// The formats.
const (
	// OpenAI is a tool of OpenAI's chat completions, and of the many servers that speak like it.
	OpenAI Format = "openai"
	// OpenAIResponses is a tool of OpenAI's responses.
	OpenAIResponses Format = "openai-responses"
	// Anthropic is a tool of Anthropic's messages.
	Anthropic Format = "anthropic"
	// Gemini is a function declaration of Google's Gemini and Vertex AI.
	Gemini Format = "gemini"
	// MCP is a tool of the Model Context Protocol's tools/list.
	MCP Format = "mcp"
)

// Formats returns all formats, in the order of the documentation.
func Formats() []Format { return []Format{OpenAI, OpenAIResponses, Anthropic, Gemini, MCP} }

// ParseFormat returns the format named text. The error is invalid_request and
// names them all.
func ParseFormat(text string) (Format, error) {
	if f := Format(text); slices.Contains(Formats(), f) {
		return f, nil
	}
	names := strings.Trim(strings.ReplaceAll(fmt.Sprint(Formats()), " ", ", "), "[]")
	return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "there is no format %q; the formats are %s", text, names)
}

// Rendered is one tool as one provider takes it. It is immutable: any number of
// goroutines may use it.
type Rendered struct {
	// ID is the tool's full id.
	ID subjects.ToolID
	// Format is the provider's shape.
	Format Format
	// Name of the tool for the provider, its [tool.ProviderName]; it is in JSON too.
	Name string
	// JSON is the declaration, to be put into the provider's list of tools.
	JSON json.RawMessage
	// Strict says that OpenAI holds the model to the schema; false for others.
	Strict bool
	// Notes are texts for people: why a tool is not strict, and which parts the declaration
	// rewrites, widens or leaves out.
	Notes []string

	result bool // MCP: structured content is {"result": …}
}

// Tool renders a tool for a provider. The error is invalid_request: an unknown
// format, or a schema that does not compile.
func Tool(format Format, d *tool.Descriptor) (Rendered, error) {
	if _, err := ParseFormat(string(format)); err != nil {
		return Rendered{}, err
	}
	r := Rendered{ID: d.ID, Format: format, Name: tool.ProviderName(d.ID)}
	n := &notes{most: maxNotes}
	input, err := read(d.InputSchema, n)
	if err != nil {
		return Rendered{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "tool %q: input_schema: %w", d.ID, err)
	}
	about := &notes{most: maxNotes}
	text := description(format, d, about)
	var out *object
	switch format {
	case OpenAI, OpenAIResponses:
		out = r.openAI(text, input)
	case Anthropic:
		out = r.anthropic(text, input)
	case Gemini:
		out = r.gemini(text, input)
	case MCP:
		if out, err = r.mcp(text, input, d); err != nil {
			return Rendered{}, err
		}
	}
	if r.JSON, err = tool.MarshalPlain(out); err != nil {
		return Rendered{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "tool %q cannot be rendered: %w", d.ID, err)
	}
	r.Notes = append(n.texts, about.texts...)
	return r, nil
}

// openAIDescription is how many characters of a description OpenAI's older models
// and its Azure twin take.
const openAIDescription = 1024

// description is the tool's text; Gemini does not take a tool without one.
func description(format Format, d *tool.Descriptor, n *notes) string {
	text := strings.TrimSpace(strings.ToValidUTF8(d.Description, "\uFFFD"))
	if text == "" {
		text = "The tool " + string(d.ID) + "."
	}
	length := utf8.RuneCountInString(text)
	if format != OpenAI && format != OpenAIResponses || length <= openAIDescription {
		return text
	}
	n.add("", "the description is cut from %d to %d characters", length, openAIDescription)
	return string([]rune(text)[:openAIDescription-1]) + "…"
}

// Arguments turns a model's arguments, from any provider's declaration, into those of the tool:
// renamed arguments get their names back, and [tool.Validator.Fit] changes those that do not fit
// the schema. changed lists its changes. Anything else is passed on as it is, for the mesh to
// check. Empty text means no arguments.
//
// The error is invalid_arguments with details.errors: text that is no JSON object, or
// an argument that is given under both of its names.
func Arguments(d *tool.Descriptor, text json.RawMessage) (arguments json.RawMessage, changed []string, err error) {
	v, err := tool.Compile(d.InputSchema)
	if err != nil {
		return nil, nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "tool %q: input_schema: %w", d.ID, err)
	}
	if len(strings.TrimSpace(string(text))) == 0 {
		text = json.RawMessage(`{}`)
	}
	value, err := decode(text)
	if err != nil {
		return nil, nil, cmp.Or(v.Validate(text), invalid("", "a JSON object", "malformed text", "the arguments are not valid JSON"))
	}
	given, ok := value.(*object)
	if !ok {
		return nil, nil, invalid("", "a JSON object", tool.KindOf(value), "the arguments are not a JSON object")
	}
	in := parse(d.InputSchema, &notes{most: maxNotes})
	_, names := in.safeNames(in.arguments())
	for _, safe := range slices.Sorted(maps.Keys(names)) { // the same text for the same call
		own := names[safe]
		if !given.has(safe) {
			continue
		}
		if given.has(own) {
			return nil, nil, invalid("/"+escapes.Replace(own), "one value", "several", fmt.Sprintf("%q is given twice, also as %q", own, safe))
		}
		given.set(own, given.get(safe))
		given.drop(safe)
		text = json.RawMessage(encodeText(given))
	}
	arguments, changed = v.Fit(text)
	return arguments, changed, nil
}

var escapes = strings.NewReplacer("~", "~0", "/", "~1")

func invalid(at, expected, got, message string) error {
	return toolmesh.Errorf(toolmesh.CodeInvalidArguments, "%s", message).
		WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo).
		WithDetail("errors", []tool.Problem{{Pointer: at, Expected: expected, Got: got, Message: message}})
}

// StructuredContent turns a result of the tool into the structuredContent of
// MCP's tools/call, as the declaration's outputSchema says: a result that is not
// always an object is wrapped as {"result": …}.
func (r *Rendered) StructuredContent(result json.RawMessage) (json.RawMessage, error) {
	if !r.result {
		return result, nil
	}
	if !json.Valid(result) {
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "the result of tool %q is not JSON", r.ID)
	}
	return append(append(json.RawMessage(`{"result":`), result...), '}'), nil
}
