package pool_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// work is one call at a worker that is written in Go. A tool is a function of it: it
// gives the answer or calls exit.
type work struct {
	*process
	id        uint64
	args      string
	flags     uint8
	cancelled chan struct{} // closed when the call is to stop
}

// process is a worker in this process's memory: it speaks the protocol, and ends when
// it is told to.
type process struct {
	id    uint64
	async bool
	tool  func(w *work) (string, error)

	page   [8]atomic.Uint64
	memory atomic.Int64
	files  atomic.Int64
	// measured, if there is one, is called when the usage has been read and is not known to the pool yet.
	measured atomic.Pointer[func()]
	silent   atomic.Bool // it hears no cancellation and answers no ping

	mu      sync.Mutex
	out     []byte // to the pool
	in      []*frameOf
	running map[uint64]*work
	nested  map[uint64]chan *frameOf
	nests   uint64
	over    bool // it has ended

	outMore chan struct{} // capacity 1
	inMore  chan struct{} // capacity 1
	done    chan struct{}
	end     sync.Once
	exit    sandbox.Exit
	closed  atomic.Bool
}

type frameOf struct {
	frame.Header
	body []byte
}

var errExit = errors.New("the process has ended")

// processes starts workers, and remembers them.
type processes struct {
	tool  func(w *work) (string, error)
	async bool
	base  int64 // of each process

	mu      sync.Mutex
	started []*process
	fail    error
}

func (ps *processes) spawn(context.Context) (pool.Process, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := &process{
		id: uint64(len(ps.started) + 1), async: ps.async, tool: ps.tool, running: map[uint64]*work{}, nested: map[uint64]chan *frameOf{},
		outMore: make(chan struct{}, 1), inMore: make(chan struct{}, 1), done: make(chan struct{}),
	}
	p.memory.Store(ps.base)
	ps.started = append(ps.started, p)
	if ps.fail != nil {
		return nil, ps.fail
	}
	p.send(frame.Header{Type: frame.Ready}, nil)
	go p.main()
	return p, nil
}

func (ps *processes) list() []*process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return append([]*process(nil), ps.started...)
}

func (ps *processes) failing(err error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.fail = err
}

// main is the worker's loop: a plain function's call runs in it, a coroutine's beside it.
func (p *process) main() {
	for {
		f := p.next()
		if f == nil {
			return
		}
		switch f.Type {
		case frame.Call:
			if f.Flags&frame.FlagUntil != 0 {
				f.body = f.body[8:]
			}
			w := &work{process: p, id: f.ID, args: string(f.body), flags: f.Flags, cancelled: make(chan struct{})}
			p.mu.Lock()
			p.running[f.ID] = w
			p.mu.Unlock()
			if p.async {
				go p.work(w)
			} else {
				p.work(w)
			}
		case frame.Exit:
			p.ended(sandbox.Exit{})
		case frame.Ping:
			if !p.silent.Load() {
				p.send(frame.Header{Type: frame.Pong, ID: f.ID}, nil)
			}
		}
	}
}

func (p *process) work(w *work) {
	result, err := p.tool(w)
	p.mu.Lock()
	delete(p.running, w.id)
	p.mu.Unlock()
	switch {
	case errors.Is(err, errExit):
	case err != nil:
		body, _ := json.Marshal(map[string]any{"code": "tool_error", "message": err.Error(), "started": true})
		p.send(frame.Header{Type: frame.Error, ID: w.id}, body)
	case w.flags&frame.FlagStream != 0:
		p.send(frame.Header{Type: frame.End, ID: w.id}, nil)
	default:
		p.send(frame.Header{Type: frame.Result, ID: w.id}, []byte(result))
	}
}

// die ends the process within a call.
func (w *work) die(code int) (string, error) {
	w.ended(sandbox.Exit{Code: code})
	return "", errExit
}

// wait waits until a channel is closed, the call is to stop, or the process ends.
func (w *work) wait(until <-chan struct{}) (string, error) {
	select {
	case <-until:
		return `"waited"`, nil
	case <-w.cancelled:
		return "", errors.New("cancelled")
	case <-w.done:
		return "", errExit
	}
}

// yield sends an item.
func (w *work) yield(item string) { w.send(frame.Header{Type: frame.Yield, ID: w.id}, []byte(item)) }

// call makes a nested call.
func (w *work) call(name, args string) (string, error) {
	about, _ := json.Marshal(map[string]any{"call": w.id, "tool": name})
	answer := make(chan *frameOf, 1)
	w.mu.Lock()
	w.nests++
	id := w.nests
	w.nested[id] = answer
	w.mu.Unlock()
	body := binary.LittleEndian.AppendUint32(nil, uint32(len(about)))
	w.send(frame.Header{Type: frame.NestedCall, ID: id}, append(append(body, about...), args...))
	select {
	case f := <-answer:
		if f.Type == frame.NestedError {
			return "", errors.New(string(f.body))
		}
		return string(f.body), nil
	case <-w.done:
		return "", errExit
	}
}

// next is the next frame for the main loop; nil when the process has ended.
func (p *process) next() *frameOf {
	for {
		p.mu.Lock()
		var f *frameOf
		if len(p.in) > 0 && !p.over {
			f = p.in[0]
			p.in = p.in[1:]
			if f.Type == frame.Call { // before its end, or not at all
				p.page[sandbox.WordStarted].Store(f.ID)
				p.page[sandbox.WordTaken].Add(1)
			}
		}
		p.mu.Unlock()
		if f != nil {
			return f
		}
		select {
		case <-p.inMore:
		case <-p.done:
			return nil
		}
	}
}

func (p *process) send(h frame.Header, body []byte) {
	p.mu.Lock()
	p.out = frame.Append(p.out, h, body)
	p.mu.Unlock()
	wake(p.outMore)
}

func wake(more chan struct{}) {
	select {
	case more <- struct{}{}:
	default:
	}
}

func (p *process) ended(e sandbox.Exit) {
	p.end.Do(func() {
		p.mu.Lock()
		p.over = true
		p.mu.Unlock()
		p.exit = e
		close(p.done)
	})
}

// The methods below are the pool's interface.

func (p *process) ID() uint64 { return p.id }
func (p *process) Pid() int   { return int(p.id) }

func (p *process) Read(b []byte) (int, error) {
	for {
		p.mu.Lock()
		if len(p.out) > 0 {
			n := copy(b, p.out)
			p.out = p.out[n:]
			p.mu.Unlock()
			return n, nil
		}
		p.mu.Unlock()
		select {
		case <-p.outMore:
		case <-p.done:
			p.mu.Lock()
			left := len(p.out)
			p.mu.Unlock()
			if left == 0 {
				return 0, io.EOF
			}
		}
	}
}

func (p *process) Write(data []byte) {
	for len(data) > 0 {
		h := frame.Parse(data)
		end := frame.HeaderSize + int(h.Length)
		f := &frameOf{h, append([]byte(nil), data[frame.HeaderSize:end]...)}
		data = data[end:]
		switch h.Type {
		case frame.NestedResult, frame.NestedError:
			p.mu.Lock()
			answer := p.nested[h.ID]
			delete(p.nested, h.ID)
			p.mu.Unlock()
			if answer != nil { // nil for a hostile worker, which does not read
				answer <- f
			}
		default:
			p.mu.Lock()
			p.in = append(p.in, f)
			p.mu.Unlock()
			wake(p.inMore)
		}
	}
}

func (p *process) Interrupt() {
	if p.silent.Load() {
		return
	}
	id := p.page[sandbox.WordCancel].Load()
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.running[id]; w != nil && p.page[sandbox.WordHeard].Swap(id) != id {
		close(w.cancelled)
	}
}

func (p *process) Load(word int) uint64 {
	p.mapped()
	return p.page[word].Load()
}

func (p *process) Store(word int, value uint64) {
	p.mapped()
	p.page[word].Store(value)
}

// mapped ends the test where a real process's page would be gone.
func (p *process) mapped() {
	if p.closed.Load() {
		panic("the page was accessed after Close")
	}
}

func (p *process) Eager(bool)              {}
func (p *process) Output() (_, _ *os.File) { return nil, nil }
func (p *process) Kill()                   { p.ended(sandbox.Exit{Code: -1, Signal: 9}) }
func (p *process) Done() <-chan struct{}   { return p.done }
func (p *process) Exit() sandbox.Exit      { return p.exit }
func (p *process) Share() (int64, bool)    { return 0, false }
func (p *process) Group() *cgroup.Group    { return nil }
func (p *process) TempFiles(int64) int64   { return p.files.Load() }

func (p *process) ProcessorTime() (time.Duration, bool) { return 0, false }

func (p *process) Usage(int) (sandbox.Usage, bool) {
	u := sandbox.Usage{Memory: p.memory.Load()}
	if measured := p.measured.Load(); measured != nil {
		(*measured)()
	}
	return u, true
}

func (p *process) Close() {
	select {
	case <-p.done:
	default:
		panic("Close before the end")
	}
	if p.closed.Swap(true) {
		panic("Close twice")
	}
}

// config is a pool of plain functions with long times, unless a test changes them.
func config(change func(c *pool.Config)) pool.Config {
	c := pool.Config{
		Index: "test", Logger: slog.New(slog.DiscardHandler), MinIdle: 1, MaxWorkers: 4, MaxCalls: 4,
		Grace: time.Second, StartTimeout: time.Minute, IdleAfter: time.Hour, MaxFrame: 1 << 20,
	}
	if change != nil {
		change(&c)
	}
	return c
}

// open makes a pool of workers that run a tool, and closes it at the end of the test: then every
// process must have ended and been closed.
func open(t *testing.T, cfg pool.Config, run func(w *work) (string, error)) (*pool.Pool, *processes) {
	t.Helper()
	ps := &processes{tool: run, async: cfg.Async}
	p := pool.New(cfg, ps.spawn)
	t.Cleanup(func() {
		p.Close()
		<-p.Gone()
		for _, one := range ps.list() {
			ps.mu.Lock()
			failed := ps.fail != nil
			ps.mu.Unlock()
			if !failed && !one.closed.Load() {
				t.Errorf("process %d was not closed", one.id)
			}
		}
		if s := p.Stats(); s.Busy != 0 || s.Waiting != 0 || s.Starting != 0 || len(s.Pids) != 0 {
			t.Errorf("after the end: %+v", s)
		}
	})
	return p, ps
}

// outcome is how a call ended.
type outcome struct {
	body    string
	verdict pool.Verdict
	err     error
}

// begin makes a call in the background.
func begin(ctx context.Context, p *pool.Pool, call pool.Call) <-chan outcome {
	end := make(chan outcome, 1)
	if call.Tool == "" {
		call.Tool = "t.tool"
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, 24*time.Hour) // a call that hangs fails, in a bubble's time
		defer cancel()
		body, verdict, err := p.Call(ctx, call)
		end <- outcome{string(body), verdict, err}
	}()
	return end
}

func args(format string, a ...any) pool.Call {
	return pool.Call{Args: json.RawMessage(fmt.Sprintf(format, a...))}
}
