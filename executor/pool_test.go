package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
)

const poolTools = `
import asyncio, os, threading, time

def echo(n: int, text: str = ""):
    return {"n": n, "text": text}

async def aecho(n: int, text: str = ""):
    await asyncio.sleep(0)
    return {"n": n, "text": text}

def nap(n: float):
    time.sleep(n)
    return os.getpid()

async def anap(n: float):
    await asyncio.sleep(n)
    return os.getpid()

def long():
    print("begun", flush=True)
    time.sleep(60)

async def along():
    await asyncio.sleep(60)

def pid():
    return os.getpid()

def orphan():
    # A daemon of the old school: its own session, its parent gone.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    return 1
`

var poolNames = []string{"echo", "aecho", "nap", "anap", "pid", "orphan", "long"}

func TestAThousandConcurrentCallsGetTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), poolTools, poolNames...)
	var wg sync.WaitGroup
	for n := range 1000 {
		for _, tool := range []string{"t.echo", "t.aecho"} {
			wg.Go(func() {
				// Some larger than a pipe, so that frames are cut.
				text := fmt.Sprintf("%0*d", 1+(n%7)*20000*(n%2), n)
				args, _ := json.Marshal(map[string]any{"n": n, "text": text})
				body, err := ix.Call(t.Context(), executor.Call{Tool: tool, Args: args}, nil)
				if want := fmt.Sprintf(`{"n":%d,"text":"%s"}`, n, text); err != nil || string(body) != want {
					t.Errorf("%s call %d: got %.80s, %v", tool, n, body, err)
				}
			})
		}
	}
	wg.Wait()
	if s := ix.Stats(); s.Busy != 0 || s.Waiting != 0 || s.Restarts != 0 {
		t.Errorf("got %+v", s)
	}
}

func mustPid(t *testing.T, ix *executor.Index) string {
	t.Helper()
	body, err := call(t, ix, "t.pid", `{}`)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestCoroutinesShareOneWorker(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), poolTools, poolNames...)
	begin := time.Now()
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if _, err := call(t, ix, "t.anap", `{"n":0.2}`); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Not a measurement: one after another they would take 40 s.
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("200 naps of 0.2 s took %v", took)
	}
	// On a busy machine a loop that is late looks like one that is blocked, and gets a companion.
	if s := ix.Stats(); s.Workers > 8 {
		t.Errorf("%d workers, want 2", s.Workers)
	}
}

// A coroutine that blocks its loop delays those that share it, but no new ones.
func TestABlockedLoopGetsACompanion(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), slowTools, slowNames...)
	ctx, cancel := context.WithCancel(t.Context())
	sink := &collector{logged: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = ix.Call(ctx, executor.Call{Tool: "t.ablock"}, sink)
	}()
	<-sink.logged
	meshtest.Until(t, "there is another worker", func() bool { return ix.Stats().Workers == 3 })
	mustCall(t, ix, "t.aok", `{"n":5}`, `5`)
	cancel()
	<-done
	mustCall(t, ix, "t.aok", `{"n":6}`, `6`)
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("%d restarts", s.Restarts)
	}
}

// Functions and coroutines of an index are each bounded by its concurrency.
func TestConcurrencyBoundsTheCallsAtOnce(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": poolTools}), "t.long", "t.along")
	spec.Concurrency = 3
	ix := open(t, x, spec)
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for range 5 {
		for _, tool := range []string{"t.long", "t.along"} {
			calls.Go(func() { _, _ = ix.Call(ctx, executor.Call{Tool: tool}, nil) })
		}
	}
	meshtest.Until(t, "three calls of each kind run, and two wait", func() bool { s := ix.Stats(); return s.Busy == 6 && s.Waiting == 4 })
	cancel()
	calls.Wait()
}

// begin starts a long call and returns when its function has been entered.
func begin(t *testing.T, ix *executor.Index) <-chan error {
	t.Helper()
	sink := &collector{logged: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() {
		_, err := ix.Call(context.WithoutCancel(t.Context()), executor.Call{Tool: "t.long"}, sink)
		done <- err
	}()
	<-sink.logged
	return done
}

func TestKillingTheZygoteCostsOnlyTheCallsInFlight(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), poolTools, poolNames...)
	done := begin(t, ix)
	root := rootOf(ix)
	if err := syscall.Kill(root, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-done; toolmesh.CodeOf(err) != toolmesh.CodeWorkerCrashed {
		t.Errorf("got %v, want worker_crashed", err)
	}
	mustCall(t, ix, "t.echo", `{"n":1}`, `{"n":1,"text":""}`)
	mustCall(t, ix, "t.aecho", `{"n":1}`, `{"n":1,"text":""}`)
	if now := rootOf(ix); now == root || now == 0 {
		t.Errorf("root %d after %d was killed", now, root)
	}
}

// A worker that dies while it has nothing to do costs no call anything.
func TestAnIdleWorkersDeathIsRepaired(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), poolTools, poolNames...)
	for range 20 {
		for _, pid := range ix.Stats().Pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		mustCall(t, ix, "t.echo", `{"n":1}`, `{"n":1,"text":""}`)
		mustCall(t, ix, "t.aecho", `{"n":1}`, `{"n":1,"text":""}`)
	}
	if s := ix.Stats(); s.Busy != 0 || s.Waiting != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestAnIndexThatMustNotBeForkedIsServedByProcessesOfItsOwn(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), `
import os, threading, time
beats = 0
def beat():
    global beats
    while True:
        beats += 1
        time.sleep(0.001)
threading.Thread(target=beat, daemon=True).start()
def alive():
    before = beats
    while beats == before:
        time.sleep(0.001)
    return True
def die():
    os._exit(9)
def killed():
    os.kill(os.getpid(), 9)
async def aalive():
    return beats >= 0
`, "alive", "die", "killed", "aalive")
	mustCall(t, ix, "t.alive", `{}`, `true`)
	mustCall(t, ix, "t.aalive", `{}`, `true`)
	if e := mustFail(t, ix, "t.die", `{}`, toolmesh.CodeWorkerCrashed); e.Details["exit_status"] != 9 {
		t.Errorf("details %v", e.Details)
	}
	mustCall(t, ix, "t.alive", `{}`, `true`)
	if e := mustFail(t, ix, "t.killed", `{}`, toolmesh.CodeWorkerCrashed); e.Details["signal"] != 9 {
		t.Errorf("details %v", e.Details)
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() { mustCall(t, ix, "t.alive", `{}`, `true`) })
	}
	wg.Wait()
}

func TestCloseDrains(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), poolTools, poolNames...)
	done := make(chan error, 1)
	go func() {
		_, err := call(t, ix, "t.nap", `{"n":0.2}`)
		done <- err
	}()
	meshtest.Until(t, "the worker is busy", func() bool { return ix.Stats().Busy == 1 })
	pids := ix.Stats().Pids
	if err := ix.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is alive after Close", pid)
		}
	}
}

func TestExecutorCloseCutsCallsOff(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, nil)
	ix := openModule(t, x, poolTools, poolNames...)
	mustCall(t, ix, "t.orphan", `{}`, `1`)
	done := begin(t, ix)
	pids := append(ix.Stats().Pids, rootOf(ix))
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if e := toolmesh.AsError(<-done); e == nil || e.Started != toolmesh.StartedYes {
		t.Errorf("got %v, want an error that says it had started", e)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is alive after Close", pid)
		}
	}
	if _, err := x.Open(t.Context(), executor.Spec{Name: "late", SourceDir: t.TempDir(), Env: &executor.Env{}}); err == nil {
		t.Error("a closed executor opens an index")
	}
}
