package host

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/grants"
	"github.com/toolmesh/toolmesh/host/internal/lane"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// maxLanes bounds the names of the lanes that a call and those above it hold, in bytes: at most
// as many lanes as its depth.
const maxLanes = 4096

// laned wraps the handler of a tool with a lane scope: its calls acquire a lane of the session,
// the node or the mesh first.
type laned struct {
	Handler
	h     *core
	scope tool.LaneScope
	rule  *lane.Rule
}

// takeTurns puts the lane around the handler of a tool that declares a scope beyond the
// batch.
func (p *publisher) takeTurns(t *served) {
	if scope := t.descriptor.Annotations.LaneScope; scope != "" && scope != tool.LaneBatch {
		t.handler = &laned{Handler: t.handler, h: p.core, scope: scope, rule: lane.RuleOf(t.descriptor, false)}
	}
}

// ServeTool implements [Handler]: the call waits for its lane, without a slot, and holds it until
// the handler returns.
func (t *laned) ServeTool(ctx context.Context, call *Call, sink Sink) error {
	key := t.rule.Key(call.Args)
	if bad := key.Check(); bad != nil {
		return bad
	}
	if t.scope != tool.LaneNode && !t.h.presence.Joined() {
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s has not found the registry: without JetStream it cannot grant lanes of a session or of the mesh", t.h.node))
	}
	if len(call.lanes) > maxLanes {
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "header %s has %d bytes, at most %d are possible", codec.HeaderLanes, len(call.lanes), maxLanes))
	}
	running := call.running
	began, use, parked := time.Now(), new(codec.LaneUse), false
	above := ctx
	ctx, stop := context.WithCancelCause(above)
	defer stop(nil)
	ask := grants.Ask{
		Scope: t.scope, Session: call.Session, RPCID: call.RPCID, Tool: call.Tool, Rule: t.rule.Text(), Key: key, Above: strings.FieldsFunc(call.lanes, func(c rune) bool { return c == ',' }),
		Wait: func() { parked = t.h.calls.Park(running) },
		Lost: func(why *toolmesh.Error) { stop(why) },
	}
	turn, bad := t.h.lanes.Take(ctx, ask)
	if use.Wait = time.Since(began); parked {
		t.h.calls.Unpark(running)
	}
	if bad == nil {
		use.Fence = turn.Fence()
	}
	running.Value.lane.Store(use)
	if bad != nil {
		return bad
	}
	defer turn.Release()
	if call.Deserted() {
		return admit.Refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "the call did not begin: its caller is gone"))
	}
	mine := *call
	mine.Lane, mine.lanes = turn, strings.TrimPrefix(call.lanes+","+turn.ID(), ",")
	lineage := mine.below()
	err := t.Handler.ServeTool(&turnContext{ctx, above, &lineage, turn}, &mine, sink)
	lost, ok := errors.AsType[*toolmesh.Error](context.Cause(ctx))
	if err == nil || !ok || lost.Details["reason"] != grants.ReasonLost {
		return err
	}
	if known, ok := errors.AsType[*toolmesh.Error](err); ok && known.Started == toolmesh.StartedNo {
		lost = lost.WithStarted(toolmesh.StartedNo)
	}
	return lost
}

// turnContext is the context of a call that holds a lane: calls made under it carry the lane.
type turnContext struct {
	context.Context
	call    context.Context // which knows why it ended
	lineage *client.Lineage
	turn    *grants.Grant
}

// Value implements [context.Context].
func (c *turnContext) Value(key any) any {
	switch key.(type) {
	case fenceKey:
		return c.turn
	case client.LineageKey:
		c.Context.Value(key) // notes that the tool makes calls
		return c.lineage
	}
	return c.Context.Value(key)
}

// Err implements [context.Context].
func (c *turnContext) Err() error {
	if err := c.call.Err(); err != nil {
		return err
	}
	return c.Context.Err()
}

// Fence returns a number greater than that of each earlier holder of the call's lane of the
// session or the mesh. A store that refuses smaller numbers than it has seen cannot be changed by
// a call that has lost its lane and does not know it yet. ctx is the function's context; 0 is a
// call without a lane.
func Fence(ctx context.Context) uint64 {
	turn, _ := ctx.Value(fenceKey{}).(*grants.Grant)
	if turn == nil {
		return 0
	}
	return turn.Fence()
}

type fenceKey struct{}

// laneAsked serves a message on the node's subject of lanes.
func (h *Host) laneAsked(m *nats.Msg) {
	s, err := subjects.Parse(m.Subject)
	if err != nil || m.Reply != "" && !h.bus.MayAnswer(m, s.Session) {
		h.counts.refusedReplies.Add(1)
		return
	}
	h.lanes.Serve(s, m)
}
