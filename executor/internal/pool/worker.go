package pool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/internal/wake"
)

const (
	// A worker with crowd calls gets new ones together: others most likely come or go at the
	// same time, and a write for each would cost more than everything else.
	crowd = 16
	// gathered is how many bytes of calls are written without waiting for more: the worker
	// starts on them while others are being made.
	gathered = 4 << 10
)

// worker is one process that takes calls. The caller reads the frames of a worker of plain
// functions itself, without a goroutine between them; those of a worker of coroutines are
// read by one goroutine for all its calls.
type worker struct {
	pool    *Pool
	proc    Process
	reader  *frame.Reader
	stdout  *output.Pipe // may be nil, as stderr
	stderr  *output.Pipe
	tail    *output.Tail
	reading sync.WaitGroup // the pipes

	exit      sandbox.Exit // valid once it is being finished
	gone      chan struct{}
	finishing sync.Once

	current atomic.Pointer[job] // of plain functions: the call whose output is read

	logMu sync.Mutex // orders output and the ends of calls

	writeMu   sync.Mutex
	buf       []byte // frames that are about to be written
	gathering bool   // a goroutine is about to write buf
	calls     uint64 // CALL frames that were in it

	// Guarded by update.
	ready     bool                   // READY came
	ended     bool                   // its process has ended
	retired   bool                   // it takes no further call
	stopping  bool                   // told to end: its end is not a crash
	one       *job                   // of plain functions: the call that it has
	jobs      map[uint64]*job        // of coroutines: those that it has
	nests     map[uint64]*nestedCall // calls that its tools make
	abandoned int                    // calls without a waiter that it may still run
	waiting   int                    // calls whose tool waits for one that it made
	places    uint64                 // CALL frames sent to it
	idleSince time.Time
	silent    int  // looks since a keepalive was requested from its event loop; 0 after it came
	blocked   bool // no keepalive for a while: it gets no new calls
	metering  metering
	recycling recycling
}

// newWorker starts a worker and waits until it is ready.
func (p *Pool) newWorker() (*worker, error) {
	proc, err := p.spawn(p.open)
	if err != nil {
		return nil, err
	}
	w := &worker{pool: p, proc: proc, gone: make(chan struct{}), tail: output.NewTail(p.cfg.Redact), nests: map[uint64]*nestedCall{}}
	w.reader = frame.NewReader(proc, p.cfg.MaxFrame)
	if p.cfg.Async {
		w.jobs = map[uint64]*job{}
	}
	p.update(func(s *state) { s.alive++ })
	if err := w.capture(); err != nil {
		w.finish(err)
		return nil, err
	}
	p.wg.Go(func() {
		<-proc.Done()
		p.processEnded(w)
	})
	var late atomic.Bool
	timer := time.AfterFunc(p.cfg.StartTimeout, func() {
		late.Store(true)
		proc.Kill()
	})
	h, _, err := w.reader.Next()
	timer.Stop()
	if err == nil && h.Type != frame.Ready {
		err = fmt.Errorf("its first frame has type %d", h.Type)
	}
	if err != nil {
		w.finish(err)
		if late.Load() {
			return nil, fmt.Errorf("the worker was not ready within %v%s", p.cfg.StartTimeout, w.tail.Suffix())
		}
		return nil, fmt.Errorf("the worker ended before it was ready: %s%s", w.exit, w.tail.Suffix())
	}
	w.bound()
	ended := false
	p.update(func(*state) { w.ready, ended = true, w.ended })
	switch {
	case p.cfg.Async:
		p.wg.Go(func() { w.finish(w.demultiplex()) })
	case ended:
		w.finish(nil)
		return nil, fmt.Errorf("the worker ended when it was ready: %s%s", w.exit, w.tail.Suffix())
	}
	return w, nil
}

// finish kills the process if it has not ended, and releases the worker. Any goroutine that finds
// the worker useless calls it; it returns when all is done.
func (w *worker) finish(cause error) {
	w.finishing.Do(func() {
		w.proc.Kill()
		select {
		case <-w.proc.Done():
			w.exit = w.proc.Exit()
		case <-time.After(endTimeout):
			w.pool.log.Error("killed worker did not end", slog.Int("pid", w.proc.Pid()))
			w.exit = sandbox.Exit{Lost: true}
		}
		w.endOutput()
		w.pool.update(func(s *state) { s.remove(w.pool.log, w, cause) })
		w.proc.Close()
		w.pool.update(func(s *state) { s.alive-- })
		close(w.gone)
	})
	<-w.gone
}

// end lets a worker without calls exit by itself, with its exit handlers.
func (w *worker) end() {
	w.send(frame.Header{Type: frame.Exit}, nil)
	select {
	case <-w.proc.Done():
	case <-time.After(w.pool.cfg.Grace):
	}
	w.finish(nil)
}

// follow reads for the call of a worker of plain functions until its end: the terminal's type
// and body, or an error if the worker is useless. Items go to the call's sink, which may block,
// until the sink returns an error: that is refused, however the call ends.
func (w *worker) follow(j *job) (kind frame.Type, data []byte, refused, err error) {
	for {
		h, body, err := w.reader.Next()
		if err != nil {
			return 0, nil, refused, err
		}
		switch h.Type { //nolint:exhaustive // the rest never comes from a worker
		case frame.Result, frame.Error, frame.End:
			if h.ID != j.id {
				return 0, nil, refused, fmt.Errorf("the worker answered call %d while it had call %d", h.ID, j.id)
			}
			if !w.answers(h, j.since) {
				return 0, nil, refused, errExceeded
			}
			return h.Type, own(h, body), refused, nil
		case frame.Yield:
			if h.ID != j.id {
				return 0, nil, refused, fmt.Errorf("the worker sent an item of call %d while it had call %d", h.ID, j.id)
			}
			if err := j.charge(len(body)); err != nil {
				return 0, nil, refused, err
			}
			if refused == nil {
				if refused = j.item(own(h, body)); refused != nil {
					w.pool.interrupt(j)
				}
			}
		default:
			if err := w.other(h, body); err != nil {
				return 0, nil, refused, err
			}
		}
	}
}

// demultiplex reads for all calls of a worker of coroutines, until it ends.
func (w *worker) demultiplex() error {
	for {
		h, body, err := w.reader.Next()
		if err != nil {
			return err
		}
		switch h.Type { //nolint:exhaustive // the rest never comes from a worker
		case frame.Result, frame.Error, frame.End:
			var since time.Time
			if j := w.find(h.ID); j != nil {
				since = j.since
			}
			if !w.answers(h, since) {
				return errExceeded
			}
			j, err := w.pool.finishedCoroutine(w, h.ID)
			if err != nil {
				return err
			}
			if j != nil {
				j.kind, j.body = h.Type, own(h, body)
				j.done <- struct{}{}
			}
		case frame.Yield:
			var j *job
			w.pool.read(func(*state) { j, err = w.jobs[h.ID], w.known(h.ID) })
			if j != nil {
				err = j.charge(len(body))
			}
			if err != nil {
				return err
			}
			if j == nil {
				continue
			}
			j.items.mu.Lock()
			j.items.list = append(j.items.list, own(h, body))
			j.items.mu.Unlock()
			wake.Up(j.items.notify)
		default:
			if err := w.other(h, body); err != nil {
				return err
			}
		}
	}
}

// other handles a frame that is neither a call's end nor an item.
func (w *worker) other(h frame.Header, body []byte) error {
	switch h.Type { //nolint:exhaustive // the rest never comes from a worker
	case frame.Log:
		w.logged(h, body)
	case frame.NestedCall, frame.NestedCancel, frame.NestedCredit:
		return w.nested(h, body)
	case frame.Pong:
		w.pool.answered(w)
	default:
		return fmt.Errorf("the worker sent the unknown frame type %d", h.Type)
	}
	return nil
}

// answers handles the frame that ends a call that began at since; false if it does not count.
func (w *worker) answers(h frame.Header, since time.Time) bool {
	if w.pool.endOutgrown(w, h, since) {
		return false
	}
	if h.Flags&frame.FlagSpent != 0 {
		w.pool.update(func(s *state) { s.stop(w) }) // its call used it up
	}
	w.settleOutput(h.Flags)
	return true
}

var errExceeded = errors.New("it exceeded a limit that the kernel enforces")

// own is a body that may be retained.
func own(h frame.Header, body []byte) []byte {
	if frame.Owned(h) {
		return body
	}
	return append(make([]byte, 0, len(body)), body...)
}

// known is an error for a call that the worker of coroutines does not have. It is called with
// the pool's lock.
func (w *worker) known(id uint64) error {
	if w.jobs[id] == nil && w.abandoned == 0 {
		return fmt.Errorf("the worker sent a frame of call %d, which it does not have", id)
	}
	return nil
}

// find is the call of an id, nil if it was abandoned.
func (w *worker) find(id uint64) (j *job) {
	if !w.pool.cfg.Async {
		if j := w.current.Load(); j != nil && j.id == id {
			return j
		}
		return nil
	}
	w.pool.read(func(*state) { j = w.jobs[id] })
	return j
}

// call sends a call to the worker. For a worker with many calls, frames of several goroutines
// are gathered into one write. No lock may be held.
func (w *worker) call(j *job) {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	w.calls++
	j.place.Store(w.calls)
	w.append(frame.Header{Type: frame.Call, Flags: j.flags, Slot: j.Slot, ID: j.id}, j.meta, j.Args)
	if j.crowded && len(w.buf) < gathered {
		if w.gathering {
			return // the goroutine that gathers writes it
		}
		w.gathering = true
		w.writeMu.Unlock()
		runtime.Gosched()
		w.writeMu.Lock()
		w.gathering = false
	}
	w.write()
}

// cancel tells the worker to stop a call: a running one through the page and a signal, a
// waiting one by a frame.
func (w *worker) cancel(j *job) {
	w.proc.Store(sandbox.WordCancel, j.id) // before the frame: the worker compares them
	w.send(frame.Header{Type: frame.Cancel, ID: j.id}, nil)
	w.signal(j)
}

// signal interrupts a call that is to stop, if it is the one that runs.
func (w *worker) signal(j *job) {
	w.proc.Store(sandbox.WordCancel, j.id)
	w.proc.Interrupt()
}

// credit lets a stream send size more bytes.
func (w *worker) credit(j *job, size int) {
	j.credited.Add(int64(size))
	w.send(frame.Header{Type: frame.Credit, ID: j.id}, binary.LittleEndian.AppendUint32(nil, uint32(size))) //nolint:gosec // bounded by the window
}

func (w *worker) ping() { w.send(frame.Header{Type: frame.Ping, ID: w.proc.ID()}, nil) }

// send writes a frame. It never blocks.
func (w *worker) send(h frame.Header, body []byte) {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	w.append(h, body, nil)
	w.write()
}

// append adds a frame to buf. writeMu is held.
func (w *worker) append(h frame.Header, meta, rest []byte) {
	h.Length = uint32(len(meta) + len(rest)) //nolint:gosec // bounded by the executor
	w.buf = append(append(h.Append(w.buf), meta...), rest...)
}

// write writes buf. writeMu is held.
func (w *worker) write() {
	data := w.buf
	if w.buf = data[:0]; cap(data) > 1<<20 {
		w.buf = nil
	}
	if len(data) > 0 {
		w.proc.Write(data)
	}
}

// begun reports whether a call of a dead worker had entered its function. It is called in
// updates.
func (w *worker) begun(j *job) toolmesh.Started {
	if w.pool.cfg.Async {
		place := j.place.Load()
		return failure.Started(place > 0 && place <= w.proc.Load(sandbox.WordTaken))
	}
	// A tool may have overwritten the page: only an unchanged word proves that it did not start.
	return failure.Started(w.proc.Load(sandbox.WordStarted) != j.before)
}
