package pool

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/internal/wake"
)

// maxNested bounds the calls that one call's tool has open at once.
const maxNested = 1024

// largestNested is how many calls with the largest arguments the tools of one worker may have open at once.
const largestNested = 4

// Nested makes the calls of a tool on behalf of its own call, whose session and depth it knows.
// Its methods are called concurrently, and return soon after ctx has ended.
type Nested interface {
	// Call runs a tool, by its full id. args are as the tool wrote them; empty
	// means none. The error should be a [*toolmesh.Error]: it is what the tool sees.
	Call(ctx context.Context, tool string, args json.RawMessage) (json.RawMessage, error)
	// Stream runs a tool and yields its items; an error is the last thing it yields.
	Stream(ctx context.Context, tool string, args json.RawMessage) iter.Seq2[json.RawMessage, error]
	// Batch runs several calls, as the tool wrote them: a list of {"tool_id","kwargs",
	// "timeout_ms"}. It returns a list of their ends in the same order.
	Batch(ctx context.Context, calls json.RawMessage) (json.RawMessage, error)
	// Task makes a request about durable tasks: a verb (submit, wait and so on) and its JSON.
	// It returns the answer.
	Task(ctx context.Context, verb string, request json.RawMessage) (json.RawMessage, error)
	// Describe returns a tool's description in the form of `mesh info --json`.
	Describe(ctx context.Context, tool string) (json.RawMessage, error)
	// File uploads a file of the tool in pieces. what is "put" with the body {"size"}, which
	// returns an id; "piece:<id>" with the next bytes; or "end:<id>", which returns
	// {"ref","digest","size"}.
	File(ctx context.Context, what string, body []byte) ([]byte, error)
	// ReadFile yields the bytes of a file that the tool's caller sent; file is
	// {"ref","digest"}.
	ReadFile(ctx context.Context, file json.RawMessage) iter.Seq2[json.RawMessage, error]
}

// nesting are the calls that the tool of one call makes. It costs nothing for a tool that makes
// none.
type nesting struct {
	above context.Context //nolint:containedctx // of the call: the goroutine that reads for all of a worker begins its nested calls
	wg    sync.WaitGroup

	// Guarded by update until the call has ended.
	ctx    context.Context //nolint:containedctx // of all of them; nil until there is one
	cancel context.CancelFunc
}

// nestedCall is one call that a tool makes.
type nestedCall struct {
	id     uint64 // the worker's
	size   int    // of its request
	w      *worker
	j      *job // of the tool that makes it
	cancel context.CancelFunc

	mu     sync.Mutex
	credit int           // bytes for which the worker has room
	more   chan struct{} // capacity 1: credit came
}

// nestedAbout is the JSON of a NESTED_CALL frame before the arguments.
type nestedAbout struct {
	Call      uint64 `json:"call"` // whose tool makes it
	Tool      string `json:"tool"`
	TimeoutMS int64  `json:"timeout_ms"` // 0: the time of the call above
}

// nested handles a frame about a nested call. An error means that the worker broke the
// protocol.
func (w *worker) nested(h frame.Header, body []byte) error {
	if h.Type == frame.NestedCall {
		return w.beginNested(h, body)
	}
	var n *nestedCall
	w.pool.read(func(*state) { n = w.nests[h.ID] })
	switch {
	case n == nil: // it has ended
	case h.Type == frame.NestedCancel:
		n.cancel()
	case len(body) != 4:
		return fmt.Errorf("the worker sent a credit of %d bytes", len(body))
	default:
		return n.add(int(binary.LittleEndian.Uint32(body)))
	}
	return nil
}

func (w *worker) beginNested(h frame.Header, body []byte) error {
	var about nestedAbout
	if len(body) < 4 || int(binary.LittleEndian.Uint32(body)) > len(body)-4 {
		return errors.New("the worker sent a nested call that is cut off")
	}
	size := int(binary.LittleEndian.Uint32(body))
	if err := json.Unmarshal(body[4:4+size], &about); err != nil {
		return fmt.Errorf("the worker sent a nested call that cannot be read: %w", err)
	}
	args := append(json.RawMessage(nil), body[4+size:]...) // nil without any
	n := &nestedCall{id: h.ID, size: len(body), w: w, credit: window, more: make(chan struct{}, 1)}
	var refused, broken error
	w.pool.update(func(s *state) {
		var ctx context.Context
		if ctx, refused, broken = s.beginNested(n, about); ctx != nil {
			n.j.nesting.wg.Go(func() { n.run(ctx, h.Flags, about.Tool, args) })
		}
	})
	if refused != nil {
		w.nestedFailed(n.id, refused)
	}
	return broken
}

var (
	errCallEnded     = failure.NotStarted(toolmesh.CodeCancelled, "the call that this code belongs to has ended")
	errNoNested      = failure.Unavailable("tools cannot call others here: they run outside of a mesh")
	errTooManyNested = failure.NotStarted(toolmesh.CodeBusy, "the tool has %d calls open at once: wait for some of them", maxNested).
				WithDetail("limit", "nested")
)

// beginNested records a nested call and returns its context, or the error of the call, or how the
// worker broke the protocol. A timeout of 0 is the time of the call above.
func (s *state) beginNested(n *nestedCall, about nestedAbout) (ctx context.Context, refused, broken error) {
	j, _ := n.w.holds(about.Call)
	switch n.j = j; {
	case n.w.nests[n.id] != nil:
		return nil, nil, fmt.Errorf("the worker sent nested call %d twice", n.id)
	case j == nil:
		return nil, errCallEnded, nil
	case j.Nested == nil:
		return nil, errNoNested, nil
	case j.open >= maxNested:
		return nil, errTooManyNested, nil
	case n.w.openBytes+n.size > largestNested*int(s.cfg.MaxFrame):
		return nil, failure.NotStarted(toolmesh.CodeBusy, "the calls that are open in the tool's worker take %d bytes: wait for some of them", n.w.openBytes).
			WithDetail("limit", "nested"), nil
	}
	if j.nesting.ctx == nil {
		j.nesting.ctx, j.nesting.cancel = context.WithCancel(j.nesting.above)
	}
	if timeout := toolmesh.Millis(about.TimeoutMS); timeout > 0 {
		ctx, n.cancel = context.WithTimeout(j.nesting.ctx, timeout)
	} else {
		ctx, n.cancel = context.WithCancel(j.nesting.ctx)
	}
	n.w.nests[n.id] = n
	n.w.openBytes += n.size
	s.opened(j, 1)
	return ctx, nil, nil
}

// endNested stops the open calls of an ended call's tool, and waits for their end.
func (j *job) endNested() {
	if j.nesting.cancel != nil {
		j.nesting.cancel()
	}
	j.nesting.wg.Wait()
}

// run makes a nested call, of the kind in the flags of its frame.
func (n *nestedCall) run(ctx context.Context, flags uint8, tool string, args json.RawMessage) {
	var result json.RawMessage
	var err error
	kind, mesh := frame.NestedResult, n.j.Nested
	switch flags {
	case frame.FlagStream | frame.FlagFile:
		kind, err = frame.NestedEnd, n.stream(ctx, mesh.ReadFile(ctx, args))
	case frame.FlagStream:
		kind, err = frame.NestedEnd, n.stream(ctx, mesh.Stream(ctx, tool, args))
	case frame.FlagFile:
		result, err = mesh.File(ctx, tool, args)
	case frame.FlagBatch:
		result, err = mesh.Batch(ctx, args)
	case frame.FlagDescribe:
		result, err = mesh.Describe(ctx, tool)
	case frame.FlagTask:
		result, err = mesh.Task(ctx, tool, args)
	default:
		result, err = mesh.Call(ctx, tool, args)
	}
	n.finish(err, kind, result)
}

func (n *nestedCall) stream(ctx context.Context, items iter.Seq2[json.RawMessage, error]) error {
	for data, err := range items {
		if err == nil {
			err = n.spend(ctx, len(data)+itemCost)
		}
		if err != nil {
			return err
		}
		n.w.send(frame.Header{Type: frame.NestedItem, ID: n.id}, data)
	}
	return nil
}

// finish removes an ended nested call from the lists, and sends its result with kind, or the
// error.
func (n *nestedCall) finish(err error, kind frame.Type, result []byte) {
	if err != nil && n.j.nesting.above.Err() != nil {
		// The call above must stop, and its tool must not handle this as a failure and go on: so the
		// cancellation is sent first.
		n.w.pool.interrupt(n.j)
	}
	n.cancel()
	n.w.pool.update(func(s *state) {
		delete(n.w.nests, n.id)
		n.w.openBytes -= n.size
		s.opened(n.j, -1)
	})
	if err != nil {
		n.w.nestedFailed(n.id, err)
	} else {
		n.w.send(frame.Header{Type: kind, ID: n.id}, result)
	}
}

// spend waits for credit and takes size off it.
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

// add returns credit. An error means that the worker broke the protocol: it returned more than
// was used.
func (n *nestedCall) add(size int) error {
	n.mu.Lock()
	over := n.credit+size > window
	if !over {
		n.credit += size
	}
	n.mu.Unlock()
	if over {
		return fmt.Errorf("the worker gave nested call %d more credit than it has room", n.id)
	}
	wake.Up(n.more)
	return nil
}

// nestedFailed ends a nested call with an error.
func (w *worker) nestedFailed(id uint64, err error) {
	body, bad := json.Marshal(toolmesh.AsError(err))
	if bad != nil { // its details are not JSON
		e := *toolmesh.AsError(err)
		e.Details = nil
		body, _ = json.Marshal(&e)
	}
	w.send(frame.Header{Type: frame.NestedError, ID: id}, body)
}
