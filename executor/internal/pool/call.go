package pool

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/executor/internal/turns"
	"github.com/toolmesh/toolmesh/internal/wake"
)

// window is how many bytes of a stream's items may be in flight; calls/plain.py has the same initial value.
const window = 256 << 10

// itemCost is added to each item's bytes; calls/plain.py adds the same.
const itemCost = 64

// Call is one execution of a tool.
type Call struct {
	Tool string // its name, module.function
	// RPCID names the call in log lines. It need not be unique here.
	RPCID string
	// Session is the call's session; its calls share the workers that isolation session leases
	// to it.
	Session string
	// Account shares workers fairly with other accounts while calls wait; sessions may share one.
	Account string
	// Epoch and Home choose the worker of isolation session: each pair has its own. Epoch is
	// empty for a session that was not created.
	Epoch, Home string
	// Isolation tightens that of the tool; a looser one is ignored.
	Isolation toolmesh.Isolation
	// Args is the arguments object, passed through unparsed; empty means none.
	Args json.RawMessage
	// VarArgs is an array of further positional arguments, for tools that take them.
	VarArgs json.RawMessage
	// Stream passes a generator's items to the sink one by one; a plain function's result
	// is then its only item.
	Stream bool
	// Collect makes a generator's result the list of its items instead of the last one.
	// Ignored with Stream.
	Collect bool
	// Nested makes the calls that the tool makes. Without it they fail.
	Nested Nested
	// Lane is the lane that the call holds; nil for most calls.
	Lane Lane
	// Deserted reports whether the callers have left: a waiting call does not begin then. It must
	// not block; nil for a call whose callers cannot be asked.
	Deserted func() bool
	// Depth is the number of calls above this one, if a tool made it: calls of one depth
	// never wait for each other.
	Depth int
	// Slot is the tool's index in the worker's list, and Sink takes the call's output before
	// its end; nil for a call that does not stream. The executor sets both.
	Slot uint16
	Sink output.Sink
}

// Lane is a call's hold of a lane: the call must have stopped when the hold ends, even while
// this process does not run.
type Lane interface {
	// Follow calls f with the end of the hold, now and whenever it moves.
	Follow(f func(end time.Time))
}

// job is a call on its way through the pool.
type job struct {
	Call
	turns.Turn
	id    uint64
	flags uint8
	meta  []byte

	deadline time.Time // zero for none
	first    bool      // the first call of its worker

	nesting nesting // the calls that its tool makes

	until atomic.Uint64 // when its hold of a lane ends, as [sandbox.Boottime]; 0: never

	// place is the number of its CALL frame at its worker, from 1; 0 before that.
	// Set with the worker's writeMu.
	place atomic.Uint64

	// turn receives nil when a queued call gets a worker, or the error why it gets none. Made
	// when a call is queued, capacity 1.
	turn chan *toolmesh.Error
	// done is signalled when the outcome of a coroutine's call is set; capacity 1.
	done chan struct{}

	// Outcome, set before done for a coroutine's call, by the caller for a plain
	// function's.
	kind frame.Type // Result, Error, End, or 0 with err
	body []byte
	err  *toolmesh.Error

	// Set in an update when the watchdog stops the call: the exceeded limit.
	breach atomic.Pointer[toolmesh.Error]

	// Set once, when it gets a worker.
	to      *worker
	crowded bool // that worker has many other calls

	budget *rate.Limiter // of its output in frames; guarded by the worker's logMu

	// Guarded by update.
	worker  *worker // the same as to, while the worker has the call
	before  uint64  // calls that its worker had started when this one was assigned, by its page
	since   time.Time
	cpu     time.Duration // processor time it used, as far as it is metered
	killed  bool          // its worker was killed because the call ran on after its grace
	open    int           // calls that its tool has open
	again   *time.Timer   // repeats the signal that stops it, and kills its worker after the grace
	verdict Verdict       // set when its worker ended under it

	// charged is the cost of its items so far, counted by the reader of the worker; credited is the
	// part of it that the worker may use again, and used what the sink has taken beyond that.
	charged  int64
	credited atomic.Int64
	used     int

	// Items of a stream that the sink has not taken yet; bounded by credit.
	items struct {
		mu     sync.Mutex
		list   [][]byte
		notify chan struct{} // capacity 1; nil for calls that do not stream
	}
}

// Call makes a call and returns its result as JSON; nil for a stream, whose items go
// to the sink. When ctx ends the call is stopped: Call returns only after that, which takes at
// most the grace and a moment. The verdict tells what the end of the call says about its
// tool. Every error is a [*toolmesh.Error], except errors of [output.Sink.Item].
func (p *Pool) Call(ctx context.Context, call Call) (json.RawMessage, Verdict, error) {
	j := &job{Call: call, id: p.nextCall.Add(1)}
	j.Depth = max(j.Depth, 0)
	j.nesting.above = ctx
	j.deadline, _ = ctx.Deadline()
	defer j.endNested()
	if len(call.VarArgs) > 0 && string(call.VarArgs) != "[]" {
		text := append(append([]byte(`{"varargs":`), call.VarArgs...), '}')
		j.flags |= frame.FlagMeta
		j.meta = append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...) //nolint:gosec // bounded by the executor
	}
	if end, ok := ctx.Deadline(); ok { // a worker that is frozen until then does not start it
		j.flags |= frame.FlagUntil
		j.meta = append(binary.LittleEndian.AppendUint64(nil, sandbox.Boottime(end)), j.meta...)
	}
	if p.cfg.Async {
		j.done = make(chan struct{}, 1)
	}
	if call.Lane != nil {
		call.Lane.Follow(func(end time.Time) {
			j.until.Store(sandbox.Boottime(end))
			p.update(func(*state) {
				if j.worker != nil {
					j.worker.limitTurns()
				}
			})
		})
	}
	switch {
	case call.Stream && call.Sink == nil:
		return nil, Verdict{}, toolmesh.Errorf(toolmesh.CodeInternal, "executor: a stream needs a sink").
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
	case call.Stream:
		j.flags |= frame.FlagStream
		j.items.notify = make(chan struct{}, 1)
	case call.Collect:
		j.flags |= frame.FlagCollect
	}
	if err := p.submit(ctx, j); err != nil {
		return nil, Verdict{}, err
	}
	run := p.runPlain
	if p.cfg.Async {
		run = p.runCoroutine
	}
	ctxEnded, refused := run(ctx, j)
	// The end of ctx may have reached a nested call first, which then had this call stopped.
	if ctxEnded || j.kind == frame.Error && ctx.Err() != nil {
		p.stopped(ctx, j)
	}
	if exceeded := j.breach.Load(); exceeded != nil {
		return nil, Verdict{}, exceeded // not a crash: the tool stays in service
	}
	if j.err == nil {
		j.verdict.blame = blameSurvived
	}
	body, err := j.outcome(ctx, refused)
	return body, j.verdict, err
}

// outcome returns the end of the call to its caller.
func (j *job) outcome(ctx context.Context, refused error) (json.RawMessage, error) {
	switch {
	case j.err != nil && (refused == nil || ctx.Err() != nil):
		return nil, j.err
	case refused != nil:
		return nil, refused
	case j.kind == frame.Error:
		return nil, failure.FromWorker(j.body)
	case j.Stream && j.kind == frame.Result:
		return nil, j.Sink.Item(ctx, j.body) // a plain function's only item
	case j.kind == frame.Result:
		return j.body, nil
	case j.Stream && j.kind == frame.End:
		return nil, nil
	default:
		return nil, failure.During(toolmesh.CodeInternal, "the worker answered a call with frame type %d", j.kind)
	}
}

// submit gives a call to a worker, or queues it and waits for a worker.
func (p *Pool) submit(ctx context.Context, j *job) *toolmesh.Error {
	var refused *toolmesh.Error
	p.update(func(s *state) {
		if refused = s.refuses(); refused != nil {
			return
		}
		if s.admits(j) {
			if w := s.pick(); w != nil {
				s.assign(w, j)
				j.crowded = len(w.jobs) > crowd
				return
			}
		}
		if s.cfg.Session && !s.cfg.Async && s.below(j.Depth) {
			refused = workerWaits()
			return
		}
		j.turn = make(chan *toolmesh.Error, 1)
		refused = s.enqueue(j)
	})
	if refused != nil || j.turn == nil {
		return refused
	}
	select {
	case err := <-j.turn:
		return err
	case <-ctx.Done():
		queued := false
		p.update(func(s *state) { queued = s.queue.Remove(j) })
		if queued {
			return failure.Ended(ctx, toolmesh.StartedNo)
		}
		return <-j.turn // it came meanwhile
	}
}

// runPlain makes a call of a plain function: the caller itself reads from its worker.
// The outcome is in j. ctxEnded reports that the call was stopped because ctx ended. An error
// of the sink stops the call and is returned as refused.
func (p *Pool) runPlain(ctx context.Context, j *job) (ctxEnded bool, refused error) {
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() { p.interrupt(j) })
	}
	var ended *job
	var err error
	for ended == nil && err == nil {
		ended, err = j.to.next()
		if refused == nil && j.Stream {
			if refused = j.deliver(ctx); refused != nil {
				p.interrupt(j)
			}
		}
	}
	ctxEnded = !stop()
	if err != nil {
		j.to.finish(err) // sets j.err
	}
	return ctxEnded, refused
}

// runCoroutine makes a call of a coroutine. Its results are those of runPlain.
func (p *Pool) runCoroutine(ctx context.Context, j *job) (ctxEnded bool, refused error) {
	done := ctx.Done()
	for {
		select {
		case <-j.done:
			if refused == nil && !ctxEnded {
				refused = j.deliver(ctx)
			}
			return ctxEnded, refused
		case <-j.items.notify:
			if refused == nil && !ctxEnded {
				if refused = j.deliver(ctx); refused != nil {
					p.interrupt(j)
				}
			}
		case <-done:
			ctxEnded, done = true, nil
			p.interrupt(j)
		}
	}
}

// limitTurns writes to a worker's page when it must have stopped: when the first hold of a lane
// ends. It is called in updates.
func (w *worker) limitTurns() {
	first := uint64(0)
	for _, j := range w.running() {
		if until := j.until.Load(); until > 0 && (first == 0 || until < first) {
			first = until
		}
	}
	w.proc.Store(sandbox.WordUntil, first)
}

// take keeps an item until its sink takes it. An error means that the worker broke the protocol, for
// example by exceeding its credit.
func (j *job) take(item []byte) error {
	if !j.Stream {
		return errors.New("the worker sent an item of a call that does not stream")
	}
	if j.charged-j.credited.Load() >= window {
		return errors.New("the worker sent an item without credit")
	}
	j.charged += int64(len(item)) + itemCost
	j.items.mu.Lock()
	j.items.list = append(j.items.list, item)
	j.items.mu.Unlock()
	wake.Up(j.items.notify)
	return nil
}

// deliver passes the items that have arrived to their sink, and credit to the worker when half of it
// is used.
func (j *job) deliver(ctx context.Context) error {
	for {
		j.items.mu.Lock()
		list := j.items.list
		j.items.list = nil
		j.items.mu.Unlock()
		if len(list) == 0 {
			return nil
		}
		for _, data := range list {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := j.Sink.Item(ctx, data); err != nil {
				return err
			}
			if j.used += len(data) + itemCost; j.used >= window/2 {
				j.to.credit(j, j.used)
				j.used = 0
			}
		}
	}
}

// stopped turns the outcome of a call into that of a call whose context ended.
func (p *Pool) stopped(ctx context.Context, j *job) {
	begun := toolmesh.StartedYes
	switch {
	case j.err != nil:
		begun = j.err.Started
	case j.kind == frame.Error:
		begun = failure.FromWorker(j.body).Started
	}
	j.kind, j.body = 0, nil
	j.err = failure.Ended(ctx, begun)
	killed := false
	p.read(func(*state) { killed = j.killed })
	if killed {
		j.err = j.err.WithDetail("killed", true)
	}
}
