package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/meshtest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("TOOLMESH_TEST_AGENT"); dir != "" {
		whileParentLives()
		beAgent(dir)
		return
	}
	if dir := os.Getenv("TOOLMESH_TEST_GROUPED"); dir != "" {
		whileParentLives()
		beGrouped(dir)
		return
	}
	// The interpreter itself, and no shim before it, which takes longer to start.
	if python, err := exec.Command("python3", "-I", "-S", "-c", "import sys; print(sys._base_executable, end='')").Output(); err == nil {
		_ = os.Setenv("PATH", filepath.Dir(string(python))+":"+os.Getenv("PATH"))
	}
	meshtest.Parallel(4) // most tests wait for processes
	goleak.VerifyTestMain(sharing{m})
}

// sharing are the tests, which end with the executor that they share.
type sharing struct{ *testing.M }

func (s sharing) Run() (status int) {
	status = s.M.Run()
	if used {
		if err := errors.Join(one().Close(), os.RemoveAll(shared)); err != nil && status == 0 {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return status
}

var (
	shared string // the folder of one, if it is used
	used   bool
	// one is an executor for all tests that need nothing of their own: to start one takes
	// longer than most tests.
	one = sync.OnceValue(func() *executor.Executor {
		used = true
		var err error
		if shared, err = os.MkdirTemp("", "toolmesh-executor-"); err == nil {
			_ = os.Chmod(shared, 0o755) // for uv, which other users run
			var x *executor.Executor
			if x, err = executor.New(shared, &executor.Options{Environ: os.Environ()}); err == nil {
				return x
			}
		}
		panic(err)
	})
)

// sharedExecutor is one that other tests use, too, with the defaults of all options. Their
// indexes have names of their own.
func sharedExecutor(t testing.TB) *executor.Executor {
	t.Helper()
	return one()
}

// newExecutor makes an executor that is closed when the test ends.
func newExecutor(t testing.TB, change func(*executor.Options)) *executor.Executor {
	t.Helper()
	o := &executor.Options{Environ: os.Environ(), Logger: testLogger(t)}
	if change != nil {
		change(o)
	}
	dir := t.TempDir()
	meshtest.Warm(dir, t.Cleanup)
	x, err := executor.New(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return x
}

func testLogger(t testing.TB) *slog.Logger {
	if !meshtest.ShowLogs() {
		return nil
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// writeFiles writes files below a new folder.
func writeFiles(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// spec makes a Spec of a folder without dependencies.
func specOf(t testing.TB, x *executor.Executor, dir string, tools ...string) executor.Spec {
	t.Helper()
	env, err := x.Environment(t.Context(), dir, executor.Lock{}, executor.Making{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return executor.Spec{Name: "test", Revision: "r1", SourceDir: dir, Env: env, Tools: tools}
}

// openModule serves the functions of one module, t.py.
func openModule(t testing.TB, x *executor.Executor, source string, functions ...string) *executor.Index {
	t.Helper()
	dir := writeFiles(t, map[string]string{"t.py": source})
	tools := make([]string, len(functions))
	for i, name := range functions {
		tools[i] = "t." + name
	}
	return open(t, x, specOf(t, x, dir, tools...))
}

func open(t testing.TB, x *executor.Executor, spec executor.Spec) *executor.Index {
	t.Helper()
	ix, err := x.Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		at, cancel := context.WithCancel(context.Background())
		cancel()
		_ = ix.Close(at) // its executor may have closed it
	})
	return ix
}

// ending is a context whose deadline is the call of end, so that a test controls the moment.
type ending struct {
	context.Context //nolint:containedctx // it is one
	over            chan struct{}
	end             func()
}

func newEnding(t testing.TB) *ending {
	t.Helper()
	over := make(chan struct{})
	return &ending{t.Context(), over, sync.OnceFunc(func() { close(over) })}
}

func (e *ending) Done() <-chan struct{} { return e.over }

func (e *ending) Err() error {
	select {
	case <-e.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// collector is a Sink that remembers.
type collector struct {
	mu      sync.Mutex
	items   []string
	records []output.Record
	onItem  func(ctx context.Context, data json.RawMessage) error
	logged  chan struct{}
}

func (c *collector) Item(ctx context.Context, data json.RawMessage) error {
	c.mu.Lock()
	c.items = append(c.items, string(data))
	c.mu.Unlock()
	if c.onItem != nil {
		return c.onItem(ctx, data)
	}
	return nil
}

func (c *collector) Log(r output.Record) {
	c.mu.Lock()
	c.records = append(c.records, r)
	c.mu.Unlock()
	if c.logged != nil {
		select {
		case c.logged <- struct{}{}:
		default:
		}
	}
}

// text joins the output of one stream.
func (c *collector) text(stream output.Stream) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, r := range c.records {
		if r.Stream == stream {
			b.WriteString(r.Message + "\n")
		}
	}
	return b.String()
}

func call(t testing.TB, ix *executor.Index, tool, args string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body, err := ix.Call(ctx, executor.Call{Tool: tool, Args: json.RawMessage(args)}, nil)
	return string(body), err
}

// mustCall fails the test unless the call gives exactly want.
func mustCall(t testing.TB, ix *executor.Index, tool, args, want string) {
	t.Helper()
	got, err := call(t, ix, tool, args)
	if err != nil {
		t.Fatalf("%s(%s): %v\n%s", tool, args, err, toolmesh.AsError(err).Stacktrace)
	}
	if got != want {
		t.Fatalf("%s(%s) = %s, want %s", tool, args, got, want)
	}
}

// mustFail fails the test unless the call gives an error of the code.
func mustFail(t testing.TB, ix *executor.Index, tool, args string, code toolmesh.Code) *toolmesh.Error {
	t.Helper()
	got, err := call(t, ix, tool, args)
	if err == nil {
		t.Fatalf("%s(%s) = %s, want an error %s", tool, args, got, code)
	}
	if e := toolmesh.AsError(err); e.Code != code {
		t.Fatalf("%s(%s): got %v, want %s\ndetails: %v\n%s", tool, args, err, code, e.Details, e.Stacktrace)
	}
	return toolmesh.AsError(err)
}
