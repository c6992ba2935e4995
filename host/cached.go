package host

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/internal/cache"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// cached is the handler of a tool that keeps results, around its own.
type cached struct {
	Handler
	results *cache.Tool
	shared  bool // by all sessions
}

// keepResults puts the cache around the handler of a tool that declares a cache_ttl. The cache
// belongs to this offering of the tool. A session's own tools share no results: the next session
// of the same name has other tools.
func (p *publisher) keepResults(t *served) {
	a := t.descriptor.Annotations
	if a.CacheTTL <= 0 {
		return
	}
	t.cached = &cached{Handler: t.handler, results: p.cache.Offer(a.CacheTTL), shared: a.CacheShared && t.tenure == nil}
	t.handler = t.cached
}

// forgetResults drops the cached results of a tool that was withdrawn or replaced by another
// revision.
func (t *served) forgetResults() {
	if t.cached != nil {
		t.cached.results.Withdraw()
	}
}

// keepsBySession reports whether a result of the tool is its session's alone, of which
// the epoch must be known.
func (t *served) keepsBySession() bool { return t != nil && t.cached != nil && !t.cached.shared }

// fromCache answers a call whose result is cached, and reports whether it did. It takes no slot,
// and the table of calls gets no record: a repetition reads the cache again. A request that
// repeats a call of this node gets that call's answer, and one with an idempotency key the answer
// of its key.
func (in *intake) fromCache(c *inflight, r admit.Request) bool {
	req := c.Request
	if req.NoCache || req.Ref != nil || req.Delivery != codec.DeliverNone || req.IdempotencyKey != "" || c.unsettled.Load() {
		return false
	}
	var result json.RawMessage
	found, encoded := false, req.Encoded()
	look := func() {
		if encoded {
			defer func() { req.Args, req.Positional = nil, nil }()
		}
		if req.Decode() != nil || len(req.Positional) > 0 {
			return
		}
		if key, ok := c.tool.cached.key(req.Session, c.epoch, req.Args, nil, req.Isolation); ok {
			result, found = c.tool.cached.results.Get(key)
		}
	}
	c.heavily(look)
	if !found {
		return false
	}
	record := admit.Record{Result: result, Cache: codec.CacheHit}
	in.counts.handled.Add(1)
	in.instead(c, r, record)
	in.counts.took.Add(int64(time.Since(c.Start)))
	in.run.logCall(c, record)
	in.run.audit(c, record)
	return true
}

// key is the same for calls with the same result. ok is false for arguments that cannot be
// compared.
func (t *cached) key(session subjects.SessionID, epoch string, args, varArgs json.RawMessage, isolation toolmesh.Isolation) (key cache.Key, ok bool) {
	text, err := tool.Canonical(args)
	if err == nil && len(varArgs) > 0 {
		var more json.RawMessage
		more, err = tool.Canonical(varArgs)
		text = append(append(text, 0), more...) // JSON has no such byte
	}
	if err != nil {
		return key, false
	}
	if isolation != "" { // a caller that asks for more than another gets its own
		text = append(append(text, 0, 0), isolation...)
	}
	key.Args = sha256.Sum256(text)
	if !t.shared {
		key.Session, key.Epoch = session, epoch
	}
	return key, true
}

// ServeTool implements [Handler]. Streams are not kept.
func (t *cached) ServeTool(ctx context.Context, call *Call, sink Sink) error {
	into, unary := sink.(*unarySink)
	if !unary {
		return t.Handler.ServeTool(ctx, call, sink)
	}
	into.cache = codec.CacheMiss
	if call.NoCache {
		into.cache = codec.CacheBypass
	}
	key, ok := t.key(call.Session, call.Epoch, call.Args, call.VarArgs, call.Isolation)
	if !ok {
		return t.Handler.ServeTool(ctx, call, sink)
	}
	run := func(ctx context.Context) (json.RawMessage, error) { return t.run(ctx, call) }
	var result json.RawMessage
	var err error
	if call.NoCache {
		result, err = t.results.Fresh(ctx, key, run)
	} else {
		var hit bool
		if result, hit, err = t.results.Do(ctx, key, call.Depth, run); hit {
			into.cache = codec.CacheHit
		}
	}
	switch {
	case errors.Is(err, cache.ErrExited):
		return errExited
	case err != nil:
		return err
	}
	return into.SendResult(ctx, result)
}

// run runs the tool for a call, under a context that may outlive it. Its error must be complete,
// as other callers than the first may get it.
func (t *cached) run(ctx context.Context, call *Call) (result json.RawMessage, err error) {
	at := &callContext{Context: ctx, deadline: call.Deadline, lineage: call.below(), report: call.Report}
	defer func() {
		if p := recover(); p != nil {
			err = panicked(p)
		}
	}()
	into, own := unarySink{collect: call.Collect}, *call
	own.shared = true
	if err := t.Handler.ServeTool(at, &own, &into); err != nil {
		return nil, outcome(at, err)
	}
	return into.result(), nil
}
