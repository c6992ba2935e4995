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

	"golang.org/x/time/rate"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
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
	pipes   []*output.Pipe // of its descriptors 1 and 2; may be none
	tail    *output.Tail
	reading sync.WaitGroup // the pipes

	exit      sandbox.Exit // valid once it is being finished
	finishing sync.Once

	logMu  sync.Mutex    // orders output and the ends of calls
	budget *rate.Limiter // of output in frames of no call

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
	openBytes int                    // of the requests of nests
	places    uint64                 // CALL frames sent to it
	idleSince time.Time
	silent    int  // looks since a keepalive was requested from its event loop; 0 after it came
	blocked   bool // no keepalive for a while: it gets no new calls
	metering  metering
	wear      wear
}

// newWorker starts a worker and waits until it is ready.
func (p *Pool) newWorker() (*worker, error) {
	proc, err := p.spawn(p.open)
	if err != nil {
		return nil, err
	}
	w := &worker{pool: p, proc: proc, tail: output.NewTail(p.cfg.Redact), nests: map[uint64]*nestedCall{}}
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
		w.pool.update(func(s *state) { s.remove(w, cause) })
		w.proc.Close()
		w.pool.update(func(s *state) { s.alive-- })
	})
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

// next handles the worker's next frame. It returns the call that the frame ends, with its outcome. An
// error means that the worker is useless.
func (w *worker) next() (ended *job, err error) {
	h, body, err := w.reader.Next()
	if err != nil {
		return nil, err
	}
	switch h.Type { //nolint:exhaustive // the rest never comes from a worker
	case frame.Result, frame.Error, frame.End:
		return w.answered(h, body)
	case frame.Yield:
		var j *job
		w.pool.read(func(*state) { j, err = w.holds(h.ID) })
		if j != nil {
			err = j.take(body)
		}
	case frame.Log:
		w.logged(h, body)
	case frame.NestedCall, frame.NestedCancel, frame.NestedCredit:
		err = w.nested(h, body)
	case frame.Pong:
		w.pool.update(func(*state) { w.silent, w.blocked, w.idleSince = 0, false, time.Now() })
	default:
		err = fmt.Errorf("the worker sent the unknown frame type %d", h.Type)
	}
	return nil, err
}

// demultiplex reads for all calls of a worker of coroutines, until it ends.
func (w *worker) demultiplex() error {
	for {
		j, err := w.next()
		if err != nil {
			return err
		}
		if j != nil {
			j.done <- struct{}{}
		}
	}
}

// answered handles the frame that ends a call; nil if the call was abandoned before. Output that
// came before it is passed on; the call gets none afterwards.
func (w *worker) answered(h frame.Header, body []byte) (j *job, err error) {
	alone := false
	w.logMu.Lock()
	w.settleOutput(h.Flags)
	w.pool.update(func(s *state) {
		j, err = s.answered(w, h, body)
		alone = w.ended && !s.cfg.Async && w.free() // no goroutine reads from it any more
	})
	w.logMu.Unlock()
	if alone {
		w.finish(nil)
	}
	return j, err
}

var errExceeded = errors.New("it exceeded a limit that the kernel enforces")

// holds is the call of an id; nil if it was abandoned. The error is that the worker cannot have it.
// It is called with the pool's lock.
func (w *worker) holds(id uint64) (*job, error) {
	j := w.jobs[id]
	if w.one != nil && w.one.id == id {
		j = w.one
	}
	if j == nil && w.abandoned == 0 {
		return nil, fmt.Errorf("the worker sent a frame of call %d, which it does not have", id)
	}
	return j, nil
}

// find is the call of an id; nil if the worker does not have it.
func (w *worker) find(id uint64) (j *job) {
	w.pool.read(func(*state) { j, _ = w.holds(id) })
	return j
}

// call sends a call to the worker. For a worker with many calls, frames of several goroutines
// are gathered into one write. No lock may be held.
func (w *worker) call(j *job) {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	w.calls++
	j.place.Store(w.calls)
	w.buf = frame.Append(w.buf, frame.Header{Type: frame.Call, Flags: j.flags, Slot: j.Slot, ID: j.id}, j.meta, j.Args)
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

// send writes a frame. It never blocks.
func (w *worker) send(h frame.Header, body []byte) {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	w.buf = frame.Append(w.buf, h, body)
	w.write()
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
