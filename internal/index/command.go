package index

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	// Text says that what it writes is text, not JSON.
	Text bool
	// Input and Output are the schemas of its arguments and of its result (of an
	// item, for a streaming one); Output may be nil.
	Input, Output json.RawMessage
	// Parameters are the names that the template refers to, in its order.
	Parameters []string

	words  []word
	inputs map[string]input
}

// word is an element of a template, or a group of them that is left out as a
// whole.
type word struct {
	pieces []piece
	group  []word // not nil: a group
}

// piece is a part of an element: text, or a parameter.
type piece struct {
	text  string
	param string
	gate  bool // {param?}: nothing is written, the group depends on it
}

// input is what a call's argument may be.
type input struct {
	standard json.RawMessage // used where the argument is absent; nil: none
	choices  []string        // the author's own values, as text
}

// commandKeys are the keys of a [tool] table that make it a command.
var commandKeys = []string{"command", "input", "output", "streaming", "stdout"}

// Bounds of a command.
const (
	maxWords = 1000
	maxParam = 64
)

var (
	placeholder = regexp.MustCompile(`\{\{|\}\}|\{[A-Za-z_][A-Za-z0-9_]*\??\}`)
	commandName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64})*$`)
	paramName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// commands finds the tables of tools that are commands, by their names. A name
// written without quotes is put together.
func (r *reader) commands(table map[string]any) map[string]map[string]any {
	found := map[string]map[string]any{}
	var look func(prefix string, table map[string]any, depth int)
	look = func(prefix string, table map[string]any, depth int) {
		for key, value := range table {
			values, ok := value.(map[string]any)
			if !ok {
				continue
			}
			name := prefix + key
			if command, has := values["command"]; has {
				if _, nested := command.(map[string]any); !nested {
					found[name] = values
					continue
				}
			}
			if depth < maxNested {
				look(name+".", values, depth+1)
			}
		}
	}
	look("", table, 0)
	return found
}

// addCommands makes tools of the tables that commands has found.
func (r *reader) addCommands(m *Manifest, commands map[string]map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		s := &section{reader: r, name: r.tool + "." + name, values: commands[name]}
		if !commandName.MatchString(name) || len(name) > 512 {
			r.problem("["+s.name+"]", "is no name for a command: write letters, digits, _ and -, in parts of at most 64 with dots between")
			continue
		}
		c := r.command(s)
		if !slices.Contains(m.Tools, name) {
			m.Tools = append(m.Tools, name)
		}
		if m.commands == nil {
			m.commands = map[string]*Command{}
		}
		m.commands[name] = c
	}
	if len(m.Tools) > maxTools {
		r.problem("["+r.table+"]", "has %d tools with its commands; at most %d are possible", len(m.Tools), maxTools)
	}
}

// command reads the keys of a command.
func (r *reader) command(s *section) *Command {
	c := &Command{inputs: map[string]input{}}
	raw, _ := take[[]any](s, "command", `a list of texts: command = ["program", "--flag={parameter}"]`)
	c.words = r.words(s, raw)
	if streaming := s.boolean("streaming"); streaming != nil {
		c.Streaming = *streaming
	}
	switch text, ok := s.text("stdout"); {
	case !ok || text == "json":
	case text == "text":
		c.Text = true
	default:
		r.problem(s.key("stdout"), `is %q, but must be "json" or "text"`, text)
	}
	if len(c.words) > 0 {
		first := c.words[0]
		if first.group != nil || len(first.pieces) != 1 || first.pieces[0].param != "" || first.pieces[0].text == "" {
			r.problem(s.key("command"), "must begin with the program, a text without parameters")
		} else {
			c.Program = first.pieces[0].text
		}
	} else if len(raw) == 0 {
		r.problem(s.key("command"), `must name a program: command = ["program", "{parameter}"]`)
	}
	for _, w := range c.words {
		w.each(func(p piece) {
			if p.param != "" && !slices.Contains(c.Parameters, p.param) {
				c.Parameters = append(c.Parameters, p.param)
			}
		})
	}
	r.input(s, c)
	if table, ok := take[map[string]any](s, "output", "a JSON Schema as a table"); ok {
		c.Output = r.schema(s, "output", table)
	} else if c.Text && s.values["output"] == nil {
		c.Output = json.RawMessage(`{"type":"string"}`)
	}
	return c
}

// each calls see with every piece of a word.
func (w word) each(see func(p piece)) {
	for _, p := range w.pieces {
		see(p)
	}
	for _, inner := range w.group {
		inner.each(see)
	}
}

// words reads a template.
func (r *reader) words(s *section, raw []any) []word {
	var all []word
	count := 0
	one := func(text string) (word, bool) {
		count++
		if strings.ContainsRune(text, 0) {
			r.problem(s.key("command"), "has a NUL in it, which no program can be given")
			return word{}, false
		}
		return word{pieces: piecesOf(text)}, true
	}
	for i, item := range raw {
		switch item := item.(type) {
		case string:
			if w, ok := one(item); ok {
				all = append(all, w)
			}
		case []any:
			g := word{group: []word{}}
			params := 0
			for _, inner := range item {
				text, ok := inner.(string)
				if !ok {
					r.problem(s.key("command"), "has a group of texts as item %d with %s in it", i+1, typeName(inner))
					return nil
				}
				w, ok := one(text)
				if !ok {
					return nil
				}
				w.each(func(p piece) {
					if p.param != "" {
						params++
					}
				})
				g.group = append(g.group, w)
			}
			if params == 0 {
				r.problem(s.key("command"), "has a group as item %d without a parameter: it would never be left out, so write its texts without brackets", i+1)
			}
			all = append(all, g)
		default:
			r.problem(s.key("command"), "must be a list of texts, and of groups of texts, but item %d is %s", i+1, typeName(item))
			return nil
		}
	}
	if count > maxWords {
		r.problem(s.key("command"), "has %d elements; at most %d are possible", count, maxWords)
	}
	for i, w := range all {
		for _, p := range w.pieces {
			if p.gate {
				r.problem(s.key("command"), "has {%s?} outside of a group, as item %d: it decides whether its group is there, so write [\"--flag\", \"{%s?}\"]", p.param, i+1, p.param)
			}
		}
	}
	return all
}

// piecesOf cuts an element at its parameters. {{ and }} stand for braces; a
// brace that begins no parameter stands for itself.
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

// grouped reports whether a parameter stands in groups alone, and whether as a
// switch alone.
func (c *Command) grouped(name string) (optional, gate bool) {
	optional, gate = true, true
	for _, w := range c.words {
		w.each(func(p piece) {
			if p.param == name {
				optional = optional && w.group != nil
				gate = gate && p.gate
			}
		})
	}
	return optional, gate
}

// input reads what a command takes: a table of parameters, a whole JSON Schema,
// or nothing, where every parameter is a text.
func (r *reader) input(s *section, c *Command) {
	table, declared := take[map[string]any](s, "input", `a table of parameters: input = { name = "string" }`)
	if !declared && s.values["input"] != nil {
		return
	}
	properties, whole := table["properties"].(map[string]any)
	whole = whole && table["type"] == "object"
	if whole {
		c.Input = r.whole(s, c, table, properties)
		return
	}
	order := slices.Clone(c.Parameters)
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	var body bytes.Buffer
	required := []string{}
	for i, name := range order {
		optional, gate := c.grouped(name)
		value, has := table[name]
		switch {
		case has && !slices.Contains(c.Parameters, name):
			r.problem(s.key("input"), "has %q, which command does not use: write {%s} where it belongs", name, name)
			continue
		case !has && declared:
			r.problem(s.key("command"), "has {%s}, which input does not have%s", name, suggest(name, slices.Collect(maps.Keys(table))))
			continue
		}
		schema := r.parameter(s, name, value, has, gate, &optional)
		in := input{}
		if standard, ok := schema["default"]; ok {
			in.standard, _ = json.Marshal(standard)
			optional = true
		}
		in.choices = choicesOf(schema)
		c.inputs[name] = in
		if !optional {
			required = append(required, name)
		}
		if i > 0 && body.Len() > 0 {
			body.WriteByte(',')
		}
		key, _ := json.Marshal(name)
		text, _ := json.Marshal(schema)
		fmt.Fprintf(&body, "%s:%s", key, text)
	}
	text, _ := json.Marshal(required)
	c.Input = json.RawMessage(`{"type":"object","properties":{` + body.String() + `},"required":` + string(text) + `,"additionalProperties":false}`)
	if len(required) == 0 {
		c.Input = json.RawMessage(`{"type":"object","properties":{` + body.String() + `},"additionalProperties":false}`)
	}
	r.compiles(s, "input", c.Input)
}

// parameter makes the schema of one parameter.
func (r *reader) parameter(s *section, name string, value any, has, gate bool, optional *bool) map[string]any {
	if len(name) > maxParam || !paramName.MatchString(name) {
		r.problem(s.key("input"), "has %q, which is no parameter's name: write letters, digits and _, at most %d", name, maxParam)
	}
	switch value := value.(type) {
	case string:
		if !slices.Contains(jsonTypes, value) {
			r.problem(s.key("input"), "says %s = %q, but a type is one of %s", name, value, strings.Join(jsonTypes, ", "))
		}
		return map[string]any{"type": value}
	case map[string]any:
		converted, err := jsonValue(value)
		if err != nil {
			r.problem(s.key("input"), "%s: %v", name, err)
			return map[string]any{}
		}
		schema, _ := converted.(map[string]any)
		if need, ok := schema["required"].(bool); ok {
			*optional = !need
			delete(schema, "required")
		}
		return schema
	case nil:
		if gate {
			return map[string]any{"type": "boolean"}
		}
		return map[string]any{"type": "string"}
	default:
		if has {
			r.problem(s.key("input"), "must say what %s is by a type or a table, not by %s", name, typeName(value))
		}
		return map[string]any{}
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
			text, _ := textOf(data)
			texts = append(texts, text)
		}
	}
	return texts
}

// whole reads an input that is a JSON Schema itself.
func (r *reader) whole(s *section, c *Command, table, properties map[string]any) json.RawMessage {
	for _, name := range c.Parameters {
		if _, ok := properties[name]; !ok {
			r.problem(s.key("command"), "has {%s}, which input does not have%s", name, suggest(name, slices.Collect(maps.Keys(properties))))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if !slices.Contains(c.Parameters, name) {
			r.problem(s.key("input"), "has %q, which command does not use: write {%s} where it belongs", name, name)
		}
		values, _ := properties[name].(map[string]any)
		converted, err := jsonValue(values)
		if err != nil {
			continue // schema reports it
		}
		schema, _ := converted.(map[string]any)
		in := input{choices: choicesOf(schema)}
		if standard, ok := schema["default"]; ok {
			in.standard, _ = json.Marshal(standard)
		}
		c.inputs[name] = in
	}
	if _, ok := table["additionalProperties"]; !ok {
		table = maps.Clone(table)
		table["additionalProperties"] = false
	}
	return r.schema(s, "input", table)
}

// schema writes a table as a JSON Schema that can be used.
func (r *reader) schema(s *section, key string, table map[string]any) json.RawMessage {
	value, err := jsonValue(table)
	if err != nil {
		r.problem(s.key(key), "%v", err)
		return nil
	}
	data, err := json.Marshal(value)
	if err != nil {
		r.problem(s.key(key), "is no JSON: %v", err)
		return nil
	}
	r.compiles(s, key, data)
	return data
}

func (r *reader) compiles(s *section, key string, schema json.RawMessage) {
	if _, err := tool.Compile(schema); err != nil {
		r.problem(s.key(key), "is no JSON Schema: %s", toolmesh.AsError(err).Message)
	}
}
