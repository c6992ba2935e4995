package agent

import (
	"context"
	"slices"
	"strings"
	"unicode"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// A function that the executor knows as module.function may have another name on the mesh, several,
// or none; a command has no function. This file maps the names.

// functionsOf returns the functions of some tools, in the author's order, in which their modules are
// imported, and the tools behind each.
func functionsOf(m *index.Manifest, names []string) (functions []string, by map[string][]string) {
	by = map[string][]string{}
	for _, name := range names {
		if f := m.Tool(name).Function; f != "" {
			if by[f] == nil {
				functions = append(functions, f)
			}
			by[f] = append(by[f], name)
		}
	}
	return functions, by
}

// missing returns the reason of a failed import and, if it names a declared variable without a
// value, how to set it.
func (i *instance) missing(reason string) string {
	words := strings.FieldsFunc(reason, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, v := range i.build.Manifest.Env {
		if _, given := i.build.Env[v.Name]; !given && slices.Contains(words, v.Name) {
			return "the import needs the variable " + v.Name + ": install again with --env " + v.Name
		}
	}
	return reason
}

// sort puts everything in the author's order.
func (i *instance) sort() {
	at := make(map[subjects.ToolID]int, len(i.build.Manifest.Tools))
	for n, name := range i.build.Manifest.Tools {
		at[toolID(i.build.Name, name)] = n
	}
	slices.SortFunc(i.tools, func(a, b host.Tool) int { return at[a.Descriptor.ID] - at[b.Descriptor.ID] })
	slices.SortFunc(i.unavailable, func(a, b host.Unavailable) int { return at[a.ID] - at[b.ID] })
}

func (i *instance) closeCommands(ctx context.Context) error {
	if i.commands == nil {
		return nil
	}
	return i.commands.Close(ctx)
}

// openCommands makes tools of the usable names that are commands.
func (i *instance) openCommands(spec executor.Spec, usable []string) error {
	for _, name := range usable {
		c := i.build.Manifest.Tool(name).Command
		if c == nil {
			continue
		}
		if i.commands == nil {
			var err error
			if i.commands, err = i.a.executor.OpenCommands(spec); err != nil {
				return err
			}
		}
		reason := i.commands.Missing(c.Program)
		d, err := i.build.Manifest.Descriptor(refOf(i.build), name, declaredBy(c))
		if reason == "" && err != nil {
			reason = toolmesh.AsError(err).Message
		}
		if reason == "" && d.Annotations.Sandbox != "" {
			reason = i.a.executor.Lacks(d.Annotations.Sandbox)
		}
		if reason != "" {
			i.lose(name, reason, d)
			continue
		}
		i.tools = append(i.tools, host.Tool{Descriptor: d, Handler: &commandTool{
			i: i, c: c, d: d, vars: varsOf(i.build, name),
		}, User: i.userOf(d)})
	}
	return nil
}

// commandTool is one program as a [host.Handler].
type commandTool struct {
	i    *instance
	c    *index.Command
	d    *tool.Descriptor
	vars map[string]string
}

// Redact implements [host.Redactor].
func (t *commandTool) Redact(text string) string { return t.i.redact(text) }

// ServeTool implements [host.Handler].
func (t *commandTool) ServeTool(ctx context.Context, call *host.Call, sink host.Sink) error {
	argv, err := t.c.Argv(call.Args)
	if err != nil {
		return err
	}
	s := &pythonSink{sink: sink, log: t.i.a.log, call: call}
	result, err := t.i.commands.Call(ctx, executor.CommandCall{
		Tool: t.d.Name, RPCID: string(call.RPCID), Account: string(subjects.Account(call.Session, call.Epoch)), Argv: argv, Lines: t.c.Streaming, Text: t.c.Text, Sandbox: t.d.Annotations.Sandbox, Limits: t.d.Annotations.Limits, Vars: t.vars,
		Stream: call.Stream, Collect: call.Collect, Lane: call.Lane, Deserted: call.Deserted,
	}, s)
	return deliver(ctx, call, sink, result, err)
}
