package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

type request struct {
	Text string `json:"text"`
}

func handle(context.Context, *host.Call, host.Sink) error { return nil }

func words(context.Context, request) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { yield("", nil) }
}

func main() {
	ctx := context.Background()

	// docs/concepts.md: the closed set of error codes, for switches over all of them.
	fmt.Println(toolmesh.Codes())

	// client: the options of a call that no command has a flag for.
	fmt.Println(client.WithRevision(""), client.WithIsolation(toolmesh.IsolationWarm), client.Idempotent(), client.ViaQueue())

	// client, host: what Connect and Serve make, on a connection of the program's own (their doc.go).
	fmt.Println(client.New((*nats.Conn)(nil), nil))
	fmt.Println(host.New((*nats.Conn)(nil), nil))

	// Functions of services that use lanes pass it to stores, which can refuse a smaller one.
	fmt.Println(host.Fence(context.Background()))
	host.Progress(context.Background(), 0.5, "half of it")

	// host: handlers and the options of a service's tools (docs/quickstart.md).
	fmt.Println(host.HandlerFunc(handle), host.Stream(words))
	fmt.Println(host.Annotate(tool.Annotations{}), host.Schema(nil, nil), host.Metadata(nil))

	// router: a process that serves and calls in one, and its sessions (docs/concepts.md).
	r, err := router.New((*nats.Conn)(nil), nil)
	fmt.Println(err, r.Run(ctx), r.Client(), r.Stream(ctx, "", nil))
	fmt.Println(r.Handle("", "", host.HandlerFunc(handle)))
	fmt.Println(r.Call(ctx, "", nil))
	fmt.Println(r.Batch(ctx, nil))
	fmt.Println(r.Sessions(ctx))
	s := r.Session("")
	fmt.Println(s.ID(), s.Client(), s.Stream(ctx, "", nil), s.End(ctx))
	fmt.Println(s.Handle("", host.HandlerFunc(handle)))
	fmt.Println(s.Call(ctx, "", nil))

	// registry: one connection for a client, a host and a view (its doc.go).
	fmt.Println(registry.NewConn(nil, nil))

	// subjects: the inbox of a session's own credentials (docs/protocol, section 2).
	fmt.Println(subjects.InboxPrefix(""))

	// tool: names that providers take, and back (docs/tools.md, "Names").
	fmt.Println(tool.ProviderName(""))
	fmt.Println(tool.FromProviderName(""))

	// tool/render: a model's answer as arguments, a result as structured content (docs/tools.md).
	rendered, err := render.Tool(render.MCP, &tool.Descriptor{})
	fmt.Println(err)
	fmt.Println(render.Arguments(&tool.Descriptor{}, json.RawMessage{}))
	fmt.Println(rendered.StructuredContent(json.RawMessage{}))
}
