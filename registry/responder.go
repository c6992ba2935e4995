package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Verbs of mesh.registry.<session>.<verb>.
const (
	VerbList       = "list"
	VerbDescribe   = "describe"
	VerbResolve    = "resolve"
	VerbCandidates = "candidates"
	VerbRender     = "render"
	VerbArguments  = "arguments"
	VerbSearch     = "search"
	VerbStats      = "stats"
	VerbTime       = "time"
)

// Request is the body of a request; each verb reads its own fields.
type Request struct {
	// Tool is the tool of describe, candidates and arguments: a full id or a name that
	// [View.Resolve] takes; for arguments also the name in a declaration.
	Tool string `json:"tool,omitempty"`
	// Name is the name for resolve.
	Name string `json:"name,omitempty"`
	// After and Limit select a page of list. Limit defaults to 100, max 500; for search to
	// 10, max 1,000. After asks render for the tools that did not fit into the last answer.
	After subjects.ToolID `json:"after,omitempty"`
	Limit int             `json:"limit,omitempty"`
	// ETag asks list for the tag of the whole list.
	ETag bool `json:"etag,omitempty"`
	// Digests asks list for the digest of each tool.
	Digests bool `json:"digests,omitempty"`
	// Provider is the [render.Format] for render.
	Provider string `json:"provider,omitempty"`
	// Tools are the tools for render, each as Tool, and for describe, by full ids: 500 at
	// most. For search, and for mangled names of arguments, they are [subjects.Globs], of which a
	// tool's id must match one.
	Tools []string `json:"tools,omitempty"`
	// Query is the question for search, in any words. ReadOnly limits it to tools that
	// declare read_only.
	Query    string `json:"query,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Declared are tools of the caller's own, 500 at most: ID, Description and InputSchema count. For
	// render and arguments their ids mean these tools, even if the mesh serves others of that id.
	Declared declared `json:"declared,omitempty"`
	// Arguments are those that a model wrote: an object, or JSON in a text.
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// declared are descriptors of a request.
type declared []*tool.Descriptor

// UnmarshalJSON reads one more than a request may have.
func (d *declared) UnmarshalJSON(data []byte) (err error) {
	*d, err = codec.ReadItems[*tool.Descriptor](data, renderMost+1)
	return err
}

// ListAnswer is a page of tools, as `mesh ls --json` prints them.
type ListAnswer struct {
	Tools []ListedTool `json:"tools"`
	// Next is the After of the next page; empty at the end.
	Next subjects.ToolID `json:"next,omitempty"`
	// ETag, if asked for, changes when the tools of any page, their declarations or their
	// states change.
	ETag string `json:"etag,omitempty"`
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
	// Digest, if asked for, is that of the tool's descriptor; empty if nothing is known of the tool.
	Digest string `json:"digest,omitempty"`
}

// ResolveAnswer is the full id, and why no node serves the tool, if none does.
type ResolveAnswer struct {
	ID     subjects.ToolID `json:"id"`
	Reason string          `json:"reason,omitempty"`
}

// CandidatesAnswer is where a tool can be called. Empty Nodes: no node serves it now.
type CandidatesAnswer struct {
	ID    subjects.ToolID `json:"id"`
	Nodes []Candidate     `json:"nodes"`
	// StaleMS is since how long the answerer may have missed something.
	StaleMS int64 `json:"stale_ms"`
	// Digest, Streaming and Idempotent spare the caller a second question.
	Digest     string `json:"digest,omitempty"`
	Streaming  bool   `json:"streaming,omitempty"`
	Idempotent bool   `json:"idempotent,omitempty"`
}

// TimeAnswer is the broker's time as a node knows it: see [bus.MeshTime].
type TimeAnswer struct {
	NowMS   int64 `json:"now_ms"`
	BoundMS int64 `json:"bound_ms"`
}

// StatsAnswer is the load of the nodes, by their heartbeats of the last second.
type StatsAnswer struct {
	Nodes []NodeStats `json:"nodes"`
	// StaleMS is that of [CandidatesAnswer].
	StaleMS int64 `json:"stale_ms"`
}

// NodeStats is the load of one node.
type NodeStats struct {
	Node  subjects.NodeID `json:"node"`
	State string          `json:"state"` // serving, draining, or silent: no heartbeats come
	Slots int             `json:"slots"`
	NodeLoad
}

// NodeLoad is the load of a node by its last heartbeat, with the calls that have ended since its
// start.
type NodeLoad struct {
	InFlight int    `json:"in_flight"`
	Queued   int    `json:"queued"`  // calls in flight that wait for a worker
	Waiting  int    `json:"waiting"` // calls that wait for a lane; they hold no slot
	Calls    uint64 `json:"calls"`
	Errors   uint64 `json:"errors"`  // calls that ended with an error
	Relayed  uint64 `json:"relayed"` // calls that another node executed
}

// DescribeAnswer is a tool as `mesh info --json` prints it: the descriptor, and where it is served.
type DescribeAnswer struct {
	Descriptor *tool.Descriptor
	Served
}

// Served has the fields of a [DescribeAnswer] besides the descriptor's.
type Served struct {
	Digest string            `json:"digest"`
	Nodes  []subjects.NodeID `json:"nodes"`
	// Reason is that of the [Route].
	Reason string `json:"reason,omitempty"`
	// Limits are the limits of a call in effect, by nodes; empty if there are none.
	Limits []LimitsOnNodes `json:"limits,omitempty"`
	// Users are the users that the tool runs as, by nodes; empty if no node tells.
	Users []UserOnNodes `json:"users,omitempty"`
}

// DescribedAnswer is the answer to describe of several tools, in the order of the request:
// the first ones, if not all fit into a message, and null for an unknown one.
type DescribedAnswer struct {
	Tools []json.RawMessage `json:"tools"`
}

// UserOnNodes is the user that a tool runs as on some nodes, by number.
type UserOnNodes struct {
	Nodes []subjects.NodeID `json:"nodes"`
	User  string            `json:"user"`
}

// LimitsOnNodes are limits of a call that are in effect on some nodes.
type LimitsOnNodes struct {
	Nodes  []subjects.NodeID `json:"nodes"`
	Limits tool.Limits       `json:"limits"`
}

// MarshalJSON writes the descriptor's own form with "digest", "nodes" and, if there are any,
// "reason", "limits" and "users" added.
func (a DescribeAnswer) MarshalJSON() ([]byte, error) {
	head, err := a.Descriptor.MarshalJSON()
	if err != nil {
		return nil, err
	}
	tail, err := tool.MarshalPlain(a.Served)
	if err != nil {
		return nil, err
	}
	out := append(bytes.TrimSuffix(head, []byte("}")), ',')
	return append(out, tail[1:]...), nil
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (a *DescribeAnswer) UnmarshalJSON(data []byte) error {
	*a = DescribeAnswer{Descriptor: new(tool.Descriptor)}
	if err := json.Unmarshal(data, &a.Served); err != nil {
		return err
	}
	return json.Unmarshal(data, a.Descriptor)
}

// Responder answers the registry requests of clients from a view, in the queue
// group with all other responders of the mesh. A request whose reply subject is
// not an inbox is dropped before anything else.
type Responder struct {
	bus   *bus.Bus
	view  *View
	store *Store

	searcher *searcher

	sub *nats.Subscription
	// places bounds the requests that need the store, by account.
	places *fair.Room[subjects.SessionID]
	work   sync.WaitGroup
	open   sync.Map // of asked: the questions that work answers
	once   sync.Once
}

// asked is a question of a caller. One that hears nothing asks again, up to fifty times in two seconds.
type asked struct {
	reply, subject string
	body           [sha256.Size]byte
}

const (
	// waiting is how many requests are answered at once that need the store or compare names; one
	// session alone has half of them.
	waiting      = 128
	readTimeout  = 5 * time.Second
	listDefault  = 100
	listMost     = 500
	drainTimeout = 10 * time.Second
)

// NewResponder begins to answer. The view and the store must outlive it.
func NewResponder(c Conn, view *View, store *Store) (*Responder, error) {
	b := bus.Of(c)
	if err := b.Check(); err != nil {
		return nil, err
	}
	r := &Responder{
		bus: b, view: view, store: store, places: fair.NewRoom[subjects.SessionID](waiting),
		searcher: &searcher{view: view, store: store, keep: indexesKept, scopes: make(map[subjects.SessionID]*searched)},
	}
	sub, err := b.Conn().QueueSubscribe(subjects.AllRegistry, subjects.QueueGroup, r.receive)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "answer registry requests: %w", err).WithOrigin(toolmesh.OriginMesh)
	}
	r.sub = sub
	return r, nil
}

// Close answers the requests that have arrived and stops. It may be called more than once.
func (r *Responder) Close() {
	r.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		_ = r.bus.Drain(ctx, r.sub)
	})
	r.work.Wait()
}

// receive answers resolve and candidates of a known tool at once, and starts a goroutine for
// requests that compare names or read the store.
func (r *Responder) receive(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if err != nil {
		s = subjects.Subject{}
	}
	if !r.bus.MayAnswer(m, s.Session) {
		return
	}
	var q Request
	if err != nil {
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	} else {
		err = bus.ReadRequest(m, &q)
	}
	if err != nil {
		r.respond(m, nil, err)
		return
	}
	answer := func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		return r.handle(ctx, s.Verb, &query{q, s.Session, askerOf(m.Reply)})
	}
	id := subjects.ToolID("")
	switch s.Verb {
	case VerbResolve:
		id, _ = r.view.lookup(s.Session, q.Name)
	case VerbCandidates:
		id, _ = r.view.lookup(s.Session, q.Tool)
	}
	if id != "" || s.Verb == VerbTime { // the time must not wait
		body, err := answer()
		r.respond(m, body, err)
		return
	}
	question := asked{m.Reply, m.Subject, sha256.Sum256(m.Data)}
	if _, again := r.open.LoadOrStore(question, nil); again {
		return // answered once: a busy node would be the busier for each copy
	}
	session, _ := r.view.Session(s.Session)
	account := subjects.Account(s.Session, session.Epoch)
	if !r.places.Take(account, 1) {
		r.open.Delete(question)
		r.respond(m, nil, toolmesh.Errorf(toolmesh.CodeBusy, "the registry answers %d requests at once, and the session has its share of them: try again", waiting).
			WithDetail("limit", "requests").WithDetail("max", waiting))
		return
	}
	r.work.Go(func() {
		defer r.places.Give(account, 1)
		body, err := answer()
		r.open.Delete(question) // before its answer, after which it may be asked anew
		r.respond(m, body, err)
	})
}

// query is a request of a session; asker tells one caller from others.
type query struct {
	Request
	session subjects.SessionID
	asker   string
}

var verbs = map[string]func(*Responder, context.Context, *query) (any, error){
	VerbList: (*Responder).list, VerbDescribe: (*Responder).describe, VerbResolve: (*Responder).resolve, VerbCandidates: (*Responder).candidates,
	VerbRender: (*Responder).render, VerbArguments: (*Responder).arguments, VerbSearch: (*Responder).search, VerbStats: (*Responder).stats, VerbTime: (*Responder).time,
}

func (r *Responder) handle(ctx context.Context, verb string, q *query) (any, error) {
	do := verbs[verb]
	if do == nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%q is not a request of the registry: it is one of %s", verb, strings.Join(slices.Sorted(maps.Keys(verbs)), ", "))
	}
	return do(r, ctx, q)
}

// named returns the id that the value of a request's field means, and its route.
func (r *Responder) named(q *query, field, name string) (subjects.ToolID, Route, error) {
	if name == "" {
		return "", Route{}, missing(field)
	}
	return r.view.find(q.session, name)
}

func (r *Responder) resolve(_ context.Context, q *query) (any, error) {
	id, route, err := r.named(q, "name", q.Name)
	answer := ResolveAnswer{ID: id}
	if len(route.Nodes) == 0 {
		answer.Reason = route.Reason
	}
	return answer, err
}

func (r *Responder) candidates(_ context.Context, q *query) (any, error) {
	_, route, err := r.named(q, "tool", q.Tool)
	nodes := some(route.Nodes, q.asker)
	r.view.weigh(route.ID, nodes)
	return CandidatesAnswer{
		ID: route.ID, Nodes: nodes, StaleMS: r.view.Stale().Milliseconds(),
		Digest: route.Digest, Streaming: route.Streaming, Idempotent: route.Idempotent,
	}, err
}

func (r *Responder) describe(ctx context.Context, q *query) (any, error) {
	if q.Tool == "" && q.Tools != nil {
		return r.describeAll(ctx, q.session, q.Tools)
	}
	_, route, err := r.named(q, "tool", q.Tool)
	if err != nil {
		return nil, err
	}
	d, err := descriptorOf(ctx, r.store, route)
	if err != nil {
		return nil, err
	}
	return r.description(route, d), nil
}

// describeAll answers describe of several tools.
func (r *Responder) describeAll(ctx context.Context, session subjects.SessionID, ids []string) (any, error) {
	if len(ids) > renderMost {
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "%d tools are asked for, and one request may ask for %d: ask for the rest next", len(ids), renderMost).
			WithDetail("max", renderMost)
	}
	routes, digests := make([]Route, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		routes[i], _ = r.view.Route(session, subjects.ToolID(id))
		digests[i] = routes[i].Digest
	}
	descriptors, err := r.store.Descriptors(ctx, digests)
	if err != nil {
		return nil, err
	}
	answer := DescribedAnswer{Tools: []json.RawMessage{}}
	left := int(r.bus.MaxPayload()) - headroom
	for _, route := range routes {
		one := json.RawMessage("null")
		if d := descriptors[route.Digest]; d != nil {
			if one, err = r.description(route, d).MarshalJSON(); err != nil {
				return nil, err
			}
		}
		if left -= len(one) + 1; left < 0 {
			break
		}
		answer.Tools = append(answer.Tools, one)
	}
	if len(answer.Tools) == 0 && len(ids) > 0 {
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the description of tool %q exceeds the size of a message", ids[0])
	}
	return answer, nil
}

// candidatesMost is the max number of nodes in an answer: the choice between two of a hundred
// is as good as that between two of a thousand, and callers ask again and again.
const candidatesMost = 128

// some returns up to candidatesMost of the nodes: the same ones for the same asker while they
// exist, and others for another asker.
func some(nodes []Candidate, asker string) []Candidate {
	if len(nodes) <= candidatesMost {
		return append([]Candidate{}, nodes...)
	}
	scores := make(map[subjects.NodeID]uint64, len(nodes))
	for i := range nodes {
		h := fnv.New64a()
		_, _ = io.WriteString(h, asker+"\x00"+string(nodes[i].Node))
		score := h.Sum64() // its upper bits hardly depend on the last bytes
		score = (score ^ score>>32) * 0x9e3779b97f4a7c15
		scores[nodes[i].Node] = score ^ score>>29
	}
	all := slices.SortedFunc(slices.Values(nodes), func(a, b Candidate) int { return cmp.Compare(scores[a.Node], scores[b.Node]) })
	return all[:candidatesMost]
}

// askerOf is the prefix of all reply subjects of one process.
func askerOf(reply string) string {
	if end := strings.LastIndexByte(reply, '.'); end >= 0 {
		return reply[:end]
	}
	return reply
}

// time returns the broker's time, for callers, which must not ask the broker itself.
func (r *Responder) time(context.Context, *query) (any, error) {
	now := r.bus.Time()
	if !now.Measured {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "this node does not know the broker's time yet")
	}
	var a TimeAnswer
	a.NowMS, a.BoundMS = now.Millis()
	return a, nil
}

// stats returns the load of all nodes, silent ones included.
func (r *Responder) stats(context.Context, *query) (any, error) {
	defer r.view.refreshLoads()()
	answer := StatsAnswer{Nodes: []NodeStats{}, StaleMS: r.view.Stale().Milliseconds()}
	for _, n := range r.view.Nodes() {
		one := NodeStats{Node: n.Node, State: string(n.State), Slots: n.Slots, NodeLoad: n.NodeLoad}
		if !n.Alive {
			one.State = "silent"
		}
		answer.Nodes = append(answer.Nodes, one)
	}
	return answer, nil
}

// missing is the error of a request that does not name its tool.
func missing(field string) error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%s is missing or empty: the request is {%q:\"<a tool's id or the end of one>\"}", field, field)
}

func (r *Responder) list(ctx context.Context, q *query) (any, error) {
	if q.Limit < 0 {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "limit is %d: it is a whole number, of which %d are used at most", q.Limit, listMost)
	}
	routes, next := r.view.List(q.session, q.After, min(cmp.Or(q.Limit, listDefault), listMost))
	listed, err := List(ctx, r.store, routes)
	if err != nil {
		return nil, err
	}
	answer := ListAnswer{Tools: listed, Next: next}
	if q.Digests {
		for i := range routes {
			listed[i].Digest = routes[i].Digest
		}
	}
	if q.ETag {
		answer.ETag = r.view.etag(q.session)
	}
	// A page that does not fit into a message is cut: the caller asks for the rest.
	for {
		body, err := tool.MarshalPlain(answer)
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

// descriptorOf returns the descriptor of a route's tool. A declared tool that its node could
// not read has none: the error is unavailable and says why.
func descriptorOf(ctx context.Context, store *Store, route Route) (*tool.Descriptor, error) {
	if route.Digest == "" {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "%s is declared but not served, and its arguments are unknown: %s",
			route.ID, cmp.Or(route.Reason, "its node gave no reason"))
	}
	return store.Descriptor(ctx, route.Digest)
}

// description is a route's tool and its descriptor.
func (r *Responder) description(route Route, d *tool.Descriptor) DescribeAnswer {
	// The stored descriptor is shared, and has no revision of an index.
	described := *d
	if route.Warning != "" {
		described.Warnings = append(slices.Clip(d.Warnings), route.Warning)
	}
	if route.Index != "" {
		described.Index = &tool.IndexRef{Name: route.Index, Revision: route.Revision}
	}
	nodes := nodeIDs(route.Nodes)
	return DescribeAnswer{&described, Served{
		Digest: route.Digest, Nodes: nodes, Reason: route.Reason, Users: usersOn(route.Nodes),
		Limits: r.view.limitsOf(nodes, d.Annotations.Limits),
	}}
}

func usersOn(nodes []Candidate) []UserOnNodes {
	var all []UserOnNodes
	for _, n := range nodes {
		if n.User == "" {
			continue
		}
		at := slices.IndexFunc(all, func(one UserOnNodes) bool { return one.User == n.User })
		if at < 0 {
			at, all = len(all), append(all, UserOnNodes{User: n.User})
		}
		all[at].Nodes = append(all[at].Nodes, n.Node)
	}
	return all
}

// respond answers a request, which has started nothing.
func (r *Responder) respond(m *nats.Msg, answer any, err error) {
	if e := toolmesh.AsError(err); e != nil && e.Started == toolmesh.StartedUnknown {
		err = e.WithStarted(toolmesh.StartedNo)
	}
	r.bus.Respond(m, answer, err)
}
