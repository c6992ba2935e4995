package client

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/subjects"
)

// Follow yields the items of a stream of the client's session that another caller began, starting
// at item from: the stored ones, then new ones. It needs neither the tool nor the arguments, and
// never begins a call. While it reads, the stream has a reader. Leaving the loop, or the end of
// ctx, leaves the stream as it is; without any reader it ends 10 s later. Of the options [Admit] counts.
//
// The errors are those of [Client.Stream], and not_found if no node runs the stream and no chunk
// of it is stored.
func (c *Client) Follow(ctx context.Context, rpc subjects.RPCID, from int64, options ...CallOption) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		s, err := c.settings(ctx, append(slices.Clip(options), WithRPCID(rpc)), "")
		if err == nil && from < 1 {
			err = callerError(toolmesh.CodeInvalidRequest, "the stream is asked for from item %d: items are numbered from 1", from)
		}
		if err == nil {
			r := newReader(yield)
			r.order, r.taken = chunks.NewOrder(from), from-1
			err = r.follow(ctx, c, s)
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(Chunk{}, err)
		}
	}
}

// follow reads a stream that another caller began.
func (r *reader) follow(ctx context.Context, c *Client, s *settings) error {
	p, err := c.begin(target{}, s)
	if err != nil {
		return err
	}
	defer p.Close()
	r.p = p
	p.Join()
	sub, err := r.subscribe()
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	at, err := c.where(ctx, "", s.Session, s.RPCID)
	switch {
	case ctx.Err() != nil:
		return ended(ctx, toolmesh.StartedUnknown)
	case err != nil:
		return r.stored(ctx)
	}
	if at.Tool == "" { // it has ended, and may have been no stream
		if err := r.stored(ctx); toolmesh.CodeOf(err) != toolmesh.CodeNodeLost {
			return err
		}
	}
	p.Answered(at.Node, at.Boot)
	r.acked, r.joined, r.looked = true, true, time.Now()
	r.granted = r.taken + firstCredit
	r.sendCredit()
	stop := r.keepCredit(ctx)
	defer func() {
		stop()
		r.abandonReplay()
	}()
	if err := r.askStore(); err != nil {
		return err
	}
	return r.read(ctx)
}

// stored yields the stored items of a stream that no node has any more.
func (r *reader) stored(ctx context.Context) error {
	before := r.taken
	high := codec.High{Seq: -1}
	var done bool
	var err error
	for wait := restWait; high.Seq < 0 && !done && wait < storedWait; wait *= 2 {
		done, err = r.rest(ctx, wait)
		r.mu.Lock()
		high = r.high
		r.mu.Unlock()
	}
	switch {
	case done:
		return err
	case r.taken == before && high.Seq == 0 && !high.Terminal:
		return toolmesh.Errorf(toolmesh.CodeNotFound, "stream %q does not exist: no node runs it, and no chunk is stored (streams are kept for 15 minutes)", r.p.s.RPCID).
			WithOrigin(toolmesh.OriginCaller)
	case high.Seq < 0:
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "no node answers requests for the stored chunks of %q", r.p.s.RPCID).WithOrigin(toolmesh.OriginMesh)
	case high.Terminal:
		return toolmesh.Errorf(toolmesh.CodeStreamExpired, "items from %d on are no longer kept, or never were: the stream has %d", r.taken+1, high.Seq).
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedYes)
	}
	return toolmesh.Errorf(toolmesh.CodeNodeLost, "the node of the stream %q is gone, and its end was not stored", r.p.s.RPCID).WithOrigin(toolmesh.OriginCaller)
}

// checkEnd ends the reading of a joined stream that has ended without an end in the store: the store
// was full, or the end was removed. The node sends the error to the caller that began the stream.
// The store must answer twice that it has no end, as a replica may lag; its silence proves nothing.
func (r *reader) checkEnd(ctx context.Context) (done bool, err error) {
	if !r.joined || time.Since(r.looked) < endWait || time.Since(r.lastArrived(r.p.Asked())) < endWait {
		return false, nil
	}
	r.looked = time.Now()
	if at, err := r.p.c.where(ctx, r.p.Peer().Name(), r.p.s.Session, r.p.s.RPCID); err != nil || at.Tool != "" {
		return false, nil
	}
	if done, err := r.rest(ctx, restWait); done {
		return true, err
	}
	r.mu.Lock()
	answered := r.high.Seq >= 0
	r.mu.Unlock()
	if !answered || !r.endless {
		r.endless = answered
		return false, nil
	}
	return true, toolmesh.Errorf(toolmesh.CodeStreamExpired, "the stream %q has ended, and its end is not stored: there are no items after %d", r.p.s.RPCID, r.taken).
		WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedYes)
}
