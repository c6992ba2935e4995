package executor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/cgroup"
	"github.com/toolmesh/toolmesh/executor/failure"
	"github.com/toolmesh/toolmesh/executor/output"
	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

// CommandSpec says which index commands belong to and how they are run.
type CommandSpec struct {
	Name     string // for messages
	Revision string // for messages
	// SourceDir is the index's folder, their working directory.
	SourceDir string
	Env       *Env
	// Vars are the index's declared environment variables.
	Vars map[string]string
	// SecretValues are what no error and no log line may show, whichever variable
	// of a call has it.
	SecretValues []string
	// Concurrency bounds the programs that run at once. Defaults to the
	// executor's MaxWorkers.
	Concurrency int
}

// CommandCall is one run of a program.
type CommandCall struct {
	Tool  string // for messages
	RPCID string // for log lines
	// Argv are the arguments, the program itself first. No shell reads them.
	Argv []string
	// Lines says that the program writes one item per line, like a generator;
	// without it, that all it writes is one result.
	Lines bool
	// Text says that what it writes is text; without it, JSON.
	Text bool
	// Sandbox says what the program may touch. Defaults to the executor's level,
	// as far as the machine gives it.
	Sandbox tool.Sandbox
	// Limits bound the run. The output, a result or an item, is never more than
	// the executor's MaxResult.
	Limits tool.Limits
	// Vars are environment variables on top of those of all commands.
	Vars map[string]string
	// Stream and Collect are as in [Call].
	Stream, Collect bool
}

// Commands runs the programs of one index. Its methods may be called
// concurrently.
type Commands struct {
	x       *Executor
	spec    CommandSpec
	log     *slog.Logger
	command sandbox.Command
	bin     string
	path    []string // folders that programs are looked for in
	places  chan struct{}
	redact  *output.Redactor

	mu      sync.Mutex
	closed  bool
	stop    chan struct{} // closed when what still runs is to be killed
	stopped sync.Once
	running sync.WaitGroup
}

// OpenCommands makes ready to run an index's programs; nothing is started. The
// error is unavailable or internal.
func (x *Executor) OpenCommands(spec CommandSpec) (*Commands, error) {
	if spec.Env == nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "executor: CommandSpec.Env is missing").WithOrigin(toolmesh.OriginAgent)
	}
	root, err := filepath.Abs(spec.SourceDir)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the index %s cannot be served: %w", spec.Name, err).
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
	}
	places := spec.Concurrency
	if places <= 0 {
		places = x.opts.MaxWorkers
	}
	bin := filepath.Join(spec.Env.Dir, "bin")
	c := &Commands{
		x: x, spec: spec, places: make(chan struct{}, places), stop: make(chan struct{}),
		log: x.log.With(slog.String("index", spec.Name), slog.String("revision", spec.Revision)),
		bin: bin, redact: output.NewRedactor(spec.SecretValues),
	}
	for _, line := range c.environ(nil) {
		if list, ok := strings.CutPrefix(line, "PATH="); ok {
			c.path = filepath.SplitList(list)
		}
	}
	c.command = sandbox.Command{
		Path: spec.Env.Python, Args: []string{"-I", "-S", "-c", commandBootstrap, x.files}, Env: []string{"LANG=C.UTF-8"}, Dir: root,
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, failure.Unavailable("the executor is closed")
	}
	x.commands[c] = struct{}{}
	return c, nil
}

// environ is a program's whole environment: what the index's tools see, and the
// name of the environment that they run in.
func (c *Commands) environ(more map[string]string) []string {
	vars := map[string]string{"VIRTUAL_ENV": c.spec.Env.Dir}
	maps.Copy(vars, c.spec.Vars)
	maps.Copy(vars, more)
	return c.x.workerEnv(c.bin, vars)
}

// commandBootstrap makes the worker's files a package, as for a zygote, and runs one
// program with them.
const commandBootstrap = "import sys; sys.path.insert(0, sys.argv[1]); from " + python.WorkerPackage +
	" import entry; del sys.path[0]; entry.command(sys.argv[2])"

// Missing says why a program cannot be run here, "" if it can.
func (c *Commands) Missing(program string) string {
	if strings.ContainsRune(program, '/') {
		file := program
		if !filepath.IsAbs(file) {
			file = filepath.Join(c.command.Dir, file)
		}
		switch info, err := os.Stat(file); {
		case err != nil && filepath.IsAbs(program):
			return fmt.Sprintf("command not found: there is no %s on this node", program)
		case err != nil:
			return fmt.Sprintf("command not found: the index has no file %s", program)
		case info.Mode().IsRegular() && info.Mode()&0o111 == 0:
			return fmt.Sprintf("the command %s is not executable (chmod +x)", program)
		case !info.Mode().IsRegular():
			return fmt.Sprintf("the command %s is not a file", program)
		}
		return ""
	}
	for _, folder := range c.path {
		if isExecutable(filepath.Join(folder, program)) {
			return ""
		}
	}
	return fmt.Sprintf("command not found: %s is neither in the index's environment nor on the PATH of this node's agent; "+
		"install it there, or add the package that brings it to the dependencies", program)
}

func isExecutable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// Call runs a program and returns its result's JSON; nil for a stream, whose
// items go to the sink as its lines arrive. When ctx ends, the program's group
// is asked to end (SIGTERM) and, after the executor's grace, everything that it
// started is killed; Call returns when nothing of it is left. A program that
// fails is tool_error, one that a signal ended worker_crashed, output that is no
// JSON result_not_serializable. Every error is a [*toolmesh.Error], except what
// [output.Sink.Item] returned.
func (c *Commands) Call(ctx context.Context, call CommandCall, sink output.Sink) (json.RawMessage, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, failure.Unavailable("the index %s is closed", c.spec.Name)
	}
	c.running.Add(1)
	c.mu.Unlock()
	defer c.running.Done()
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-ctx.Done():
		return nil, failure.Ended(ctx, toolmesh.StartedNo)
	case <-c.stop:
		return nil, failure.Unavailable("the index %s is closed", c.spec.Name)
	}
	if ctx.Err() != nil {
		return nil, failure.Ended(ctx, toolmesh.StartedNo)
	}
	if call.Sandbox == "" {
		call.Sandbox = c.x.defaultSandbox()
	}
	r := &run{
		c: c, call: call, sink: sink, quiet: make(chan struct{}), tail: output.NewTail(c.redact),
		most: c.x.opts.MaxResult, exceeded: make(chan struct{}),
	}
	if most := int64(call.Limits.Output); most > 0 && most < int64(r.most) {
		r.most = int(most)
	}
	return r.do(ctx)
}

// Close refuses new calls, waits for those in flight until ctx ends, and then
// kills what still runs. It returns when nothing is left, with ctx's error if
// calls were cut off.
func (c *Commands) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	over := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() { c.running.Wait(); close(over) })
	var cut error
	select {
	case <-over:
	default:
		select {
		case <-over:
		case <-ctx.Done():
			cut = context.Cause(ctx)
		}
	}
	c.stopped.Do(func() { close(c.stop) })
	waiting.Wait()
	c.x.mu.Lock()
	delete(c.x.commands, c)
	c.x.mu.Unlock()
	return cut
}

// run is one program at work.
type run struct {
	c    *Commands
	call CommandCall
	sink output.Sink

	most   int // bytes that a result, or an item, may have
	folder string

	proc     *sandbox.Process
	group    *cgroup.Group                  // nil: the program is in none of its own
	breach   atomic.Pointer[toolmesh.Error] // the limit that it exceeded
	exceeded chan struct{}                  // closed when it is to end for that

	tail  *output.Tail
	quiet chan struct{} // closed when stderr has ended
	last  json.RawMessage
	list  []json.RawMessage
	size  int // of list
}

// errTooLong says that a result or an item is larger than it may be.
var errTooLong = errors.New("too long")

func (r *run) do(ctx context.Context) (json.RawMessage, error) {
	if why := r.c.x.Lacks(r.call.Sandbox); why != "" {
		return nil, failure.Unavailable("%s is not served: %s", r.call.Tool, why).WithRetryable(false)
	}
	vars := r.call.Vars
	var err error
	if r.folder, err = r.c.x.folderOf(r.call.Sandbox); err != nil {
		return nil, failure.Unavailable("the command of %s cannot be started: %s", r.call.Tool, err)
	}
	if r.folder != "" {
		defer os.RemoveAll(r.folder) //nolint:errcheck // nothing is left that uses it
		vars = merged(vars, map[string]string{"TMPDIR": r.folder})
	}
	command := r.c.command
	command.Sandbox = r.call.Sandbox
	proc, err := r.c.x.spawner.Start(command)
	if err != nil {
		return nil, failure.Unavailable("the command of %s cannot be started: %s", r.call.Tool, err)
	}
	r.proc = proc
	if r.group = r.c.x.newGroup(r.call.Limits); r.group != nil {
		defer r.group.Close()
	}
	defer proc.Kill()
	r.enclose() // it starts nothing before it has read the request
	if _, err := proc.Control.Write(r.request(r.c.environ(vars))); err != nil {
		return nil, failure.Unavailable("the command of %s cannot be started: %s", r.call.Tool, err)
	}
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer proc.Kill() // before the helpers are waited for
	helpers.Go(r.stderr)
	finished := make(chan struct{})
	defer close(finished)
	helpers.Go(func() { r.watch(ctx, finished) })
	if watched(r.call.Limits) {
		helpers.Go(func() { r.patrol(finished) })
	}

	out, err := r.stdout(ctx)
	if err != nil {
		proc.Kill()
	}
	said, _ := io.ReadAll(io.LimitReader(proc.Control, 512))
	<-proc.Done()
	if exceeded := r.breach.Load(); exceeded != nil {
		return nil, exceeded
	}
	if starved := r.starved(); starved != nil {
		return nil, starved
	}
	switch {
	case ctx.Err() != nil:
		return nil, failure.Ended(ctx, toolmesh.StartedYes)
	case errors.Is(err, errTooLong):
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "%s wrote more than %d bytes as one %s", r.program(), r.most, r.unit()).
			WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes).
			WithDetail("limit", "output").WithDetail("max", r.most)
	case err != nil:
		return nil, err
	}
	if failure := r.failure(string(said)); failure != nil {
		return nil, failure
	}
	return r.result(ctx, out)
}

// request is the message that command.py reads.
func (r *run) request(env []string) []byte {
	var b bytes.Buffer
	b.Write([]byte{0, 0, 0, 0})
	fmt.Fprintf(&b, "%s\x00%s\x00%d\x00%d\x00%d\x00", r.call.Sandbox, r.folder, r.call.Limits.OpenFiles,
		backstop(r.call.Limits.Memory), len(r.call.Argv))
	for _, list := range [][]string{r.call.Argv, env} {
		for _, text := range list {
			b.WriteString(text)
			b.WriteByte(0)
		}
	}
	binary.LittleEndian.PutUint32(b.Bytes(), uint32(b.Len()-4)) //nolint:gosec // bounded by the size of a message
	return b.Bytes()
}

// watch ends the program when nobody wants it any more: politely when ctx ends,
// at once when the index is closed.
func (r *run) watch(ctx context.Context, finished <-chan struct{}) {
	select {
	case <-finished:
		return
	case <-r.c.stop:
		r.proc.Kill()
		return
	case <-r.exceeded:
	case <-ctx.Done():
	}
	_, _ = r.proc.Control.Write([]byte("T"))
	grace := time.NewTimer(r.c.x.opts.Grace)
	defer grace.Stop()
	select {
	case <-finished:
	case <-r.c.stop:
	case <-grace.C:
	}
	r.proc.Kill()
}

// stderr keeps the end of what the program says and hands it over as log lines.
func (r *run) stderr() {
	defer close(r.quiet)
	output.Drain(r.proc.Stderr, r.tail, func(text string) {
		if r.sink != nil {
			r.sink.Log(output.Record{Time: time.Now(), Stream: output.StreamStderr, Message: text})
		}
	})
}

// stdout reads to the end of what the program writes. Items are handed over as
// they come. The error is errTooLong, the sink's, or result_not_serializable.
func (r *run) stdout(ctx context.Context) ([]byte, error) {
	if !r.call.Lines {
		out, err := io.ReadAll(io.LimitReader(r.proc.Stdout, int64(r.most)+1))
		if len(out) > r.most {
			return nil, errTooLong
		}
		if err != nil && !errors.Is(err, os.ErrClosed) {
			return nil, failure.Unavailable("the output of %s cannot be read: %s", r.program(), err)
		}
		return out, nil
	}
	lines := bufio.NewReaderSize(r.proc.Stdout, 32<<10)
	number := 0
	for {
		line, err := r.line(lines)
		if errors.Is(err, errTooLong) {
			return nil, err
		}
		if len(line) > 0 {
			number++
			if failure := r.item(ctx, line, number); failure != nil {
				return nil, failure
			}
		}
		if err != nil {
			return nil, nil //nolint:nilerr // the end: how the program ended says the rest
		}
	}
}

// line reads a line that is not longer than an item may be.
func (r *run) line(lines *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := lines.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > r.most+1 {
			return nil, errTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), err
		}
	}
}

// item takes one line of a program that streams.
func (r *run) item(ctx context.Context, line []byte, number int) error {
	if !r.call.Text && len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	value, failure := r.value(line, fmt.Sprintf("line %d", number))
	if failure != nil {
		return failure
	}
	switch {
	case r.call.Stream:
		return r.sink.Item(ctx, value)
	case r.call.Collect:
		if r.size += len(value) + 1; r.size > r.most {
			return errTooLong
		}
		r.list = append(r.list, value)
	default:
		r.last = value
	}
	return nil
}

// value makes JSON of what the program wrote; what names the place.
func (r *run) value(text []byte, what string) (json.RawMessage, error) {
	bad := func(why string) error {
		shown := r.c.redact.Text(string(text[:min(len(text), 4096)]))
		shown = shown[:min(len(shown), 200)]
		return toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "%s of %s %s", what, r.program(), why).
			WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes).
			WithDetail("tool", r.call.Tool).WithDetail("output", strings.ToValidUTF8(shown, "\uFFFD"))
	}
	if !utf8.Valid(text) {
		return nil, bad("is not UTF-8")
	}
	if r.call.Text {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(string(text)); err != nil {
			return nil, bad(err.Error())
		}
		return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil, bad(`is empty, not JSON: write "null", or declare stdout = "text"`)
	}
	if err := checkValue(text); err != nil {
		return nil, bad(fmt.Sprintf("is not one JSON value (%s): write one, or declare stdout = \"text\"", err))
	}
	return text, nil
}

// checkValue says what keeps a text from being one JSON value.
func checkValue(text []byte) error {
	if json.Valid(text) {
		return nil
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	return errors.New("it is no JSON")
}

// result makes the answer of a program that ended well.
func (r *run) result(ctx context.Context, out []byte) (json.RawMessage, error) {
	switch {
	case r.call.Lines && r.call.Stream:
		return nil, nil
	case r.call.Lines && r.call.Collect:
		list, err := json.Marshal(r.list)
		if r.list == nil {
			list = []byte("[]")
		}
		if err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeInternal, "the items of %s cannot be put together: %w", r.program(), err)
		}
		return list, nil
	case r.call.Lines && r.last == nil:
		return json.RawMessage("null"), nil
	case r.call.Lines:
		return r.last, nil
	}
	if r.call.Text {
		out = bytes.TrimSuffix(bytes.TrimSuffix(out, []byte("\n")), []byte("\r"))
	}
	value, err := r.value(out, "the output")
	if err != nil {
		return nil, err
	}
	if r.call.Stream {
		return nil, r.sink.Item(ctx, value)
	}
	return value, nil
}

func (r *run) program() string { return r.call.Argv[0] }

func (r *run) unit() string {
	if r.call.Lines {
		return "item"
	}
	return "result"
}

// failure makes an error of how the program ended, nil if it ended well.
func (r *run) failure(said string) error {
	var number int
	switch {
	case strings.HasPrefix(said, "refused "):
		return failure.Unavailable("the sandbox level %s cannot be had: %s", r.call.Sandbox, strings.TrimPrefix(said, "refused "))
	case scanned(said, "exec %d", &number):
		errno := syscall.Errno(number) //nolint:gosec // an errno
		if errno == unix.E2BIG {
			return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the arguments are more than the system gives to a program").
				WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
		}
		return failure.Unavailable("the command %s cannot be started: %s", r.program(), errno).WithRetryable(false)
	case !scanned(said, "exit %d", &number):
		select {
		case <-r.c.stop:
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "the index %s was closed while the call ran", r.c.spec.Name).
				WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedYes)
		default:
		}
		return r.withWords(toolmesh.Errorf(toolmesh.CodeWorkerCrashed, "the process that runs %s ended under it", r.program()))
	}
	status := syscall.WaitStatus(number) //nolint:gosec // as the system gave it
	switch {
	case status.Signaled():
		how := sandbox.Exit{Code: -1, Signal: int(status.Signal())}
		return r.withWords(toolmesh.Errorf(toolmesh.CodeWorkerCrashed, "%s was ended by a signal: %s", r.program(), how).WithDetail("signal", how.Signal))
	case status.ExitStatus() != 0:
		message := fmt.Sprintf("%s ended with exit status %d", r.program(), status.ExitStatus())
		<-r.quiet
		if lines := strings.Split(r.tail.String(), "\n"); lines[len(lines)-1] != "" {
			message += ": " + lines[len(lines)-1]
		}
		e := r.withWords(toolmesh.Errorf(toolmesh.CodeToolError, "%s", message).WithDetail("exit_status", status.ExitStatus()))
		e.Type, e.Origin = "CommandFailed", toolmesh.OriginTool
		return e
	}
	return nil
}

// withWords adds the end of what the program said on stderr, which is read to
// its end first: nobody is left who could write there.
func (r *run) withWords(e *toolmesh.Error) *toolmesh.Error {
	<-r.quiet
	e = e.WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedYes).WithDetail("tool", r.call.Tool)
	if words := r.tail.String(); words != "" {
		e = e.WithDetail("stderr", words)
	}
	return e
}

func scanned(text, format string, into *int) bool {
	n, err := fmt.Sscanf(text, format, into)
	return err == nil && n == 1
}
