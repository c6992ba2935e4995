package host

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// Times of a drain.
const (
	drainBeats = 2 * presence.BeatEvery // directed requests are refused for at least this long,
	drainQuiet = time.Second            // and until so long without one,
	drainMost  = 10 * time.Second       // but no longer than this
	drainRest  = 3 * time.Second        // for replays, at the end
	// stopGrace is how long handlers may take to return once they are told to stop.
	stopGrace = 5 * time.Second
	// sessionEvery is how often a call that goes on, and what is served in a session, looks
	// whether its session goes on.
	sessionEvery = time.Second
)

// tick is the node's clock: keepalives, limits that no timer of their own watches,
// and forgetting.
func (h *Host) tick() {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	defer h.ticked.Store(nil)
	began := time.Now()
	h.ticked.Store(&began)
	swept := began
	for {
		select {
		case <-h.quit:
			return
		case now := <-ticker.C:
			h.ticked.Store(&now)
			if now.Sub(swept) >= sweepEvery-tickEvery/2 {
				swept = now
				h.calls.Sweep()
				if batches := h.batches.Load(); batches != nil {
					batches.Sweep()
				}
				h.intake.adapt()
				h.streams.Quota.Sweep()
				h.cache.Sweep(h.sessions.Seen)
				h.sweepRoutes(now)
				h.payloads.Sweep(now)
				h.deleteSpent()
				h.dropChunks()
				h.keys.Tick()
			}
			for _, call := range h.calls.Running() {
				h.tend(call.Value, now)
			}
			if batches := h.batches.Load(); batches != nil {
				batches.Tick(now)
			}
			h.lanes.Tick(now)
			h.replies.Tick(now)
		}
	}
}

// tend looks after one call in flight.
func (h *Host) tend(c *inflight, now time.Time) {
	h.followSession(c, now)
	s := c.readers.Stream()
	if s != nil {
		s.Tick(now)
	}
	overdue := !c.deadline.IsZero() && now.Sub(c.deadline) > overdueGrace
	if at := c.ending.Load(); at != 0 && bus.Mono(now)-at > int64(overdueGrace) {
		overdue = true
	}
	if overdue {
		// The handler does not return; it keeps its slot until it does, but its
		// callers need not wait for that.
		record := admit.Record{Err: c.why().WithOrigin(toolmesh.OriginAgent)}
		first := false
		if s != nil {
			first = s.Leave(record.Err)
			if final := s.Final(); final != nil {
				c.readers.End(*final)
			}
		} else {
			if c.Claim() {
				first = true
				h.replies.AnswerNow(&c.Reader, record)
			}
			c.readers.End(record)
		}
		if first {
			h.log.Warn("handler does not return", slog.String("rpc_id", string(c.Request.RPCID)), slog.String("tool", string(c.Request.Tool)))
		}
		return
	}
	c.readers.KeepAlive(now)
}

// followSession ends a call whose session has ended: that is promised of what the
// session runs. A call that came before the news of its session's creation belongs to the
// session that is seen while it runs. The ticker calls it.
func (h *Host) followSession(c *inflight, now time.Time) {
	session := c.Request.Session
	if c.unsettled.Load() {
		return
	}
	if c.follows == "" {
		if c.follows = c.epoch; c.follows == "" && session != subjects.DefaultSession {
			c.follows, _ = h.sessions.Admit(session)
		}
	}
	if c.follows == "" || c.ending.Load() != 0 || now.Sub(c.looked) < sessionEvery || now.Sub(c.Start) < sessionEvery {
		return
	}
	c.looked = now
	if h.sessions.Seen(session, c.follows) {
		return
	}
	epoch := c.follows
	h.running.run(func() {
		if h.sessions.Over(session, epoch) {
			c.End(errSessionOver)
		}
	})
}

// Drain takes the node out of service without losing a call: it says so in
// heartbeat and lease, drains the tools' subscriptions, and goes on refusing
// directed requests until none comes any more. Calls in flight run on. It may be
// called more than once; every call waits for the one drain.
func (h *Host) Drain(ctx context.Context) error {
	h.drainOnce.Do(func() {
		h.draining.Store(true)
		h.drainErr = h.drain(ctx)
		close(h.drained)
	})
	<-h.drained
	return h.drainErr
}

func (h *Host) drain(ctx context.Context) error {
	h.mu.Lock()
	serving := h.state != stateNew
	subs := slices.Collect(maps.Keys(h.subs))
	if batches := h.batches.Load(); batches != nil {
		batches.Drain()
		subs = append(subs, h.batchSub)
	}
	h.mu.Unlock()
	if !serving {
		return nil
	}
	if h.presence.Taken() {
		return h.bus.Drain(ctx, subs...) // nobody is to hear of a drain of the process that is the node now
	}
	began := time.Now()
	h.lastDirected.Store(bus.Mono(began))
	h.presence.State(ctx, h.nodeState())
	h.leaveHomes(ctx, serviceKey{})
	h.log.Info("draining", slog.Int("in_flight", h.calls.InFlight()))
	err := h.bus.Drain(ctx, subs...)
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		now := time.Now()
		quiet := now.Sub(bus.MonoTime(h.lastDirected.Load()))
		if now.Sub(began) >= drainMost || now.Sub(began) >= drainBeats && quiet >= drainQuiet {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// Stop drains the node, lets its calls end, and takes it out of the registry.
// When ctx ends first, the calls that still run are stopped: their callers are
// answered unavailable. It may be called more than once; every call waits.
func (h *Host) Stop(ctx context.Context) error {
	h.stopOnce.Do(func() { h.stopErr = h.shut(ctx) })
	return h.stopErr
}

func (h *Host) shut(ctx context.Context) error {
	h.mu.Lock()
	serving := h.state == stateServing
	h.state = stateStopped
	h.mu.Unlock()
	if !serving {
		h.running.close()
		h.end(nil)
		if h.ownBus {
			h.bus.Close()
		}
		return nil
	}
	err := h.Drain(ctx)
	if h.directed != nil {
		err = errors.Join(err, h.bus.Drain(ctx, h.directed))
	}
	if h.batchOwn != nil {
		err = errors.Join(err, h.bus.Drain(ctx, h.batchOwn))
	}
	h.intake.close()
	ended := make(chan struct{})
	go func() { // ends with the calls, which the next lines see to
		h.intake.wg.Wait()
		if batches := h.batches.Load(); batches != nil {
			batches.Wait()
		}
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		h.endCalls(errStopping)
		timer := time.NewTimer(stopGrace)
		select {
		case <-ended:
		case <-timer.C:
			err = errors.Join(err, toolmesh.Errorf(toolmesh.CodeInternal, "%d handlers did not return within %v of being told to", h.calls.InFlight(), stopGrace))
		}
		timer.Stop()
	}
	// Calls need the replays until their end; now another node may answer them.
	if h.replaySub != nil {
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainRest)
		err = errors.Join(err, h.bus.Drain(rest, h.replaySub, h.payloadSub))
		cancel()
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainRest)
	h.lanes.Leave(leave)
	cancel()
	h.payloads.Close()
	h.deleteSpent()
	close(h.quit)
	h.workers.Wait()
	h.running.close()
	h.end(nil)
	h.running.wg.Wait()
	h.unlisten()
	h.presence.Stop(context.WithoutCancel(ctx))
	h.sessions.Close()
	h.mu.Lock()
	h.closeSubscriptions()
	h.mu.Unlock()
	if h.bus.Connected() {
		within := 2 * time.Second
		if ctx.Err() != nil { // perhaps because nothing answers
			within = 500 * time.Millisecond
		}
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
		defer cancel()
		_ = h.bus.Ping(flush) // the last replies leave before the connection may be closed
	}
	if h.ownBus {
		h.bus.Close()
	}
	return err
}

// closeSubscriptions ends what Start and publishing subscribed; h.mu is held.
func (h *Host) closeSubscriptions() {
	if h.micro != nil {
		h.micro.Stop()
		h.micro = nil
	}
	for _, sub := range h.shared {
		_ = sub.Unsubscribe()
	}
	h.shared = nil
	for _, sub := range []*nats.Subscription{h.directed, h.replaySub, h.payloadSub, h.batchSub, h.batchOwn} {
		if sub != nil {
			_ = sub.Unsubscribe()
		}
	}
	h.directed, h.replaySub, h.payloadSub, h.batchSub, h.batchOwn = nil, nil, nil, nil, nil
	for sub := range h.subs {
		_ = sub.Unsubscribe()
	}
	clear(h.subs)
}
