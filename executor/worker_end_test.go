package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// Items that come quickly are written together. Those before a worker's own end must arrive
// all the same.
const partingTools = `
import asyncio, os, signal, sys, threading
from os import _exit as renamed

def leave(how):
    if how == "exit":
        os._exit(3)
    elif how == "renamed":
        renamed(3)
    elif how == "thread":
        threading.Thread(target=os._exit, args=(3,)).start()
        threading.Event().wait()
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "group":
        os.killpg(0, signal.SIGKILL)
    elif how == "raise":
        signal.raise_signal(signal.SIGKILL)
    elif how == "abort":
        os.abort()
    elif how == "exec":
        os.execvp("true", ["true"])
    elif how == "sys":
        sys.exit(3)
    elif how == "error":
        raise ValueError("enough")

def items(n: int, how: str):
    for i in range(n):
        yield i
    leave(how)

async def aitems(n: int, how: str):
    for i in range(n):
        yield i
    leave(how)

gate = None
inside = 0

async def finish(i: int) -> int:
    global gate, inside
    if gate is None:
        gate = asyncio.Event()
    inside += 1
    await gate.wait()
    return i

async def last(n: int, how: str):
    while inside < n:
        await asyncio.sleep(0.001)
    gate.set()
    await asyncio.sleep(0)  # they come to their ends, and we go on, in the same turn of the loop
    leave(how)

async def here() -> int:
    return os.getpid()

async def exits_beside():
    async def inner():
        sys.exit(5)
    await asyncio.create_task(inner())

async def stops():
    asyncio.get_running_loop().stop()
`

func partingIndex(t *testing.T) *executor.Index {
	t.Helper()
	return openModule(t, sharedExecutor(t), partingTools, "items", "aitems", "finish", "last", "here", "exits_beside", "stops")
}

var partings = map[string]toolmesh.Code{
	"exit": toolmesh.CodeWorkerCrashed, "renamed": toolmesh.CodeWorkerCrashed, "thread": toolmesh.CodeWorkerCrashed,
	"kill": toolmesh.CodeWorkerCrashed, "group": toolmesh.CodeWorkerCrashed, "raise": toolmesh.CodeWorkerCrashed,
	"abort": toolmesh.CodeWorkerCrashed, "exec": toolmesh.CodeWorkerCrashed,
	"sys": toolmesh.CodeToolError, "error": toolmesh.CodeToolError,
}

func TestOutputBeforeAWorkersOwnEndArrives(t *testing.T) {
	t.Parallel()
	for how, want := range partings {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ix := partingIndex(t)
			itemsArrive(t, ix, how, want)
			resultsArrive(t, ix, how, want)
		})
	}
}

func itemsArrive(t *testing.T, ix *executor.Index, how string, want toolmesh.Code) {
	t.Helper()
	const n = 1000
	for _, tool := range []string{"t.items", "t.aitems"} {
		sink := &collector{}
		err := stream(t, ix, tool, fmt.Sprintf(`{"n":%d,"how":%q}`, n, how), sink)
		if toolmesh.CodeOf(err) != want {
			t.Errorf("%s: got %v, want %s", tool, err, want)
		}
		for i, item := range sink.items {
			if item != strconv.Itoa(i) {
				t.Fatalf("%s: item %d is %s", tool, i, item)
			}
		}
		if len(sink.items) != n {
			t.Errorf("%s: %d of %d items came", tool, len(sink.items), n)
		}
	}
}

func resultsArrive(t *testing.T, ix *executor.Index, how string, want toolmesh.Code) {
	t.Helper()
	const n = 100
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			body, err := ix.Call(t.Context(), executor.Call{Tool: "t.finish", Args: json.RawMessage(fmt.Sprintf(`{"i":%d}`, i))}, nil)
			if err != nil || string(body) != strconv.Itoa(i) {
				t.Errorf("call %d, which had its result: %s, %v", i, body, err)
			}
		})
	}
	args := json.RawMessage(fmt.Sprintf(`{"n":%d,"how":%q}`, n, how))
	if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.last", Args: args}, nil); toolmesh.CodeOf(err) != want {
		t.Errorf("the last: got %v, want %s", err, want)
	}
	wg.Wait()
}

// sys.exit in a task that a tool starts comes out of the event loop. It is the
// failure of the call that awaits that task, and no other call's. Nor is a stop of the loop.
func TestExitInATaskEndsOnlyItsCall(t *testing.T) {
	t.Parallel()
	ix := partingIndex(t)
	pid, err := ix.Call(t.Context(), executor.Call{Tool: "t.here"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	const n = 10
	for i := range n {
		wg.Go(func() {
			if body, err := call(t, ix, "t.finish", fmt.Sprintf(`{"i":%d}`, i)); err != nil || body != strconv.Itoa(i) {
				t.Errorf("call %d: %s, %v", i, body, err)
			}
		})
	}
	_, err = ix.Call(t.Context(), executor.Call{Tool: "t.exits_beside"}, nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeToolError || e.Type != "SystemExit" {
		t.Errorf("got %v, want the tool's own SystemExit", err)
	}
	mustCall(t, ix, "t.stops", `{}`, `null`)
	if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.last", Args: json.RawMessage(`{"n":10,"how":""}`)}, nil); err != nil {
		t.Error(err)
	}
	wg.Wait()
	mustCall(t, ix, "t.here", `{}`, string(pid))
}

const onceTools = `
import os

async def ready():
    return 1

async def die(path: str, i: int):
    with open(path, "a") as made:
        made.write(f"{i}\n")
    os._exit(3)
`

// A call is made again only when its worker died before it came to it. Calls that
// are submitted at once reach their worker in any order: none of them may be taken
// for one that the worker had not come to when it had.
func TestACallThatKillsItsWorkerIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	const rounds, at = 40, 2
	x := newExecutor(t, func(o *executor.Options) { o.CrashLimit = rounds * at * 10 })
	ix := openModule(t, x, onceTools, "die", "ready")
	path := filepath.Join(t.TempDir(), "made")
	for round := range rounds {
		mustCall(t, ix, "t.ready", `{}`, `1`) // those that find no worker come to one in order
		var wg sync.WaitGroup
		for i := range at {
			wg.Go(func() {
				args := json.RawMessage(fmt.Sprintf(`{"path":%q,"i":%d}`, path, round*at+i))
				if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.die", Args: args}, nil); toolmesh.CodeOf(err) != toolmesh.CodeWorkerCrashed {
					t.Errorf("call %d: got %v, want worker_crashed", round*at+i, err)
				}
			})
		}
		wg.Wait()
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]int{}
	for line := range strings.Lines(string(data)) {
		if made[line]++; made[line] > 1 {
			t.Errorf("call %s was made %d times", strings.TrimSpace(line), made[line])
		}
	}
	if len(made) < rounds {
		t.Errorf("%d calls were made at all", len(made))
	}
}
