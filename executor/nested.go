package executor

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/executor/frame"
)

// maxNested bounds the calls that one call's tool has open at once.
const maxNested = 1024

// Nested makes the calls that a tool makes: on behalf of the call that it is
// given with, whose caller's session and depth it knows. Its methods are called
// concurrently, and return soon after ctx has ended.
type Nested interface {
	// Call runs a tool, by its full id. args are as the tool wrote them; empty
	// means none. The error should be a [*toolmesh.Error]: it is what the tool sees.
	Call(ctx context.Context, tool string, args json.RawMessage) (json.RawMessage, error)
	// Stream runs a tool and yields its items; an error is the last thing it yields.
	Stream(ctx context.Context, tool string, args json.RawMessage) iter.Seq2[json.RawMessage, error]
}

// nesting is the calls that the tool of one call makes. The zero value is that
// of a tool that makes none, which costs it nothing.
type nesting struct {
	maker Nested
	ctx   context.Context // of the call: a coroutine's calls are begun by who reads for all of them

	mu   sync.Mutex
	open map[uint64]*nestedCall
	over bool // the call has ended: no further ones
	wg   sync.WaitGroup
}

// nestedCall is one call that a tool makes.
type nestedCall struct {
	id     uint64 // the worker's
	w      *worker
	j      *job // of the tool that makes it
	cancel context.CancelFunc

	mu     sync.Mutex
	credit int           // bytes that the worker has room for
	more   chan struct{} // capacity 1: credit came
}

// nestedAbout is what a NESTED_CALL frame says beside the arguments.
type nestedAbout struct {
	Call      uint64 `json:"call"` // whose tool makes it
	Tool      string `json:"tool"`
	TimeoutMS int64  `json:"timeout_ms"` // 0: as long as the call above has
}

// nested takes a frame about a nested call. An error means that the worker
// breaks the protocol.
func (w *worker) nested(h frame.Header, body []byte) error {
	if h.Type == frame.NestedCall {
		return w.beginNested(h, body)
	}
	w.nestMu.Lock()
	n := w.nests[h.ID]
	w.nestMu.Unlock()
	switch {
	case n == nil: // it has just ended
	case h.Type == frame.NestedCancel:
		n.cancel()
	case len(body) != 4:
		return fmt.Errorf("the worker sent a credit of %d bytes", len(body))
	default:
		n.add(int(binary.LittleEndian.Uint32(body)))
	}
	return nil
}

func (w *worker) beginNested(h frame.Header, body []byte) error {
	var about nestedAbout
	if len(body) < 4 {
		return errors.New("the worker sent a nested call that is cut off")
	}
	size := int(binary.LittleEndian.Uint32(body))
	if size > len(body)-4 {
		return errors.New("the worker sent a nested call that is cut off")
	}
	if err := json.Unmarshal(body[4:4+size], &about); err != nil {
		return fmt.Errorf("the worker sent a nested call that cannot be read: %w", err)
	}
	args := append(json.RawMessage(nil), body[4+size:]...)
	w.nestMu.Lock()
	_, twice := w.nests[h.ID]
	w.nestMu.Unlock()
	if twice {
		return fmt.Errorf("the worker sent nested call %d twice", h.ID)
	}
	j := w.find(about.Call)
	if j == nil {
		w.nestedFailed(h.ID, errCallOver)
		return nil
	}
	n := &nestedCall{id: h.ID, w: w, j: j, credit: window, more: make(chan struct{}, 1)}
	if err := j.begin(n, about, args, h.Flags&frame.FlagStream != 0); err != nil {
		w.nestedFailed(h.ID, err)
	}
	return nil
}

var (
	errCallOver = toolmesh.Errorf(toolmesh.CodeCancelled, "the call that this code belongs to is over").
			WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
	errNoNested = toolmesh.Errorf(toolmesh.CodeUnavailable, "tools cannot call others here: they run outside of a mesh").
			WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
	errTooManyNested = toolmesh.Errorf(toolmesh.CodeBusy, "the tool has %d calls open at once: wait for some of them", maxNested).
				WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo).WithDetail("limit", "nested")
)

// begin starts a nested call; end waits for it.
func (j *job) begin(n *nestedCall, about nestedAbout, args json.RawMessage, stream bool) error {
	s := &j.nesting
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return errCallOver
	case s.maker == nil:
		return errNoNested
	case len(s.open) >= maxNested:
		return errTooManyNested
	}
	ctx := s.ctx
	if about.TimeoutMS > 0 {
		ctx, n.cancel = context.WithTimeout(ctx, time.Duration(about.TimeoutMS)*time.Millisecond)
	} else {
		ctx, n.cancel = context.WithCancel(ctx)
	}
	if s.open == nil {
		s.open = map[uint64]*nestedCall{}
	}
	s.open[n.id] = n
	n.w.nestMu.Lock()
	if n.w.nests == nil {
		n.w.nests = map[uint64]*nestedCall{}
	}
	n.w.nests[n.id] = n
	n.w.nestMu.Unlock()
	n.w.crew.waits(j, 1)
	s.wg.Go(func() {
		if stream {
			n.stream(ctx, about.Tool, args)
		} else {
			n.unary(ctx, about.Tool, args)
		}
	})
	return nil
}

// endNested stops the calls that the call's tool has left open, and waits until
// they have ended.
func (j *job) endNested() {
	s := &j.nesting
	s.mu.Lock()
	s.over = true
	for _, n := range s.open {
		n.cancel()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (n *nestedCall) unary(ctx context.Context, tool string, args json.RawMessage) {
	result, err := n.j.nesting.maker.Call(ctx, tool, args)
	n.finish(err)
	if err != nil {
		n.w.nestedFailed(n.id, err)
		return
	}
	n.w.send(frame.Header{Type: frame.NestedResult, ID: n.id}, result, nil)
}

func (n *nestedCall) stream(ctx context.Context, tool string, args json.RawMessage) {
	var failed error
	for data, err := range n.j.nesting.maker.Stream(ctx, tool, args) {
		if err == nil {
			err = n.spend(ctx, len(data)+itemCost)
		}
		if err != nil {
			failed = err
			break
		}
		n.w.send(frame.Header{Type: frame.NestedItem, ID: n.id}, data, nil)
	}
	n.finish(failed)
	if failed != nil {
		n.w.nestedFailed(n.id, failed)
		return
	}
	n.w.send(frame.Header{Type: frame.NestedEnd, ID: n.id}, nil, nil)
}

// finish takes a nested call that has ended off the lists. Its end is yet to be
// sent.
func (n *nestedCall) finish(err error) {
	s := &n.j.nesting
	if err != nil && s.ctx.Err() != nil {
		// The call above is to stop, and its tool should not see this as a failure
		// that it may go on after: so the order to stop goes first.
		n.w.crew.interrupt(n.j)
	}
	n.cancel()
	s.mu.Lock()
	delete(s.open, n.id)
	s.mu.Unlock()
	n.w.nestMu.Lock()
	delete(n.w.nests, n.id)
	n.w.nestMu.Unlock()
	n.w.crew.waits(n.j, -1)
}

// spend takes size off the credit, once there is any.
func (n *nestedCall) spend(ctx context.Context, size int) error {
	for {
		n.mu.Lock()
		if n.credit > 0 {
			n.credit -= size
			n.mu.Unlock()
			return nil
		}
		n.mu.Unlock()
		select {
		case <-n.more:
		case <-ctx.Done():
			return failure.Ended(ctx, toolmesh.StartedYes)
		}
	}
}

func (n *nestedCall) add(size int) {
	n.mu.Lock()
	n.credit += size
	n.mu.Unlock()
	select {
	case n.more <- struct{}{}:
	default:
	}
}

// nestedFailed ends a nested call with an error.
func (w *worker) nestedFailed(id uint64, err error) {
	body, bad := json.Marshal(toolmesh.AsError(err))
	if bad != nil { // details that are not JSON
		e := *toolmesh.AsError(err)
		e.Details = nil
		body, _ = json.Marshal(&e)
	}
	w.send(frame.Header{Type: frame.NestedError, ID: id}, body, nil)
}

// What follows decides which calls get a worker, so that no calls wait for each
// other in a circle. A call that waits for one that its tool made computes
// nothing and does not count against the limit of those that run. And each depth
// of calls has as many places as the limit says: a call waits for deeper ones
// only, and the deepest wait for none, so that all come to their end. The limit
// times the depth bounds what is there in all.

// admits reports whether a worker may be given j now. c.mu is held.
func (c *crew) admits(j *job) bool {
	limit := c.index.spec.Concurrency
	if !c.async {
		limit = c.index.maxWorkers()
	} else if limit <= 0 {
		return true // room bounds what each loop holds
	}
	return c.busy-c.waiting < limit && c.held(j.depth) < limit
}

// held is how many calls of a depth have a worker. c.mu is held.
func (c *crew) held(depth int) int {
	if depth == 0 {
		return c.busy - c.deep
	}
	return c.depths[depth]
}

// hold and release count a call that has a worker, until it has none. c.mu is held.
func (c *crew) hold(j *job) {
	c.busy++
	if j.depth > 0 {
		if c.depths == nil {
			c.depths = map[int]int{}
		}
		c.deep++
		c.depths[j.depth]++
	}
}

func (c *crew) release(j *job) {
	c.busy--
	if j.depth > 0 {
		c.deep--
		c.depths[j.depth]--
	}
	if j.open > 0 {
		c.waiting--
		j.worker.waiting--
	}
	j.worker = nil
}

// waits notes that a call's tool has n more calls open.
func (c *crew) waits(j *job, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := j.open
	j.open += n
	switch {
	case j.worker == nil:
	case before == 0:
		c.waiting++
		j.worker.waiting++
		c.refuseBelow(j)
		c.reconcile()
	case j.open == 0:
		c.waiting--
		j.worker.waiting--
	}
}

// refuseBelow fails the queued calls that must not wait for a session's one worker
// any more, now that j, which has it, waits itself. c.mu is held.
func (c *crew) refuseBelow(j *job) {
	if !c.keeps() || c.async {
		return
	}
	for i := c.queue.head; i < len(c.queue.list); {
		queued := c.queue.list[i]
		if queued.depth <= j.depth {
			i++
			continue
		}
		c.queue.remove(queued)
		granted(queued, workerWaits())
	}
}

// below reports whether a call of a depth must not wait for a session's one
// worker: that waits for a call which is above this one, or for a call that may
// need what this one holds. c.mu is held.
func (c *crew) below(depth int) bool {
	for w := range c.workers {
		if holder := w.current.Load(); holder != nil && holder.open > 0 && holder.depth < depth {
			return true
		}
	}
	return false
}

func workerWaits() *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeBusy, "the session's worker waits for a call that its own tool made, which may be this one: "+
		"tools that call each other in isolation session must be coroutines, or of another isolation").
		WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo).WithRetryable(true).WithDetail("reason", "worker_waits")
}

// dispatch gives calls that may have a worker to those that have room: a call
// may wait beside idle workers until it is admitted. It returns the place of the
// first that finds none, or -1. c.mu is held.
func (c *crew) dispatch() int {
	for c.queue.len() > 0 {
		i := c.admissible()
		if i < 0 {
			return -1
		}
		w := c.pick()
		if w == nil {
			return i
		}
		j := c.queue.take(i)
		c.assign(w, j)
		w.call(j)
		granted(j, nil)
	}
	return -1
}

// admissible is the place in the queue of the first call that may be given a
// worker, or -1. c.mu is held.
func (c *crew) admissible() int {
	refused := -1
	for i := c.queue.head; i < len(c.queue.list); i++ {
		if j := c.queue.list[i]; j.depth != refused {
			if c.admits(j) {
				return i
			}
			refused = j.depth // as are most of those behind it
		}
	}
	return -1
}

// admissibles is how many calls of the queue could have a worker, each by
// itself. c.mu is held.
func (c *crew) admissibles() int {
	n := 0
	for _, j := range c.queue.list[c.queue.head:] {
		if c.admits(j) {
			n++
		}
	}
	return n
}

// next takes the first call off the queue that may be given a worker. c.mu is
// held.
func (c *crew) next() *job {
	if c.queue.len() == 0 {
		return nil
	}
	i := c.admissible()
	if i < 0 {
		return nil
	}
	return c.queue.take(i)
}

// take removes the call at a place of list.
func (q *fifo) take(i int) *job {
	if i == q.head {
		return q.pop()
	}
	j := q.list[i]
	q.list = append(q.list[:i], q.list[i+1:]...)
	return j
}
