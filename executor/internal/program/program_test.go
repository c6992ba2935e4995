package program_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "the-token-of-the-index"

// newRunner makes one with the worker's own files and the machine's Python, in an
// empty folder, which it returns.
func newRunner(t *testing.T, change func(*program.Config)) (*program.Runner, string) {
	t.Helper()
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	worker, err := fs.Sub(python.Worker, python.WorkerDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(files, "_the_worker"), worker); err != nil {
		t.Fatal(err)
	}
	spawner := sandbox.NewSpawner(slog.New(slog.DiscardHandler))
	t.Cleanup(spawner.Close)
	dir := t.TempDir()
	cfg := program.Config{
		Index: "test", Logger: slog.New(slog.DiscardHandler), Spawner: spawner, Groups: &cgroup.Tree{},
		Launch: sandbox.Command{
			Path: interpreter, Dir: dir, Env: []string{"LANG=C.UTF-8"},
			Args: []string{"-I", "-S", "-c", "import sys; sys.path.insert(0, sys.argv[1]); from _the_worker.startup import command; command.main(sys.argv[2])", files},
		},
		Request: func(_ tool.Sandbox, vars map[string]string, _ int) (sandbox.Request, error) {
			list := []string{"PATH=" + os.Getenv("PATH")}
			for name, value := range vars {
				list = append(list, name+"="+value)
			}
			return sandbox.Request{Env: list}, nil
		},
		Path:   filepath.SplitList(os.Getenv("PATH")),
		Redact: output.NewRedactor([]string{secret}), Scratch: t.TempDir(), Sandbox: tool.SandboxNone,
		Concurrency: 2, MaxResult: 1 << 20, Grace: 10 * time.Second, Closed: func() {},
	}
	if change != nil {
		change(&cfg)
	}
	p := program.New(cfg)
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p, dir
}

func shell(script string) program.Call {
	return program.Call{Tool: "t", Argv: []string{"sh", "-c", script}, Text: true}
}

// collector is a [output.Sink].
type collector struct {
	mu    sync.Mutex
	items []string
	texts []string
	seen  chan struct{} // closed at the first item, unless nil
}

func (c *collector) Item(_ context.Context, data json.RawMessage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.items = append(c.items, string(data)); len(c.items) == 1 && c.seen != nil {
		close(c.seen)
	}
	return nil
}

func (c *collector) Log(r output.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.texts = append(c.texts, r.Message)
}

// An error shows the beginning of the output, which ends in no secret.
func TestOutputInAnErrorIsNotCutInASecret(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("s3cret-", 30)
	p, _ := newRunner(t, func(cfg *program.Config) { cfg.Redact = output.NewRedactor([]string{long}) })
	_, err := p.Call(t.Context(), program.Call{Tool: "t", Argv: []string{"printf", strings.Repeat(long+" ", 30)}}, nil)
	if got, _ := toolmesh.AsError(err).Details["output"].(string); got == "" || strings.Trim(got, "* ") != "" {
		t.Errorf("it shows %q", got)
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	p, dir := newRunner(t, nil)
	for _, c := range []struct {
		name string
		call program.Call
		want string
	}{
		{"text", shell("echo one; pwd"), `"one\n` + path.Clean(dir) + `"`},
		{"JSON", program.Call{Argv: []string{"echo", ` {"a": 1} `}}, `{"a": 1}`},
		{"arguments are no shell's", program.Call{Argv: []string{"echo", "$HOME", "a b;"}, Text: true}, `"$HOME a b;"`},
		{"variables", program.Call{Argv: []string{"sh", "-c", "echo $X"}, Text: true, Vars: map[string]string{"X": "set"}}, `"set"`},
		{"lines: the last", program.Call{Argv: []string{"sh", "-c", "echo 1; echo 2"}, Lines: true}, `2`},
		{"lines: none", program.Call{Argv: []string{"true"}, Lines: true, Collect: true}, `[]`},
		{"lines: all", program.Call{Argv: []string{"sh", "-c", "echo 1; echo 2"}, Lines: true, Collect: true}, `[1,2]`},
	} {
		got, err := p.Call(t.Context(), c.call, nil)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.name, got, err, c.want)
		}
	}
	sink := &collector{}
	stream := program.Call{Argv: []string{"sh", "-c", "echo 1; echo say " + secret + " >&2; echo 2"}, Lines: true, Stream: true}
	if got, err := p.Call(t.Context(), stream, sink); err != nil || got != nil {
		t.Errorf("a stream: %s, %v", got, err)
	}
	if diff := cmp.Diff([]string{"1", "2"}, sink.items); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"say ***"}, sink.texts); diff != "" {
		t.Error(diff)
	}
}

// A list of many small items takes about its size.
func TestManyItemsOfAList(t *testing.T) { //nolint:paralleltest // memory is the process's
	p, _ := newRunner(t, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := p.Call(t.Context(), program.Call{Argv: []string{"sh", "-c", "yes 1 | head -n 400000"}, Lines: true, Collect: true}, nil)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err != nil || len(got) != 800_001 || took > 80<<20 { // 54 MiB with the race detector
		t.Errorf("%d bytes take %d KiB, %v", len(got), took>>10, err)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	p, _ := newRunner(t, nil)
	limited := func(call program.Call, limits tool.Limits) program.Call {
		call.Limits = limits
		return call
	}
	for _, c := range []struct {
		name    string
		call    program.Call
		code    toolmesh.Code
		origin  toolmesh.Origin
		started toolmesh.Started
		detail  string // a key and text of its value
	}{
		{"exit status", shell("echo no " + secret + " >&2; exit 3"), toolmesh.CodeToolError, toolmesh.OriginTool, toolmesh.StartedYes, "stderr=no ***"},
		{"signal", shell("kill -9 $$"), toolmesh.CodeWorkerCrashed, toolmesh.OriginWorker, toolmesh.StartedYes, "signal=9"},
		{"no JSON", program.Call{Argv: []string{"echo", "not JSON", secret}}, toolmesh.CodeResultNotSerializable, toolmesh.OriginTool, toolmesh.StartedYes, "output=not JSON ***"},
		{"no program", program.Call{Argv: []string{"./missing"}}, toolmesh.CodeUnavailable, toolmesh.OriginWorker, toolmesh.StartedNo, ""},
		{"too long", limited(shell("echo 123456"), tool.Limits{Output: 5}), toolmesh.CodePayloadTooLarge, toolmesh.OriginTool, toolmesh.StartedYes, "limit=output"},
		{"processor time", limited(shell("while :; do :; done"), tool.Limits{CPUTime: 50 * time.Millisecond}), toolmesh.CodeDeadlineExceeded, toolmesh.OriginWorker, toolmesh.StartedYes, "limit=cpu_time"},
		{"processes", limited(shell("for i in 1 2 3 4 5; do sleep 100 & done; wait"), tool.Limits{Pids: 4}), toolmesh.CodeToolError, toolmesh.OriginWorker, toolmesh.StartedYes, "limit=pids"},
	} {
		_, err := p.Call(t.Context(), c.call, nil)
		var e *toolmesh.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v", c.name, err)
			continue
		}
		if e.Code != c.code || e.Origin != c.origin || e.Started != c.started {
			t.Errorf("%s: got %s of %s, started %v: %v", c.name, e.Code, e.Origin, e.Started, e)
		}
		text, _ := json.Marshal(e)
		if strings.Contains(string(text), secret) {
			t.Errorf("%s shows the secret: %s", c.name, text)
		}
		if key, want, _ := strings.Cut(c.detail, "="); key != "" {
			if got, _ := json.Marshal(e.Details[key]); strings.Trim(string(got), `"`) != want {
				t.Errorf("%s: %s is %s, want %s", c.name, key, got, want)
			}
		}
	}
}

// A cancelled call asks its program to end, and ends the processes it leaves.
func TestCancelled(t *testing.T) {
	t.Parallel()
	p, dir := newRunner(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	sink := &collector{seen: make(chan struct{})}
	var calling sync.WaitGroup
	calling.Go(func() {
		script := `trap 'echo asked > asked; exit 0' TERM; sleep 100 & echo $$; wait`
		_, err := p.Call(ctx, program.Call{Tool: "t", Argv: []string{"sh", "-c", script}, Lines: true, Stream: true}, sink)
		if toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			t.Errorf("got %v", err)
		}
	})
	<-sink.seen
	cancel()
	calling.Wait()
	if _, err := os.Stat(filepath.Join(dir, "asked")); err != nil {
		t.Errorf("the program was not asked to end: %v", err)
	}
}

// A call ends at its deadline even if the process above its program never reads what it is to run.
func TestRequestThatIsNotRead(t *testing.T) {
	t.Parallel()
	p, _ := newRunner(t, func(cfg *program.Config) {
		cfg.Launch = sandbox.Command{Path: "/bin/sh", Args: []string{"-c", "exec /bin/sleep 20"}, Dir: "/"}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := p.Call(ctx, program.Call{Tool: "t", Argv: []string{"echo", strings.Repeat("x", 8<<20)}}, nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeDeadlineExceeded || e.Started != toolmesh.StartedNo {
		t.Errorf("got %v", err)
	}
}

// The slots alternate between accounts, and a call that gives up frees its own.
func TestAccountsTakeTurns(t *testing.T) {
	t.Parallel()
	p, dir := newRunner(t, func(cfg *program.Config) { cfg.Concurrency = 1 })
	var calling sync.WaitGroup
	waits := 0
	queue := func(ctx context.Context, account, name string) {
		calling.Go(func() {
			call := shell("printf '%s ' " + name + " >> order")
			call.Account = account
			if _, err := p.Call(ctx, call, nil); err != nil && toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
				t.Error(err)
			}
		})
		for waits++; p.Waiting() != waits; {
			runtime.Gosched()
		}
	}
	sink := &collector{seen: make(chan struct{})}
	calling.Go(func() {
		hold := program.Call{Argv: []string{"sh", "-c", "mkfifo gate; echo 1; cat gate"}, Lines: true, Stream: true, Account: "flood"}
		if _, err := p.Call(t.Context(), hold, sink); err != nil {
			t.Error(err)
		}
	})
	<-sink.seen
	for _, name := range []string{"f1", "f2", "f3"} {
		queue(t.Context(), "flood", name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	queue(ctx, "b", "given-up")
	cancel()
	for waits--; p.Waiting() != waits; {
		runtime.Gosched()
	}
	queue(t.Context(), "b", "b1")
	queue(t.Context(), "b", "b2")
	queue(t.Context(), "c", "c1")
	gate, err := os.OpenFile(filepath.Join(dir, "gate"), os.O_WRONLY, 0) // returns when it is read
	if err != nil {
		t.Fatal(err)
	}
	if err := gate.Close(); err != nil {
		t.Fatal(err)
	}
	calling.Wait()
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if want := "f1 b1 c1 f2 b2 f3 "; err != nil || string(order) != want {
		t.Errorf("served in the order %s (%v), want %s", order, err, want)
	}
}

// Close waits as long as its context lets it, then kills; calls that come later are refused.
func TestCloseCutsOff(t *testing.T) {
	t.Parallel()
	closed := 0
	p, _ := newRunner(t, func(cfg *program.Config) { cfg.Closed = func() { closed++ } })
	sink := &collector{seen: make(chan struct{})}
	var calling sync.WaitGroup
	calling.Go(func() {
		_, err := p.Call(context.WithoutCancel(t.Context()), program.Call{Argv: []string{"sh", "-c", "echo 1; sleep 100"}, Lines: true, Stream: true}, sink)
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedYes {
			t.Errorf("got %v", err)
		}
	})
	<-sink.seen
	cause := errors.New("no more time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := p.Close(ctx); !errors.Is(err, cause) || closed != 1 {
		t.Errorf("Close: %v; told %d times", err, closed)
	}
	calling.Wait()
	if _, err := p.Call(t.Context(), shell("echo"), nil); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
		t.Errorf("after Close: %v", err)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	p, dir := newRunner(t, nil)
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{
		"sh": "", "/bin/sh": "", "no-such-program": "neither in the index's environment", "./plain": "not executable", "./none": "has no file", "/none": "there is no /none",
	} {
		if got := p.Missing(program); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: got %q", program, got)
		}
	}
}
