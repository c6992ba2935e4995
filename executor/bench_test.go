package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/output"
)

const benchTools = `
def weather(city: str, days: int = 1) -> dict:
    return {"city": city, "days": days, "summary": "fine", "degrees": 21.5}

def count(n: int):
    for i in range(n):
        yield {"i": i}

async def later(city: str) -> dict:
    return {"city": city}

async def sleepy(n: float):
    import asyncio
    await asyncio.sleep(n)

def huge(n: int) -> list:
    return [{"id": i, "name": f"item {i}", "score": i / 7} for i in range(n)]
`

func benchIndex(b *testing.B, change func(*executor.Options)) *executor.Index {
	return openModule(b, newExecutor(b, change), benchTools, "weather", "count", "later", "sleepy", "huge")
}

// BenchmarkCall is the round trip of one warm call after another.
func BenchmarkCall(b *testing.B) {
	ix := benchIndex(b, nil)
	one := executor.Call{Tool: "t.weather", Args: json.RawMessage(`{"city":"Oslo","days":3}`)}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	report := processorTime(b, ix)
	for b.Loop() {
		if _, err := ix.Call(ctx, one, nil); err != nil {
			b.Fatal(err)
		}
	}
	report()
}

// processorTime reports what an operation costs agent and workers in processor
// time, which the other work of the machine disturbs less than the clock.
func processorTime(b *testing.B, ix *executor.Index) func() {
	pids := ix.Stats().Pids
	read := func() (agent, workers time.Duration) {
		for _, pid := range append([]int{os.Getpid()}, pids...) {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
			for _, file := range threads {
				data, err := os.ReadFile(file)
				if err != nil {
					continue
				}
				var ns time.Duration
				_, _ = fmt.Sscan(string(data), &ns)
				if pid == os.Getpid() {
					agent += ns
				} else {
					workers += ns
				}
			}
		}
		return agent, workers
	}
	agent, workers := read()
	return func() {
		agentNow, workersNow := read()
		b.ReportMetric(float64((agentNow-agent).Nanoseconds())/1e3/float64(b.N), "agent-us/op")
		b.ReportMetric(float64((workersNow-workers).Nanoseconds())/1e3/float64(b.N), "worker-us/op")
	}
}

// BenchmarkCallParallel has many callers at once.
func BenchmarkCallParallel(b *testing.B) {
	for _, workers := range []int{1, runtime.GOMAXPROCS(0)} {
		b.Run(map[bool]string{true: "one-worker", false: "worker-per-core"}[workers == 1], func(b *testing.B) {
			ix := benchIndex(b, func(o *executor.Options) { o.MaxWorkers = workers })
			one := executor.Call{Tool: "t.weather", Args: json.RawMessage(`{"city":"Oslo","days":3}`)}
			b.SetParallelism(16)
			b.ReportAllocs()
			report := processorTime(b, ix)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := ix.Call(b.Context(), one, nil); err != nil {
						b.Error(err)
						return
					}
				}
			})
			report()
		})
	}
}

// BenchmarkAsync has many callers of a coroutine, on one worker.
func BenchmarkAsync(b *testing.B) {
	ix := benchIndex(b, nil)
	one := executor.Call{Tool: "t.later", Args: json.RawMessage(`{"city":"Oslo"}`)}
	b.SetParallelism(64)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := ix.Call(b.Context(), one, nil); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkFlight has a thousand coroutines in flight on one worker, each of
// which waits 50 ms and is followed by the next: an operation is one call of each.
// of-ideal is how close that comes to 50 ms.
func BenchmarkFlight(b *testing.B) {
	const calls, wait = 1000, 50 * time.Millisecond
	ix := benchIndex(b, nil)
	one := executor.Call{Tool: "t.sleepy", Args: json.RawMessage(fmt.Sprintf(`{"n":%g}`, wait.Seconds()))}
	report := processorTime(b, ix)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			for range b.N {
				if _, err := ix.Call(b.Context(), one, nil); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(wait.Seconds()*float64(b.N)/b.Elapsed().Seconds(), "of-ideal")
	report()
}

// BenchmarkStream is one item of a long stream.
func BenchmarkStream(b *testing.B) {
	ix := benchIndex(b, nil)
	args, _ := json.Marshal(map[string]int{"n": b.N})
	b.ReportAllocs()
	b.ResetTimer()
	sink := &counter{}
	if _, err := ix.Call(b.Context(), executor.Call{Tool: "t.count", Args: args, Stream: true}, sink); err != nil {
		b.Fatal(err)
	}
	if sink.n != b.N {
		b.Fatalf("%d items of %d", sink.n, b.N)
	}
}

// BenchmarkLargeResult is a result of about 100 KB.
func BenchmarkLargeResult(b *testing.B) {
	ix := benchIndex(b, nil)
	one := executor.Call{Tool: "t.huge", Args: json.RawMessage(`{"n":2000}`)}
	b.ReportAllocs()
	for b.Loop() {
		body, err := ix.Call(b.Context(), one, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(body)))
	}
}

type counter struct{ n int }

func (c *counter) Item(context.Context, json.RawMessage) error { c.n++; return nil }

func (c *counter) Log(output.Record) {}

// BenchmarkPipeEcho is the floor: the same bytes through cat, which does nothing
// with them. What a call costs is to be read as a multiple of this.
func BenchmarkPipeEcho(b *testing.B) {
	cmd := exec.CommandContext(b.Context(), "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _, _ = in.Close(), cmd.Wait() }()
	data := make([]byte, 48)
	buf := make([]byte, len(data))
	for b.Loop() {
		if _, err := in.Write(data); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(out, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFork has each call in a child of its own.
func BenchmarkFork(b *testing.B) {
	for name, imports := range map[string]string{
		"bare":     "",
		"standard": "import argparse, asyncio, dataclasses, decimal, email.message, http.client, json, sqlite3, urllib.request, uuid, xml.dom.minidom\n",
	} {
		b.Run(name, func(b *testing.B) {
			ix := openModule(b, newExecutor(b, func(o *executor.Options) { o.OwnInterpreters = os.Getenv("OWN") != "" }), imports+benchTools, "weather")
			one := executor.Call{Tool: "t.weather", Args: json.RawMessage(`{"city":"Oslo","days":3}`), Isolation: toolmesh.IsolationFork}
			b.ReportAllocs()
			report := forkedTime(b, ix)
			for b.Loop() {
				if _, err := ix.Call(b.Context(), one, nil); err != nil {
					b.Fatal(err)
				}
			}
			report()
		})
	}
}

// forkedTime reports what an operation costs agent, zygote and the zygote's
// children in processor time.
func forkedTime(b *testing.B, ix *executor.Index) func() {
	root := ix.Stats().Root
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", root, root))
	if err != nil {
		return func() {}
	}
	zygote := strings.TrimSpace(string(data))
	read := func() (times [3]float64) {
		var self syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
		times[0] = float64(self.Utime.Nano()+self.Stime.Nano()) / 1e3
		data, _ := os.ReadFile("/proc/" + zygote + "/stat")
		_, rest, _ := strings.Cut(string(data), ") ")
		fields := strings.Fields(rest)
		for i, at := range []int{11, 13} { // own, and that of the children it has waited for
			var user, system float64
			_, _ = fmt.Sscan(fields[at]+" "+fields[at+1], &user, &system)
			times[i+1] = (user + system) * 1e4
		}
		return times
	}
	before := read()
	return func() {
		after := read()
		for i, name := range []string{"agent", "zygote", "worker"} {
			b.ReportMetric((after[i]-before[i])/float64(b.N), name+"-us/op")
		}
	}
}

// BenchmarkMemoryLimit is a call of a tool with a limit on memory, in a worker
// that stays and in one of its own, by what stands behind the limit.
func BenchmarkMemoryLimit(b *testing.B) {
	for _, isolation := range []toolmesh.Isolation{toolmesh.IsolationWarm, toolmesh.IsolationFork} {
		for _, guard := range []string{"none", "watchdog", "cgroup"} {
			b.Run(string(isolation)+"/"+guard, func(b *testing.B) {
				x := newExecutor(b, func(o *executor.Options) { o.WithoutCgroups = guard != "cgroup" })
				if guard == "cgroup" && x.MemoryGuard() == "watchdog" {
					b.Skip("no control groups with memory can be made here")
				}
				spec := specOf(b, x, writeFiles(b, map[string]string{"t.py": "def small(): return 1"}), "t.small")
				policy := executor.Policy{Isolation: isolation}
				if guard != "none" {
					policy.Limits.Memory = 64 << 20
				}
				spec.Policies = map[string]executor.Policy{"t.small": policy}
				ix := open(b, x, spec)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := ix.Call(b.Context(), executor.Call{Tool: "t.small"}, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkStart is an index from nothing to its first answer: as a copy of the base
// process, with an interpreter of its own, and a call of an interpreter of its own.
func BenchmarkStart(b *testing.B) {
	for _, how := range []string{"copy", "own", "fresh"} {
		b.Run(how, func(b *testing.B) {
			x := newExecutor(b, func(o *executor.Options) { o.OwnInterpreters = how == "own" })
			spec := specOf(b, x, writeFiles(b, map[string]string{"t.py": "def one(): return 1"}), "t.one")
			one := executor.Call{Tool: "t.one"}
			if how == "fresh" {
				one.Isolation = toolmesh.IsolationFresh
			}
			last, best := open(b, x, spec), time.Hour
			for b.Loop() {
				began := time.Now()
				if how != "fresh" {
					b.StopTimer()
					_ = last.Close(b.Context())
					b.StartTimer()
					began = time.Now()
					last = open(b, x, spec)
				}
				if _, err := last.Call(b.Context(), one, nil); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(began))
			}
			b.ReportMetric(best.Seconds()*1e3, "best-ms")
		})
	}
}
