package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"os"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// badTool is one call of a tool that misbehaves, and its expected outcome.
type badTool struct {
	name   string // of the row; of the tool where tool is empty
	tool   string
	args   string
	policy executor.Policy
	after  time.Duration // its time is up so long after it began, or gave its items; by default never
	stream bool

	code    toolmesh.Code // "" for a call that ends well
	result  string        // of one that does; "" for any
	details map[string]any
	check   func(t *testing.T, e *toolmesh.Error)
	items   int // at least, of a stream
	// ungrouped: its executor leaves memory limits to the guards that every machine has.
	ungrouped bool
}

const little = 300 * time.Millisecond

func badTools() []badTool {
	limits := func(l tool.Limits) executor.Policy { return executor.Policy{Limits: l} }
	memory := limits(tool.Limits{Memory: 64 << 20})
	cpu := limits(tool.Limits{CPUTime: little})
	pids := limits(tool.Limits{Pids: 20})
	forked := executor.Policy{Isolation: toolmesh.IsolationFork}
	and := func(p, l executor.Policy) executor.Policy { p.Limits = l.Limits; return p }
	all := []badTool{
		// Time.
		{name: "loop", after: little, code: toolmesh.CodeDeadlineExceeded},
		{name: "holds_the_lock", after: little, code: toolmesh.CodeDeadlineExceeded, details: map[string]any{"killed": true}},
		{name: "catches_everything", after: little, code: toolmesh.CodeDeadlineExceeded, details: map[string]any{"killed": true}},
		{name: "catches_and_returns", after: little, code: toolmesh.CodeDeadlineExceeded},
		{name: "sleeps", after: little, code: toolmesh.CodeDeadlineExceeded},
		{name: "blocks", after: little, code: toolmesh.CodeDeadlineExceeded},
		{name: "cpu time", tool: "loop", policy: cpu, code: toolmesh.CodeDeadlineExceeded, details: map[string]any{"limit": "cpu_time"}},
		{name: "cpu time of a child", tool: "computes_in_a_child", policy: cpu, code: toolmesh.CodeDeadlineExceeded, details: map[string]any{"limit": "cpu_time"}},
		{name: "cpu time of a coroutine", tool: "acomputes", policy: cpu, code: toolmesh.CodeDeadlineExceeded, details: map[string]any{"limit": "cpu_time"}},
		{name: "cpu time, catching everything", tool: "catches_everything", policy: limits(tool.Limits{CPUTime: 30 * time.Millisecond}),
			code: toolmesh.CodeDeadlineExceeded, details: map[string]any{"limit": "cpu_time"}},

		// Memory.
		{name: "hoards", policy: memory, code: toolmesh.CodeWorkerOutOfMemory, check: memoryDetails},
		{name: "takes at once", tool: "takes", args: `{"mb":80}`, policy: memory, code: toolmesh.CodeWorkerOutOfMemory, check: memoryDetails},
		{name: "takes what it may", tool: "takes", args: `{"mb":30}`, policy: memory, result: "31457280"},
		{name: "reserves", policy: memory, code: toolmesh.CodeWorkerOutOfMemory, check: memoryDetails},
		{name: "hoards_and_catches", policy: memory, result: `"fine"`},
		{name: "hoards_in_a_child", policy: memory, code: toolmesh.CodeWorkerOutOfMemory, check: memoryDetails},
		{name: "ahoards", policy: memory, code: toolmesh.CodeWorkerOutOfMemory, check: memoryDetails},
		{name: "reserves without a limit", tool: "reserves", code: toolmesh.CodeToolError, check: typeIs("MemoryError")},

		// Processes, threads, files.
		{name: "fork_bomb", policy: pids, code: toolmesh.CodeToolError, details: map[string]any{"limit": "pids", "max": 20}},
		{name: "thread_flood", policy: pids, code: toolmesh.CodeToolError, details: map[string]any{"limit": "pids", "max": 20}},
		{name: "opens", policy: limits(tool.Limits{OpenFiles: 64}), code: toolmesh.CodeToolError, check: typeIs("OSError"),
			details: map[string]any{"limit": "open_files", "max": 64}},
		{name: "fills", policy: limits(tool.Limits{TempFiles: 1 << 20}), code: toolmesh.CodeToolError,
			details: map[string]any{"limit": "temp_files", "max": 1 << 20}},
		{name: "closes", code: toolmesh.CodeWorkerCrashed},

		// Output.
		{name: "24 MB on sys.stdout", tool: "prints", args: `{"mb":24}`, result: "24"},
		{name: "24 MB on descriptor 1", tool: "writes", args: `{"fd":1,"mb":24}`, result: "24"},
		{name: "24 MB on descriptor 2", tool: "writes", args: `{"fd":2,"mb":24}`, result: "24"},
		{name: "a result over the node's limit", tool: "big", args: `{"size":9000000}`, code: toolmesh.CodePayloadTooLarge, details: map[string]any{"limit": "output"}},
		{name: "a result just within it", tool: "big", args: `{"size":8000000}`},
		{name: "a result over the tool's limit", tool: "big", args: `{"size":20000}`, policy: limits(tool.Limits{Output: 10_000}),
			code: toolmesh.CodePayloadTooLarge, details: map[string]any{"limit": "output", "max": 10_000.0}},
		{name: "a list that lies", tool: "lies", args: `{"what":"list"}`},
		{name: "a text that lies", tool: "lies", args: `{"what":"text"}`},
		{name: "a table that lies", tool: "lies", args: `{"what":"table"}`, code: toolmesh.CodeResultNotSerializable, details: map[string]any{"path": "result"}},
		{name: "a list without end", tool: "never_ends", args: `{"what":"list"}`, code: toolmesh.CodeResultNotSerializable, details: map[string]any{"path": "result.a"}},
		{name: "a table without end", tool: "never_ends", args: `{"what":"table"}`, code: toolmesh.CodeResultNotSerializable, details: map[string]any{"path": "result.a"}},
		{name: "forges", code: toolmesh.CodeWorkerCrashed},

		// Ends.
		{name: "exits", code: toolmesh.CodeToolError, check: typeIs("SystemExit")},
		{name: "os_exits", code: toolmesh.CodeWorkerCrashed, details: map[string]any{"exit_status": 3}},
		{name: "segfaults", code: toolmesh.CodeWorkerCrashed, details: map[string]any{"signal": 11}},
		{name: "aborts", code: toolmesh.CodeWorkerCrashed, details: map[string]any{"signal": 6}},
		{name: "kills_itself", code: toolmesh.CodeWorkerCrashed, details: map[string]any{"signal": 9}},
		{name: "stops_its_group", after: little, code: toolmesh.CodeDeadlineExceeded, details: map[string]any{"killed": true}},
		{name: "leaves_a_daemon", result: `"left"`},
		{name: "leaves_a_child", result: `"left"`},
		{name: "aleaves_a_child", result: `"left"`},
		{name: "dies_with_a_daemon", code: toolmesh.CodeWorkerCrashed, details: map[string]any{"exit_status": 4}},
		{name: "comes_back_twice", result: `"back"`},

		// Streams.
		{name: "endless", stream: true, after: little, code: toolmesh.CodeDeadlineExceeded, items: 100},
		{name: "breaks", stream: true, code: toolmesh.CodeToolError, items: 2},
		{name: "ignores_close", stream: true, after: little, code: toolmesh.CodeDeadlineExceeded, items: 100},
		{name: "aendless", stream: true, after: little, code: toolmesh.CodeDeadlineExceeded, items: 100},
		{name: "abreaks", stream: true, code: toolmesh.CodeToolError, items: 2},

		// In a process for each call.
		{name: "forked: loop", tool: "loop", policy: forked, after: little, code: toolmesh.CodeDeadlineExceeded},
		{name: "forked: catches everything", tool: "catches_everything", policy: forked, after: little, code: toolmesh.CodeDeadlineExceeded,
			details: map[string]any{"killed": true}},
		// Not beside others: coroutines of one worker share its end.
		{name: "forked: holds the lock in a coroutine", tool: "aholds_the_lock", policy: forked, after: little, code: toolmesh.CodeDeadlineExceeded,
			details: map[string]any{"killed": true}},
		{name: "forked: cpu time", tool: "loop", policy: and(forked, cpu), code: toolmesh.CodeDeadlineExceeded,
			details: map[string]any{"limit": "cpu_time"}},
		{name: "forked: hoards", tool: "hoards", policy: and(forked, memory), code: toolmesh.CodeWorkerOutOfMemory, check: memoryDetails},
		{name: "forked: fork bomb", tool: "fork_bomb", policy: and(forked, pids), code: toolmesh.CodeToolError,
			details: map[string]any{"limit": "pids", "max": 20}},
		{name: "forked: leaves a daemon", tool: "leaves_a_daemon", policy: forked, result: `"left"`},
		{name: "forked: exits", tool: "os_exits", policy: forked, code: toolmesh.CodeWorkerCrashed, details: map[string]any{"exit_status": 3}},
		{name: "forked: 24 MB on descriptor 1", tool: "writes", args: `{"fd":1,"mb":24}`, policy: forked, result: "24"},
	}
	for _, bad := range all {
		if bad.policy.Limits.Memory > 0 {
			if bad.tool == "" {
				bad.tool = bad.name
			}
			bad.name, bad.ungrouped = "without control groups: "+bad.name, true
			all = append(all, bad)
		}
	}
	return all
}

func memoryDetails(t *testing.T, e *toolmesh.Error) {
	t.Helper()
	peak, _ := strconv.ParseFloat(jsonText(e.Details["peak"]), 64)
	limit, _ := strconv.ParseFloat(jsonText(e.Details["limit"]), 64)
	source, _ := e.Details["source"].(string)
	if limit != 64<<20 || peak > 1<<30 || (source != "rlimit" && source != "watchdog" && source != "cgroup") {
		t.Errorf("details %v, want the limit, the peak and the source", e.Details)
	}
}

func typeIs(name string) func(t *testing.T, e *toolmesh.Error) {
	return func(t *testing.T, e *toolmesh.Error) {
		t.Helper()
		if e.Type != name {
			t.Errorf("type %q, want %q", e.Type, name)
		}
	}
}

func jsonText(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}

// badExecutor is one for bad tools. Large results are smaller than elsewhere, to cost less.
func badExecutor(t *testing.T, ungrouped bool) *executor.Executor {
	t.Helper()
	return newExecutor(t, func(o *executor.Options) { o.Watched(ungrouped).Grace, o.MaxWorkers, o.MaxResult = little, 4, 8<<20 })
}

// badIndex serves a bad tool, and good ones next to it.
func badIndex(t *testing.T, x *executor.Executor, policies map[string]executor.Policy, tools ...string) *executor.Index {
	t.Helper()
	dir, err := filepath.Abs("testdata/bad")
	if err != nil {
		t.Fatal(err)
	}
	spec := specOf(t, x, dir, tools...)
	spec.Policies = policies
	return open(t, x, spec)
}

// A misbehaving tool's call ends with its own code, no process of it stays, the next call is
// served, and other tools are not affected.
func TestBadTools(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("needs /proc")
	}
	turns := make(chan struct{}, 3)
	var mu sync.Mutex
	worst, worstName := time.Duration(0), ""
	t.Cleanup(func() { t.Logf("the slowest next call: %v, after %s", worst, worstName) })
	executors := map[bool]*executor.Executor{false: badExecutor(t, false), true: badExecutor(t, true)} // by ungrouped
	for _, bad := range badTools() {
		t.Run(bad.name, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			next := runBad(t, executors[bad.ungrouped], bad)
			mu.Lock()
			defer mu.Unlock()
			if next > worst {
				worst, worstName = next, bad.name
			}
		})
	}
}

func runBad(t *testing.T, x *executor.Executor, bad badTool) time.Duration {
	name := "bad." + bad.tool
	if bad.tool == "" {
		name = "bad." + bad.name
	}
	ix := badIndex(t, x, map[string]executor.Policy{name: bad.policy}, name, "bad.ok", "bad.aok")
	root := rootOf(ix)

	stop := make(chan struct{})
	var neighbours sync.WaitGroup
	var served [2]chan struct{} // a token for each call while tokens are received
	for i, good := range []struct{ tool, want string }{{"bad.ok", "1"}, {"bad.aok", `"async"`}} {
		served[i] = make(chan struct{})
		neighbours.Go(func() {
			defer close(served[i])
			for {
				if body, err := ix.Call(t.Context(), executor.Call{Tool: good.tool}, nil); err != nil || string(body) != good.want {
					t.Errorf("%s beside it: %s, %v", good.tool, body, err)
					return
				}
				select {
				case <-stop:
					return
				case served[i] <- struct{}{}:
				case <-time.After(50 * time.Millisecond): // the processors are for the bad one
				}
			}
		})
	}
	undisturbed := func() {
		for _, one := range served {
			<-one
		}
	}
	undisturbed()

	ctx := newEnding(t)
	longest := time.AfterFunc(5*time.Minute, ctx.end) // that only failures reach
	over := make(chan struct{})
	sink := &collector{logged: make(chan struct{}, 1)}
	if bad.after > 0 {
		begun := sink.logged
		if bad.stream {
			begun = make(chan struct{}, 1)
			sink.onItem = func(context.Context, json.RawMessage) error {
				if len(sink.items) == bad.items {
					begun <- struct{}{}
				}
				return nil
			}
		}
		neighbours.Go(func() {
			select {
			case <-begun:
				time.AfterFunc(bad.after, ctx.end)
			case <-over:
			}
		})
	}
	body, err := ix.Call(ctx, executor.Call{Tool: name, Args: json.RawMessage(bad.args), Stream: bad.stream}, sink)
	close(over)
	longest.Stop()
	undisturbed()
	undisturbed() // at least one call of each began after its end
	close(stop)
	neighbours.Wait()

	switch {
	case bad.code == "" && err != nil:
		t.Errorf("it failed: %v\n%s", err, toolmesh.AsError(err).Stacktrace)
	case bad.code == "" && bad.result != "" && string(body) != bad.result:
		t.Errorf("result %.200s, want %s", body, bad.result)
	case bad.code == "" && !json.Valid(body):
		t.Errorf("the result is not JSON: %.200q", body)
	case bad.code != "":
		var e *toolmesh.Error
		if !errors.As(err, &e) || e.Code != bad.code {
			t.Fatalf("got %.200s, %v, want %s", body, err, bad.code)
		}
		if e.Started != toolmesh.StartedYes {
			t.Errorf("started %v, want yes: %v", e.Started, e)
		}
		for key, want := range bad.details {
			if jsonText(e.Details[key]) != jsonText(want) {
				t.Errorf("details.%s = %v, want %v (all: %v)", key, e.Details[key], want, e.Details)
			}
		}
		if bad.check != nil {
			bad.check(t, e)
		}
		if bad.ungrouped && e.Details["source"] == "cgroup" {
			t.Errorf("details %v, where no control group is to be used", e.Details)
		}
	}
	if sink.mu.Lock(); len(sink.items) < bad.items {
		t.Errorf("%d items, want at least %d", len(sink.items), bad.items)
	}
	sink.mu.Unlock()

	begun := time.Now()
	mustCall(t, ix, "bad.ok", `{"n":2}`, `2`)
	next := time.Since(begun)
	if next > 5*time.Second {
		t.Errorf("the next call took %v", next)
	}
	// A loop that was cut off in a coroutine's worker still ends: its other calls go on first.
	meshtest.Until(t, "no process is left but workers", func() bool { return len(leftovers(t, ix, root)) == 0 })
	return next
}

// leftovers are the processes below an index's root that are neither its zygote
// nor one of its workers.
func leftovers(t *testing.T, ix *executor.Index, root int) []int {
	t.Helper()
	below := map[int][]int{}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		if parent, err := strconv.Atoi(fields[1]); err == nil && fields[0] != "Z" {
			below[parent] = append(below[parent], pid)
		}
	}
	known := map[int]bool{}
	for _, pid := range ix.Stats().Pids {
		known[pid] = true
	}
	var left []int
	for _, zygote := range below[root] {
		for _, pid := range below[zygote] {
			if !known[pid] {
				left = append(left, pid)
			}
			left = append(left, below[pid]...)
		}
	}
	return append(left, below[root][min(1, len(below[root])):]...)
}
