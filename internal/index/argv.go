package index

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
)

// maxArgument bounds one argument of a program: Linux takes no longer ones.
const maxArgument = 128<<10 - 1

// Argv makes the arguments of a program, itself first, from the arguments of a call, a JSON
// object that fits Input. Each value becomes one argument or a part of one, whatever its
// content. The error is invalid_arguments with the parameter: for a NUL, for an argument that
// is too long, and for a value that would begin an argument with a dash before any "--" of the
// template, which the program could read as an option.
func (c *Command) Argv(args json.RawMessage) ([]string, error) {
	values := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(args)) > 0 {
		if err := json.Unmarshal(args, &values); err != nil {
			return nil, refuse("", "object", "something else", "the arguments must be a JSON object")
		}
	}
	e := expansion{c: c, values: values}
	for _, g := range c.groups {
		if g.optional && !e.wanted(g) {
			continue
		}
		for _, element := range g.elements {
			if err := e.add(element); err != nil {
				return nil, err
			}
		}
	}
	return e.argv, nil
}

// expansion is one call's arguments on their way into a template.
type expansion struct {
	c      *Command
	values map[string]json.RawMessage
	argv   []string
	ended  bool // the template's own "--" has been written
}

// value returns an argument or its default; ok is false for a missing one or null.
func (e *expansion) value(name string) (json.RawMessage, bool) {
	v, ok := e.values[name]
	if !ok {
		v = e.c.inputs[name].standard
	}
	v = bytes.TrimSpace(v)
	return v, len(v) > 0 && string(v) != "null"
}

// wanted reports whether all arguments of a group exist.
func (e *expansion) wanted(g group) bool {
	return !slices.ContainsFunc(g.pieces(), func(p piece) bool {
		v, ok := e.value(p.param)
		return p.param != "" && (!ok || p.gate && string(v) == "false")
	})
}

// add writes one element: nothing if its argument is absent, several if it is only a list.
func (e *expansion) add(pieces []piece) error {
	if only := pieces[0]; len(pieces) == 1 && only.param != "" {
		name := only.param
		if only.gate {
			return nil
		}
		v, ok := e.value(name)
		if !ok {
			return nil
		}
		var items []json.RawMessage
		if json.Unmarshal(v, &items) != nil { // not a list
			return e.check(name, name, textOf(v))
		}
		for i, item := range items {
			if err := e.check(fmt.Sprintf("%s/%d", name, i), name, textOf(item)); err != nil {
				return err
			}
		}
		return nil
	}
	var b strings.Builder
	from := "" // the parameter that the element begins with
	for _, p := range pieces {
		if p.param == "" || p.gate {
			b.WriteString(p.text)
			continue
		}
		v, ok := e.value(p.param)
		if !ok {
			return nil
		}
		text := textOf(v)
		if b.Len() == 0 && text != "" {
			from = p.param
		}
		b.WriteString(text)
	}
	text := b.String()
	if from == "" && text == "--" {
		e.ended = true
	}
	return e.check(from, from, text)
}

// check adds an element that can be given to a program. place is where its
// beginning comes from: the parameter name, or an item of it.
func (e *expansion) check(place, name, text string) error {
	switch {
	case strings.ContainsRune(text, 0):
		return refuse(place, "text without NUL", "text with NUL", "no argument of a program can hold the character NUL")
	case len(text) > maxArgument:
		return refuse(place, fmt.Sprintf("at most %d bytes", maxArgument), fmt.Sprintf("%d bytes", len(text)), "the argument is too long for a program")
	case name != "" && strings.HasPrefix(text, "-") && !e.ended && !slices.Contains(e.c.inputs[name].choices, text):
		return refuse(place, "a value that does not begin with -", short(text),
			`the program could take a value that begins with - for an option; the tool's author can allow it by "--" before it, or by --flag={parameter}`)
	}
	e.argv = append(e.argv, text)
	return nil
}

func short(text string) string {
	if r := []rune(text); len(r) > 40 {
		text = string(r[:40]) + "…"
	}
	return fmt.Sprintf("%q", text)
}

// textOf is a JSON value as a program's argument: a text itself, anything else
// its JSON.
func textOf(v json.RawMessage) string {
	var text string
	if json.Unmarshal(v, &text) == nil && string(v) != "null" {
		return text
	}
	var b bytes.Buffer
	_ = json.Compact(&b, v) // it has been read as JSON
	return b.String()
}

func refuse(place, expected, got, message string) *toolmesh.Error {
	pointer := ""
	if place != "" {
		pointer = "/" + place
		message = pointer + ": " + message
	}
	return toolmesh.Errorf(toolmesh.CodeInvalidArguments, "%s", message).WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent).
		WithDetail("errors", []map[string]string{{"pointer": pointer, "expected": expected, "got": got, "message": message}})
}
