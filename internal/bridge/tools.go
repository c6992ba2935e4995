package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// requestTime is the max time for the mesh to register the program's tools, or to list all tools.
const requestTime = 30 * time.Second

// place is an owner of tools: an index or a session.
type place struct {
	index   subjects.IndexName
	session subjects.SessionID
}

// declaration is the declaration of a tool in a frame, in either direction.
type declaration struct {
	ToolID       string           `json:"tool_id"`
	Name         string           `json:"name"`
	Type         string           `json:"type"`
	Description  string           `json:"description"`
	Metadata     json.RawMessage  `json:"metadata"`
	InputSchema  json.RawMessage  `json:"input_schema,omitempty"`
	OutputSchema json.RawMessage  `json:"output_schema,omitempty"`
	Positional   []string         `json:"positional,omitempty"`
	VarArgs      string           `json:"varargs,omitempty"`
	Annotations  tool.Annotations `json:"annotations"`
}

// Types of tools.
const (
	standardTool  = "standard"
	streamingTool = "streaming"
)

// bridged is the result of a request about tools.
type bridged struct {
	Session   subjects.SessionID `json:"session_id"`
	ToolCount int                `json:"tool_count"`
	ToolNames []string           `json:"tool_names"`
	Tools     []declaration      `json:"tools,omitempty"`
}

func newBridged(session subjects.SessionID, ids []subjects.ToolID) *bridged {
	r := &bridged{Session: session, ToolCount: len(ids), ToolNames: make([]string, len(ids))}
	for i, id := range ids {
		r.ToolNames[i] = string(id)
	}
	return r
}

// request handles an init_tool_bridge or a remove_tools.
func (b *Bridge) request(f *frame) {
	ctx, cancel := context.WithTimeout(b.base, requestTime)
	defer cancel()
	result, err := b.ask(ctx, f)
	var value json.RawMessage
	if err == nil {
		value, err = tool.MarshalPlain(result)
	}
	if err == nil && len(value) > maxFrame/2 {
		err = toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "%d tools take %d bytes, more than a frame holds", result.ToolCount, len(value))
	}
	_ = b.pipe.put(b.base, respond(f.RPCID, value, err))
}

func (b *Bridge) ask(ctx context.Context, f *frame) (*bridged, error) {
	session, errSession := optional(f.Session, "session_id")
	index, errIndex := optional(f.Index, "index")
	if err := errors.Join(errSession, errIndex); err != nil {
		return nil, toolmesh.AsError(err)
	}
	at := place{session: cmp.Or(subjects.SessionID(session), b.opts.Session)}
	shown := at.session
	if index != "" {
		at = place{index: subjects.IndexName(index)}
	}
	switch {
	case f.kind == typeRemove:
		var names []string
		if !absent(f.ToolNames) && json.Unmarshal(f.ToolNames, &names) != nil {
			return nil, invalid("tool_names is %.100s: it is a list of texts", f.ToolNames)
		}
		if absent(f.ToolNames) {
			b.mu.Lock()
			for id := range b.offered[at] {
				names = append(names, string(id))
			}
			b.mu.Unlock()
			slices.Sort(names)
		}
		return b.remove(ctx, shown, at, names)
	case absent(f.Tools):
		return b.list(ctx, shown)
	}
	var given []json.RawMessage
	if json.Unmarshal(f.Tools, &given) != nil {
		return nil, invalid("tools is %.100s: it is a list", f.Tools)
	}
	return b.offer(ctx, shown, at, given)
}

// offer adds tools of the program to the mesh.
func (b *Bridge) offer(ctx context.Context, session subjects.SessionID, at place, given []json.RawMessage) (*bridged, error) {
	tools, ids := make([]host.Tool, len(given)), make([]subjects.ToolID, len(given))
	for i, raw := range given {
		t, err := b.tool(at, raw)
		if err != nil {
			return nil, toolmesh.AsError(err).WithDetail("tool", i).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
		}
		tools[i], ids[i] = t, t.Descriptor.ID
		if slices.Contains(ids[:i], ids[i]) {
			return nil, invalid("tool %q is there twice", ids[i]).WithDetail("tool", i)
		}
	}
	if len(tools) == 0 {
		return newBridged(session, nil), nil
	}
	h, err := b.node(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.Add(at.index, at.session, tools...); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.offered[at] == nil {
		b.offered[at] = make(map[subjects.ToolID]*tool.Descriptor)
	}
	for _, t := range tools {
		b.offered[at][t.Descriptor.ID] = t.Descriptor
	}
	return newBridged(session, ids), nil
}

// tool parses one tool of the program.
func (b *Bridge) tool(at place, raw json.RawMessage) (host.Tool, error) {
	var given declaration
	if err := json.Unmarshal(raw, &given); err != nil {
		return host.Tool{}, invalid("a tool cannot be read: %w", err)
	}
	name := cmp.Or(given.Name, given.ToolID)
	switch {
	case name == "":
		return host.Tool{}, invalid("a tool has neither name nor tool_id")
	case given.Type != "" && given.Type != standardTool && given.Type != streamingTool:
		return host.Tool{}, invalid("tool %q: type is %q: it is %s or %s", name, given.Type, standardTool, streamingTool)
	case at.index == "" && strings.Contains(name, "."):
		return host.Tool{}, invalid("%q has a dot: a session's own tool has one name", name)
	}
	d := &tool.Descriptor{
		ID: subjects.ToolID(name), Name: name, Description: given.Description, Metadata: given.Metadata,
		InputSchema: given.InputSchema, OutputSchema: given.OutputSchema,
		Positional: given.Positional, VarArgs: given.VarArgs, Annotations: given.Annotations, Source: tool.SourceProgram,
	}
	if string(d.Metadata) == "null" {
		d.Metadata = nil
	}
	if at.index != "" {
		d.ID = subjects.ToolID(string(at.index) + "." + name)
		d.Index = &tool.IndexRef{Name: at.index}
	}
	if d.Positional == nil && d.VarArgs == "" {
		d.VarArgs = "args" // the program interprets it
	}
	d.Annotations.Streaming = given.Type == streamingTool
	if err := d.Check(); err != nil {
		return host.Tool{}, err
	}
	return host.Tool{Descriptor: d, Handler: &program{b: b, name: given.ToolID, streaming: d.Annotations.Streaming}}, nil
}

// node returns the program's node, which it starts for the first tool.
func (b *Bridge) node(ctx context.Context) (*host.Host, error) {
	b.hosting.Lock()
	defer b.hosting.Unlock()
	if b.host != nil {
		return b.host, nil
	}
	b.mu.Lock()
	over := b.left || b.draining
	b.mu.Unlock()
	if over {
		return nil, errDraining
	}
	h, err := host.NewOn(b.bus, &host.Options{
		Node: b.opts.Node, Version: b.opts.Version, Slots: b.opts.Slots, MaxTimeout: b.opts.MaxTimeout, Labels: b.opts.Labels,
		Service: "mesh-bridge", Logger: b.log,
	})
	if err != nil {
		return nil, err
	}
	if err := h.Start(ctx); err != nil {
		_ = h.Stop(ctx)
		return nil, err
	}
	b.host = h
	close(b.hosted)
	return h, nil
}

// remove removes tools of the program from the mesh.
func (b *Bridge) remove(ctx context.Context, session subjects.SessionID, at place, names []string) (*bridged, error) {
	b.hosting.Lock()
	h := b.host
	b.hosting.Unlock()
	if h == nil {
		return newBridged(session, nil), nil
	}
	ids := make([]subjects.ToolID, len(names))
	b.mu.Lock()
	for i, name := range names {
		ids[i] = subjects.ToolID(name)
		delete(b.offered[at], ids[i])
	}
	b.mu.Unlock()
	removed, err := h.Remove(ctx, at.index, at.session, ids...)
	return newBridged(session, removed), err
}

// list lists the tools that a session can call.
func (b *Bridge) list(ctx context.Context, session subjects.SessionID) (*bridged, error) {
	c, r := b.client.In(session), newBridged(session, nil)
	listed, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	serving := slices.DeleteFunc(listed, func(t registry.ListedTool) bool { return t.State != registry.ToolServing })
	err = inventory.Described(ctx, c, serving, func(_ registry.ListedTool, raw json.RawMessage) {
		if d, bad := inventory.DescriptorOf(raw); bad == nil {
			r.Tools, r.ToolNames = append(r.Tools, *declared(d)), append(r.ToolNames, string(d.ID))
		}
	})
	r.ToolCount = len(r.Tools)
	return r, err
}

func declared(d *tool.Descriptor) *declaration {
	kind := standardTool
	if d.Annotations.Streaming {
		kind = streamingTool
	}
	metadata := d.Metadata
	if len(metadata) == 0 {
		metadata = json.RawMessage(`{}`)
	}
	return &declaration{
		ToolID: string(d.ID), Name: d.Name, Type: kind, Description: d.Description, Metadata: metadata,
		InputSchema: d.InputSchema, OutputSchema: d.OutputSchema, Positional: d.Positional, VarArgs: d.VarArgs, Annotations: d.Annotations,
	}
}
