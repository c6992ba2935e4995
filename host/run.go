package host

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/once"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

// Times of docs/protocol, sections 5, 6 and 8.
const (
	defaultTimeout = 30 * time.Second // of a unary call, if neither caller nor tool says
	// overdueGrace is how long a handler may take to return once its time is up;
	// then its caller is answered all the same.
	overdueGrace = time.Second
	// failedPerSecond and failedAtOnce bound the lines of the log about failed calls.
	failedPerSecond = 20
	failedAtOnce    = 200
)

// runner runs admitted calls, here or on another node, and owns their resources while they run.
// Its methods may be called concurrently.
type runner struct {
	*core
	keys *once.Keys
	args *fair.Room[subjects.SessionID] // bytes of arguments, by account
	room *chunks.Space                  // of the chunk store

	failed *rate.Limiter // lines of the log about failed calls

	audience audience                        // of the events of calls
	deletes  *fair.Queue[subjects.SessionID] // of arguments that no call reads any more
}

func newRunner(k *core) *runner {
	return &runner{
		core: k, failed: rate.NewLimiter(failedPerSecond, failedAtOnce), deletes: fair.NewQueue[subjects.SessionID](deletesAtOnce, deletesWait, k.background.Go), audience: audience{bus: k.bus, of: make(map[subjects.SessionID]*bus.Probe)}, room: chunks.NewSpace(k.bus, subjects.StreamChunks), args: fair.NewRoom[subjects.SessionID](max(minArgsRoom, int64(k.opts.Slots)*argsPerSlot)),
		keys: once.New(once.Options{
			Node: k.node, Boot: k.boot, Bus: store.Of(k.bus), Presence: k.presence, Base: k.base, Log: k.log, Go: k.background.Go, Replies: k.replies, Exited: errExited,
		}),
	}
}

// run executes one call and answers it.
func (r *runner) run(call *admit.Running[*inflight]) {
	c := call.Value
	if r.base.Err() != nil {
		c.stop(context.Cause(r.base))
	}
	r.conclude(call, r.execute(call))
}

// conclude answers a call whose handler has returned.
func (r *runner) conclude(call *admit.Running[*inflight], record admit.Record) {
	c := call.Value
	if s := c.readers.Stream(); s != nil {
		r.calls.Vacate(call) // before a reader gets the stream's end
		record = s.Finish(record)
	}
	record = r.replies.Bounded(&c.ctx, c.Request, record)
	took := time.Since(c.Start)
	r.replies.Pace(&c.ctx, &c.Reader, record) // with its slot: no more results wait than there are
	c.finish()
	if record.Err != nil {
		r.counts.failures.add(record.Err.Code)
	}
	r.counts.handled.Add(1)
	r.counts.took.Add(int64(time.Since(c.Start)))
	if use := c.lane.Load(); use != nil {
		record.Lane = use
	}
	r.paced(call, &record, took)
	r.release(call, record)
	if c.held > 0 {
		r.args.Give(c.account(), c.held)
	}
	first := c.Claim()
	c.readers.Close()
	r.calls.Finish(call, record)
	c.readers.End(record)
	if first && !record.Streamed {
		r.replies.AnswerNow(&c.Reader, record)
	}
	r.logCall(c, record)
	r.audit(c, record)
}

func (r *runner) logCall(c *inflight, record admit.Record) {
	level := slog.LevelDebug
	code := ""
	if record.Err != nil {
		code = string(record.Err.Code)
		if r.failed.Allow() { // any caller can cause as many as it likes
			level = slog.LevelInfo
		}
	}
	if !r.log.Enabled(r.base, level) {
		return
	}
	r.log.LogAttrs(r.base, level, "call finished", slog.String("rpc_id", string(c.Request.RPCID)),
		slog.String("session", string(c.Request.Session)), slog.String("tool", string(c.Request.Tool)),
		slog.Duration("took", time.Since(c.Start)), slog.String("code", code))
}

// execute prepares the call and runs its handler.
func (r *runner) execute(running *admit.Running[*inflight]) admit.Record {
	c := running.Value
	_, err := c.Epoch(&c.ctx)
	if err == nil && c.tool.tenure.Ended(c.epoch) {
		err = r.takenOff(c.Request.Tool)
	}
	if err != nil {
		bad := admit.Refusal(err).WithStarted(toolmesh.StartedNo)
		if c.Request.IsAgain {
			bad = bad.WithStarted(toolmesh.StartedUnknown) // it may have run in the session that has ended
		}
		return admit.Record{Err: bad}
	}
	if r.bound(c.tool, c.Request) {
		if record, here := r.goHome(running); !here {
			return record
		}
		defer c.home.Leave()
	}
	if c.Request.Ref != nil && running.Full != nil {
		return r.passOn(running, c.Request) // the node that runs the call reads them
	}
	args, bad := r.arguments(c)
	if bad != nil {
		return admit.Record{Err: bad}
	}
	if running.Full != nil {
		return r.passOn(running, c.Request)
	}
	ctx, call := &c.ctx, &c.call
	*call = Call{
		Session: c.Request.Session, Epoch: c.epoch, Tool: c.Request.Tool, RPCID: c.Request.RPCID, Args: args, VarArgs: c.varArgs,
		Stream: c.Request.Delivery != codec.DeliverNone, Collect: c.tool.descriptor.Annotations.Collect,
		Deadline: c.deadline, Depth: c.Request.Depth, Parent: c.Request.Parent, Isolation: c.Request.Isolation, NoCache: c.Request.NoCache, Trace: c.Request.Trace,
		lanes: c.Request.Lanes, running: running,
		host: r.core,
	}
	if c.home != nil {
		call.Home = c.home.ID
	}
	if call.Stream {
		s, err := c.stream()
		if err != nil {
			// The cause of a call that is over already says that it began.
			return admit.Record{Err: admit.Refusal(err).WithStarted(toolmesh.StartedNo)}
		}
		return r.unlessCrowded(running, admit.Record{Err: outcome(ctx, r.guard(running, s)), Streamed: true})
	}
	c.sink.collect = call.Collect
	if c.Request.IdempotencyKey != "" {
		return r.unlessCrowded(running, r.keys.Do(ctx, once.Request{
			Request: c.Request, Epoch: c.epoch, Args: args, VarArgs: c.varArgs, Idempotent: c.tool.descriptor.Annotations.Idempotent,
		}, func() admit.Record { return r.replies.Bounded(ctx, c.Request, r.unary(running)) }))
	}
	return r.unlessCrowded(running, r.unary(running))
}

// unary runs the handler of a call that has one result.
func (r *runner) unary(running *admit.Running[*inflight]) admit.Record {
	c := running.Value
	if err := r.guard(running, &c.sink); err != nil {
		return admit.Record{Err: outcome(&c.ctx, err)}
	}
	return admit.Record{Result: c.sink.result(), Cache: c.sink.cache, Warning: c.sink.warning}
}

// budget returns the call's time: the caller's, up to the time that the tool declares, or up to
// the node's limit without one. 0 is no limit.
func (r *runner) budget(t *served, req *codec.Request) time.Duration {
	declared := time.Duration(t.descriptor.Annotations.Timeout)
	most := declared
	if most == 0 {
		most = r.opts.MaxTimeout
	}
	switch {
	case req.HasTimeout:
		return min(req.Timeout, most)
	case declared == 0 && req.Delivery == codec.DeliverNone:
		return min(defaultTimeout, most)
	}
	return declared
}

// guard survives a handler that panics, and concludes the call of one that ends its goroutine:
// the code after the handler does not run then, and the slot would stay taken.
func (r *runner) guard(running *admit.Running[*inflight], sink Sink) (err error) {
	c, returned := running.Value, false
	defer func() {
		if p := recover(); p != nil {
			err = panicked(p)
		} else if !returned {
			r.conclude(running, admit.Record{Err: outcome(&c.ctx, errExited), Streamed: c.call.Stream})
		}
	}()
	err = c.tool.handler.ServeTool(&c.ctx, &c.call, sink)
	returned = true
	return err
}

// tend looks after one call in flight.
func (r *runner) tend(c *inflight, now time.Time) {
	r.followSession(c, now)
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
				r.replies.AnswerNow(&c.Reader, record)
			}
			c.readers.End(record)
		}
		if first {
			r.log.Warn("handler does not return", slog.String("rpc_id", string(c.Request.RPCID)), slog.String("tool", string(c.Request.Tool)))
		}
		return
	}
	c.readers.KeepAlive(now)
}

// followSession ends a call whose session has ended. A call that came before the view knew its
// session belongs to the session that is seen while it runs. The ticker calls it.
func (r *runner) followSession(c *inflight, now time.Time) {
	session := c.Request.Session
	if c.unsettled.Load() {
		return
	}
	if c.follows == "" {
		switch c.follows = c.epoch; {
		case c.follows != "" || session == subjects.DefaultSession:
		case r.sessions.Ended(session, c.Start):
			c.End(errSessionOver)
			return
		default:
			c.follows, _ = r.sessions.Admit(session)
		}
	}
	if c.follows == "" || c.ending.Load() != 0 || now.Sub(c.looked) < sessionEvery || now.Sub(c.Start) < sessionEvery {
		return
	}
	c.looked = now
	if r.sessions.Seen(session, c.follows) {
		return
	}
	epoch := c.follows
	r.background.Go(func() {
		if r.sessions.Over(session, epoch) {
			c.End(errSessionOver)
		}
	})
}

// endCalls ends the host's context and that of every call. A call that begins
// now finds the host's ended.
func (r *runner) endCalls(cause error) {
	r.end(cause)
	for _, call := range r.calls.Running() {
		call.Value.stop(cause)
	}
}
