package agent

import (
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/tool"
)

// unserved returns the record of a tool that is not served: a command has the description of its
// declaration.
func unserved(b deploy.Build, name, reason string) host.Unavailable {
	u := host.Unavailable{ID: toolID(b.Name, name), Reason: reason}
	if c := b.Manifest.Tool(name).Command; c != nil {
		u.Descriptor, _ = b.Manifest.Descriptor(refOf(b), name, declaredBy(c)) // its reason is listed all the same
	}
	return u
}

func refOf(b deploy.Build) tool.IndexRef { return tool.IndexRef{Name: b.Name, Revision: b.Revision} }

// codeOf converts the executor's description of a function.
func codeOf(t executor.Function) tool.Descriptor {
	return tool.Descriptor{
		Description: t.Description, InputSchema: t.InputSchema, OutputSchema: t.OutputSchema, Positional: t.Positional, VarArgs: t.VarArgs,
		Annotations: tool.Annotations{Streaming: t.Kind.Streaming()}, Source: tool.SourceImport, Warnings: t.Warnings,
	}
}

// sourceOf converts the description of a function that could not be imported, read from its source.
func sourceOf(u executor.NotServed) tool.Descriptor {
	return tool.Descriptor{
		Description: u.Documentation, InputSchema: []byte(`{"type":"object"}`), Source: tool.SourceStatic,
		Warnings: []string{"its arguments and its result are unknown, as its module was not imported"},
	}
}

// declaredBy converts the declaration of a command.
func declaredBy(c *index.Command) tool.Descriptor {
	return tool.Descriptor{
		InputSchema: c.Input, OutputSchema: c.Output, Positional: c.Parameters,
		Annotations: tool.Annotations{Streaming: c.Streaming}, Source: tool.SourceStatic,
	}
}
