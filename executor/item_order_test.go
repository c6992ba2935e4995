package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/output"
)

// Items that come quickly are written together. None may wait for a later one, or arrive after
// later output.
const burstTools = `
import sys

def burst(n: int, path: str):
    for i in range(n):
        yield i
    open(path).close()
    yield n

async def aburst(n: int, path: str):
    for i in range(n):
        yield i
    open(path).close()
    yield n

gate = None
inside = 0

async def finish() -> int:
    global gate, inside
    import asyncio
    if gate is None:
        gate = asyncio.Event()
    inside += 1
    await gate.wait()
    return 1

async def block(n: int, path: str):
    import asyncio
    while inside < n:
        await asyncio.sleep(0.001)
    gate.set()
    await asyncio.sleep(0)  # they come to their ends, and we go on, in the same turn of the loop
    open(path).close()

def between(n: int):
    for i in range(n):
        yield i
        if i % 100 == 99:
            print(i)

def fork(n: int):
    import os
    for i in range(n):
        if i == n // 2:
            child = os.fork()
            if not child:
                yield "child"
                os._exit(0)
            os.waitpid(child, 0)
        yield i
`

// waiter lets a tool go on once it has given all its quick items.
type waiter struct {
	collector
	want int
	path string
}

func (w *waiter) Item(ctx context.Context, data json.RawMessage) error {
	if err := w.collector.Item(ctx, data); err != nil {
		return err
	}
	if len(w.items) != w.want {
		return nil
	}
	f, err := os.OpenFile(w.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func burstIndex(t *testing.T) *executor.Index {
	t.Helper()
	return openModule(t, sharedExecutor(t), burstTools, "burst", "aburst", "between", "fork", "finish", "block")
}

func TestAQuickItemDoesNotWaitForASlowOne(t *testing.T) {
	t.Parallel()
	ix := burstIndex(t)
	for _, tool := range []string{"t.burst", "t.aburst"} {
		for _, n := range []int{1, 20, 500, 20_000} {
			path := filepath.Join(t.TempDir(), "gate")
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			sink := &waiter{want: n, path: path}
			if err := stream(t, ix, tool, fmt.Sprintf(`{"n":%d,"path":%q}`, n, path), sink); err != nil {
				t.Fatalf("%s of %d: %v", tool, n, err)
			}
			for i, item := range sink.items {
				if item != strconv.Itoa(i) {
					t.Fatalf("%s of %d: item %d is %s", tool, n, i, item)
				}
			}
			if len(sink.items) != n+1 {
				t.Errorf("%s of %d: %d items", tool, n, len(sink.items))
			}
		}
	}
}

// Results that are to be written together do not wait for a coroutine that keeps
// the loop from it: this one does until they have arrived.
func TestAResultDoesNotWaitForABlockedLoop(t *testing.T) {
	t.Parallel()
	ix := burstIndex(t)
	const n = 50
	path := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // which only a failure takes
	defer cancel()
	blocked := make(chan error, 1)
	go func() {
		_, err := ix.Call(ctx, executor.Call{Tool: "t.block", Args: json.RawMessage(fmt.Sprintf(`{"n":%d,"path":%q}`, n, path))}, nil)
		blocked <- err
	}()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if body, err := ix.Call(ctx, executor.Call{Tool: "t.finish"}, nil); err != nil || string(body) != "1" {
				t.Errorf("got %s, %v", body, err)
			}
		})
	}
	wg.Wait()
	f, err := os.OpenFile(path, os.O_RDWR, 0) // does not block
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing is written
	if err := <-blocked; err != nil {
		t.Error(err)
	}
}

// sequence notes items and output in the order in which they come.
type sequence struct{ all []string }

func (s *sequence) Item(_ context.Context, data json.RawMessage) error {
	s.all = append(s.all, string(data))
	return nil
}

func (s *sequence) Log(r output.Record) {
	s.all = append(s.all, "printed "+strings.TrimSpace(r.Message))
}

func TestOutputStaysBetweenTheItems(t *testing.T) {
	t.Parallel()
	const n = 1000
	got := &sequence{}
	if err := stream(t, burstIndex(t), "t.between", fmt.Sprintf(`{"n":%d}`, n), got); err != nil {
		t.Fatal(err)
	}
	at := 0
	for i := range n {
		want := []string{strconv.Itoa(i)}
		if i%100 == 99 {
			want = append(want, "printed "+strconv.Itoa(i))
		}
		for _, one := range want {
			if at >= len(got.all) || got.all[at] != one {
				t.Fatalf("at %d came %v, want %s", at, got.all[min(at, len(got.all)):min(at+3, len(got.all))], one)
			}
			at++
		}
	}
	if at != len(got.all) {
		t.Errorf("too much came: %v", got.all[at:])
	}
}

func TestAForkInAStreamRepeatsNoItem(t *testing.T) {
	t.Parallel()
	const n = 2000
	sink := &collector{}
	if err := stream(t, burstIndex(t), "t.fork", fmt.Sprintf(`{"n":%d}`, n), sink); err != nil {
		t.Fatal(err)
	}
	if len(sink.items) != n {
		t.Fatalf("%d items, want %d", len(sink.items), n)
	}
	for i, item := range sink.items {
		if item != strconv.Itoa(i) {
			t.Fatalf("item %d is %s", i, item)
		}
	}
}
