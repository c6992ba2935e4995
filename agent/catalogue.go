package agent

import (
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// unserved returns the records of tools that are not served: their known descriptor, for a command
// its declaration.
func unserved(b deploy.Build, all []deploy.Unavailable, known map[subjects.ToolID]*tool.Descriptor) []host.Unavailable {
	var made []host.Unavailable
	for _, u := range all {
		d, c := known[u.ID], b.Manifest.Command(u.ID.Local())
		if d == nil && c != nil {
			d, _ = b.Manifest.Described(refOf(b), u.ID.Local(), introspected(c)) // its reason is listed all the same
		}
		made = append(made, host.Unavailable{ID: u.ID, Reason: u.Reason, Descriptor: d})
	}
	return made
}

func refOf(b deploy.Build) tool.IndexRef { return tool.IndexRef{Name: b.Name, Revision: b.Revision} }

// codeOf converts the executor's description of a function.
func codeOf(t executor.Function) index.Introspected {
	return index.Introspected{
		Description: t.Description, InputSchema: t.InputSchema, OutputSchema: t.OutputSchema,
		Positional: t.Positional, VarArgs: t.VarArgs, Streaming: t.Kind.Streaming(), Source: tool.SourceImport, Warnings: t.Warnings,
	}
}

// sourceOf converts the description of a function that could not be imported, read from its source.
func sourceOf(u executor.NotServed) index.Introspected {
	return index.Introspected{
		Description: u.Documentation, InputSchema: []byte(`{"type":"object"}`), Source: tool.SourceStatic,
		Warnings: []string{"its arguments and its result are unknown, as its module was not imported"},
	}
}
