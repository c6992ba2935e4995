package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

const slowTools = `
import asyncio, signal, time, threading, sys

def spin():
    print("spinning", flush=True)
    while True:
        pass

def sleep(n: float = 60):
    print("sleeping", flush=True)
    time.sleep(n)
    return n

def retry():
    print("trying", flush=True)
    while True:
        try:
            time.sleep(60)
        except Exception:
            pass

def stubborn():
    said = False
    while True:
        try:
            if not said:
                said = True  # within the try: the cancellation may come while it prints
                print("stubborn", flush=True)
            time.sleep(60)
        except:
            pass

closed = 0

def forever():
    global closed
    try:
        while True:
            yield "x" * 1000
    finally:
        closed += 1

def how_many_closed():
    return closed

def cleanup(path: str):
    print("working", flush=True)
    try:
        time.sleep(60)
    finally:
        open(path, "w").write("cleaned")

def tidies(path: str):
    try:
        print("working", flush=True)
        time.sleep(60)
    finally:
        tidy(path)

def gtidies(path: str):
    try:
        while True:
            yield "x" * 1000
    finally:
        tidy(path)

async def atidies(path: str):
    try:
        print("working", flush=True)
        time.sleep(60)
    finally:
        tidy(path)

def tidy(path):
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        time.sleep(0.005)
    open(path, "w").write("cleaned")

def ok(n: int = 1):
    return n

def chatty():
    i = 0
    while True:
        print("line", i)
        i += 1

async def asleep(n: float = 60):
    print("asleep", flush=True)
    await asyncio.sleep(n)
    return n

async def aok(n: int = 1):
    return n

async def ablock():
    print("blocking", flush=True)
    time.sleep(60)

def ignoring():
    # What comes meanwhile is lost, as between a look at signals and a sleep.
    ours = signal.signal(signal.SIGURG, signal.SIG_IGN)
    print("ignoring", flush=True)
    time.sleep(0.5)
    signal.signal(signal.SIGURG, ours)
    time.sleep(60)

async def aignoring():
    ignoring()

def interrupted():
    # Its own signal handler raises at the end of the section in which the worker writes.
    def handler(frame, event, _):
        if event == "call" and frame.f_code.co_name == "__exit__" and frame.f_code.co_filename.endswith("guard.py"):
            sys.setprofile(None)
            raise TimeoutError
    sys.setprofile(handler)
    try:
        print("interrupted")
    except TimeoutError:
        return True

async def ahold():
    import ctypes
    mutex = ctypes.create_string_buffer(256)
    libc = ctypes.PyDLL(None)
    print("holding", flush=True)
    while True:
        try:
            libc.pthread_mutex_lock(mutex)
        except BaseException:
            pass

async def astubborn():
    print("astubborn", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def acancel():
    raise asyncio.CancelledError()

aclosed = 0

async def aforever():
    global aclosed
    try:
        while True:
            yield "x" * 1000
    finally:
        aclosed += 1

async def how_many_aclosed():
    return aclosed
`

var slowNames = []string{
	"spin", "sleep", "retry", "stubborn", "forever", "how_many_closed", "cleanup", "ok", "chatty", "ignoring",
	"interrupted", "tidies", "gtidies", "atidies",
	"aignoring", "asleep", "aok", "ablock", "ahold", "astubborn", "acancel", "aforever", "how_many_aclosed",
}

// cancelRunning cancels a call once it has printed something.
func cancelRunning(t *testing.T, ix *executor.Index, tool, args string) *toolmesh.Error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sink := &collector{logged: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() {
		_, err := ix.Call(ctx, executor.Call{Tool: tool, Args: json.RawMessage(args)}, sink)
		done <- err
	}()
	select {
	case <-sink.logged:
	case err := <-done:
		t.Fatalf("%s ended before it was cancelled: %v", tool, err)
	}
	cancel()
	select {
	case err := <-done:
		e := toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeCancelled || e.Started != toolmesh.StartedYes {
			t.Fatalf("%s: got %v, want cancelled, started", tool, err)
		}
		return e
	case <-time.After(60 * time.Second):
		t.Fatalf("%s was cancelled and does not end", tool)
		return nil
	}
}

func TestCancelStopsTheWorkAndTheWorkerGoesOn(t *testing.T) {
	t.Parallel()
	var blocked blockedLoops
	ix := openModule(t, newExecutor(t, func(o *executor.Options) {
		blocked.Handler = slog.NewTextHandler(io.Discard, nil)
		o.Logger, o.Grace = slog.New(&blocked), 30*time.Second
	}), slowTools, slowNames...)
	begun := ix.Stats().Pids
	for _, tool := range []string{"t.spin", "t.sleep", "t.retry", "t.chatty", "t.ignoring", "t.asleep", "t.ablock", "t.aignoring"} {
		if e := cancelRunning(t, ix, tool, `{}`); e.Details["killed"] != nil {
			t.Errorf("%s: its worker was killed; an exception should have sufficed", tool)
		}
		mustCall(t, ix, "t.ok", `{}`, `1`)
		mustCall(t, ix, "t.aok", `{}`, `1`)
	}
	file := t.TempDir() + "/cleaned"
	cancelRunning(t, ix, "t.cleanup", fmt.Sprintf(`{"path":%q}`, file))
	s := ix.Stats()
	for _, pid := range begun {
		if !slices.Contains(s.Pids, pid) {
			t.Errorf("worker %d of the beginning is gone", pid)
		}
	}
	// Python that was kept from running for long looks like a loop that is blocked.
	if s.Restarts != 0 || len(begun) != 2 || s.Busy != 0 || s.Workers != 2 && blocked.n.Load() == 0 {
		t.Errorf("got %+v, want the two workers of the beginning, idle", s)
	}
}

func TestAWriteInterruptedByTheToolDelaysNoLaterCancellation(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, func(o *executor.Options) { o.MaxWorkers = 1; o.Grace = 5 * time.Second }), slowTools, slowNames...)
	mustCall(t, ix, "t.interrupted", `{}`, `true`)
	if e := cancelRunning(t, ix, "t.sleep", `{}`); e.Details["killed"] != nil {
		t.Error("its worker was killed; an exception should have sufficed")
	}
}

// blockedLoops counts the event loops that an executor's log calls blocked.
type blockedLoops struct {
	slog.Handler
	n atomic.Int32
}

// Handle implements [slog.Handler].
func (b *blockedLoops) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "blocks its event loop") {
		b.n.Add(1)
	}
	return b.Handler.Handle(ctx, r)
}

func TestCallsThatIgnoreTheirCancellationAreKilledAfterTheGrace(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, func(o *executor.Options) { o.Grace = 100 * time.Millisecond }), slowTools, slowNames...)
	for _, tool := range []string{"t.stubborn", "t.ahold", "t.astubborn"} {
		if e := cancelRunning(t, ix, tool, `{}`); e.Details["killed"] != true {
			t.Errorf("%s: details %v, want killed", tool, e.Details)
		}
		mustCall(t, ix, "t.ok", `{}`, `1`)
		mustCall(t, ix, "t.aok", `{}`, `1`)
	}
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("%d restarts; what we kill ourselves is no crash", s.Restarts)
	}
}

// A sink that refuses an item has its own error back, also where the tool goes on
// until its worker is killed.
func TestARefusedItemIsTheOutcomeThoughTheWorkerIsKilled(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, func(o *executor.Options) { o.Grace = 100 * time.Millisecond }), `
import asyncio, time

def ignoring():
    yield 1
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

async def aignoring():
    yield 1
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            pass

def ok():
    return 1
`, "ignoring", "aignoring", "ok")
	for _, name := range []string{"t.ignoring", "t.aignoring"} {
		enough := errors.New("enough")
		sink := &collector{onItem: func(context.Context, json.RawMessage) error { return enough }}
		if _, err := ix.Call(t.Context(), executor.Call{Tool: name, Stream: true}, sink); err != enough { //nolint:errorlint // as it is
			t.Errorf("%s: got %v, want the sink's error", name, err)
		}
		mustCall(t, ix, "t.ok", `{}`, `1`)
	}
}

// A call is cancelled once: it may clean up until the grace is over.
func TestACleanupIsNotCancelled(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, func(o *executor.Options) { o.Grace = 30 * time.Second }), slowTools, slowNames...)
	for _, name := range []string{"t.tidies", "t.atidies", "t.gtidies"} {
		file := t.TempDir() + "/cleaned"
		args := fmt.Sprintf(`{"path":%q}`, file)
		if name == "t.gtidies" {
			// Its items are not taken: it waits for room when it is cancelled.
			ctx, cancel := context.WithCancel(t.Context())
			var once sync.Once
			sink := &collector{onItem: func(context.Context, json.RawMessage) error {
				once.Do(cancel)
				<-ctx.Done()
				return ctx.Err()
			}}
			_, err := ix.Call(ctx, executor.Call{Tool: name, Args: json.RawMessage(args), Stream: true}, sink)
			cancel()
			if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeCancelled || e.Details["killed"] != nil {
				t.Errorf("%s: got %v, want cancelled", name, err)
			}
		} else if e := cancelRunning(t, ix, name, args); e.Details["killed"] != nil {
			t.Errorf("%s: its worker was killed", name)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != "cleaned" {
			t.Errorf("%s did not clean up: %s, %v", name, text, err)
		}
		mustCall(t, ix, "t.ok", `{}`, `1`)
	}
}

func TestDeadlineEndsAnEndlessLoop(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), slowTools, slowNames...)
	for _, tool := range []string{"t.spin", "t.asleep"} {
		ctx, sink := newEnding(t), &collector{logged: make(chan struct{}, 1)}
		go func() { <-sink.logged; ctx.end() }() // ends with the call, which prints
		_, err := ix.Call(ctx, executor.Call{Tool: tool}, sink)
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeDeadlineExceeded || e.Started != toolmesh.StartedYes {
			t.Errorf("%s: got %v", tool, err)
		}
		mustCall(t, ix, "t.ok", `{}`, `1`)
	}
}

func TestAQueuedCallThatIsCancelledNeverStarts(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, func(o *executor.Options) { o.MaxWorkers = 1 }), slowTools, slowNames...)
	sink := &collector{logged: make(chan struct{}, 1)}
	first, cancelFirst := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = ix.Call(first, executor.Call{Tool: "t.sleep"}, sink)
	}()
	<-sink.logged
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := ix.Call(ctx, executor.Call{Tool: "t.ok"}, nil)
	if e := toolmesh.AsError(err); e.Code != toolmesh.CodeDeadlineExceeded || e.Started != toolmesh.StartedNo {
		t.Errorf("got %v, started %v", err, e.Started)
	}
	cancelFirst()
	<-done
	mustCall(t, ix, "t.ok", `{}`, `1`)
}

func TestAToolsOwnCancelledErrorIsItsFailure(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), slowTools, slowNames...)
	if e := mustFail(t, ix, "t.acancel", `{}`, toolmesh.CodeToolError); e.Type != "CancelledError" {
		t.Errorf("type %q", e.Type)
	}
}

// Cancellations at random moments: no call but the one that is meant may be hit,
// and every other call must have its own answer.
func TestACancellationNeverHitsAnotherCall(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, func(o *executor.Options) { o.MaxWorkers = 2; o.Grace = 10 * time.Second }),
		slowTools, slowNames...)
	var cancelled, answered atomic.Int64
	var wg sync.WaitGroup
	for caller := range 4 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(caller)))
			for n := range 250 {
				tool, want := "t.ok", fmt.Sprint(n)
				if caller%2 == 1 {
					tool = "t.aok"
				}
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				doomed := n%2 == 0
				if doomed {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(300))*time.Microsecond)
				}
				body, err := ix.Call(ctx, executor.Call{Tool: tool, Args: json.RawMessage(`{"n":` + want + `}`)}, nil)
				cancel()
				switch {
				case err == nil && string(body) == want:
					answered.Add(1)
				case doomed && (toolmesh.CodeOf(err) == toolmesh.CodeDeadlineExceeded || toolmesh.CodeOf(err) == toolmesh.CodeBusy): // it would have been late
					cancelled.Add(1)
				default:
					t.Errorf("call %d of %s: got %s, %v", n, tool, body, err)
				}
			}
		})
	}
	wg.Wait()
	if cancelled.Load() == 0 || answered.Load() < 500 {
		t.Errorf("%d cancelled, %d answered: the test did not test", cancelled.Load(), answered.Load())
	}
	if s := ix.Stats(); s.Restarts != 0 || s.Busy != 0 || s.Waiting != 0 {
		t.Errorf("got %+v", s)
	}
}
