package host

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/batch"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/internal/bus"
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
		Node: h.node, Identity: h.identity, Base: h.base, Bus: h.bus, Client: c,
		View: batchView{view, store, h}, Host: batchHost{h, h.replies}, Log: h.log,
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
type batchHost struct {
	*Host
	*reply.Replies
}

func (h batchHost) Load(session subjects.SessionID, ref *codec.Ref) (body []byte, room batch.Room, bad *toolmesh.Error) {
	body, err := h.payloads.Load(h.base, session, ref, func(size int64) error {
		if room, bad = h.Hold(session, size); bad != nil {
			return bad
		}
		return nil
	})
	if err != nil {
		room.Free()
		return nil, batch.Room{}, admit.Refusal(err).WithStarted(toolmesh.StartedNo)
	}
	return body, room, nil
}

func (h batchHost) Hold(session subjects.SessionID, size int64) (batch.Room, *toolmesh.Error) {
	if size <= smallArgs {
		return batch.Room{}, nil
	}
	account := h.sessions.Account(session)
	if !h.runner.args.Take(account, size) {
		return batch.Room{}, h.runner.noRoom(account)
	}
	return batch.Room{Give: func() { h.runner.args.Give(account, size) }}, nil
}

func (h batchHost) Late(req *codec.Request) *toolmesh.Error {
	if bad := h.intake.foreign(req, h.intake.catchUp(req)); bad != nil {
		return bad
	}
	return h.intake.late(req)
}

func (h batchHost) Account(session subjects.SessionID) subjects.SessionID {
	return h.sessions.Account(session)
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
	c.Local = done
	if call := h.intake.admit(c, r, h.intake.check(c, true, false)); call != nil {
		stop := context.AfterFunc(ctx, func() { c.End(toolmesh.AsError(context.Cause(ctx)).WithStarted(toolmesh.StartedYes)) })
		h.runner.run(call)
		stop()
	}
	return true
}

// batchView gives batches the registry's view. The host's own tools are in it before the registry
// has them.
type batchView struct {
	*registry.View
	store *registry.Store
	host  *Host
}

// Owner implements [batch.View].
func (v batchView) Owner(session subjects.SessionID, id subjects.RPCID, first subjects.ToolID) *bus.Peer {
	route, _ := v.Route(session, first)
	owner, ok := v.View.Owner(codec.FeatureBatch, route.Nodes, string(session), string(id))
	if !ok || owner.Node == v.host.node {
		return nil
	}
	return v.host.bus.Listed(owner.Node, owner.Boot)
}

// mostNames bounds the tools per batch that are described if calls name them by less than their
// ids: each one needs a search of the whole view.
const mostNames = 64

// Descriptors implements [batch.View].
func (v batchView) Descriptors(ctx context.Context, session subjects.SessionID, names []subjects.ToolID) map[subjects.ToolID]*tool.Descriptor {
	all := make(map[subjects.ToolID]*tool.Descriptor)
	digests := make(map[subjects.ToolID]string)
	short := 0
	for _, name := range names {
		if t := v.host.routes.find(session, name); t != nil {
			all[name] = t.descriptor
			continue
		}
		route, ok := v.Route(session, name)
		if !ok && short < mostNames {
			short++
			route, ok = v.Named(session, string(name))
		}
		if ok {
			digests[name] = route.Digest
		}
	}
	found, err := v.store.Descriptors(ctx, slices.Collect(maps.Values(digests)))
	if err != nil {
		v.host.log.Warn("a batch runs its calls one after the other: its tools could not be looked up", slog.String("error", err.Error()))
	}
	for name, digest := range digests {
		if d := found[digest]; d != nil {
			all[name] = d
		}
	}
	return all
}
