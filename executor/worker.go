package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/cgroup"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/executor/frame"
	"github.com/toolmesh/toolmesh/executor/output"
	"github.com/toolmesh/toolmesh/executor/sandbox"
)

// job is one call on its way through the pool.
type job struct {
	id      uint64
	tool    *served
	flags   uint8
	meta    []byte
	args    []byte
	sink    output.Sink
	session string // whose call it is
	rpcID   string
	depth   int // how many calls are above it

	nesting nesting // the calls that its tool makes

	// place is which CALL frame of its worker it is, from 1; 0 until there is one.
	// Set with the worker's writeMu.
	place atomic.Uint64

	// turn gets nil when a queued call gets a worker, or why it gets none. Made
	// when a call is queued, capacity 1.
	turn chan *toolmesh.Error
	// done is signalled when the outcome of a coroutine's call is set; capacity 1.
	done chan struct{}

	// Outcome. Of a coroutine's call set before done, of a plain function's by
	// its caller.
	kind frame.Type // Result, Error, End, or 0 with err
	body []byte
	err  *toolmesh.Error

	// Guarded by the crew's lock.
	worker *worker // nil while queued
	before uint64  // what its worker's page said had started when it was assigned
	since  time.Time
	cpu    time.Duration   // processor time it used, as far as it is metered
	breach *toolmesh.Error // the limit for which the watchdog stopped it
	killed bool            // its worker was killed because it went on after its grace
	open   int             // calls that its tool has open
	grace  *time.Timer
	again  *time.Timer // signals it once more
	// Set when its worker ended under it.
	fatal    uint64 // that worker's id
	shared   bool   // calls of other tools ran there too
	innocent bool   // the worker's end was not its own

	// Items of a coroutine's stream that the sink has not taken; bounded by credit.
	items struct {
		mu     sync.Mutex
		list   [][]byte
		notify chan struct{} // capacity 1; nil for calls that do not stream
	}
}

// calm stops what was to come after a cancellation. The crew's lock is held.
func (j *job) calm() {
	if j.grace != nil {
		j.grace.Stop()
		j.again.Stop()
	}
}

// worker is one process that takes calls. Who reads its frames: of a worker of
// plain functions, the caller whose call it runs, without a goroutine between
// them; of a worker of coroutines, a goroutine for all its calls. Lock order:
// logMu and nesting.mu, then crew.mu, then writeMu and nestMu.
type worker struct {
	id     uint64
	crew   *crew
	zygote *zygote
	handle *sandbox.Handle
	group  *cgroup.Group // nil: it is in none of its own
	page   *sandbox.Page
	in     *os.File // calls
	out    *os.File // results
	from   *eager   // out
	reader *frame.Reader
	stdout *output.Pipe
	stderr *output.Pipe
	tail   *output.Tail
	log    *slog.Logger

	exited    chan struct{} // closed when the process is known to have ended
	exit      sandbox.Exit  // valid after exited
	exitOnce  sync.Once
	gone      chan struct{} // closed when everything about it is finished
	finishing sync.Once

	// Guarded by crew.mu.
	jobs      map[uint64]*job // of coroutines
	abandoned int             // calls that we no longer wait for but that it may still run
	waiting   int             // calls whose tool waits for one that it made
	places    uint64          // calls that it was given
	idleSince time.Time
	retired   bool // takes no further call
	stopping  bool // told to end: its end is no crash
	meter     meter
	silent    int       // looks at an event loop since it was asked for a sign of life; 0 when it gave it
	blocked   bool      // it gave none for a while: it gets no new calls
	tired     bool      // another is being started in its place
	due       uint64    // calls after which it is replaced; 0: however many
	expires   time.Time // when it is replaced; zero: never
	base      int64     // bytes of memory that it began with
	most      int64     // bytes that it may grow by; 0: any

	current atomic.Pointer[job] // the running call of a worker of plain functions

	nestMu sync.Mutex
	nests  map[uint64]*nestedCall // calls that its tools make

	logMu sync.Mutex // output is handed over, and calls end, one at a time

	writeMu   sync.Mutex
	buf       []byte // frames that are about to be written
	gathering bool   // somebody is about to write buf
	calls     uint64 // CALL frames that were in it
	pending   []byte // what the pipe had no room for
	flushing  bool
	raw       syscall.RawConn
	wg        sync.WaitGroup // flusher and pipe readers
}

// startWorker forks a worker and waits until it is ready.
func startWorker(c *crew, z *zygote, id uint64, become bool, timeout time.Duration) (_ *worker, err error) {
	w := &worker{
		id: id, crew: c, zygote: z, log: c.index.log,
		exited: make(chan struct{}), gone: make(chan struct{}), tail: output.NewTail(c.index.redact),
	}
	var theirs, ours []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
		if err != nil {
			for _, f := range ours {
				_ = f.Close()
			}
			if w.page != nil {
				w.page.Sent()
				w.page.Close()
			}
			if w.group != nil {
				w.group.Close()
			}
		}
	}()
	inR, inW, err := sandbox.NewPipe(sandbox.WriteEnd)
	if err != nil {
		return nil, err
	}
	theirs, ours = append(theirs, inR), append(ours, inW)
	for range 3 {
		r, wr, err := sandbox.NewPipe(sandbox.ReadEnd)
		if err != nil {
			return nil, err
		}
		theirs, ours = append(theirs, wr), append(ours, r)
	}
	if w.page, err = sandbox.NewPage(); err != nil {
		return nil, err
	}
	w.in, w.out = ours[0], ours[1]
	if w.stdout, err = w.pipe(ours[2], output.StreamStdout, nil); err != nil {
		return nil, err
	}
	if w.stderr, err = w.pipe(ours[3], output.StreamStderr, w.keepWords); err != nil {
		return nil, err
	}
	if w.raw, err = w.in.SyscallConn(); err != nil {
		return nil, err
	}
	from, err := newEager(w.out)
	if err != nil {
		return nil, err
	}
	w.from = from
	w.group = c.index.x.newGroup(c.key.limits)
	// A context of the caller's must not end the start: others wait for it too.
	w.handle, err = z.fork(w, become, append(theirs[:4:4], w.page.File()))
	if err != nil {
		return nil, err
	}
	w.page.Sent()
	for _, f := range theirs {
		_ = f.Close()
	}
	theirs = nil
	ours = nil // from here on finish closes them
	w.enclose()
	w.reader = frame.NewReader(from, c.index.x.maxFrame())
	w.wg.Go(w.stdout.Run)
	w.wg.Go(w.stderr.Run)
	_ = w.out.SetReadDeadline(time.Now().Add(timeout))
	h, _, err := w.reader.Next()
	_ = w.out.SetReadDeadline(time.Time{})
	if err == nil && h.Type != frame.Ready {
		err = fmt.Errorf("it began with frame type %d", h.Type)
	}
	if err != nil {
		w.finish(err)
		w.page = nil
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fmt.Errorf("the worker was not ready within %v%s", timeout, lastWords(w.tail.String()))
		}
		return nil, fmt.Errorf("the worker ended before it was ready: %s%s", w.exit, lastWords(w.tail.String()))
	}
	if watched(c.key.limits) {
		if u, ok := w.handle.Usage(); ok {
			w.meter.base = u.Memory
		}
	}
	w.bound()
	if c.async {
		w.jobs = map[uint64]*job{}
		c.index.wg.Go(w.serve)
	}
	return w, nil
}

// finish ends the process if it has not ended, and everything about the worker.
// It is called by whoever finds that the worker is of no more use; it returns
// when all is done.
func (w *worker) finish(cause error) {
	w.finishing.Do(func() {
		w.kill()
		select {
		case <-w.exited:
		case <-time.After(5 * time.Second):
			w.log.Error("a killed worker did not end", slog.Int("pid", w.handle.Pid()))
			w.exitedWith(sandbox.Exit{Lost: true})
		}
		w.zygote.forget(w)
		w.stdout.Close()
		w.stderr.Close()
		_ = w.in.Close()
		_ = w.out.Close()
		w.wg.Wait()
		w.removeFolder()
		w.crew.resigned(w)
		w.crew.lost(w, cause)
		if w.group != nil {
			w.group.Close()
		}
		w.handle.Close()
		close(w.gone)
	})
	<-w.gone
}

// exitedWith notes the end of the process. Somebody is reading from the worker
// and finishes it, unless it was idle.
func (w *worker) exitedWith(e sandbox.Exit) {
	w.exitOnce.Do(func() {
		w.exit = e
		close(w.exited)
		// A process that a tool left behind may hold the pipe open: what the
		// worker wrote is there already, its end may never come.
		_ = w.out.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if w.crew.leaveIdle(w) {
			w.crew.index.wg.Go(func() { w.finish(nil) })
		}
	})
}

func (w *worker) kill() { _ = w.handle.Signal(syscall.SIGKILL) }

// stop ends an idle worker politely; its exit handlers run.
func (w *worker) stop(grace time.Duration) {
	w.send(frame.Header{Type: frame.Exit}, nil, nil)
	timer := time.AfterFunc(grace, w.kill)
	defer timer.Stop()
	<-w.gone
}

// follow reads on behalf of the call that a worker of plain functions runs, to
// its end: the terminal's type and body, or an error when the worker is of no
// more use. Items go to item, which may block, until it returns an error: that
// is refused, however the call ends.
func (w *worker) follow(j *job, item func(data []byte) error) (kind frame.Type, data []byte, refused, err error) {
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
			if w.crew.exhausted(w) {
				return 0, nil, refused, errStarved
			}
			data := own(h, body)
			if h.Flags&frame.FlagSpent != 0 {
				w.crew.spent(w)
			}
			w.settle(h.Flags)
			return h.Type, data, refused, nil
		case frame.Yield:
			if refused == nil && h.ID == j.id && item != nil {
				if refused = item(own(h, body)); refused != nil {
					w.crew.interrupt(j)
				}
			}
		case frame.Log:
			w.logged(h, body)
		case frame.NestedCall, frame.NestedCancel, frame.NestedCredit:
			if err := w.nested(h, body); err != nil {
				return 0, nil, refused, err
			}
		case frame.Pong:
		default:
			return 0, nil, refused, fmt.Errorf("the worker sent frame type %d, which this agent does not know", h.Type)
		}
	}
}

// own is a body that may be kept.
func own(h frame.Header, body []byte) []byte {
	if frame.Owned(h) {
		return body
	}
	return append(make([]byte, 0, len(body)), body...)
}

// serve reads for all calls of a worker of coroutines, until it ends.
func (w *worker) serve() { w.finish(w.demultiplex()) }

func (w *worker) demultiplex() error {
	for {
		h, body, err := w.reader.Next()
		if err != nil {
			return err
		}
		switch h.Type { //nolint:exhaustive // the rest never comes from a worker
		case frame.Result, frame.Error, frame.End:
			if w.crew.exhausted(w) {
				return errStarved
			}
			if h.Flags&frame.FlagSpent != 0 {
				w.crew.spent(w)
			}
			w.settle(h.Flags)
			if j := w.crew.finishedCoroutine(w, h.ID); j != nil {
				j.kind, j.body = h.Type, own(h, body)
				j.done <- struct{}{}
			}
		case frame.Yield:
			if j := w.find(h.ID); j != nil && j.items.notify != nil {
				j.items.mu.Lock()
				j.items.list = append(j.items.list, own(h, body))
				j.items.mu.Unlock()
				select {
				case j.items.notify <- struct{}{}:
				default:
				}
			}
		case frame.Log:
			w.logged(h, body)
		case frame.NestedCall, frame.NestedCancel, frame.NestedCredit:
			if err := w.nested(h, body); err != nil {
				return err
			}
		case frame.Pong:
			w.crew.answered(w)
		default:
			return fmt.Errorf("the worker sent frame type %d, which this agent does not know", h.Type)
		}
	}
}

// pipe makes the reader of a descriptor of the worker's.
func (w *worker) pipe(file *os.File, stream output.Stream, saw func(data []byte)) (*output.Pipe, error) {
	return output.NewPipe(file, &w.logMu, saw, output.NewLines(w.crew.index.redact, func(text string) {
		w.hand(w.only(), output.Record{Time: time.Now(), Stream: stream, Message: text})
	}))
}

// keepWords keeps what bypassed sys.stderr for the error of a call that ends with
// the worker.
func (w *worker) keepWords(data []byte) {
	if session, ok := w.session(); ok {
		w.tail.Add(data, session)
	} else {
		w.tail.Forget() // it is nobody's, or several's
	}
}

// logged hands over a LOG frame.
func (w *worker) logged(h frame.Header, body []byte) {
	record := output.RecordOf(h.Flags, body)
	w.logMu.Lock()
	j := w.find(h.ID)
	if record.Stream == output.StreamStderr && j != nil {
		w.tail.Add(body, j.session)
	}
	w.hand(j, record)
	w.logMu.Unlock()
}

// settle hands over what bypassed sys.stdout before a call's end. From then on
// a plain function's call gets no more output. A worker of coroutines says
// whether there is anything; of plain functions we look, which is cheaper than
// to have the worker look.
func (w *worker) settle(flags uint8) {
	w.logMu.Lock()
	if !w.crew.async || flags&frame.FlagRaw != 0 {
		w.stdout.Flush()
		w.stderr.Flush()
	}
	w.stdout.Settle()
	w.stderr.Settle()
	if !w.crew.async {
		w.current.Store(nil)
		w.tail.Forget()
	}
	w.logMu.Unlock()
}

// find is the call of an id, nil when we no longer wait for it.
func (w *worker) find(id uint64) *job {
	if !w.crew.async {
		if j := w.current.Load(); j != nil && j.id == id {
			return j
		}
		return nil
	}
	w.crew.mu.Lock()
	defer w.crew.mu.Unlock()
	return w.jobs[id]
}

// only is the one running call, nil when there are none or several.
func (w *worker) only() *job {
	if !w.crew.async {
		return w.current.Load()
	}
	w.crew.mu.Lock()
	defer w.crew.mu.Unlock()
	if len(w.jobs) != 1 || w.abandoned > 0 {
		return nil
	}
	for _, j := range w.jobs {
		return j
	}
	return nil
}

// session is that of the running calls; false when there are none, or of several.
func (w *worker) session() (string, bool) {
	if !w.crew.async {
		if j := w.current.Load(); j != nil {
			return j.session, true
		}
		return "", false
	}
	w.crew.mu.Lock()
	defer w.crew.mu.Unlock()
	session, found := "", false
	for _, j := range w.jobs {
		if found && j.session != session {
			return "", false
		}
		session, found = j.session, true
	}
	return session, found && w.abandoned == 0
}

// hand gives a record to its call's sink, or to the log. The log lock is held.
func (w *worker) hand(j *job, r output.Record) {
	if j != nil && j.sink != nil {
		j.sink.Log(r)
		return
	}
	rpcID := ""
	if j != nil {
		rpcID = j.rpcID
	}
	w.log.Debug("output of a worker", slog.String("stream", string(r.Stream)), slog.String("rpc_id", rpcID),
		slog.String("text", r.Message))
}

// call sends a call to the worker.
func (w *worker) call(j *job) {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	w.appendCall(j)
	w.write()
}

// appendCall adds a call to the frames that are about to be written. writeMu is held.
func (w *worker) appendCall(j *job) {
	h := frame.Header{Type: frame.Call, Flags: j.flags, Slot: j.tool.slot, ID: j.id}
	if w.crew.key.tool != "" {
		h.Slot = 0 // it imported nothing else
	}
	w.calls++
	j.place.Store(w.calls)
	w.append(h, j.meta, j.args)
}

// callCrowded sends a call to a worker that holds many others: together with
// those that other goroutines are about to send, once they have had their turn.
// No lock may be held.
func (w *worker) callCrowded(j *job) {
	w.writeMu.Lock()
	w.appendCall(j)
	if w.gathering && len(w.buf) < gathered {
		w.writeMu.Unlock()
		return // who gathers writes it
	}
	if len(w.buf) < gathered {
		w.gathering = true
		w.writeMu.Unlock()
		runtime.Gosched()
		w.writeMu.Lock()
		w.gathering = false
	}
	w.write()
	w.writeMu.Unlock()
}

// cancel tells the worker to stop a call: on the page and by a signal for what
// runs, by a frame for what waits.
func (w *worker) cancel(j *job) {
	w.page.Store(sandbox.WordCancel, j.id) // before the frame: the worker compares them
	w.send(frame.Header{Type: frame.Cancel, ID: j.id}, nil, nil)
	w.signal(j)
}

// signal interrupts a call that is to stop, if it is the one that runs.
func (w *worker) signal(j *job) {
	w.page.Store(sandbox.WordCancel, j.id)
	_ = w.handle.Signal(syscall.SIGURG)
}

// credit lets a stream send size more bytes.
func (w *worker) credit(id uint64, size int) {
	w.send(frame.Header{Type: frame.Credit, ID: id}, []byte{
		byte(size), byte(size >> 8), byte(size >> 16), byte(size >> 24),
	}, nil)
}

// send writes a frame whose body is meta and rest. It never blocks: what the
// pipe has no room for is written by a goroutine of the worker's.
func (w *worker) send(h frame.Header, meta, rest []byte) {
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	w.append(h, meta, rest)
	w.write()
}

// append adds a frame to those that are about to be written. writeMu is held.
func (w *worker) append(h frame.Header, meta, rest []byte) {
	h.Length = uint32(len(meta) + len(rest)) //nolint:gosec // bounded by Index.Call
	w.buf = append(append(h.Append(w.buf), meta...), rest...)
}

// write writes what is about to be written. writeMu is held.
func (w *worker) write() {
	data := w.buf
	w.buf = data[:0]
	if cap(data) > 1<<20 {
		w.buf = nil
	}
	if len(data) == 0 {
		return
	}
	if w.flushing {
		w.pending = append(w.pending, data...)
		return
	}
	var n int
	err := w.raw.Control(func(fd uintptr) {
		for {
			var werr error
			n, werr = unix.Write(int(fd), data) //nolint:gosec // descriptors are small
			if werr != unix.EINTR {             //nolint:errorlint // a plain errno
				break
			}
		}
	})
	if err != nil {
		return // closed: the worker has ended, and its calls end with it
	}
	if n = max(n, 0); n < len(data) {
		w.pending = append([]byte(nil), data[n:]...)
		w.flushing = true
		w.wg.Go(w.flush)
	}
}

// flush writes what is pending, waiting for the worker to read.
func (w *worker) flush() {
	for {
		w.writeMu.Lock()
		data := w.pending
		w.pending = nil
		if len(data) == 0 {
			w.flushing = false
			w.writeMu.Unlock()
			return
		}
		w.writeMu.Unlock()
		if _, err := w.in.Write(data); err != nil {
			// The worker reads no more. Its end is reported by the reader.
			w.kill()
			return
		}
	}
}

// begun tells whether a call that a dead worker held had entered its function.
// The crew's lock is held.
func (w *worker) begun(j *job) toolmesh.Started {
	if w.crew.async {
		place := j.place.Load()
		return failure.Started(place > 0 && place <= w.page.Load(sandbox.WordTaken))
	}
	// A tool may have written over the page: only what is unchanged says no.
	return failure.Started(w.page.Load(sandbox.WordStarted) != j.before)
}

// metaOf makes the meta block of a CALL body: length, then the JSON object.
func metaOf(varargs json.RawMessage) []byte {
	text := append(append([]byte(`{"varargs":`), varargs...), '}')
	n := len(text)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}, text...)
}
