package host

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/batch"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// ServeBatches makes the node run batches, and pass on calls that it has no slot for. view and
// store say which calls must not overlap, and c makes the calls that other nodes serve. All three
// must outlive the host. Call it once, after [Host.Start]. The error is unavailable without a
// connection.
func (h *Host) ServeBatches(ctx context.Context, view *registry.View, store *registry.Store, c *client.Client) error {
	s := batch.New(batch.Options{
		Node: &h.intake.streams.Node, Identity: h.identity, Bus: h.bus, Client: c,
		View: view, Records: store, Host: batchHost{h}, Replies: h.replies,
	})
	if err := h.subscribeBatches(s, c); err != nil {
		return err
	}
	if err := h.presence.Update(ctx, func(r *registry.NodeRecord) { r.Features = h.features() }); err != nil {
		h.log.Warn("the lease does not announce yet that the node runs batches", slog.String("error", err.Error()))
	}
	return h.publisher.flush(ctx)
}

func (h *Host) subscribeBatches(s *batch.Server, c *client.Client) error {
	h.publisher.mu.Lock()
	defer h.publisher.mu.Unlock()
	if err := h.publisher.ended(); err != nil || h.publisher.state != stateServing {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the host does not serve")
	}
	if len(h.directed) > 1 {
		return nil // a call before this one subscribed them, and failed later
	}
	h.intake.batches.Store(s)
	h.relay.Store(c)
	all, err := h.bus.Conn().ChanQueueSubscribe(subjects.AllBatches, subjects.QueueGroup, h.listeners.requests)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "subscribe %s: %w", subjects.AllBatches, err)
	}
	h.publisher.subs[all] = struct{}{}
	own, err := h.subscribeRequests(h.own(subjects.NodeBatches), nil)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "subscribe the node's batches: %w", err)
	}
	h.directed = append(h.directed, own)
	return nil
}

// features returns the abilities that the node's lease announces.
func (h *Host) features() []string {
	all := codec.Features()
	if h.intake.batches.Load() != nil {
		all = append(all, codec.FeatureBatch)
	}
	return all
}

// batchHost is the host as its batches see it.
type batchHost struct{ *Host }

func (h batchHost) Load(session subjects.SessionID, ref *codec.Ref) (body []byte, free func(), bad *toolmesh.Error) {
	body, err := h.payloads.Load(h.base, session, ref, func(size int64) error {
		if free, bad = h.Hold(session, size); bad != nil {
			return bad
		}
		return nil
	})
	if err == nil {
		return body, free, nil
	}
	if free != nil {
		free()
	}
	return nil, nil, admit.Refusal(err).WithStarted(toolmesh.StartedNo)
}

func (h batchHost) Hold(session subjects.SessionID, size int64) (free func(), bad *toolmesh.Error) {
	if size <= smallArgs {
		return func() {}, nil
	}
	account := h.sessions.Account(session)
	if !h.runner.args.Take(account, size) {
		return nil, h.runner.noRoom(account)
	}
	return func() { h.runner.args.Give(account, size) }, nil
}

func (h batchHost) Late(req *codec.Request) *toolmesh.Error {
	if bad := h.intake.foreign(req, h.intake.catchUp(req)); bad != nil {
		return bad
	}
	return h.intake.late(req)
}

func (h batchHost) Served(session subjects.SessionID, id subjects.ToolID) *tool.Descriptor {
	if t := h.routes.find(session, id); t != nil {
		return t.descriptor
	}
	return nil
}

// Here implements [batch.Host]: the call goes the way of a request, without one.
func (h batchHost) Here(ctx context.Context, s subjects.Subject, req *codec.Request, done func(admit.Record)) bool {
	if !h.presence.Certain() {
		return false
	}
	c, r := h.intake.find(&s, req, "", time.Now(), nil)
	if c.tool == nil || c.tool.withdrawn.Load() {
		return false
	}
	c.Local, c.Form = true, done
	if call := h.intake.admit(c, r, h.intake.check(c, true, false)); call != nil {
		stop := context.AfterFunc(ctx, func() { c.End(toolmesh.AsError(context.Cause(ctx)).WithStarted(toolmesh.StartedYes)) })
		h.runner.run(call)
		stop()
	}
	return true
}
