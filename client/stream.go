package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// So many items, or about so many bytes, may be on their way to a reader.
	mostCredit  = 512
	firstCredit = 128 // while the size of the items is not known
	leastCredit = 8
	creditBytes = 4 << 20
	creditEvery = 2 * time.Second
	// gapWait is how long live delivery may take to fill a gap by itself; it
	// doubles, up to gapMost, while the store has nothing new either.
	gapWait = 30 * time.Millisecond
	gapMost = time.Second
	// maxFruitless is how often in a row the store may have nothing of a stream
	// that is known to be there.
	maxFruitless = 8
	// quietWait is how long a stream may say nothing before the store is asked:
	// a little more than the second between two keepalives.
	quietWait = 1250 * time.Millisecond
	// replayWait is how long a replay may say nothing, restWait likewise once the
	// stream's node is lost: its end is waited for already, and the answer may have
	// been its to give.
	replayWait = 5 * time.Second
	restWait   = 200 * time.Millisecond
	restTries  = 2
	// storedWait bounds the time for one answer about a stream that has ended: nothing else is late by it.
	storedWait = 2 * time.Second
	// endWait is how long a joined stream brings nothing before its node is asked whether it has ended.
	endWait = 5 * time.Second
)

// streamAway is how long a stream waits for its own connection. Its node ends it after 10 s
// without its reader: a longer wait could only yield items that are stored by then.
var streamAway = time.Minute

// Chunk is one item of a stream.
type Chunk struct {
	Seq  int64 // from 1
	Data json.RawMessage
}

// Decode reads the item into v, as json.Unmarshal does.
func (c *Chunk) Decode(v any) error { return json.Unmarshal(c.Data, v) }

// Stream calls a tool and yields its items in order, each once. An error ends the stream and is
// the last yield. Leaving the loop, or the end of ctx, cancels the call; with [ErrLeft] as the
// cause of that end the stream goes on for 10 s, in which [Client.Follow] may take it up. Ranging
// over it again is another call, unless WithRPCID names it: then it is the same call, from its
// first item. A slow reader slows the tool down; no buffer grows. After a lost connection the
// stream continues at the next item, if the connection is back within a minute.
func (c *Client) Stream(ctx context.Context, id subjects.ToolID, args any, opts ...CallOption) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		s, body, err := c.prepare(ctx, id, args, opts, "rpc_stream_")
		if err != nil {
			yield(Chunk{}, err)
			return
		}
		whole := false
		defer func() {
			if !whole {
				c.release(s)
			}
		}()
		ctx, stop := s.bound(ctx)
		defer stop()
		err = c.attempts(ctx, id, s, func(t target) error {
			return newReader(yield).run(ctx, c, t, s, body)
		})
		if whole = err == nil; !whole && !errors.Is(err, errStopped) {
			yield(Chunk{}, err)
		}
	}
}

// errStopped ends a stream whose reader broke out of the loop.
var errStopped = toolmesh.Errorf(toolmesh.CodeCancelled, "the reader stopped").WithStarted(toolmesh.StartedYes)

// reader is one stream on its way.
type reader struct {
	p      *attempt
	yield  func(Chunk, error) bool
	signal chan struct{} // capacity 1: something arrived

	mu      sync.Mutex
	order   *chunks.Order
	arrived time.Time // when a chunk last did
	bad     error
	taken   int64 // items yielded
	bytes   int64 // of them
	high    codec.High

	// The stream's goroutine only.
	acked     bool
	joined    bool      // another caller began the stream
	looked    time.Time // when its node was last asked whether it has ended; of a joined one
	endless   bool      // it had ended then, and the store had no end
	granted   int64
	fruitless int
	away      time.Time // since when its own connection is lost; zero: it is not
	asking    *replay   // nil: the store is not being asked
}

func newReader(yield func(Chunk, error) bool) *reader {
	return &reader{order: chunks.NewOrder(1), signal: make(chan struct{}, 1), yield: yield}
}

// begun reports whether the stream is known to run, or to have run.
func (r *reader) begun() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked || !r.arrived.IsZero()
}

// subscribe subscribes to the stream's chunks as they are stored.
func (r *reader) subscribe() (*nats.Subscription, error) {
	live, err := subjects.Live(r.p.s.Session, r.p.s.RPCID)
	if err != nil {
		return nil, callerError(toolmesh.CodeInvalidRequest, "%w", err)
	}
	sub, err := r.p.c.bus.Conn().Subscribe(live, r.live)
	if err != nil {
		return nil, callerError(toolmesh.CodeUnavailable, "the stream's chunks cannot be subscribed: %w", err)
	}
	return sub, nil
}

// live takes a chunk from the subscription.
func (r *reader) live(m *nats.Msg) {
	c, err := codec.ParseChunk(codec.Header(m.Header), m.Data)
	r.mu.Lock()
	if err != nil {
		r.bad = err
	} else {
		r.order.Add(c)
	}
	r.arrived = time.Now()
	r.mu.Unlock()
	wake.Up(r.signal)
}

// run makes one attempt at a stream. After the first item, or once the stream
// is known to run, its error is final: another attempt would begin anew.
func (r *reader) run(ctx context.Context, c *Client, t target, s *settings, body []byte) error {
	if ctx.Err() != nil {
		return ended(ctx, toolmesh.StartedNo)
	}
	p, err := c.begin(t, s)
	if err != nil {
		return err
	}
	r.p = p
	defer p.Close()
	r.granted = firstCredit
	msg, err := p.request(ctx, t, codec.DeliverLive, firstCredit, body)
	if err != nil {
		return asCall(ctx, err)
	}
	sub, err := r.subscribe()
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := p.Send(msg, t.node); err != nil {
		return err
	}
	stop := r.keepCredit(ctx)
	left := true // also by a panic of the loop's body, or the end of its goroutine
	defer func() {
		stop()
		r.abandonReplay()
		if left {
			p.Cancel()
		}
	}()
	err = r.read(ctx)
	left = err != nil && (errors.Is(err, errStopped) || ctx.Err() != nil) && !errors.Is(context.Cause(ctx), ErrLeft)
	if r.begun() && !r.acked && !s.queue {
		c.learn(s.Session, t.id) // its end was faster than the acknowledgement
	}
	if err == nil {
		return nil
	}
	if e := toolmesh.AsError(err); r.begun() && e.Started == toolmesh.StartedUnknown {
		err = e.WithStarted(toolmesh.StartedYes)
	}
	code := toolmesh.CodeOf(err)
	lost := code == toolmesh.CodeNodeLost || code == toolmesh.CodeWorkerCrashed
	if r.taken > 0 || r.begun() && !lost {
		return final{err}
	}
	return err
}

// keepCredit repeats the credit until stop is called, so that the node knows that the reader lives
// also while it thinks about an item.
func (r *reader) keepCredit(ctx context.Context) (stop func()) {
	var keeper sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	keeper.Go(func() {
		for wake.After(ctx, creditEvery) {
			r.sendCredit()
		}
	})
	return func() { cancel(); keeper.Wait() }
}

func (r *reader) sendCredit() {
	n := r.p.Peer().Name()
	if n == "" {
		return
	}
	r.mu.Lock()
	upTo := r.taken + r.window()
	r.mu.Unlock()
	r.p.Tell(n, codec.Encode(codec.Control{Type: codec.ControlCredit, Seq: upTo}))
}

// window is how many items may be on their way; r.mu is held.
func (r *reader) window() int64 {
	if r.taken == 0 {
		return firstCredit
	}
	return min(max(creditBytes/max(r.bytes/r.taken, 1), leastCredit), mostCredit)
}

// yieldAll yields the received items in order. done means that the stream has ended, with err or
// without.
func (r *reader) yieldAll(ctx context.Context) (done bool, err error) {
	for {
		r.mu.Lock()
		c, ok := r.order.Pop()
		bad := r.bad
		r.mu.Unlock()
		switch {
		case !ok:
			return bad != nil, bad
		case c.Type == codec.ChunkError:
			return true, c.Err
		case c.Type == codec.ChunkComplete:
			return true, nil
		}
		if c.Ref != nil { // it stays where it is until it expires, as the chunk does
			if c.Data, err = r.p.c.read(ctx, r.p.s.Session, r.p.Peer().Name(), c.Ref, r.p.s.admit); err != nil {
				return true, err
			}
		}
		if !r.yield(Chunk{Seq: c.Seq, Data: c.Data}, nil) {
			return true, errStopped
		}
		r.mu.Lock()
		r.taken = c.Seq
		r.bytes += int64(len(c.Data))
		window := r.window()
		r.mu.Unlock()
		if r.granted-c.Seq < window/2 {
			r.granted = c.Seq + window
			r.sendCredit()
		}
		if ctx.Err() != nil {
			return true, ended(ctx, toolmesh.StartedYes)
		}
	}
}

// read yields chunks until the stream ends.
func (r *reader) read(ctx context.Context) error {
	ticker := time.NewTicker(bus.LookEvery)
	defer ticker.Stop()
	var gap <-chan time.Time // fires when a gap has had its time
	wait := gapWait
	generation := r.p.c.bus.State().Generation
	lastReplay := r.p.Asked()
	var before int64
	for {
		if done, err := r.yieldAll(ctx); done {
			return err
		}
		if r.taken > before {
			before, gap, wait, r.fruitless = r.taken, nil, gapWait, 0
		}
		r.mu.Lock()
		r.order.Note(r.p.high.Load())
		missing := r.order.Gap() || r.acked && r.order.Next() == 1
		r.mu.Unlock()
		if missing && gap == nil {
			gap = time.After(wait)
			wait = min(2*wait, gapMost)
		}
		ask := false
		var answered <-chan error
		if r.asking != nil {
			answered = r.asking.done
		}
		select {
		case <-r.signal:
		case err := <-answered:
			r.settleReplay()
			if err != nil && toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
				return err
			}
			if r.fruitless >= maxFruitless {
				return toolmesh.Errorf(toolmesh.CodeStreamExpired, "items from %d on are no longer kept", r.taken+1).
					WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedYes)
			}
			lastReplay = time.Now()
		case a := <-r.p.Arrived():
			switch {
			case a.Err == nil:
				if done, err := r.replied(ctx, codec.ParseReply(codec.Header(a.Msg.Header), a.Msg.Data)); done {
					return err
				}
			case !r.begun():
				return a.Err
			default:
				return toolmesh.Errorf(toolmesh.CodeUnavailable, "the stream was cut off: %w", a.Err).WithOrigin(toolmesh.OriginCaller)
			}
		case <-ctx.Done():
			return ended(ctx, toolmesh.StartedUnknown)
		case <-gap:
			gap, ask = nil, true
		case <-ticker.C:
			if now := r.p.c.bus.State(); now.Generation != generation && now.Connected {
				generation, ask = now.Generation, true
				r.abandonReplay() // its answer went to the lost connection
			}
			if r.asking != nil && r.asking.silence() > replayWait {
				r.abandonReplay()
			}
			quiet := r.lastArrived(r.p.Asked())
			if quiet.Before(lastReplay) {
				quiet = lastReplay
			}
			if r.begun() && time.Since(r.p.LastSign(quiet)) > quietWait {
				ask = true
			}
			if done, err := r.checkNode(ctx); done {
				return err
			}
			if err := r.p.Resend(r.lastArrived(r.p.Asked())); err != nil {
				return err
			}
		}
		if ask && r.asking == nil && (r.begun() || r.p.Peer() != nil) {
			lastReplay = time.Now()
			if err := r.askStore(); err != nil && toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
				return err
			}
		}
	}
}

// lastArrived is when a chunk last arrived since a time, or else that time.
func (r *reader) lastArrived(since time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.arrived.Before(since) {
		return since
	}
	return r.arrived
}

// replied takes an answer on the reply subject: the acknowledgement, or an error that ends the
// stream. An error after the acknowledgement could not be stored; the stored items are yielded
// first. done means that the stream has ended, with err or without.
func (r *reader) replied(ctx context.Context, reply codec.Reply) (done bool, err error) {
	switch reply.Kind {
	case codec.ReplyNoResponders:
		return true, errNoResponders
	case codec.ReplyError:
		if r.acked {
			if done, err := r.rest(ctx, restWait); done {
				return true, err
			}
		}
		return true, reply.Err
	}
	if reply.Kind == codec.ReplyResult && reply.Node == "" { // a service that knows no streams
		if err := foreign(reply); err != nil {
			return true, err
		}
		if !r.yield(Chunk{Seq: 1, Data: reply.Body}, nil) {
			return true, errStopped
		}
		return true, nil
	}
	r.acked = true
	r.p.Answered(reply.Node, reply.Boot)
	if !r.p.s.queue {
		r.p.c.learn(r.p.s.Session, r.p.id)
	}
	return false, nil
}

// checkNode ends the stream when its node is lost, after the stored items if those are complete.
func (r *reader) checkNode(ctx context.Context) (done bool, err error) {
	lost := r.p.Look(ctx, r.lastArrived(r.p.Sent())) // sending again is no keepalive of the node
	switch {
	case lost == nil:
		r.away = time.Time{}
		return r.checkEnd(ctx)
	case toolmesh.CodeOf(lost) == toolmesh.CodeUnavailable && r.begun():
		// Our own connection: the stream goes on when it is back.
		if r.away.IsZero() {
			r.away = time.Now()
		}
		if time.Since(r.away) < streamAway {
			return false, nil
		}
		return true, toolmesh.Errorf(toolmesh.CodeUnavailable, "the stream has waited %v for its connection to the mesh, and ends after item %d: %w", streamAway, r.taken, lost).
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedYes)
	case toolmesh.CodeOf(lost) != toolmesh.CodeNodeLost || !r.begun():
		return true, lost
	}
	if done, err := r.rest(ctx, restWait); done {
		return true, err
	}
	return true, lost
}

// rest yields the stored items of a stream that no longer grows, and reports whether its end was
// among them. The store is asked twice, and may say nothing for as long as wait.
func (r *reader) rest(ctx context.Context, wait time.Duration) (done bool, err error) {
	r.abandonReplay()
	for tries := 0; tries < restTries; {
		if done, err := r.yieldAll(ctx); done {
			return true, err
		}
		before := r.taken
		if r.askStore() != nil {
			return false, nil
		}
		err, done := error(nil), false
		for !done && r.asking.silence() < wait {
			select {
			case err = <-r.asking.done:
				done = true
			case <-time.After(wait / 4):
			case <-ctx.Done():
				return true, ended(ctx, toolmesh.StartedYes)
			}
		}
		r.abandonReplay()
		switch {
		case toolmesh.CodeOf(err) == toolmesh.CodeStreamExpired:
			return true, err
		case err != nil:
			return false, nil
		}
		if done, err := r.yieldAll(ctx); done {
			return true, err
		}
		switch {
		case r.taken > before:
			tries = 0
		case done:
			return false, nil
		default:
			tries++
		}
	}
	return false, nil
}

// replay is one question for stored chunks that has no whole answer yet.
type replay struct {
	inbox *bus.Inbox
	from  int64
	done  chan error   // capacity 1: the answer is complete
	heard atomic.Int64 // when its last message came, as [bus.Mono]
}

func (p *replay) silence() time.Duration { return time.Since(bus.MonoTime(p.heard.Load())) }

func (r *reader) abandonReplay() {
	if r.asking != nil {
		r.asking.inbox.Close()
		r.asking = nil
	}
}

// settleReplay handles a complete answer.
func (r *reader) settleReplay() {
	r.mu.Lock()
	if r.order.Ready() || r.order.Next() > r.asking.from {
		r.fruitless = 0
	} else if r.high.Terminal || r.high.Seq == 0 && r.taken > 0 {
		// All of it was stored. A gap in a stream that has not ended yet is another case: its
		// node will send the missing item again.
		r.fruitless++
	}
	r.mu.Unlock()
	r.abandonReplay()
}

// askStore asks the store for a page of chunks, from the next item on. Later chunks show as a
// gap, and are asked for when the page has been read.
func (r *reader) askStore() error {
	subject, err := subjects.Subject{Kind: subjects.KindReplay, Session: r.p.s.Session, RPC: r.p.s.RPCID}.Build()
	if err != nil {
		return callerError(toolmesh.CodeInvalidRequest, "%w", err)
	}
	p := &replay{done: make(chan error, 1)}
	p.heard.Store(bus.Mono(time.Now()))
	r.mu.Lock()
	p.from = r.order.Next()
	r.high = codec.High{Seq: -1}
	r.mu.Unlock()
	p.inbox, err = r.p.c.bus.Open(func(m *nats.Msg, err error) {
		last := err != nil
		if err == nil {
			p.heard.Store(bus.Mono(time.Now()))
			last, err = r.replayed(m)
		}
		if last || err != nil {
			select {
			case p.done <- err:
			default:
			}
		}
	})
	if err != nil {
		return err
	}
	r.asking = p
	err = p.inbox.Send(&nats.Msg{Subject: subject, Data: codec.Encode(codec.ReplayRequest{FromSeq: p.from, MaxBytes: codec.DefaultReplayBytes})})
	if err != nil {
		r.abandonReplay()
	}
	return err
}

// replayed takes one message of the answer to a replay, and reports whether it
// was the last one.
func (r *reader) replayed(m *nats.Msg) (last bool, err error) {
	reply := codec.ParseReply(codec.Header(m.Header), m.Data)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch reply.Kind {
	case codec.ReplyChunk:
		r.order.Add(reply.Chunk)
		return false, nil
	case codec.ReplyNoResponders:
		return true, toolmesh.Errorf(toolmesh.CodeUnavailable, "no node answers requests for the stored chunks").WithOrigin(toolmesh.OriginMesh)
	case codec.ReplyError:
		return true, reply.Err
	}
	if reply.High < 0 {
		return true, toolmesh.Errorf(toolmesh.CodeProtocolError, "the end of the stored chunks has no header %s", codec.HeaderHigh)
	}
	r.high = codec.High{Seq: reply.High, Terminal: reply.Terminal}
	r.order.Note(reply.High)
	if reply.Terminal {
		r.order.Note(reply.High + 1)
	}
	return true, nil
}
