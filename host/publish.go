package host

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Service is the set of tools that a host offers under one name: an index at one revision, or a
// session's own tools.
type Service struct {
	// Index is the index's name; empty for a session's own tools.
	Index subjects.IndexName
	// Session limits the service to one session; empty means all, which only an
	// index can be.
	Session  subjects.SessionID
	Revision string
	Tools    []Tool
	// Unavailable are tools that are known and not served.
	Unavailable []Unavailable
}

// Tool is one tool of a [Service].
type Tool struct {
	Descriptor *tool.Descriptor
	Handler    Handler
	// Notice tells people about a temporary limitation of the tool, which is served all the same.
	// Defaults to nothing.
	Notice string
	// User is the uid that the tool runs as, for people. Defaults to nothing.
	User string
	// Sessions names the workers that keep the state of a session, for calls of isolation
	// session: all of a session's calls of an index then run on one node, and the session is told
	// when the index is on others. Empty: calls run on the node that receives them.
	Sessions string
	// MaxArgs is of how many bytes the tool takes arguments: more are refused before they
	// are read. Defaults to [Options.PayloadMax].
	MaxArgs int64
}

// Unavailable is a tool that is declared and not served, with the reason.
type Unavailable struct {
	ID     subjects.ToolID
	Reason string
	// Descriptor is the known part of the tool's description; nil: nothing.
	Descriptor *tool.Descriptor
}

// ToolOption adjusts one function of [Host.Handle].
type ToolOption func(*tool.Descriptor)

// Description is the text that people and models read.
func Description(text string) ToolOption {
	return func(d *tool.Descriptor) { d.Description = text }
}

// Annotate sets the tool's annotations. Streaming follows from the handler and need not be set.
func Annotate(a tool.Annotations) ToolOption {
	return func(d *tool.Descriptor) {
		a.Streaming = a.Streaming || d.Annotations.Streaming
		d.Annotations = a
	}
}

// Schema sets the input and output schema of a handler whose Go types do not give them; nil keeps
// a schema.
func Schema(input, output json.RawMessage) ToolOption {
	return func(d *tool.Descriptor) {
		if input != nil {
			d.InputSchema = input
		}
		if output != nil {
			d.OutputSchema = output
		}
	}
}

// Metadata is the author's own JSON object, passed through.
func Metadata(object json.RawMessage) ToolOption {
	return func(d *tool.Descriptor) { d.Metadata = object }
}

// Handle registers a function under the index or session of the options and returns its full id;
// an empty name becomes a generated one (tool_<uuid>). The same name again replaces the function.
// Before Start it only keeps the function; afterwards the function is served when Handle returns.
// The errors are invalid_request for a name or a function that cannot be served, for a type
// without a schema and for an index of another source, payload_too_large for a function whose
// description is too large for the registry, and unavailable without a connection. The cost does
// not depend on the number of functions.
func (h *Host) Handle(name string, handler Handler, opts ...ToolOption) (subjects.ToolID, error) {
	return h.HandleIn(h.opts.Index, h.opts.Session, name, handler, opts...)
}

// takesObject reports whether a schema's type, if it has one, can be an object.
func takesObject(schema json.RawMessage) bool {
	var root struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(schema, &root) != nil {
		return true // compile reports the error
	}
	switch t := root.Type.(type) {
	case string:
		return t == "object"
	case []any:
		return slices.Contains(t, any("object"))
	}
	return true
}

// HandleIn is [Host.Handle] for an index or session of one's own choice: one of
// them is empty.
func (h *Host) HandleIn(index subjects.IndexName, session subjects.SessionID, name string, handler Handler, opts ...ToolOption) (subjects.ToolID, error) {
	if name == "" {
		name = "tool_" + uuid.NewString()
	}
	if noHandler(handler) {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "function %q has no handler", name)
	}
	d := tool.Descriptor{Source: tool.SourceGo}
	var noInput, noOutput error
	if t, ok := handler.(function); ok {
		d, noInput, noOutput = t.describe()
	}
	d.Name = name
	switch {
	case index != "":
		d.ID = subjects.ToolID(string(index) + "." + name)
		d.Index = &tool.IndexRef{Name: index, Revision: h.opts.Revision}
	case session != "":
		d.ID = subjects.ToolID(name)
		if _, dotted := d.ID.Index(); dotted {
			return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%q has a dot: a session's own tool has one name", name)
		}
	default:
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "host.Options has neither Index nor Session: functions need one of them to be called by")
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&d)
		}
	}
	if noInput != nil && d.InputSchema == nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the arguments of %q: %w", name, noInput)
	}
	if noOutput != nil && d.OutputSchema == nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the result of %q: %w", name, noOutput)
	}
	if err := d.Check(); err != nil {
		return "", err
	}
	if !takesObject(d.InputSchema) {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest,
			"the arguments of %q are not an object, which arguments are: take a struct or a map", name)
	}
	if err := h.Add(index, session, Tool{Descriptor: &d, Handler: handler}); err != nil {
		return "", err
	}
	return d.ID, nil
}

// noHandler reports whether there is no code behind a handler: also where it is made of a
// function that is nil.
func noHandler(handler Handler) bool {
	if f, ok := handler.(function); ok {
		return f.none
	}
	v := reflect.ValueOf(handler)
	switch v.Kind() {
	case reflect.Func, reflect.Pointer:
		return v.IsNil()
	}
	return !v.IsValid()
}

// usable refuses tools without a descriptor or a handler.
func usable(tools []Tool) error {
	for i, t := range tools {
		if t.Descriptor == nil {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "tool %d has no descriptor", i)
		}
		if noHandler(t.Handler) {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "tool %q has no handler", t.Descriptor.ID)
		}
	}
	return nil
}

// Add is [Host.HandleIn] for tools that have descriptors. It adds all of them or, after an error,
// none.
func (h *Host) Add(index subjects.IndexName, session subjects.SessionID, tools ...Tool) error {
	key := serviceKey{index, session}
	if err := usable(tools); err != nil {
		return err
	}
	if err := h.publisher.change(h.base, Service{Index: index, Session: session, Revision: h.opts.Revision, Tools: tools}, true); err != nil {
		return err
	}
	h.publisher.settle(h.base, key)
	return nil
}

// Remove withdraws tools of an index or session, and returns those that were offered. Requests
// that have reached the node are still served.
func (h *Host) Remove(ctx context.Context, index subjects.IndexName, session subjects.SessionID, ids ...subjects.ToolID) ([]subjects.ToolID, error) {
	gone, err := h.publisher.take(ctx, serviceKey{index, session}, func(s *service) (all []*served) {
		for _, id := range ids {
			if o := s.tools[id]; o != nil && !slices.Contains(all, o) {
				all = append(all, o)
			}
		}
		return all
	})
	var removed []subjects.ToolID
	for _, o := range gone {
		removed = append(removed, o.descriptor.ID)
	}
	return removed, err
}

// Publish offers a service, or replaces the one of the same index and session; tools that stay
// have a server at all times. When it returns, the broker knows the subscriptions; the registry
// follows. The errors are invalid_request for a descriptor that cannot be served and for an index
// that belongs to another source, payload_too_large for a tool with no room in the broker's
// messages, and unavailable without a connection. After an error the earlier tools are served.
func (h *Host) Publish(ctx context.Context, s Service) error {
	if err := usable(s.Tools); err != nil {
		return err
	}
	err := h.publisher.change(ctx, s, false)
	if err == nil {
		h.publisher.settle(ctx, serviceKey{s.Index, s.Session})
	}
	return err
}

// Withdraw takes a service back. Requests that have reached the node are still
// served.
func (h *Host) Withdraw(ctx context.Context, index subjects.IndexName, session subjects.SessionID) error {
	return h.publisher.withdraw(ctx, serviceKey{index, session}, nil)
}
