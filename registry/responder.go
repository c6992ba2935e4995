package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Verbs of mesh.registry.<session>.<verb>.
const (
	VerbList       = "list"
	VerbDescribe   = "describe"
	VerbResolve    = "resolve"
	VerbCandidates = "candidates"
)

// ListRequest asks for a page of tools. Limit defaults to 100 and is at most 500.
type ListRequest struct {
	After subjects.ToolID `json:"after,omitempty"`
	Limit int             `json:"limit,omitempty"`
}

// ListAnswer is a page of tools, as `mesh ls --json` prints them.
type ListAnswer struct {
	Tools []ListedTool `json:"tools"`
	// Next is the After of the next page; empty at the end.
	Next subjects.ToolID `json:"next,omitempty"`
}

// ListedTool is one line of a list.
type ListedTool struct {
	ID          subjects.ToolID    `json:"id"`
	Index       subjects.IndexName `json:"index"`
	Session     subjects.SessionID `json:"session"`
	Description string             `json:"description"`
	State       ToolState          `json:"state"`
	Reason      string             `json:"reason"`
	Streaming   bool               `json:"streaming"`
	Nodes       []subjects.NodeID  `json:"nodes"`
}

// ToolRequest asks about one tool, by full id or a name that [View.Resolve] takes.
type ToolRequest struct {
	Tool string `json:"tool"`
}

// ResolveRequest asks for the full id of a name.
type ResolveRequest struct {
	Name string `json:"name"`
}

// ResolveAnswer is the full id, and why nobody serves the tool if that is so.
type ResolveAnswer struct {
	ID     subjects.ToolID `json:"id"`
	Reason string          `json:"reason,omitempty"`
}

// CandidatesAnswer is where a tool can be called. Empty Nodes: it is known and
// nobody serves it now.
type CandidatesAnswer struct {
	ID    subjects.ToolID `json:"id"`
	Nodes []Candidate     `json:"nodes"`
	// StaleMS is for how long the answer may have missed something.
	StaleMS int64 `json:"stale_ms"`
	// Digest, Streaming and Idempotent spare the caller a second question.
	Digest     string `json:"digest,omitempty"`
	Streaming  bool   `json:"streaming,omitempty"`
	Idempotent bool   `json:"idempotent,omitempty"`
}

// DescribeAnswer is a tool as `mesh info --json` prints it: the descriptor, its
// digest and the nodes that serve it.
type DescribeAnswer struct {
	Descriptor *tool.Descriptor
	Digest     string
	Nodes      []subjects.NodeID
	// Reason is that of the [Route]; empty for a tool of which nothing is to be said.
	Reason string
}

// MarshalJSON writes the descriptor's own form with "digest", "nodes" and, where
// there is one, "reason" added.
func (a DescribeAnswer) MarshalJSON() ([]byte, error) {
	head, err := a.Descriptor.MarshalJSON()
	if err != nil {
		return nil, err
	}
	tail, err := plainJSON(struct {
		Digest string            `json:"digest"`
		Nodes  []subjects.NodeID `json:"nodes"`
		Reason string            `json:"reason,omitempty"`
	}{a.Digest, a.Nodes, a.Reason})
	if err != nil {
		return nil, err
	}
	out := append(bytes.TrimSuffix(head, []byte("}")), ',')
	return append(out, tail[1:]...), nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (a *DescribeAnswer) UnmarshalJSON(data []byte) error {
	var extra struct {
		Digest string            `json:"digest"`
		Nodes  []subjects.NodeID `json:"nodes"`
		Reason string            `json:"reason"`
	}
	if err := json.Unmarshal(data, &extra); err != nil {
		return err
	}
	d := new(tool.Descriptor)
	if err := json.Unmarshal(data, d); err != nil {
		return err
	}
	*a = DescribeAnswer{Descriptor: d, Digest: extra.Digest, Nodes: extra.Nodes, Reason: extra.Reason}
	return nil
}

// ResponderOptions adjusts a [Responder].
type ResponderOptions struct {
	// SessionCredentials says that callers have inboxes of their own session:
	// replies to the shared inbox are not answered. Defaults to false.
	SessionCredentials bool
	// Logger takes what happens; nil discards it.
	Logger *slog.Logger
}

// Responder answers the registry requests of clients from a view, in the queue
// group with all other responders of the mesh. A request whose reply subject is
// not an inbox is dropped before anything else.
type Responder struct {
	bus   *bus.Bus
	view  *View
	store *Store
	o     ResponderOptions

	sub  *nats.Subscription
	work chan asked
	wg   sync.WaitGroup
	once sync.Once
}

type asked struct {
	m *nats.Msg
	s subjects.Subject
}

const (
	// readers answer what is not at hand: descriptors from the store, names that
	// nobody knows. So many requests may wait for one of them.
	readers      = 4
	waiting      = 256
	readTimeout  = 5 * time.Second
	listDefault  = 100
	listMost     = 500
	drainTimeout = 10 * time.Second
)

// NewResponder begins to answer. The view and the store must outlive it.
func NewResponder(b *bus.Bus, view *View, store *Store, options *ResponderOptions) (*Responder, error) {
	var o ResponderOptions
	if options != nil {
		o = *options
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Responder{bus: b, view: view, store: store, o: o, work: make(chan asked, waiting)}
	sub, err := b.Conn().QueueSubscribe(subjects.AllRegistry, subjects.QueueGroup, r.receive)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "answer registry requests: %w", err).WithOrigin(toolmesh.OriginMesh)
	}
	r.sub = sub
	for range readers {
		r.wg.Go(r.read)
	}
	return r, nil
}

// Close answers what has arrived and stops. It may be called more than once.
func (r *Responder) Close() {
	r.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		_ = r.bus.Drain(ctx, r.sub)
		// Nothing is received any more, unless the drain hung; then work stays open
		// and the readers are told by a nil.
		for range readers {
			r.work <- asked{}
		}
	})
	r.wg.Wait()
}

func (r *Responder) read() {
	for a := range r.work {
		if a.m == nil {
			return
		}
		r.answer(a)
	}
}

// receive answers from memory at once, and leaves to a reader what may have to
// read the store.
func (r *Responder) receive(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if err != nil {
		s = subjects.Subject{}
	}
	if !r.bus.MayAnswer(m, s.Session, r.o.SessionCredentials) {
		return
	}
	switch {
	case err != nil:
		r.respond(m, nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err))
	case r.atHand(s, m):
		r.answer(asked{m, s})
	default:
		select {
		case r.work <- asked{m, s}:
		default:
			r.respond(m, nil, toolmesh.Errorf(toolmesh.CodeBusy, "the registry has %d requests waiting: try again", waiting))
		}
	}
}

// atHand reports whether a request is answered by a look-up: the id of a name
// that is known, and where it runs.
func (r *Responder) atHand(s subjects.Subject, m *nats.Msg) bool {
	var name string
	switch s.Verb {
	case VerbResolve:
		name, _ = resolveName(m)
	case VerbCandidates:
		name, _ = toolName(m)
	}
	if name == "" {
		return false
	}
	id, _ := r.view.lookup(s.Session, name)
	return id != ""
}

func (r *Responder) answer(a asked) {
	body, err := r.handle(a.s, a.m)
	r.respond(a.m, body, err)
}

func (r *Responder) handle(s subjects.Subject, m *nats.Msg) (any, error) {
	switch s.Verb {
	case VerbResolve:
		name, err := resolveName(m)
		if err != nil {
			return nil, err
		}
		id, err := r.view.Resolve(s.Session, name)
		if err != nil {
			return nil, err
		}
		answer := ResolveAnswer{ID: id}
		if route, ok := r.view.Route(s.Session, id); ok && len(route.Nodes) == 0 {
			answer.Reason = route.Reason
		}
		return answer, nil
	case VerbCandidates:
		name, err := toolName(m)
		if err != nil {
			return nil, err
		}
		route, err := r.find(s.Session, name)
		if err != nil {
			return nil, err
		}
		nodes := route.Nodes
		if nodes == nil {
			nodes = []Candidate{}
		}
		return CandidatesAnswer{
			ID: route.ID, Nodes: nodes, StaleMS: r.view.Stale().Milliseconds(),
			Digest: route.Digest, Streaming: route.Streaming, Idempotent: route.Idempotent,
		}, nil
	case VerbList:
		var q ListRequest
		if err := bus.ReadRequest(m, &q); err != nil {
			return nil, err
		}
		return r.list(s.Session, q)
	case VerbDescribe:
		name, err := toolName(m)
		if err != nil {
			return nil, err
		}
		return r.describe(s.Session, name)
	default:
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the registry does not know %q: %s, %s, %s and %s are possible",
			s.Verb, VerbList, VerbDescribe, VerbResolve, VerbCandidates)
	}
}

// resolveName reads a [ResolveRequest].
func resolveName(m *nats.Msg) (string, error) {
	var q ResolveRequest
	if err := bus.ReadRequest(m, &q); err != nil {
		return "", err
	}
	return q.Name, given("name", q.Name)
}

// toolName reads a [ToolRequest].
func toolName(m *nats.Msg) (string, error) {
	var q ToolRequest
	if err := bus.ReadRequest(m, &q); err != nil {
		return "", err
	}
	return q.Tool, given("tool", q.Tool)
}

// given refuses a request without what it is about: no tool has the empty name,
// and to say so would hide a slip of the pen.
func given(field, value string) error {
	if value != "" {
		return nil
	}
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%s is missing or empty: the request is {%q:\"<a tool's id or the end of one>\"}", field, field)
}

// find returns the route of a name.
func (r *Responder) find(session subjects.SessionID, name string) (Route, error) {
	id, err := r.view.Resolve(session, name)
	if err != nil {
		return Route{}, err
	}
	route, ok := r.view.Route(session, id)
	if !ok { // gone this instant
		return Route{}, notFound(name, nil)
	}
	return route, nil
}

func (r *Responder) list(session subjects.SessionID, q ListRequest) (any, error) {
	if q.Limit < 0 {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "limit is %d: it is a whole number from 1 to %d", q.Limit, listMost)
	}
	if q.Limit == 0 {
		q.Limit = listDefault
	}
	routes, next := r.view.List(session, q.After, min(q.Limit, listMost))
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	listed, err := List(ctx, r.store, routes)
	if err != nil {
		return nil, err
	}
	answer := ListAnswer{Tools: listed, Next: next}
	// A page that does not fit into a message is cut: the caller asks for the rest.
	for {
		body, err := plainJSON(answer)
		if err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeInternal, "list tools: %w", err)
		}
		if n := len(answer.Tools); int64(len(body)) > r.bus.MaxPayload()-headroom && n > 1 {
			answer.Tools = answer.Tools[:n/2]
			answer.Next = answer.Tools[n/2-1].ID
			continue
		}
		return json.RawMessage(body), nil
	}
}

// headroom is left in a message for headers and protocol.
const headroom = 1024

// List turns routes into lines of a list, with the descriptions from the store.
func List(ctx context.Context, store *Store, routes []Route) ([]ListedTool, error) {
	digests := make([]string, len(routes))
	for i := range routes {
		digests[i] = routes[i].Digest
	}
	descriptors, err := store.Descriptors(ctx, digests)
	if err != nil {
		return nil, err
	}
	out := make([]ListedTool, len(routes))
	for i := range routes {
		route := &routes[i]
		t := ListedTool{
			ID: route.ID, Index: route.Index, Session: route.Session, State: ToolServing,
			Reason: route.Reason, Streaming: route.Streaming, Nodes: nodeIDs(route.Nodes),
		}
		if len(route.Nodes) == 0 {
			t.State = ToolUnavailable
		}
		if d := descriptors[route.Digest]; d != nil {
			t.Description = d.Description
		}
		out[i] = t
	}
	return out, nil
}

func nodeIDs(nodes []Candidate) []subjects.NodeID {
	ids := make([]subjects.NodeID, len(nodes))
	for i, n := range nodes {
		ids[i] = n.Node
	}
	return ids
}

func (r *Responder) describe(session subjects.SessionID, name string) (any, error) {
	route, err := r.find(session, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	return Describe(ctx, r.store, route)
}

// Describe returns what is known of a route's tool. A tool that is declared but
// could not even be read has no descriptor: the error is unavailable and says why.
func Describe(ctx context.Context, store *Store, route Route) (DescribeAnswer, error) {
	if route.Digest == "" {
		reason := route.Reason
		if reason == "" {
			reason = "its node does not say why"
		}
		return DescribeAnswer{}, toolmesh.Errorf(toolmesh.CodeUnavailable, "%s is declared, but not served, and nothing is known of its arguments: %s", route.ID, reason)
	}
	d, err := store.Descriptor(ctx, route.Digest)
	if err != nil {
		return DescribeAnswer{}, err
	}
	// The stored one is shared and has no revision of an index.
	described := *d
	if route.Index != "" {
		described.Index = &tool.IndexRef{Name: route.Index, Revision: route.Revision}
	}
	return DescribeAnswer{Descriptor: &described, Digest: route.Digest, Nodes: nodeIDs(route.Nodes), Reason: route.Reason}, nil
}

func (r *Responder) respond(m *nats.Msg, answer any, err error) {
	out := nats.NewMsg(m.Reply)
	if err == nil {
		out.Data, err = plainJSON(answer)
	}
	if err != nil {
		e := toolmesh.AsError(err)
		if e.Started == toolmesh.StartedUnknown {
			e = e.WithStarted(toolmesh.StartedNo)
		}
		if e.Origin == "" {
			e = e.WithOrigin(toolmesh.OriginMesh)
		}
		header, body := codec.ErrorReply(e)
		out.Header, out.Data = nats.Header(header), body
	}
	if err := r.bus.Conn().PublishMsg(out); err != nil {
		r.o.Logger.Warn("a registry request is not answered", slog.String("subject", m.Subject), slog.String("error", err.Error()))
	}
}

// plainJSON is json.Marshal without escaping for HTML: people read it.
func plainJSON(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
