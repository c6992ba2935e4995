package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// callsWaiting is how many events of calls may wait for a slow reader. Further ones are dropped.
const callsWaiting = 1024

// happened is one event of GET /v1/events.
type happened struct {
	Kind string    `json:"kind"`
	ID   string    `json:"id"`
	At   time.Time `json:"at"`
}

// state maps ids of tools or nodes to their state.
type state map[string]string

// events handles GET /v1/events: changes of the mesh that the token may see.
func (q *request) events() (any, error) {
	release, err := q.l.take(eventsOpen, 1)
	if err != nil {
		return nil, err
	}
	defer release()
	tools, nodes, err := q.look()
	if err != nil {
		return nil, err
	}
	subject, err := subjects.CallEvents(q.c.Session())
	if err != nil {
		return nil, refused(toolmesh.CodeInvalidRequest, "%w", err)
	}
	// A key that may not subscribe to this subject gets no events of calls.
	calls := make(chan *nats.Msg, callsWaiting)
	sub, err := q.l.bus.Conn().ChanSubscribe(subject, calls)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "events of calls cannot be subscribed: %w", err).WithOrigin(toolmesh.OriginMesh)
	}
	defer func() { _ = sub.Unsubscribe() }()
	ctx, cancel := context.WithCancel(q.ctx)
	defer cancel()
	out := &streamWriter{w: q.w, in: new(call), leave: cancel}
	out.comment()
	return nil, out.during(func() error {
		next := time.NewTimer(lookEvery)
		defer next.Stop()
		for {
			select {
			case <-ctx.Done():
				if why := context.Cause(q.l.ctx); why != nil { // the token was revoked, or the gateway stops
					out.end(why, nil)
				}
				return nil
			case m := <-calls:
				out.call(m.Data)
			case <-next.C:
				begun := time.Now()
				newTools, newNodes, err := q.look()
				if err == nil { // else the mesh is unreachable now
					out.changes("tools", tools, newTools)
					out.changes("nodes", nodes, newNodes)
					tools, nodes = newTools, newNodes
				}
				next.Reset(max(lookEvery, 10*time.Since(begun))) // large lists are read less often
			}
		}
	})
}

// look returns the tools that the token may use, and the nodes.
func (q *request) look() (tools, nodes state, err error) {
	listed, err := q.c.List(q.ctx)
	if err != nil {
		return nil, nil, err
	}
	tools, nodes = make(state, len(listed)), make(state)
	for _, t := range listed {
		if q.l.key.Tools.Match(t.ID) {
			text, _ := tool.MarshalPlain(t)
			sum := sha256.Sum256(text)
			tools[string(t.ID)] = string(sum[:])
		}
	}
	var stats registry.StatsAnswer
	if err := q.c.Ask(q.ctx, registry.VerbStats, registry.Request{}, &stats); err != nil {
		return nil, nil, err
	}
	for _, n := range stats.Nodes {
		nodes[string(n.Node)] = n.State
	}
	return tools, nodes, nil
}

// changes writes the differences of two states: tools that were added, changed or removed, and the state of nodes.
func (s *streamWriter) changes(name string, before, now state) {
	for id, is := range now {
		was, known := before[id]
		kind := is
		if name == "tools" {
			kind = map[bool]string{true: "changed", false: "added"}[known]
		}
		if was != is {
			s.event(name, happened{Kind: kind, ID: id})
		}
	}
	for id := range before {
		if _, still := now[id]; !still {
			s.event(name, happened{Kind: "removed", ID: id})
		}
	}
}

// call writes the event of a call that ended: its error code, or ok.
func (s *streamWriter) call(data []byte) {
	var is codec.CallEvent
	if json.Unmarshal(data, &is) == nil && is.RPCID != "" {
		s.event("calls", happened{cmp.Or(string(is.Code), is.Status), string(is.RPCID), is.Time})
	}
}

func (s *streamWriter) event(name string, h happened) {
	if h.At.IsZero() {
		h.At = time.Now().UTC()
	}
	data, _ := tool.MarshalPlain(h)
	s.write("event: "+name+"\n", data)
}

// comment starts a stream that has no event yet.
func (s *streamWriter) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send([]byte(": begins\n\n"))
}
