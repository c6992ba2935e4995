package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/meshtest"
)

const streamTools = `
import os

def count(n: int):
    for i in range(n):
        yield i

async def acount(n: int):
    for i in range(n):
        yield i

def empty():
    return
    yield

def plain():
    return {"a": 1}

def fails(n: int):
    for i in range(n):
        yield i
    raise ValueError("enough")

def bad_item():
    yield 1
    yield {"x": float("nan")}

def returns():
    yield 1
    return 2

def only_returns():
    return 7
    yield

def big_items(n: int, path: str = os.devnull):
    with open(path, "ab", 0) as made:
        for i in range(n):
            made.write(b".")
            yield "x" * 10000

async def abig_items(n: int, path: str = os.devnull):
    with open(path, "ab", 0) as made:
        for i in range(n):
            made.write(b".")
            yield "x" * 10000

def gen_from_function():
    return (i * i for i in range(4))
`

func streamIndex(t *testing.T) *executor.Index {
	t.Helper()
	return openModule(t, sharedExecutor(t), streamTools, "count", "acount", "empty", "plain", "fails", "bad_item",
		"returns", "only_returns", "big_items", "abig_items", "gen_from_function")
}

func stream(t *testing.T, ix *executor.Index, tool, args string, sink output.Sink) error {
	t.Helper()
	body, err := ix.Call(t.Context(), executor.Call{Tool: tool, Args: json.RawMessage(args), Stream: true}, sink)
	if body != nil {
		t.Errorf("%s: a stream has no result, got %s", tool, body)
	}
	return err
}

func TestStreamsGiveEachItemOnceInOrder(t *testing.T) {
	t.Parallel()
	ix := streamIndex(t)
	for _, tool := range []string{"t.count", "t.acount"} {
		const n = 20000
		sink := &collector{}
		if err := stream(t, ix, tool, fmt.Sprintf(`{"n":%d}`, n), sink); err != nil {
			t.Fatal(err)
		}
		if len(sink.items) != n {
			t.Fatalf("%s: %d items, want %d", tool, len(sink.items), n)
		}
		for i, item := range sink.items {
			if item != strconv.Itoa(i) {
				t.Fatalf("%s: item %d is %s", tool, i, item)
			}
		}
	}
	for tool, want := range map[string][]string{
		"t.empty": nil, "t.plain": {`{"a":1}`}, "t.returns": {`1`}, "t.gen_from_function": {"0", "1", "4", "9"},
	} {
		sink := &collector{}
		if err := stream(t, ix, tool, `{}`, sink); err != nil {
			t.Errorf("%s: %v", tool, err)
		}
		if diff := cmp.Diff(want, sink.items); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tool, diff)
		}
	}
}

func TestFailedStreamKeepsItsItems(t *testing.T) {
	t.Parallel()
	ix := streamIndex(t)
	sink := &collector{}
	err := stream(t, ix, "t.fails", `{"n":3}`, sink)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeToolError || e.Message != "enough" {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"0", "1", "2"}, sink.items); diff != "" {
		t.Errorf("items (-want +got):\n%s", diff)
	}
	sink = &collector{}
	err = stream(t, ix, "t.bad_item", `{}`, sink)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeResultNotSerializable || e.Details["path"] != "result.x" {
		t.Errorf("got %v", err)
	}
}

func TestUnaryCallOfAGenerator(t *testing.T) {
	t.Parallel()
	ix := streamIndex(t)
	for _, tool := range []string{"t.count", "t.acount"} {
		mustCall(t, ix, tool, `{"n":3}`, `2`)
		mustCall(t, ix, tool, `{"n":0}`, `null`)
		body, err := ix.Call(t.Context(), executor.Call{Tool: tool, Args: json.RawMessage(`{"n":3}`), Collect: true}, nil)
		if err != nil || string(body) != "[0,1,2]" {
			t.Errorf("%s collected: %s, %v", tool, body, err)
		}
	}
	mustCall(t, ix, "t.only_returns", `{}`, `7`)
	mustCall(t, ix, "t.gen_from_function", `{}`, `9`)
}

// A reader that stops must stop the generator: 200 MB are on offer, and only
// the window and an item or two may ever be made.
func TestASlowReaderPausesTheGenerator(t *testing.T) {
	t.Parallel()
	ix := streamIndex(t)
	for _, tool := range []string{"t.big_items", "t.abig_items"} {
		file := filepath.Join(t.TempDir(), "made")
		made := func() int64 {
			info, err := os.Stat(file)
			if err != nil {
				return 0
			}
			return info.Size()
		}
		ctx, cancel := context.WithCancel(t.Context())
		sink := &collector{onItem: func(ctx context.Context, _ json.RawMessage) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		done := make(chan error, 1)
		go func() {
			args := json.RawMessage(fmt.Sprintf(`{"n":20000,"path":%q}`, file))
			_, err := ix.Call(ctx, executor.Call{Tool: tool, Args: args, Stream: true}, sink)
			done <- err
		}()
		// The generator writes a byte for each item it makes, and gives no other signal.
		meshtest.Until(t, "it is on its way", func() bool { return made() >= 5 })
		for settled, before := 0, int64(0); settled < 20; settled++ {
			time.Sleep(10 * time.Millisecond) // a process that does nothing gives no signal of it
			if now := made(); now != before {
				settled, before = 0, now
			}
			if made() > 60 {
				break
			}
		}
		if n := made(); n > 60 {
			t.Errorf("%s made %d items of 10 KB while nobody took them", tool, n)
		}
		cancel()
		if err := <-done; toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			t.Errorf("%s: got %v, want cancelled", tool, err)
		}
	}
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("%d restarts", s.Restarts)
	}
}

func TestAClosedStreamRunsTheGeneratorsFinally(t *testing.T) {
	t.Parallel()
	ix := openModule(t, sharedExecutor(t), slowTools, slowNames...)
	stop := errors.New("seen enough")
	for tool, counter := range map[string]string{"t.forever": "t.how_many_closed", "t.aforever": "t.how_many_aclosed"} {
		n := 0
		sink := &collector{onItem: func(context.Context, json.RawMessage) error {
			if n++; n == 1000 {
				return stop
			}
			return nil
		}}
		if err := stream(t, ix, tool, `{}`, sink); !errors.Is(err, stop) {
			t.Errorf("%s: got %v, want the sink's own error", tool, err)
		}
		mustCall(t, ix, counter, `{}`, `1`)
	}
}

func TestBigItemsAllArriveThroughTheWindow(t *testing.T) {
	t.Parallel()
	ix := streamIndex(t)
	for _, tool := range []string{"t.big_items", "t.abig_items"} {
		n := 0
		sink := &collector{onItem: func(_ context.Context, data json.RawMessage) error {
			if len(data) == 10002 {
				n++
			}
			return nil
		}}
		if err := stream(t, ix, tool, `{"n":500}`, sink); err != nil || n != 500 {
			t.Errorf("%s: %d items, %v", tool, n, err)
		}
	}
}

const wrappedTools = `
import asyncio, contextvars, functools, os

var = contextvars.ContextVar("var", default="unset")

def plain(fn):
    @functools.wraps(fn)
    def w(*a, **k): return fn(*a, **k)
    return w

def awaited(fn):
    @functools.wraps(fn)
    async def w(*a, **k): return fn(*a, **k)
    return w

def partial(fn):
    return functools.partial(fn, 3)

async def declared(n: int, path: str = ""):
    """Counts."""
    var.set("kept")
    try:
        for i in range(n):
            await asyncio.sleep(0)
            assert var.get() == "kept"
            yield i
    finally:
        await asyncio.sleep(0)
        if path: open(path, "w").close()

def generator(n: int, path: str = ""):
    try:
        for i in range(n): yield i
    finally:
        if path: open(path, "w").close()

async def fails(n: int):
    yield 1
    raise ValueError("after one")

agen, agen_twice, agen_awaited = plain(declared), plain(plain(declared)), awaited(declared)
gen, gen_awaited = plain(generator), awaited(generator)
broken, broken_awaited = plain(fails), awaited(fails)

def returns_agen(n: int, path: str = ""):
    return declared(n, path)

async def areturns_agen(n: int, path: str = ""):
    return declared(n, path)

def coroutine(n: int, path: str = ""):
    return areturns_agen(n, path)
`

// The return value decides: a decorator may hide that a function is a generator.
func TestStreamsOfDecoratedFunctions(t *testing.T) {
	t.Parallel()
	names := []string{"declared", "generator", "agen", "agen_twice", "agen_awaited", "gen", "gen_awaited", "returns_agen",
		"areturns_agen", "coroutine"}
	ix := openModule(t, sharedExecutor(t), wrappedTools, append(names, "broken", "broken_awaited")...)
	for _, one := range ix.Tools() {
		name := strings.TrimPrefix(one.Name, "t.")
		if known := !strings.Contains(name, "returns") && name != "coroutine"; one.Kind.Streaming() != known {
			t.Errorf("%s is described as %s", name, one.Kind)
		}
	}
	for _, name := range names {
		mustCall(t, ix, "t."+name, `{"n":3}`, `2`)
		mustCall(t, ix, "t."+name, `{"n":0}`, `null`)
		sink := &collector{}
		_, err := ix.Call(t.Context(), executor.Call{Tool: "t." + name, Args: json.RawMessage(`{"n":3}`), Stream: true}, sink)
		if err != nil || !slices.Equal(sink.items, []string{"0", "1", "2"}) {
			t.Errorf("%s as a stream: %q, %v", name, sink.items, err)
		}
		body, err := ix.Call(t.Context(), executor.Call{Tool: "t." + name, Args: json.RawMessage(`{"n":3}`), Collect: true}, nil)
		if err != nil || string(body) != `[0,1,2]` {
			t.Errorf("%s collected: %s, %v", name, body, err)
		}
		path := filepath.Join(t.TempDir(), "closed")
		ctx, cancel := context.WithCancel(t.Context())
		many := &collector{onItem: func(context.Context, json.RawMessage) error { cancel(); return nil }}
		args := fmt.Appendf(nil, `{"n":1000000000,"path":%q}`, path)
		if _, err = ix.Call(ctx, executor.Call{Tool: "t." + name, Args: args, Stream: true}, many); toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			t.Errorf("%s cancelled: %v", name, err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s was not closed: %v", name, err)
		}
	}
	for _, name := range []string{"t.broken", "t.broken_awaited"} {
		if e := mustFail(t, ix, name, `{"n":3}`, toolmesh.CodeToolError); e.Message != "after one" {
			t.Errorf("%s: %v", name, e)
		}
	}
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("workers were lost: %+v", s)
	}
}
