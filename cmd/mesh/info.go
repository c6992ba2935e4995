package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

func (a *app) infoCommand() *cobra.Command {
	var format render.Format
	cmd := &cobra.Command{
		Use: "info TOOL", Short: "Describe a tool: arguments, result, where it runs",
		Args: takes(1, 1, "a tool"),
		RunE: a.onMesh(func(ctx context.Context, l *link, args []string) error {
			raw, err := l.client.Describe(ctx, subjects.ToolID(args[0]))
			if err != nil {
				return err
			}
			if a.json && format == "" {
				a.printJSON(raw)
				return nil
			}
			var d registry.DescribeAnswer
			if err := json.Unmarshal(raw, &d); err != nil {
				return toolmesh.Errorf(toolmesh.CodeProtocolError, "the tool's description cannot be read: %w", err)
			}
			if format != "" {
				return a.printFormat(format, d.Descriptor)
			}
			a.printInfo(d)
			return nil
		}),
	}
	wordFlag(cmd, &format, "format", "print the tool as a `PROVIDER` takes it: "+join(render.Formats(), ""), render.Formats()...)
	return cmd
}

// printFormat prints a tool in a provider's form, with notes on what that form cannot express.
func (a *app) printFormat(format render.Format, d *tool.Descriptor) error {
	shown, err := render.Tool(format, d)
	if err != nil {
		return err
	}
	a.printValue(shown.JSON)
	for _, note := range shown.Notes {
		fmt.Fprintf(a.err, "mesh: note: %s\n", note)
	}
	return nil
}

func (a *app) printInfo(answer registry.DescribeAnswer) {
	d := answer.Descriptor
	fmt.Fprintln(a.out, d.ID)
	if text := strings.TrimSpace(d.Description); text != "" {
		for line := range strings.SplitSeq(text, "\n") {
			fmt.Fprintln(a.out, strings.TrimRight("  "+line, " "))
		}
	}
	parameters := parametersOf(d)
	fmt.Fprintf(a.out, "\n  $ %s\n", exampleCall(d, parameters))
	if len(parameters) > 0 {
		fmt.Fprintln(a.out)
		rows := make([][]string, len(parameters))
		for i, p := range parameters {
			need := "required"
			if !p.required {
				need = "optional"
				if p.standard != "" {
					need = "default " + p.standard
				}
			}
			rows[i] = []string{p.name, p.kind, need, firstLine(p.description)}
		}
		a.table([]string{"ARGUMENT", "TYPE", "", "DESCRIPTION"}, rows)
	}
	fmt.Fprintln(a.out)
	shape := map[bool]string{true: "items", false: "result"}[d.Annotations.Streaming]
	a.facts(shape, shapeOf(d.OutputSchema))
	if d.Index != nil {
		a.facts("index", fmt.Sprintf("%s @ %s", d.Index.Name, short(d.Index.Revision)))
	}
	a.facts("nodes", join(answer.Nodes, "none serves it now"), "reason", answer.Reason, "source", cmp.Or(sourceTexts[d.Source], string(d.Source)), "declares", declaredBy(d.Annotations))
	onNodes := func(fact, text string, nodes []subjects.NodeID, several bool) {
		if several {
			text += " on " + join(nodes, "")
		}
		a.facts(fact, text)
	}
	for _, on := range answer.Limits {
		onNodes("limits", limitsText(on.Limits), on.Nodes, len(answer.Limits) > 1)
	}
	for _, on := range answer.Users {
		onNodes("user", on.User, on.Nodes, len(answer.Users) > 1)
	}
	if len(d.Metadata) > 0 {
		a.facts("metadata", compact(d.Metadata))
	}
	for _, w := range d.Warnings {
		a.facts("warning", w)
	}
}

var sourceTexts = map[tool.Source]string{
	tool.SourceStatic:  "static: read from the source or its declaration, not from an import",
	tool.SourceGo:      "go: registered by a service",
	tool.SourceProgram: "program: registered by a program through mesh bridge",
}

func join[T ~string](names []T, none string) string {
	if len(names) == 0 {
		return none
	}
	parts := make([]string, len(names))
	for i, n := range names {
		parts[i] = string(n)
	}
	return strings.Join(parts, ", ")
}

// short shortens a revision for display.
func short(revision string) string {
	return cmp.Or(revision[:min(len(revision), 12)], "-")
}

type parameter struct {
	name, kind, standard, description string
	required                          bool
}

// parametersOf returns the arguments: positional ones in order, then the others.
func parametersOf(d *tool.Descriptor) []parameter {
	known := newSchema(d.InputSchema)
	names := slices.Clone(d.Positional)
	for _, name := range slices.Sorted(maps.Keys(known.Properties)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var all []parameter
	for _, name := range names {
		part := known.Properties[name]
		if part == nil {
			continue
		}
		p := parameter{name: name, kind: kindOf(part), required: slices.Contains(known.Required, name), description: part.Description}
		if part.Default != nil {
			p.standard = compact(*part.Default)
		}
		all = append(all, p)
	}
	return all
}

// exampleCall returns a command to paste and fill in.
func exampleCall(d *tool.Descriptor, parameters []parameter) string {
	verb := "call"
	if d.Annotations.Streaming {
		verb = "stream"
	}
	parts := []string{"mesh", verb, string(d.ID)}
	for _, p := range parameters {
		if p.required {
			if strings.HasPrefix(p.name, "-") && !slices.Contains(parts, "--") {
				parts = append(parts, "--") // it is no flag
			}
			parts = append(parts, written(p.name, p.kind))
		}
	}
	return strings.Join(parts, " ")
}

func declaredBy(n tool.Annotations) string {
	var all map[string]any
	if data, err := n.MarshalJSON(); err != nil || json.Unmarshal(data, &all) != nil {
		return ""
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch v := all[name].(type) {
		case bool:
			if v {
				parts = append(parts, name)
			}
		case string:
			parts = append(parts, name+" "+v)
		default:
			parts = append(parts, name+" "+compact(v))
		}
	}
	return strings.Join(parts, ", ")
}

// limitsText lists limits by their names in a manifest, "-" for none.
func limitsText(l tool.Limits) string {
	data, _ := l.MarshalJSON() // one object of names, sizes and numbers
	return cmp.Or(withoutMarks.Replace(string(data)), "-")
}

var withoutMarks = strings.NewReplacer("{", "", "}", "", `"`, "", ":", " ", ",", ", ")
