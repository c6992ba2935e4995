package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// creditWindow is how many items may be on their way to a reader.
	creditWindow = 512
	creditEvery  = 2 * time.Second
	// gapWait is how long live delivery may take to fill a gap by itself.
	gapWait = 30 * time.Millisecond
	// quietWait is how long a stream may say nothing before the store is asked.
	quietWait  = time.Second
	replayWait = 5 * time.Second
)

// Chunk is one item of a stream.
type Chunk struct {
	Seq  int64 // from 1
	Data json.RawMessage
}

// Decode reads the item into v, as json.Unmarshal does.
func (c *Chunk) Decode(v any) error { return json.Unmarshal(c.Data, v) }

// Stream calls a tool and yields its items in order, each once. An error ends
// the stream and is the last thing it yields; breaking out of the loop, or the
// end of ctx, cancels the call. A reader that does not keep up holds the tool
// back; nothing grows. After a lost connection the stream goes on where it was.
func (c *Client) Stream(ctx context.Context, id subjects.ToolID, args any, opts ...CallOption) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		s, err := c.settings(opts, "rpc_stream_")
		if err != nil {
			yield(Chunk{}, err)
			return
		}
		body, err := encodeArgs(args)
		if err != nil {
			yield(Chunk{}, err)
			return
		}
		if s.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, s.timeout+time.Second)
			defer cancel()
		}
		err = c.attempts(ctx, id, &s, func(t target) error {
			r := &reader{order: chunks.NewOrder(1), signal: make(chan struct{}, 1), yield: yield}
			return r.run(ctx, c, t, &s, body)
		})
		if err != nil && !errors.Is(err, errStopped) && !errors.Is(err, errWhole) {
			yield(Chunk{}, err)
		}
	}
}

// errStopped ends a stream whose reader has broken out of the loop.
var errStopped = toolmesh.Errorf(toolmesh.CodeCancelled, "the reader stopped")

// reader is one stream on its way.
type reader struct {
	p       *pending
	yield   func(Chunk, error) bool
	subject string
	signal  chan struct{} // capacity 1: something arrived

	mu      sync.Mutex
	order   *chunks.Order
	arrived time.Time // when a chunk last did
	bad     error
	taken   int64 // items yielded
}

func (r *reader) wake() {
	select {
	case r.signal <- struct{}{}:
	default:
	}
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
	r.wake()
}

// next returns the next chunk in order, if it is here.
func (r *reader) next() (codec.Chunk, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.order.Pop()
	if !ok {
		return c, false, r.bad
	}
	return c, true, nil
}

func (r *reader) run(ctx context.Context, c *Client, t target, s *settings, body []byte) error {
	if ctx.Err() != nil {
		return ended(ctx, toolmesh.StartedNo)
	}
	p, err := c.begin(t, s)
	if err != nil {
		return err
	}
	r.p = p
	defer p.inbox.Close()
	msg, err := p.request(ctx, t, codec.DeliverLive, creditWindow, body)
	if err != nil {
		return asCall(ctx, err)
	}
	live, err := subjects.Live(s.session, s.rpc)
	if err != nil {
		return callerError(toolmesh.CodeInvalidRequest, "%w", err)
	}
	sub, err := c.bus.Conn().Subscribe(live, r.live)
	if err != nil {
		return callerError(toolmesh.CodeUnavailable, "the stream's chunks cannot be subscribed: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	sent := time.Now()
	if err := p.inbox.Send(msg); err != nil {
		return err
	}
	stop := make(chan struct{})
	var keeper sync.WaitGroup
	keeper.Go(func() { r.keepCredit(stop) })
	err = r.read(ctx, sent)
	close(stop)
	keeper.Wait()
	if err != nil && (errors.Is(err, errStopped) || ctx.Err() != nil) {
		c.cancel(s.session, s.rpc, p.node.Load())
	}
	return err
}

// keepCredit repeats the credit, so that the node knows that the reader lives
// also while it thinks about an item.
func (r *reader) keepCredit(stop <-chan struct{}) {
	ticker := time.NewTicker(creditEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			r.sendCredit()
		}
	}
}

func (r *reader) sendCredit() {
	n := r.p.node.Load()
	if n == nil || !r.p.c.bus.Connected() {
		return
	}
	subject, err := subjects.NodeCtl(n.id, r.p.s.session, r.p.s.rpc)
	if err != nil {
		return
	}
	r.mu.Lock()
	upTo := r.taken + creditWindow
	r.mu.Unlock()
	_ = r.p.c.bus.Conn().Publish(subject, codec.Control{Type: codec.ControlCredit, Seq: upTo}.Encode())
}

// read yields chunks until the stream ends.
func (r *reader) read(ctx context.Context, sent time.Time) error {
	ticker := time.NewTicker(watchTick)
	defer ticker.Stop()
	var gap <-chan time.Time // fires when a gap has had its time
	generation := r.p.c.bus.State().Generation
	granted := int64(creditWindow)
	replies := r.p.replies
	lastReplay := sent
	acked := false
	for {
		for {
			c, ok, err := r.next()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			gap = nil
			if c.Terminal() {
				if c.Type == codec.ChunkError {
					return c.Err
				}
				return nil
			}
			if !r.yield(Chunk{Seq: c.Seq, Data: c.Data}, nil) {
				return errStopped
			}
			r.mu.Lock()
			r.taken = c.Seq
			r.mu.Unlock()
			if granted-c.Seq < creditWindow/2 {
				granted = c.Seq + creditWindow
				r.sendCredit()
			}
			if ctx.Err() != nil {
				return ended(ctx, toolmesh.StartedYes)
			}
		}
		r.mu.Lock()
		r.order.Note(r.p.high.Load())
		missing := r.order.Gap() || acked && r.order.Next() == 1
		r.mu.Unlock()
		if missing && gap == nil {
			gap = time.After(gapWait)
		}
		ask := false
		select {
		case <-r.signal:
		case m := <-replies:
			reply := codec.ParseReply(codec.Header(m.Header), m.Data)
			switch reply.Kind {
			case codec.ReplyNoResponders:
				return errNobody
			case codec.ReplyError:
				return reply.Err
			}
			acked, replies = true, nil
			r.p.heard(reply.Node, reply.Boot)
			if !r.p.s.queue {
				r.p.c.learn(r.p.s.session, r.p.id)
			}
		case err := <-r.p.fails:
			if !acked {
				return err
			}
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "the stream was cut off: %w", err).WithOrigin(toolmesh.OriginCaller)
		case <-ctx.Done():
			return ended(ctx, toolmesh.StartedUnknown)
		case <-gap:
			gap, ask = nil, true
		case <-ticker.C:
			if now := r.p.c.bus.State(); now.Generation != generation && now.Connected {
				generation, ask = now.Generation, true
			}
			r.mu.Lock()
			quiet := r.arrived
			r.mu.Unlock()
			if quiet.Before(lastReplay) {
				quiet = lastReplay
			}
			if acked && time.Since(r.p.lastSign(quiet)) > quietWait {
				ask = true
			}
			if err := r.checkNode(ctx, sent, acked); err != nil {
				return err
			}
		}
		if ask && (acked || r.p.node.Load() != nil) {
			lastReplay = time.Now()
			if err := r.replay(ctx); err != nil && toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
				return err
			}
		}
	}
}

// checkNode ends the stream when its node is lost: with what the store still
// has of it, if that is all of it.
func (r *reader) checkNode(ctx context.Context, sent time.Time, acked bool) error {
	r.mu.Lock()
	asked := r.arrived
	r.mu.Unlock()
	if asked.Before(sent) {
		asked = sent
	}
	err := r.p.alive(ctx, sent, asked)
	switch {
	case err == nil:
		return nil
	case toolmesh.CodeOf(err) == toolmesh.CodeUnavailable && acked:
		return nil // our own connection: the stream goes on when it is back
	case toolmesh.CodeOf(err) != toolmesh.CodeNodeLost || !acked:
		return err
	}
	for before := int64(-1); before != r.taken && r.replay(ctx) == nil; {
		before = r.taken
		if end, over := r.drain(); over {
			return end
		}
	}
	return err
}

// errWhole says that the whole stream has been read.
var errWhole = toolmesh.Errorf(toolmesh.CodeInternal, "the stream is over")

// drain yields what is here of a stream whose node is gone, and reports whether
// that was the end of it.
func (r *reader) drain() (end error, over bool) {
	for {
		c, ok, err := r.next()
		switch {
		case err != nil:
			return err, true
		case !ok:
			return nil, false
		case c.Type == codec.ChunkError:
			return c.Err, true
		case c.Type == codec.ChunkComplete:
			return errWhole, true
		case !r.yield(Chunk{Seq: c.Seq, Data: c.Data}, nil):
			return errStopped, true
		}
		r.mu.Lock()
		r.taken = c.Seq
		r.mu.Unlock()
	}
}

// replay asks the store for a page of chunks, from the next item on. What is
// behind the page shows as a gap, and is asked for when the page has been read.
func (r *reader) replay(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replayWait)
	defer cancel()
	subject, err := subjects.Replay(r.p.s.session, r.p.s.rpc)
	if err != nil {
		return callerError(toolmesh.CodeInvalidRequest, "%w", err)
	}
	r.mu.Lock()
	from := r.order.Next()
	r.mu.Unlock()
	done := make(chan error, 1)
	end := func(err error) {
		select {
		case done <- err:
		default:
		}
	}
	inbox, err := r.p.c.bus.Open(func(m *nats.Msg, err error) {
		if err != nil {
			end(err)
			return
		}
		last, err := r.replayed(m)
		if last || err != nil {
			end(err)
		}
	})
	if err != nil {
		return err
	}
	defer inbox.Close()
	if err := inbox.Send(&nats.Msg{Subject: subject, Data: codec.ReplayRequest{FromSeq: from, MaxBytes: codec.DefaultReplayBytes}.Encode()}); err != nil {
		return err
	}
	select {
	case err := <-done:
		r.wake()
		return err
	case <-ctx.Done():
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the stored chunks did not arrive within %v", replayWait).WithOrigin(toolmesh.OriginMesh)
	}
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
		return true, toolmesh.Errorf(toolmesh.CodeUnavailable, "nobody answers for the stored chunks").WithOrigin(toolmesh.OriginMesh)
	case codec.ReplyError:
		return true, reply.Err
	}
	high, err := codec.ParseHigh(codec.Header(m.Header).Get(codec.HeaderHigh))
	if err != nil {
		return true, err
	}
	r.order.Note(high.Seq)
	if high.Terminal {
		r.order.Note(high.Seq + 1)
	}
	return true, nil
}
