package index

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// Command is a tool that is a program: its arguments are made of a template and
// the arguments of a call, one by one, and no shell ever reads them. It is
// immutable; its methods may be called concurrently.
type Command struct {
	// Program is the first element of the template: a name to look up, or a path
	// below the index's folder.
	Program string
	// Streaming says that the program writes one item per line.
	Streaming bool
	// Text tells that its output is text, not JSON.
	Text bool
	// Input and Output are the schemas of its arguments and of its result (of an
	// item, for a streaming one); Output may be nil.
	Input, Output json.RawMessage
	// Parameters are the names that the template refers to, in its order.
	Parameters []string

	groups []group
	inputs map[string]input
}

// group is an element of a template, or several of them that are left out as a whole.
type group struct {
	elements [][]piece
	optional bool
}

func (g group) pieces() []piece { return slices.Concat(g.elements...) }

// piece is a part of an element: text, or a parameter.
type piece struct {
	text  string
	param string
	gate  bool // {param?}: nothing is written, the group depends on it
}

// input describes a call's argument.
type input struct {
	standard json.RawMessage // used where the argument is absent; nil: none
	choices  []string        // the author's own values, as text
}

// commandKeys are the keys of a [tool] table that is a command.
var commandKeys = []string{"command", "input", "output", "streaming", "stdout"}

// isCommand tells a command from a function, and from a part of a name that was
// written without quotes.
func isCommand(values map[string]any) bool {
	_, nested := values["command"].(map[string]any)
	return values["command"] != nil && !nested
}

// Bounds of a command.
const (
	maxWords = 1000
	maxParam = 64
)

var (
	placeholder = regexp.MustCompile(`\{\{|\}\}|\{[A-Za-z_][A-Za-z0-9_]*\??\}`)
	commandName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64})*$`)
)

// addCommands makes tools of the tables that are commands.
func (r *reader) addCommands(m *Manifest, commands map[string]map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		s := &section{reader: r, name: r.tool + "." + name, values: commands[name]}
		if !commandName.MatchString(name) || len(name) > maxToolName {
			r.problem("["+s.name+"]", "cannot name a command: write letters, digits, _ and -, in parts of at most 64 with dots between")
			continue
		}
		m.declare(name, Tool{Command: r.command(s)})
	}
	if len(m.Tools) > maxTools {
		r.problem("["+r.table+"]", "has %d tools with its commands; at most %d are possible", len(m.Tools), maxTools)
	}
}

// command reads the keys of a command.
func (r *reader) command(s *section) *Command {
	c := &Command{inputs: map[string]input{}}
	var template []any
	if take(s, "command", `a list of texts: command = ["program", "--flag={parameter}"]`, &template) {
		r.template(s, c, template)
	}
	s.boolean("streaming", &c.Streaming)
	var stdout string
	if s.text("stdout", &stdout) && stdout != "json" && stdout != "text" {
		r.problem(s.key("stdout"), `is %q, but must be "json" or "text"`, stdout)
	}
	c.Text = stdout == "text"
	r.input(s, c)
	var output map[string]any
	if take(s, "output", "a JSON Schema as a table", &output) {
		c.Output = r.schema(s, "output", datesAsTexts(output))
	} else if c.Text && s.values["output"] == nil {
		c.Output = json.RawMessage(`{"type":"string"}`)
	}
	return c
}

// template reads the elements of a command, and which parameters they refer to.
func (r *reader) template(s *section, c *Command, template []any) {
	key, count := s.key("command"), 0
	for i, item := range template {
		var g group
		var texts []any
		if texts, g.optional = item.([]any); !g.optional {
			texts = []any{item}
		}
		parameters := 0
		for _, one := range texts {
			text, ok := one.(string)
			switch {
			case !ok:
				r.problem(key, "must be a list of texts, and of groups of texts, but item %d is or has %s", i+1, typeName(one))
				return
			case strings.ContainsRune(text, 0):
				r.problem(key, "has a NUL in it, which no program can be given")
				return
			}
			count++
			element := piecesOf(text)
			for _, p := range element {
				if p.param == "" {
					continue
				}
				parameters++
				if len(c.Parameters) <= maxWords && !slices.Contains(c.Parameters, p.param) {
					c.Parameters = append(c.Parameters, p.param)
				}
				if p.gate && !g.optional {
					r.problem(key, "has {%s?} outside of a group, as item %d: it decides whether its group is there, so write [\"--flag\", \"{%s?}\"]", p.param, i+1, p.param)
				}
			}
			g.elements = append(g.elements, element)
		}
		if g.optional && parameters == 0 {
			r.problem(key, "has a group as item %d without a parameter: it would never be left out, so write its texts without brackets", i+1)
		}
		c.groups = append(c.groups, g)
	}
	if count > maxWords || len(c.Parameters) > maxWords {
		r.problem(key, "has more than %d elements or parameters", maxWords)
	}
	if len(template) == 0 {
		r.problem(key, `must name a program: command = ["program", "{parameter}"]`)
		return
	}
	if first := c.groups[0]; !first.optional && len(first.elements[0]) == 1 { // of a parameter the text is empty
		c.Program = first.elements[0][0].text
	}
	if c.Program == "" {
		r.problem(key, "must begin with the program, a text without parameters")
	}
}

// piecesOf splits an element at its parameters. {{ and }} stand for braces; a brace
// that does not begin a parameter stands for itself.
func piecesOf(text string) []piece {
	var all []piece
	literal := func(t string) {
		if n := len(all); n > 0 && all[n-1].param == "" {
			all[n-1].text += t
		} else if t != "" {
			all = append(all, piece{text: t})
		}
	}
	for text != "" {
		at := placeholder.FindStringIndex(text)
		if at == nil {
			literal(text)
			break
		}
		literal(text[:at[0]])
		switch found := text[at[0]:at[1]]; found {
		case "{{":
			literal("{")
		case "}}":
			literal("}")
		default:
			name, gate := strings.CutSuffix(found[1:len(found)-1], "?")
			all = append(all, piece{param: name, gate: gate})
		}
		text = text[at[1]:]
	}
	if all == nil {
		all = []piece{{}}
	}
	return all
}

// grouped reports whether a parameter occurs only in groups, and whether only as a
// switch.
func (c *Command) grouped(name string) (optional, gate bool) {
	optional, gate = true, true
	for _, g := range c.groups {
		for _, p := range g.pieces() {
			if p.param == name {
				optional, gate = optional && g.optional, gate && p.gate
			}
		}
	}
	return optional, gate
}

// input reads the input of a command: a table of parameters, a whole JSON Schema,
// or nothing, where every parameter is a text.
func (r *reader) input(s *section, c *Command) {
	var table map[string]any
	declared := take(s, "input", `a table of parameters: input = { name = "string" }`, &table)
	if !declared && s.values["input"] != nil {
		return
	}
	datesAsTexts(table)
	properties, whole := table["properties"].(map[string]any)
	if whole = whole && table["type"] == "object"; !whole {
		properties = table
	}
	schemas, required := map[string]any{}, []string(nil)
	for _, name := range c.Parameters {
		value, has := properties[name]
		if declared && !has {
			r.problem(s.key("command"), "has {%s}, which input does not have%s", name, r.suggest(name, slices.Collect(maps.Keys(properties))))
			continue
		}
		schema, _ := value.(map[string]any)
		if !whole {
			optional, gate := c.grouped(name)
			schema = r.parameter(s, name, value, gate)
			need, says := schema["required"].(bool)
			if says {
				delete(schema, "required")
			}
			if _, standard := schema["default"]; !standard && (need || !says && !optional) {
				required = append(required, name)
			}
			schemas[name] = schema
		}
		in := input{choices: choicesOf(schema)}
		if standard, ok := schema["default"]; ok {
			in.standard, _ = json.Marshal(standard) // invalid JSON is a problem of the schema
		}
		c.inputs[name] = in
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if !slices.Contains(c.Parameters, name) {
			r.problem(s.key("input"), "has %q, which command does not use: write {%s} where it belongs", name, name)
		}
	}
	if !whole {
		c.Input = r.schema(s, "input", struct {
			Type       string         `json:"type"`
			Properties map[string]any `json:"properties"`
			Required   []string       `json:"required,omitempty"`
			Additional bool           `json:"additionalProperties"`
		}{"object", schemas, required, false})
		return
	}
	if _, says := table["additionalProperties"]; !says {
		table["additionalProperties"] = false
	}
	c.Input = r.schema(s, "input", table)
}

// parameter makes the schema of one parameter.
func (r *reader) parameter(s *section, name string, value any, gate bool) map[string]any {
	if len(name) > maxParam {
		r.problem(s.key("input"), "has %q, which is longer than %d bytes", name, maxParam)
	}
	switch value := value.(type) {
	case string:
		if !slices.Contains(jsonTypes, value) {
			r.problem(s.key("input"), "says %s = %q, but a type is one of %s", name, value, strings.Join(jsonTypes, ", "))
		}
		return map[string]any{"type": value}
	case map[string]any:
		return value
	case nil:
		if gate {
			return map[string]any{"type": "boolean"}
		}
		return map[string]any{"type": "string"}
	default:
		r.problem(s.key("input"), "must say what %s is by a type or a table, not by %s", name, typeName(value))
		return nil
	}
}

var jsonTypes = []string{"string", "integer", "number", "boolean", "array", "object"}

// choicesOf returns the values that a schema lists, as a template writes them.
func choicesOf(schema map[string]any) []string {
	values, _ := schema["enum"].([]any)
	if one, ok := schema["const"]; ok {
		values = append(values, one)
	}
	texts := make([]string, 0, len(values))
	for _, v := range values {
		if data, err := json.Marshal(v); err == nil {
			texts = append(texts, textOf(data))
		}
	}
	return texts
}

// schema writes a JSON Schema, which has to be one that can be used.
func (r *reader) schema(s *section, key string, schema any) json.RawMessage {
	data, err := json.Marshal(schema)
	if err != nil {
		r.problem(s.key(key), "is not JSON: %v", err)
	} else if _, err := tool.Compile(data); err != nil {
		r.problem(s.key(key), "is not a JSON Schema: %s", toolmesh.AsError(err).Message)
	}
	return data
}
