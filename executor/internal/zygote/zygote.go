package zygote

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/internal/deep"
	"github.com/toolmesh/toolmesh/tool"
)

// Setup is the first message to a zygote. Fields without a comment for callers are set by the group.
type Setup struct {
	Root    string            `json:"root"`  // the index's folder, the working directory
	Paths   []string          `json:"paths"` // import path, before the environment's
	Tools   []string          `json:"tools"` // module.function
	Exclude map[string]string `json:"exclude"`
	Secrets *output.Forms     `json:"secrets"` // removed from all texts
	// Sandbox takes effect before any code of the index runs.
	Sandbox tool.Sandbox `json:"sandbox"`
	// Temp contains the folders of workers for temporary files. Under strict and offline it is the writable folder.
	Temp string `json:"temp,omitempty"`
	// OpenFiles are the number of files that a call may open if its tool declares none, and the
	// maximum of a [Worker]'s Limits.
	OpenFiles [2]int `json:"open_files,omitzero"`
	// Processes is the number of processes and threads that the index's user may have; 0: any.
	Processes int `json:"processes,omitempty"`
	// User is the user to become, its id and its group's; empty for no change.
	User []int `json:"user,omitempty"`
	// Given are folders for it, whichever user owns them, in addition to temporary files.
	Given []sandbox.Path `json:"given,omitempty"`
	// Adopt is the environment to adopt once confined.
	Adopt *adoption `json:"adopt,omitempty"`
}

// forkRequest is the body of a FORK and a BECOME, the same for all workers of a
// pool: the zygote caches it.
type forkRequest struct {
	Kind      string             `json:"kind"`      // sync or async
	Limit     int                `json:"limit"`     // bytes of a result or an item
	Isolation toolmesh.Isolation `json:"isolation"` // of the worker's calls
	Limits    numbers            `json:"limits"`    // of one call
	Turns     bool               `json:"turns,omitempty"`
}

// description is a zygote's answer to setup. The index in Tools is a tool's slot.
type description struct {
	Tools       listed[Tool]        `json:"tools"`
	Unavailable listed[Unavailable] `json:"unavailable"`
	ForkUnsafe  string              `json:"fork_unsafe"`
}

// listed is a list that code of the index may have written: three bytes of JSON are a [Tool] of 160.
type listed[T any] []T

// maxListed is how many tools can have a slot.
const maxListed = 1 << 16

// UnmarshalJSON implements json.Unmarshaler.
func (l *listed[T]) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	*l = nil
	_, err := d.Token()
	for err == nil && d.More() {
		var one T
		if err = d.Decode(&one); len(*l) == maxListed {
			return fmt.Errorf("it lists more than %d tools", maxListed)
		}
		*l = append(*l, one)
	}
	return err
}

// importFailure is returned by startZygote when a module hangs, ends the process or breaks the
// protocol, and must be left out. Without a module the environment's start-up files did that.
type importFailure struct {
	module string
	reason string
}

func (e *importFailure) Error() string { return e.reason }

// zygote is one running zygote process and the channel to it.
type zygote struct {
	log     *slog.Logger
	proc    *sandbox.Process
	conn    *net.UnixConn
	control controlReader // of conn
	reader  *frame.Reader // of control
	about   description
	words   *output.Tail

	folder string        // see Setup.Temp; removed with the zygote
	group  *cgroup.Group // for imports; nil without a group of its own
	temp   *folders

	solo bool // it has become the only worker

	broke atomic.Pointer[error] // how it broke the protocol; nil if it did not

	forking sync.Mutex // one FORK at a time: descriptors of answers must not mix

	mu      sync.Mutex
	waited  bool // for a forkedMessage
	forked  chan forkedMessage
	workers map[uint64]*Process

	wg sync.WaitGroup
}

// forkedMessage is a zygote's answer to a FORK or a BECOME.
type forkedMessage struct {
	pid    int
	fd     int    // its pidfd, -1 without
	failed string // why the worker was not started
}

// startZygote sets the process up and waits until it has described its tools.
func (g *Group) startZygote(ctx context.Context, proc *sandbox.Process, s Setup) (_ *zygote, err error) {
	opts := g.starter.opts
	if err := g.ownFolder(&s); err != nil {
		proc.Kill()
		return nil, err
	}
	z := &zygote{
		log: g.Logger, proc: proc, conn: proc.Control,
		forked: make(chan forkedMessage, 1), workers: map[uint64]*Process{}, words: output.NewTail(g.Redact),
	}
	if z.temp = &g.starter.temp; s.Temp != z.temp.parent {
		z.folder, z.temp = s.Temp, &folders{log: z.log, parent: s.Temp}
	}
	z.control.conn = z.conn
	z.reader = frame.NewReader(&z.control, opts.MaxFrame)
	z.wg.Go(func() { z.drain(proc.Stdout, output.StreamStdout) })
	z.wg.Go(func() { z.drain(proc.Stderr, output.StreamStderr) })
	z.wg.Go(func() {
		<-proc.Done()
		_ = z.conn.SetReadDeadline(time.Now().Add(time.Second)) // its last messages are read
	})
	defer func() {
		if err != nil {
			z.kill()
		}
	}()
	z.group = opts.Cgroups.ForLimits(opts.ImportMemory, opts.ImportTasks)
	sandbox.Enclose(z.log, z.group, proc.Pid(), opts.ImportMemory)
	body, _ := json.Marshal(s)
	// An interpreter that fails at the setup is noticed by its answer, or by the missing one.
	setUp := func() {
		_ = z.conn.SetWriteDeadline(time.Now().Add(opts.StartTimeout))
		_, _ = z.conn.Write(frame.Append(nil, frame.Header{Type: frame.Setup}, body))
		_ = z.conn.SetWriteDeadline(time.Time{})
	}
	setUp()
	interrupt := func() { _ = z.conn.SetReadDeadline(time.Unix(1, 0)) }
	timer := time.AfterFunc(opts.StartTimeout, interrupt) // for each single import
	defer timer.Stop()
	stop := context.AfterFunc(ctx, interrupt)
	at, err := z.describe(s, setUp, func() { timer.Reset(opts.StartTimeout) })
	late := !timer.Stop() || errors.Is(err, os.ErrDeadlineExceeded) && !z.gone()
	switch {
	case !stop():
		return nil, fmt.Errorf("start the index: %w", ctx.Err())
	case late && !at.confined:
		return nil, fmt.Errorf("the interpreter did not start within %v", opts.StartTimeout)
	case late:
		return nil, &importFailure{at.module, fmt.Sprintf("%s did not end within %v", at, opts.StartTimeout)}
	case errors.Is(err, errEnded):
		return nil, z.ended(at, opts.ImportMemory)
	case err != nil && at.confined:
		return nil, broke(at, err)
	case err != nil:
		return nil, err
	}
	if len(at.notes) > 0 {
		z.log.Info("sandbox level is incomplete on this machine", slog.String("sandbox", string(s.Sandbox)), slog.Any("notes", at.notes))
	}
	z.wg.Go(func() {
		z.read()
		<-proc.Done()
		// Without a namespace the root may have died alone: closing the channel ends the zygote
		// then.
		_ = z.conn.Close()
		z.lostAll()
	})
	return z, nil
}

var errEnded = errors.New("the zygote closed its channel")

// progress is how far a zygote has come.
type progress struct {
	confined bool     // later messages may come from code of the index
	notes    []string // missing parts of the sandbox level, for people
	module   string   // the last one whose import has begun
}

// String names the step in progress.
func (p progress) String() string {
	if p.module == "" {
		return "the start of the environment's interpreter"
	}
	return "the import of " + p.module
}

// broke is the failure of code that wrote to the agent in its zygote's name.
func broke(at progress, err error) *importFailure {
	return &importFailure{at.module, fmt.Sprintf("%s broke the worker's protocol: %s", at, err)}
}

// describe reads until the zygote has described the tools of a setup, and sends the setup again
// to an interpreter that the zygote has become; it calls imports for each module. The error is
// errEnded when the channel ends.
func (z *zygote) describe(s Setup, setUp, imports func()) (at progress, err error) {
	h, body, err := z.reader.Next()
	if err == nil {
		if err := frame.Greeted(h, body); err != nil {
			return at, err
		}
	}
	modules := map[string]bool{} // not imported yet
	for _, name := range s.Tools {
		modules[name[:max(0, strings.LastIndexByte(name, '.'))]] = true
	}
	for again := false; err == nil; {
		if h, body, err = z.reader.Next(); err != nil {
			break
		}
		switch {
		case h.Type == frame.Confined && !at.confined:
			var m struct {
				Notes []string `json:"notes"`
			}
			if err := json.Unmarshal(body, &m); err != nil {
				return at, err
			}
			at.confined, at.notes = true, m.Notes
		case h.Type == frame.Hello && at.confined && at.module == "" && !again:
			if again = true; frame.Greeted(h, body) != nil {
				return at, errors.New("it has another version")
			}
			setUp()
		case h.Type == frame.Importing && at.confined:
			var m struct {
				Module string `json:"module"`
			}
			if err := json.Unmarshal(body, &m); err != nil || !modules[m.Module] {
				return at, errors.New("it reported the import of a module that has no tools, or of one twice")
			}
			delete(modules, m.Module)
			at.module = m.Module
			imports()
		case h.Type == frame.Described && at.confined:
			if err := json.Unmarshal(body, &z.about); err != nil {
				return at, fmt.Errorf("its description cannot be read: %w", err)
			}
			WithoutNulls(z.about.Tools)
			return at, z.about.check(s.Tools)
		default:
			return at, fmt.Errorf("it sent frame type %d", h.Type)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %w", errEnded, err)
	}
	return at, err
}

// check returns a fault of a description, which code of the index may have written; nil if it
// has each of the tools once.
func (d *description) check(tools []string) error {
	left := map[string]int{}
	for _, name := range tools {
		left[name]++
	}
	for _, t := range d.Tools {
		left[t.Name]--
		if !slices.Contains(Kinds, t.Kind) || len(t.InputSchema) == 0 {
			return fmt.Errorf("it describes %q, which is not a tool of the index", t.Name)
		}
	}
	for _, u := range d.Unavailable {
		left[u.Name]--
	}
	for name, n := range left {
		if n != 0 {
			return fmt.Errorf("it does not describe %q once", name)
		}
	}
	return nil
}

// ended is the error of a zygote that ended before it described its tools. most is its memory
// limit.
func (z *zygote) ended(at progress, most int64) error {
	_ = z.conn.Close() // it may have closed its channel and still run
	goesOn := false
	select {
	case <-z.proc.Done():
	case <-time.After(time.Second):
		goesOn = true
		z.proc.Kill()
	}
	z.wg.Wait() // for its last output
	status := z.proc.ExitCode()
	switch {
	case !at.confined:
		return fmt.Errorf("the interpreter ended before it was confined (exit status %d): %s", status, z.words)
	case goesOn:
		return broke(at, errors.New("it closed the channel"))
	}
	if z.group.Kills() > 0 {
		return &importFailure{at.module, fmt.Sprintf("%s took more memory than the %d bytes that imports may have", at, most)}
	}
	return &importFailure{at.module, fmt.Sprintf("%s ended the process (%s)%s", at, sandbox.ExitOf(status), z.words.Suffix())}
}

// drain reads the output of an import: into the log, never into a call.
func (z *zygote) drain(file *os.File, stream output.Stream) {
	output.Drain(file, z.words, func(text string) {
		z.log.Debug("output at import", slog.String("stream", string(stream)), slog.String("text", text))
	})
}

// read handles the messages of a zygote that has described its tools, until it ends or breaks the
// protocol.
func (z *zygote) read() {
	for {
		h, body, err := z.reader.Next()
		if err == nil {
			err = z.take(h, body)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) &&
				!errors.Is(err, os.ErrDeadlineExceeded) {
				z.log.Warn("zygote broke the protocol and is killed", slog.String("error", err.Error()))
				z.broke.Store(&err)
				z.proc.Kill()
			}
			return
		}
	}
}

// take handles one message. An error means that the zygote broke the protocol.
func (z *zygote) take(h frame.Header, body []byte) error {
	switch h.Type { //nolint:exhaustive // the rest never comes from a zygote
	case frame.Forked:
		z.mu.Lock()
		waited := z.waited
		z.waited = false
		z.mu.Unlock()
		if !waited {
			return errors.New("it forked a worker without a request")
		}
		m := forkedMessage{fd: -1}
		if h.Flags&frame.FlagHandle != 0 {
			m.fd = z.control.take()
		}
		switch numbers := numbersIn(body); {
		case h.Flags&frame.FlagFailed != 0:
			m.failed = string(body)
		case len(numbers) == 1:
			m.pid = numbers[0]
		default:
			m.failed = "its answer has no process id"
		}
		z.forked <- m
	case frame.Exited:
		e := sandbox.Exit{Lost: true}
		if numbers := numbersIn(body); len(numbers) == 2 {
			e = sandbox.Exit{Code: numbers[0], Signal: numbers[1]}
		}
		z.mu.Lock()
		w := z.workers[h.ID]
		delete(z.workers, h.ID)
		z.mu.Unlock()
		if w != nil { // otherwise it was abandoned before
			w.exited(e)
		}
	default:
		return fmt.Errorf("it sent frame type %d", h.Type)
	}
	return nil
}

// numbersIn reads a body of i32.
func numbersIn(body []byte) []int {
	var numbers []int
	for ; len(body) >= 4; body = body[4:] {
		numbers = append(numbers, int(int32(binary.LittleEndian.Uint32(body)))) //nolint:gosec // it was one
	}
	return numbers
}

// fork makes the zygote fork p, or become it. files are passed to the child in order.
func (z *zygote) fork(p *Process, request forkRequest, become bool, files []*os.File) (*sandbox.Handle, error) {
	z.forking.Lock()
	defer z.forking.Unlock()
	body, _ := json.Marshal(request) // of texts and numbers, as a setup
	message := frame.Fork
	if become {
		message = frame.Become
	}
	z.mu.Lock()
	z.workers[p.id], z.waited = p, true
	z.solo = become
	z.mu.Unlock()
	data := frame.Append(nil, frame.Header{Type: message, ID: p.id, Slot: p.temp.number}, body)
	if _, _, err := z.conn.WriteMsgUnix(data, sandbox.Rights(files), nil); err != nil {
		return nil, z.lost(p, fmt.Errorf("fork a worker: %w", err))
	}
	select {
	case m := <-z.forked:
		if m.failed != "" {
			return nil, z.lost(p, fmt.Errorf("fork a worker: %s", m.failed))
		}
		if m.fd < 0 && z.proc.Level != sandbox.LevelReaper {
			return nil, final("fork a worker: this kernel has no pidfd, or code of the index broke the worker's protocol")
		}
		h := sandbox.NewHandle(m.fd, m.pid)
		if !h.Below(z.proc.Pid()) {
			h.Close()
			return nil, final("fork a worker: code of the index broke the worker's protocol: it named a process that is not its own")
		}
		return h, nil
	case <-z.proc.Done():
	case <-time.After(30 * time.Second):
		_ = z.conn.Close() // without an answer it is useless
	}
	return nil, z.lost(p, fmt.Errorf("fork a worker: the zygote is gone%s", z.words.Suffix()))
}

// lost abandons a process that was not started, and returns why: err, or how the zygote broke
// the protocol.
func (z *zygote) lost(p *Process, err error) error {
	z.forget(p)
	if broke := z.broke.Load(); broke != nil {
		return final("the code of the index broke the worker's protocol after its import: %s", *broke)
	}
	return err
}

func (z *zygote) forget(p *Process) {
	z.mu.Lock()
	delete(z.workers, p.id)
	z.mu.Unlock()
}

// lostAll ends the workers whose end the zygote can no longer report.
func (z *zygote) lostAll() {
	z.mu.Lock()
	workers := slices.Collect(maps.Values(z.workers))
	clear(z.workers)
	solo := z.solo
	z.mu.Unlock()
	end := sandbox.Exit{Lost: true}
	if solo {
		end = sandbox.ExitOf(z.proc.ExitCode())
	}
	for _, w := range workers {
		w.exited(end)
	}
}

// gone reports whether the process has ended.
func (z *zygote) gone() bool {
	select {
	case <-z.proc.Done():
		return true
	default:
		return false
	}
}

// kill ends the zygote and all its workers, and waits for them.
func (z *zygote) kill() {
	z.proc.Kill()
	z.wg.Wait()
	z.group.Close()
	z.control.close()
	if z.folder != "" {
		_ = deep.RemoveAll(z.folder)
	}
}

// controlReader reads the byte stream of a control socket and keeps the
// descriptors that come with it.
type controlReader struct {
	conn *net.UnixConn
	oob  [256]byte
	fds  []int
}

func (r *controlReader) Read(b []byte) (int, error) {
	n, oobn, _, _, err := r.conn.ReadMsgUnix(b, r.oob[:])
	if oobn > 0 {
		messages, parseErr := unix.ParseSocketControlMessage(r.oob[:oobn])
		if parseErr == nil {
			for i := range messages {
				if fds, rightsErr := unix.ParseUnixRights(&messages[i]); rightsErr == nil {
					r.fds = append(r.fds, fds...)
				}
			}
		}
		if len(r.fds) > 1 { // each answer has one, and requests are sequential
			r.close()
			return n, errors.New("more descriptors came than were requested")
		}
	}
	if err == nil && n == 0 && len(b) > 0 {
		err = io.EOF
	}
	return max(n, 0), err // it is negative with an error
}

func (r *controlReader) take() int {
	if len(r.fds) == 0 {
		return -1
	}
	fd := r.fds[0]
	r.fds = r.fds[1:]
	return fd
}

func (r *controlReader) close() {
	for _, fd := range r.fds {
		sandbox.CloseSent(fd)
	}
	r.fds = nil
}
