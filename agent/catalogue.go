package agent

import (
	"context"
	"log/slog"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// catalogue describes tools that are not served: a function as its source says,
// a command as it is declared. What cannot be described is left out. env may be
// nil, for an index whose environment could not be made.
func (w *workshop) catalogue(ctx context.Context, b deploy.Build, env *executor.Env, all []deploy.Unavailable) map[subjects.ToolID]*tool.Descriptor {
	ref := tool.IndexRef{Name: b.Name, Revision: b.Revision}
	known := make(map[subjects.ToolID]*tool.Descriptor)
	describe := func(name string, code index.Introspected) {
		d, err := b.Manifest.Described(ref, name, code)
		if err != nil {
			w.a.log.Warn("a tool that is not served cannot be described", slog.String("index", string(b.Name)), slog.String("tool", name), slog.String("error", err.Error()))
			return
		}
		known[d.ID] = d
	}
	var names []string
	for _, u := range all {
		name := u.ID.Local()
		if c := b.Manifest.Command(name); c != nil {
			describe(name, introspected(c))
			continue
		}
		names = append(names, name)
	}
	read, err := w.a.executor.Catalogue(ctx, executor.CatalogueSpec{
		Name: string(b.Name), Account: accountOf(b), SourceDir: b.Dir, Env: env, Python: b.Manifest.Python, Tools: functionsOf(b.Manifest, names),
	})
	if err != nil {
		w.a.log.Warn("the source of tools that are not served cannot be read",
			slog.String("index", string(b.Name)), slog.String("error", err.Error()))
	}
	of := make(map[string]executor.Tool, len(read))
	for _, t := range read {
		of[t.Name] = t
	}
	for _, name := range names {
		if t, ok := of[b.Manifest.Function(name)]; ok {
			describe(name, codeOf(t, tool.SourceStatic))
		}
	}
	return known
}

// unserved is what callers see of tools that are not served.
func unserved(all []deploy.Unavailable, known map[subjects.ToolID]*tool.Descriptor) []host.Unavailable {
	var made []host.Unavailable
	for _, u := range all {
		made = append(made, host.Unavailable{ID: u.ID, Reason: u.Reason, Descriptor: known[u.ID]})
	}
	return made
}

// codeOf is what the executor says of a function.
func codeOf(t executor.Tool, source tool.Source) index.Introspected {
	code := index.Introspected{
		Description: t.Description, InputSchema: t.InputSchema, OutputSchema: t.OutputSchema,
		Positional: t.Positional, Streaming: t.Kind.Streaming(), Source: source, Warnings: t.Warnings,
	}
	if t.VarArgs {
		code.VarArgs = "args"
	}
	return code
}
