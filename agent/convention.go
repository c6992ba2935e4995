package agent

import (
	"context"
	"slices"
	"strings"
	"unicode"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// A function that the executor knows as module.function may have another name on the mesh, several,
// or none; a command has no function. This file maps the names.

// functionsOf lists the functions behind tools, each once.
func functionsOf(m *index.Manifest, names []string) []string {
	var functions []string
	for _, name := range names {
		if f := m.Function(name); f != "" && !slices.Contains(functions, f) {
			functions = append(functions, f)
		}
	}
	return functions
}

// namesOf are the tools that are a function, without those that are known to be
// unavailable already.
func (i *instance) namesOf(function string) []string {
	return slices.DeleteFunc(i.build.Manifest.NamesOf(function), func(name string) bool {
		return slices.ContainsFunc(i.unavailable, func(u deploy.Unavailable) bool { return u.ID == toolID(i.build.Name, name) })
	})
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
	at := func(id subjects.ToolID) int { return slices.Index(i.build.Manifest.Tools, id.Local()) }
	slices.SortStableFunc(i.tools, func(a, b host.Tool) int { return at(a.Descriptor.ID) - at(b.Descriptor.ID) })
	slices.SortStableFunc(i.unavailable, func(a, b deploy.Unavailable) int { return at(a.ID) - at(b.ID) })
}

func (i *instance) closeCommands(ctx context.Context) error {
	if i.commands == nil {
		return nil
	}
	return i.commands.Close(ctx)
}

// openCommands makes tools of the usable names that are commands.
func (i *instance) openCommands(spec executor.Spec, usable []string) error {
	ref := tool.IndexRef{Name: i.build.Name, Revision: i.build.Revision}
	for _, name := range usable {
		c := i.build.Manifest.Command(name)
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
		d, err := i.build.Manifest.Descriptor(ref, name, introspected(c))
		if reason == "" && err != nil {
			reason = toolmesh.AsError(err).Message
		}
		if reason == "" && d.Annotations.Sandbox != "" {
			reason = i.a.executor.Lacks(d.Annotations.Sandbox)
		}
		if reason != "" {
			i.lose(name, reason)
			continue
		}
		i.tools = append(i.tools, host.Tool{Descriptor: d, Handler: &commandTool{
			i: i, c: c, name: name, sandbox: d.Annotations.Sandbox, limits: d.Annotations.Limits, vars: varsOf(i.build, name),
		}, User: i.userOf(d)})
	}
	return nil
}

// introspected converts the declaration of a command.
func introspected(c *index.Command) index.Introspected {
	return index.Introspected{
		InputSchema: c.Input, OutputSchema: c.Output, Positional: c.Parameters, Streaming: c.Streaming, Source: tool.SourceStatic,
	}
}

// commandTool is one program as a [host.Handler].
type commandTool struct {
	i       *instance
	c       *index.Command
	name    string
	sandbox tool.Sandbox
	limits  tool.Limits
	vars    map[string]string
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
		Tool: t.name, RPCID: string(call.RPCID), Account: string(subjects.Account(call.Session, call.Epoch)), Argv: argv, Lines: t.c.Streaming, Text: t.c.Text, Sandbox: t.sandbox, Limits: t.limits, Vars: t.vars,
		Stream: call.Stream, Collect: call.Collect, Lane: call.Lane, Deserted: call.Deserted,
	}, s)
	return deliver(ctx, call, sink, result, err)
}
