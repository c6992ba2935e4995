package host

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/host/batch"
	"github.com/toolmesh/toolmesh/host/quota"
	"github.com/toolmesh/toolmesh/host/retry"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// ServeBatches has the node run batches, and pass on calls that it has no slot for: what view and store know of tools says which
// calls must not overlap, and c makes those that other nodes serve. All three must
// outlive the host. It is called once, after [Host.Start]; the error is unavailable
// without a connection.
func (h *Host) ServeBatches(ctx context.Context, view *registry.View, store *registry.Store, c *client.Client) error {
	own, err := subjects.NodeBatches(h.node)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	s := batch.New(batch.Options{
		Node: h.node, Identity: h.identity, Base: h.base, Bus: h.bus, Client: c,
		View: batchView{view, store, h}, Host: batchHost{h}, Log: h.log,
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateServing {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the host does not serve")
	}
	h.batches.Store(s)
	h.relay.Store(c)
	nc := h.bus.Conn()
	if h.batchSub, err = nc.ChanQueueSubscribe(subjects.AllBatches, subjects.QueueGroup, h.intake.requests); err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s cannot be subscribed: %w", subjects.AllBatches, err)
	}
	if h.batchOwn, err = nc.ChanSubscribe(own, h.intake.requests); err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s cannot be subscribed: %w", own, err)
	}
	if err := h.presence.Update(ctx, func(r *registry.NodeRecord) { r.Features = h.features() }); err != nil {
		h.log.Warn("the lease does not say yet that the node runs batches", slog.String("error", err.Error()))
	}
	return h.flush(ctx)
}

// features is what the node's lease says that it can do.
func (h *Host) features() []string {
	all := codec.Features()
	if h.batches.Load() != nil {
		all = append(all, batch.Feature)
	}
	return all
}

// batchHost is the host as its batches see it.
type batchHost struct{ *Host }

func (h batchHost) Send(m *nats.Msg) bool { return h.sendMsg(m) }

func (h batchHost) Keep(session subjects.SessionID, value []byte) (*codec.Ref, *toolmesh.Error) {
	return h.keep(session, value)
}

func (h batchHost) Load(session subjects.SessionID, ref *codec.Ref) ([]byte, *toolmesh.Error) {
	body, err := h.payloads.Load(h.base, session, ref)
	if err != nil {
		return nil, refusal(err).WithStarted(toolmesh.StartedNo)
	}
	return body, nil
}

func (h batchHost) Late(req *codec.Request) *toolmesh.Error {
	if bad := h.foreign(req, h.catchUp(req)); bad != nil {
		return bad
	}
	return h.late(req)
}

func (h batchHost) Account(session subjects.SessionID) subjects.SessionID {
	epoch, _ := h.known(session, false)
	return quota.Account(session, epoch)
}

// Here implements [batch.Host]: the call goes the way of a request, without one.
func (h batchHost) Here(ctx context.Context, s subjects.Subject, req *codec.Request, done func(admit.Record)) bool {
	return h.begin(ctx, s, req, nil, done)
}

func (h batchHost) begin(ctx context.Context, s subjects.Subject, req *codec.Request, progress func(codec.Progress), done func(admit.Record)) bool {
	if !h.presence.Certain() {
		return false
	}
	c, r := h.find(&s, req, "", time.Now(), nil)
	if c.tool == nil || c.tool.withdrawn.Load() {
		return false
	}
	c.Local, c.Progress = done, progress
	if call := h.admit(c, r, h.check(c, true, false)); call != nil {
		stop := context.AfterFunc(ctx, func() { c.End(toolmesh.AsError(context.Cause(ctx)).WithStarted(toolmesh.StartedYes)) })
		h.run(call)
		stop()
	}
	return true
}

// CallHere makes a unary call of a tool that this host serves as if a request for it had
// come, without one. mine is false where the tool is not served here, or there is no room.
// When ctx ends so does the call, unless the cause is [client.ErrLeft]. progress is told
// once a second at most how far the call is, and must not block.
func (h *Host) CallHere(ctx context.Context, call *codec.Call, args json.RawMessage, progress func(codec.Progress)) (result *client.Result, mine bool, err error) {
	if call.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, call.Timeout)
		defer cancel()
	}
	wire, err := subjects.WireTool(call.Tool)
	if err != nil || h.routes.find(call.Session, wire) == nil {
		return nil, false, nil //nolint:nilerr // the client says what is wrong
	}
	subject := subjects.Subject{Kind: subjects.KindTool, Session: subjects.WireName(call.Session), Tool: wire}
	req, bad := codec.ParseRequest(subject, call.Header(), args)
	if bad != nil {
		return nil, true, bad
	}
	began := time.Now()
	ended := make(chan admit.Record, 1)
	stays, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), client.ErrLeft) {
			stop(context.Cause(ctx))
			// It may have joined one that does not end with ctx.
			h.cancel(admit.Key{Session: subject.Session, RPC: subjects.WireName(call.RPCID)}, toolmesh.AsError(context.Cause(ctx)).WithStarted(toolmesh.StartedYes))
		}
	})()
	if !h.here.try(func() {
		if !(batchHost{h}).begin(stays, subject, req, progress, func(r admit.Record) { ended <- r }) {
			ended <- admit.Record{Err: errNotHere}
		}
	}) {
		return nil, false, nil
	}
	select {
	case r := <-ended:
		switch {
		case r.Err == errNotHere, r.Err != nil && retry.Full(r.Err): //nolint:errorlint // our own value, unwrapped
			return nil, false, nil
		case r.Err != nil:
			return nil, true, r.Err
		}
		return &client.Result{RPCID: call.RPCID, Value: r.Result, Node: h.node, Boot: h.boot, Took: time.Since(began)}, true, nil
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), client.ErrLeft) {
			return nil, true, client.ErrLeft
		}
	}
	r := <-ended // it ends with ctx
	if r.Err != nil {
		return nil, true, r.Err
	}
	return &client.Result{RPCID: call.RPCID, Value: r.Result, Node: h.node, Boot: h.boot, Took: time.Since(began)}, true, nil
}

// errNotHere says that a call is not this node's.
var errNotHere = toolmesh.Errorf(toolmesh.CodeUnavailable, "the tool is not served here")

// batchView is what the registry knows, as batches see it. Of its own tools the host
// knows more than the registry, and sooner.
type batchView struct {
	*registry.View
	store *registry.Store
	host  *Host
}

// Owner implements [batch.View].
func (v batchView) Owner(session subjects.SessionID, id subjects.RPCID, first subjects.ToolID) (subjects.NodeID, bool) {
	route, _ := v.Route(session, first)
	return v.View.Owner(batch.Feature, route.Nodes, string(session), string(id))
}

// mostNames is of how many tools, called by less than their ids, one batch is told what
// they are: finding them takes a look at all.
const mostNames = 64

// Descriptors implements [batch.View].
func (v batchView) Descriptors(ctx context.Context, session subjects.SessionID, names []subjects.ToolID) map[subjects.ToolID]*tool.Descriptor {
	all := make(map[subjects.ToolID]*tool.Descriptor)
	digests := make(map[subjects.ToolID]string)
	short := 0
	for _, name := range names {
		if _, asked := digests[name]; asked || all[name] != nil {
			continue
		}
		if t := v.host.routes.find(session, name); t != nil {
			all[name] = t.descriptor
			continue
		}
		route, ok := v.Route(session, name)
		if !ok && short < mostNames {
			short++
			route, ok = v.Named(session, string(name))
		}
		digests[name] = "" // asked
		if ok {
			digests[name] = route.Digest
		}
	}
	var missing []string
	for _, digest := range digests {
		if digest != "" && !slices.Contains(missing, digest) {
			missing = append(missing, digest)
		}
	}
	found, err := v.store.Descriptors(ctx, missing)
	if err != nil {
		v.host.log.Warn("a batch runs its calls one after the other: what their tools are cannot be read", slog.String("error", err.Error()))
	}
	for name, digest := range digests {
		if d := found[digest]; d != nil {
			all[name] = d
		}
	}
	return all
}
