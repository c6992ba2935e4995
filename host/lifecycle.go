package host

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/internal/bus"
)

// Times of a drain.
const (
	drainBeats = 2 * presence.BeatEvery // directed requests are refused for at least this long,
	drainQuiet = time.Second            // and until so long without one,
	drainMost  = 10 * time.Second       // the max
	drainRest  = 3 * time.Second        // for replays, at the end
	// stopGrace is how long handlers may take to return once they are told to stop.
	stopGrace = 5 * time.Second
	// sessionEvery is the interval at which running calls and services of a session check that
	// the session still exists.
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
				if batches := h.intake.batches.Load(); batches != nil {
					batches.Sweep()
				}
				h.intake.streams.Quota.Sweep()
				h.cache.Sweep(h.sessions.Seen)
				h.payloads.Sweep(now)
				h.intake.streams.dropChunks()
				h.runner.keys.Tick()
			}
			for _, call := range h.calls.Running() {
				h.runner.tend(call.Value, now)
			}
			if batches := h.intake.batches.Load(); batches != nil {
				batches.Tick(now)
			}
			h.lanes.Tick(now)
			h.replies.Tick(now)
		}
	}
}

// Drain takes the node out of service without losing a call: it announces that in heartbeat and
// lease, drains the tools' subscriptions, and refuses directed requests until no more come. Calls
// in flight run to their end. It may be called more than once; every call waits for the one
// drain.
func (h *Host) Drain(ctx context.Context) error {
	h.drainOnce.Do(func() {
		h.draining.Store(true)
		h.drainErr = h.drain(ctx)
	})
	return h.drainErr
}

func (h *Host) drain(ctx context.Context) error {
	h.publisher.mu.Lock()
	serving := h.publisher.state != stateNew
	subs := slices.Collect(maps.Keys(h.publisher.subs))
	if batches := h.intake.batches.Load(); batches != nil {
		batches.Drain()
	}
	h.publisher.mu.Unlock()
	if !serving {
		return nil
	}
	if h.presence.Taken() {
		return h.bus.Drain(ctx, subs...) // the process that is the node now does not drain
	}
	began := time.Now()
	h.intake.lastDirected.Store(bus.Mono(began))
	h.presence.State(ctx, h.nodeState())
	h.publisher.leaveHomes(ctx, serviceKey{})
	h.log.Info("draining", slog.Int("in_flight", h.calls.InFlight()))
	err := h.bus.Drain(ctx, subs...)
	if h.opts.Last {
		return err
	}
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		now := time.Now()
		quiet := now.Sub(bus.MonoTime(h.intake.lastDirected.Load()))
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
	h.publisher.mu.Lock()
	serving := h.publisher.state == stateServing
	h.publisher.state = stateStopped
	h.publisher.mu.Unlock()
	if !serving {
		h.background.close()
		h.end(nil)
		if h.ownBus {
			h.bus.Close()
		}
		return nil
	}
	err := errors.Join(h.Drain(ctx), h.bus.Drain(ctx, h.directed...))
	h.listeners.close()
	ended := make(chan struct{})
	go func() { // ends with the calls, which the next lines see to
		h.listeners.wg.Wait()
		if batches := h.intake.batches.Load(); batches != nil {
			batches.Wait()
		}
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		h.runner.endCalls(errStopping)
		timer := time.NewTimer(stopGrace)
		select {
		case <-ended:
		case <-timer.C:
			err = errors.Join(err, toolmesh.Errorf(toolmesh.CodeInternal, "%d handlers did not return within %v of being told to", h.calls.InFlight(), stopGrace))
		}
		timer.Stop()
	}
	// Calls need the replays until their end; now another node may answer them.
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainRest)
	err = errors.Join(err, h.bus.Drain(rest, h.stored...))
	cancel()
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainRest)
	h.lanes.Leave(leave)
	cancel()
	h.payloads.Close()
	close(h.quit)
	h.workers.Wait()
	h.background.close()
	h.end(nil)
	h.background.wg.Wait()
	h.unlisten()
	h.presence.Stop(context.WithoutCancel(ctx))
	h.sessions.Close()
	h.publisher.mu.Lock()
	h.closeSubscriptions()
	h.publisher.mu.Unlock()
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

// closeSubscriptions ends the subscriptions of Start and of publishing; h.publisher.mu is held.
func (h *Host) closeSubscriptions() {
	if h.micro != nil {
		h.micro.Stop()
		h.micro = nil
	}
	all := slices.Concat(h.shared, h.directed, h.stored, slices.Collect(maps.Keys(h.publisher.subs)))
	for _, sub := range all {
		_ = sub.Unsubscribe()
	}
	h.shared, h.directed, h.stored = nil, nil, nil
	clear(h.publisher.subs)
}
