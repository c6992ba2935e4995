package registry

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Candidate is a node that can be called, and its load as the registry last heard it.
type Candidate struct {
	Node     subjects.NodeID `json:"node"`
	Boot     subjects.BootID `json:"boot"`
	InFlight int             `json:"in_flight"`
	Slots    int             `json:"slots"`
	// Weight is how often callers try the node compared with others: below 1 where it is slow
	// or calls of the tool fail, 0: as often as any. See [codec.Weights].
	Weight float64 `json:"weight,omitempty"`
	// User is that of the [ToolRoute]; callers do not need it.
	User string `json:"-"`
}

// Route is one tool as a session sees it, with the nodes that serve it.
type Route struct {
	ID subjects.ToolID
	// Session is set for a session's own tool and for one of a private index.
	Session  subjects.SessionID
	Index    subjects.IndexName
	Revision string
	// Digest is the digest of its descriptor; if nodes differ, of the last published one.
	Digest    string
	Streaming bool
	// Idempotent: every node whose revision is known says so.
	Idempotent bool
	// Nodes can run it now. Empty: it is known, and no node serves it.
	Nodes []Candidate
	// Reason says why no node serves it or, if each of Nodes has a notice, names the temporary
	// restriction.
	Reason string
	// Warning is a fault of it that one of Nodes has found.
	Warning string
}

// Route returns a tool of a full id, as it is or as it travels, false if the session knows no such tool.
func (v *View) Route(session subjects.SessionID, id subjects.ToolID) (Route, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.route(session, id, time.Now())
}

func (v *View) route(session subjects.SessionID, id subjects.ToolID, now time.Time) (Route, bool) {
	routes := v.current(session, id)
	if len(routes) == 0 {
		return Route{}, false
	}
	// The latest record among the callable nodes is believed; without one, the latest of all.
	var r Route
	var best servedAs
	reason, notice, noticed, bestCan := "", "", 0, false
	idempotent := true
	for i, one := range routes {
		if i+1 < len(routes) && routes[i+1].entry.key.Node == one.entry.key.Node {
			continue // the node has moved it to another part since
		}
		idempotent = idempotent && (one.tool.Idempotent || one.tool.Digest == "")
		n := v.nodes[one.entry.key.Node]
		can := v.callable(n, now) && n.record.Boot == one.entry.record.Boot
		if can && one.tool.State == ToolUnavailable {
			reason, can = one.tool.Reason, false
		}
		if can {
			c := n.candidate(now)
			c.User = one.tool.User
			r.Nodes = append(r.Nodes, c)
			r.Warning = cmp.Or(r.Warning, one.tool.Warning)
			if one.tool.Notice != "" {
				notice, noticed = one.tool.Notice, noticed+1
			}
		}
		if best.entry == nil || can && !bestCan || can == bestCan && tellsMore(one, best) {
			best, bestCan = one, can
		}
	}
	record, t := &best.entry.record, best.tool
	r.ID, r.Session, r.Index, r.Revision = t.ID, record.Session, record.Index, record.Revision
	r.Digest, r.Streaming, r.Idempotent = t.Digest, t.Streaming, t.Idempotent && idempotent
	if len(r.Nodes) == 0 {
		if r.Reason = reason; reason == "" {
			r.Reason = v.absent(r.Index, r.Session, now)
		}
	} else if noticed == len(r.Nodes) {
		r.Reason = notice
	}
	return r, true
}

// weigh sets the weights of a tool's nodes by their heartbeats.
func (v *View) weigh(id subjects.ToolID, nodes []Candidate) {
	paces := make([]codec.ToolPace, len(nodes))
	v.mu.RLock()
	for i := range nodes {
		if n := v.nodes[nodes[i].Node]; n != nil && n.beat.Boot == string(nodes[i].Boot) {
			paces[i] = n.beat.Paces[id]
		}
	}
	v.mu.RUnlock()
	for i, w := range codec.Weights(paces) {
		if w < 1 {
			nodes[i].Weight = math.Ceil(w*1000) / 1000
		}
	}
}

// tellsMore reports whether one route is believed before another: one with a description
// before one without, then the later.
func tellsMore(one, other servedAs) bool {
	if described := one.tool.Digest != ""; described != (other.tool.Digest != "") {
		return described
	}
	return one.entry.revision > other.entry.revision
}

// scopes returns the scope of a session and the one of all sessions. The lock is held.
func (v *View) scopes(session subjects.SessionID) (own, shared *scope) {
	session = canonical(session)
	return v.table.scopes[scopeKey{session, v.sessions[session].Epoch}], v.table.scopes[scopeKey{}]
}

// current returns the routes of a tool. The lock is held.
func (v *View) current(session subjects.SessionID, id subjects.ToolID) []servedAs {
	own, shared := v.scopes(session)
	if routes := own.routes(id); len(routes) > 0 {
		return routes
	}
	return shared.routes(id)
}

// nearestMost is how many names an error offers.
const nearestMost = 5

// Resolve returns the full id of a typed name: the id itself, which may be written as it
// travels, or the one id that ends with it at a dot. A name that several ids end with, or
// none, is tool_not_found with details.nearest. A name in an installed index whose tools are
// unknown, as no node has served it yet, is unavailable. A full id costs a look-up; another
// name is compared with all ids.
func (v *View) Resolve(session subjects.SessionID, name string) (subjects.ToolID, error) {
	id, several := v.lookup(session, name)
	if id != "" {
		return id, nil
	}
	if len(several) > 0 {
		return "", toolmesh.Errorf(toolmesh.CodeToolNotFound, "%q is the end of several tool ids: write one of them in full", name).
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo).WithDetail("nearest", texts(several[:min(len(several), nearestMost)]))
	}
	visible := v.seen(session)
	v.mu.RLock()
	awaited := v.awaited(session, name)
	v.mu.RUnlock()
	// Not under the lock: this is the slow part.
	if awaited != "" && !slices.ContainsFunc(visible, func(id subjects.ToolID) bool { return strings.HasPrefix(string(id), awaited+".") }) {
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "index %q is installed, but no node serves it yet", awaited).
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	}
	return "", notFound(name, tool.Nearest(name, texts(visible), nearestMost))
}

// find returns the id of [View.Resolve] and its route.
func (v *View) find(session subjects.SessionID, name string) (subjects.ToolID, Route, error) {
	id, err := v.Resolve(session, name)
	if err != nil {
		return "", Route{}, err
	}
	route, ok := v.Route(session, id)
	if !ok { // gone this instant
		return "", Route{}, notFound(name, nil)
	}
	return id, route, nil
}

// seen returns the ids that a session sees, in order. Do not change them.
func (v *View) seen(session subjects.SessionID) []subjects.ToolID {
	v.mu.Lock() // the order of ids is cached
	defer v.mu.Unlock()
	return visible(v.scopes(session))
}

// awaited returns the index that a full id belongs to, if it is installed.
func (v *View) awaited(session subjects.SessionID, name string) string {
	first, _, full := strings.Cut(name, ".")
	if !full {
		return ""
	}
	for _, scope := range []subjects.SessionID{"", session} {
		key, err := subjects.IndexKey(subjects.IndexName(first), scope)
		if _, ok := v.indexes[key]; err == nil && ok {
			return first
		}
	}
	return ""
}

// lookup returns the id behind a name, or the ids that it may be.
func (v *View) lookup(session subjects.SessionID, name string) (id subjects.ToolID, several []subjects.ToolID) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	own, shared := v.scopes(session)
	if id := subjects.ToolID(name); len(own.places(id)) > 0 || len(shared.places(id)) > 0 {
		return id, nil
	}
	found := bySuffix(name, own, shared)
	if len(found) == 1 {
		return found[0], nil
	}
	return "", found
}

// Named returns the tool of a typed name, as [View.Resolve] takes it; false for an unknown or
// an ambiguous name.
func (v *View) Named(session subjects.SessionID, name string) (Route, bool) {
	id, _ := v.lookup(session, name)
	return v.Route(session, id)
}

// canonical is the form of a name in keys: itself, or its hash if it is too long for a token.
// A name that cannot travel stays as it is, and nothing is found for it.
func canonical[T ~string](name T) T {
	if token, err := subjects.EncodeToken(string(name)); err == nil && subjects.IsHashed(token) {
		return T(token)
	}
	return name
}

func notFound(name string, nearest []string) *toolmesh.Error {
	e := toolmesh.Errorf(toolmesh.CodeToolNotFound, "no index or session offers a tool %q", name)
	if len(nearest) > 0 {
		e = toolmesh.Errorf(toolmesh.CodeToolNotFound, "no index or session offers a tool %q; did you mean %s?", name, nearest[0])
	} else {
		nearest = []string{} // not null: readers of other languages go through it
	}
	return e.WithDetail("nearest", nearest).WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}

func texts(ids []subjects.ToolID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

// etag is a digest of the tools that a session sees, of their declarations, and of which are served.
func (v *View) etag(session subjects.SessionID) string {
	all, _ := v.List(session, "", 0)
	sum := sha256.New()
	for i := range all {
		_, _ = fmt.Fprintf(sum, "%s %s %t %t\n", all[i].ID, all[i].Digest, all[i].Streaming, len(all[i].Nodes) > 0)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// List returns up to limit tools that a session sees, behind the id after, in the order of
// their ids; limit 0: all. next is the after of the next page, empty at the end.
func (v *View) List(session subjects.SessionID, after subjects.ToolID, limit int) (tools []Route, next subjects.ToolID) {
	now := time.Now()
	v.mu.Lock() // the order of ids is cached
	defer v.mu.Unlock()
	ids := visible(v.scopes(session))
	i, found := slices.BinarySearch(ids, after)
	if found {
		i++
	}
	for _, id := range ids[i:] {
		r, ok := v.route(session, id, now)
		switch {
		case !ok:
			continue
		case limit > 0 && len(tools) == limit:
			return tools, tools[limit-1].ID
		}
		tools = append(tools, r)
	}
	return tools, ""
}
