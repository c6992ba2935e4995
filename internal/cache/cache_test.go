package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func keyOf(text string) (k Key) {
	copy(k.Args[:], text)
	return k
}

func anySize(int) bool { return true }

// runs counts the executions of a tool; its result is their number.
type runs struct{ n atomic.Int64 }

func (r *runs) run(context.Context) (json.RawMessage, error) {
	return json.RawMessage(fmt.Sprint(r.n.Add(1))), nil
}

func do(t *testing.T, tool *Tool, key Key, run Run) (string, bool) {
	t.Helper()
	result, hit, err := tool.Do(t.Context(), key, 0, run)
	if err != nil {
		t.Fatal(err)
	}
	return string(result), hit
}

// A cached result is served until its ttl after the end of its execution.
func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(1<<20, 10, anySize)
		tool, r := c.Offer(time.Minute), &runs{}
		slow := func(ctx context.Context) (json.RawMessage, error) {
			time.Sleep(50 * time.Second)
			return r.run(ctx)
		}
		if got, hit := do(t, tool, Key{}, slow); got != "1" || hit {
			t.Errorf("first: %s, hit %t", got, hit)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if got, hit := do(t, tool, Key{}, r.run); got != "1" || !hit {
			t.Errorf("within the ttl: %s, hit %t", got, hit)
		}
		time.Sleep(time.Nanosecond)
		if got, hit := do(t, tool, Key{}, r.run); got != "2" || hit {
			t.Errorf("after it: %s, hit %t", got, hit)
		}
		time.Sleep(time.Hour)
		c.Sweep(func(subjects.SessionID, string) bool { return true })
		if size, n := c.Stats(); size != 0 || n != 0 {
			t.Errorf("%d bytes and %d entries are left of what has expired", size, n)
		}
	})
}

// The bounds hold, and the least recently used entry is evicted.
func TestBounds(t *testing.T) {
	t.Parallel()
	result := func(size int) Run {
		return func(context.Context) (json.RawMessage, error) { return json.RawMessage(strings.Repeat("1", size)), nil }
	}
	c := New(10*(entrySize+1000), 1000, anySize)
	a, b := c.Offer(time.Hour), c.Offer(time.Hour)
	for i := range 100 {
		tool := a
		if i%2 == 1 {
			tool = b
		}
		do(t, tool, keyOf(fmt.Sprint(i)), result(1000))
		if size, n := c.Stats(); size > 10*(entrySize+1000) || n != min(i+1, 10) {
			t.Fatalf("%d bytes in %d entries after %d results", size, n, i+1)
		}
		a.Get(keyOf("0")) // used again and again
	}
	if _, ok := a.Get(keyOf("0")); !ok {
		t.Error("what was used just before gave way")
	}
	if _, ok := a.Get(keyOf("90")); ok {
		t.Error("what was used longest ago did not")
	}
	do(t, a, keyOf("large"), result(10*(entrySize+1000)+1))
	if _, ok := a.Get(keyOf("large")); ok {
		t.Error("a result is kept that is larger than all room")
	}
	if _, n := c.Stats(); n != 10 {
		t.Errorf("%d entries, want 10: one that cannot be kept took the room of others", n)
	}
	do(t, a, keyOf("9 of them"), result(9*1000+8*entrySize))
	if _, n := c.Stats(); n != 2 {
		t.Errorf("%d entries beside one of nine parts of the room", n)
	}

	few := New(1<<30, 3, anySize)
	tool := few.Offer(time.Hour)
	for i := range 10 {
		do(t, tool, keyOf(fmt.Sprint(i)), result(1))
	}
	if _, n := few.Stats(); n != 3 {
		t.Errorf("%d entries, want 3", n)
	}
	none := New(1<<20, 10, func(size int) bool { return size < 100 })
	tool = none.Offer(time.Hour)
	do(t, tool, Key{}, result(100))
	if _, ok := tool.Get(Key{}); ok {
		t.Error("a result is kept that no answer can carry")
	}
}

// A kept result does not keep a larger text alive that it was a part of.
func TestKeptIsACopy(t *testing.T) {
	t.Parallel()
	tool := New(1<<20, 10, anySize).Offer(time.Hour)
	whole := []byte("1234")
	do(t, tool, Key{}, func(context.Context) (json.RawMessage, error) { return whole[:2], nil })
	whole[0] = '9'
	if kept, _ := tool.Get(Key{}); string(kept) != "12" || cap(kept) >= 1000 {
		t.Errorf("kept is %s", kept)
	}
}

// Tools, sessions and their epochs have results of their own; a tool's go with it, and
// a session's when it is over.
func TestEvictedEntries(t *testing.T) {
	t.Parallel()
	c, r := New(1<<20, 100, anySize), &runs{}
	a, b := c.Offer(time.Hour), c.Offer(time.Hour)
	keys := []Key{{}, {Session: "s", Epoch: "1"}, {Session: "s", Epoch: "2"}, {Session: "t", Epoch: "1"}, {Session: "t"}, {Session: "u", Epoch: "1"}}
	for _, tool := range []*Tool{a, b} {
		for _, key := range keys {
			if _, hit := do(t, tool, key, r.run); hit {
				t.Errorf("%+v has the result of another key", key)
			}
		}
	}
	c.Sweep(func(session subjects.SessionID, epoch string) bool { return session != "t" && epoch != "1" })
	for _, key := range keys {
		_, kept := a.Get(key)
		if want := key == (Key{}) || key == (Key{Session: "s", Epoch: "2"}); kept != want {
			t.Errorf("%+v is kept: %t, want %t", key, kept, want)
		}
	}
	a.Withdraw()
	if _, ok := a.Get(Key{}); ok {
		t.Error("a tool that was withdrawn has results")
	}
	if _, ok := b.Get(Key{}); !ok {
		t.Error("another one's are gone, too")
	}
	if _, hit := do(t, a, Key{}, r.run); hit {
		t.Error("a tool that was withdrawn has results again")
	}
	if _, hit := do(t, a, Key{}, r.run); hit {
		t.Error("a tool that was withdrawn keeps results")
	}
}

// held is a tool that runs until its context ends.
type held struct {
	n       atomic.Int64
	started chan context.Context
	release chan error
}

func hold() *held { return &held{started: make(chan context.Context, 100), release: make(chan error)} }

func (h *held) run(ctx context.Context) (json.RawMessage, error) {
	h.n.Add(1)
	h.started <- ctx
	select {
	case err := <-h.release:
		return json.RawMessage(`"released"`), err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// asked is the outcome of one Do.
type asked struct {
	result string
	hit    bool
	err    error
}

// ask begins a Do.
func ask(ctx context.Context, tool *Tool, key Key, depth int, run Run) <-chan asked {
	out := make(chan asked, 1)
	go func() {
		result, hit, err := tool.Do(ctx, key, depth, run)
		out <- asked{string(result), hit, err}
	}()
	return out
}

// Equal calls at once run once.
func TestOneRunForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tool, h := New(1<<20, 10, anySize).Offer(time.Minute), hold()
		var all []<-chan asked
		for range 64 {
			all = append(all, ask(t.Context(), tool, Key{}, 0, h.run))
		}
		synctest.Wait()
		h.release <- nil
		misses := 0
		for _, one := range all {
			got := <-one
			if got.err != nil || got.result != `"released"` {
				t.Errorf("%+v", got)
			}
			if !got.hit {
				misses++
			}
		}
		if n := h.n.Load(); n != 1 || misses != 1 {
			t.Errorf("64 equal calls: %d runs, %d misses", n, misses)
		}
	})
}

// A caller's end is its own: the run goes on for the others, also without the one that
// began it, and ends with the last of them, with that one's cause.
func TestCallersEndIndependently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tool, h := New(1<<20, 10, anySize).Offer(time.Minute), hold()
		cause := errors.New("gone")
		var ends []context.CancelCauseFunc
		var all []<-chan asked
		for range 4 {
			ctx, end := context.WithCancelCause(t.Context())
			ends = append(ends, end)
			all = append(all, ask(ctx, tool, Key{}, 0, h.run))
			synctest.Wait()
		}
		running := <-h.started
		for i := range 3 {
			ends[i](cause)
			if got := <-all[i]; !errors.Is(got.err, context.Canceled) {
				t.Errorf("caller %d that has gone: %+v", i, got)
			}
			synctest.Wait()
			if running.Err() != nil {
				t.Fatal("the run has ended while a caller waits")
			}
		}
		h.release <- nil
		if got := <-all[3]; got.err != nil || !got.hit {
			t.Errorf("the last one: %+v", got)
		}
		if h.n.Load() != 1 {
			t.Errorf("%d runs", h.n.Load())
		}

		ctx, end := context.WithCancelCause(t.Context())
		last := ask(ctx, tool, keyOf("b"), 0, h.run)
		running = <-h.started
		end(cause)
		if got := <-last; !errors.Is(got.err, cause) || !errors.Is(context.Cause(running), cause) {
			t.Errorf("the only one has gone: %+v, the run's cause is %v", got, context.Cause(running))
		}
		if _, ok := tool.Get(keyOf("b")); ok {
			t.Error("the end of a run is kept")
		}
	})
}

// No caller joins an execution that is being stopped.
func TestStoppedFlightIsNotJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tool := New(1<<20, 10, anySize).Offer(time.Minute)
		stopping, ended := make(chan struct{}), make(chan struct{})
		stubborn := func(ctx context.Context) (json.RawMessage, error) {
			<-ctx.Done()
			close(stopping)
			<-ended
			return nil, context.Cause(ctx)
		}
		ctx, end := context.WithCancel(t.Context())
		first := ask(ctx, tool, Key{}, 0, stubborn)
		synctest.Wait()
		end()
		<-stopping
		r := &runs{}
		if got, hit := do(t, tool, Key{}, r.run); got != "1" || hit {
			t.Errorf("the next one: %s, hit %t", got, hit)
		}
		close(ended)
		if got := <-first; !errors.Is(got.err, context.Canceled) {
			t.Errorf("%+v", got)
		}
		if kept, ok := tool.Get(Key{}); !ok || string(kept) != "1" {
			t.Errorf("kept is %s", kept)
		}
	})
}

// A run that fails fails for the one that began it; those that waited run the tool
// themselves. Nothing is kept of it.
func TestFailuresAreNotShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tool, h, r := New(1<<20, 10, anySize).Offer(time.Minute), hold(), &runs{}
		first := ask(t.Context(), tool, Key{}, 0, h.run)
		synctest.Wait()
		var others []<-chan asked
		for range 5 {
			others = append(others, ask(t.Context(), tool, Key{}, 0, r.run))
		}
		synctest.Wait()
		broken := errors.New("broken")
		h.release <- broken
		if got := <-first; !errors.Is(got.err, broken) {
			t.Errorf("the first: %+v", got)
		}
		for _, one := range others {
			if got := <-one; got.err != nil || got.hit {
				t.Errorf("one that waited: %+v", got)
			}
		}
		if r.n.Load() != 5 {
			t.Errorf("%d runs of five that waited", r.n.Load())
		}
		fails := func(context.Context) (json.RawMessage, error) { return nil, broken }
		for range 3 {
			if _, _, err := tool.Do(t.Context(), keyOf("f"), 0, fails); !errors.Is(err, broken) {
				t.Errorf("error is %v", err)
			}
		}
		if _, ok := tool.Get(keyOf("f")); ok {
			t.Error("a failure is kept")
		}
	})
}

// A call waits for none that is above it: that one may be waiting for it.
func TestNoCallWaitsForOneAboveIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tool, r := New(1<<20, 10, anySize).Offer(time.Minute), &runs{}
		calls := func(ctx context.Context) (json.RawMessage, error) {
			result, hit, err := tool.Do(ctx, Key{}, 1, r.run) // itself, with the same arguments
			if hit {
				t.Error("a call has the result of the one above it")
			}
			return result, err
		}
		if got, _ := do(t, tool, Key{}, calls); got != "1" {
			t.Errorf("result is %s", got)
		}
		h := hold()
		deep := ask(t.Context(), tool, keyOf("d"), 2, h.run)
		synctest.Wait()
		flat := ask(t.Context(), tool, keyOf("d"), 1, h.run)
		synctest.Wait()
		h.release <- nil
		if a, b := <-deep, <-flat; a.hit || !b.hit {
			t.Errorf("one that is above a run: %+v", b)
		}
	})
}

// Fresh runs the tool, and its result takes the place of an older run's only.
func TestFresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tool, r := New(1<<20, 10, anySize).Offer(time.Minute), &runs{}
		do(t, tool, Key{}, r.run)
		if got, err := tool.Fresh(t.Context(), Key{}, r.run); err != nil || string(got) != "2" {
			t.Errorf("fresh: %s %v", got, err)
		}
		if got, hit := do(t, tool, Key{}, r.run); got != "2" || !hit {
			t.Errorf("afterwards: %s, hit %t", got, hit)
		}
		slow := func(ctx context.Context) (json.RawMessage, error) {
			time.Sleep(2 * time.Second)
			return json.RawMessage(`"old"`), nil
		}
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = tool.Fresh(t.Context(), Key{}, slow) })
		time.Sleep(time.Second)
		if _, err := tool.Fresh(t.Context(), Key{}, r.run); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if got, _ := do(t, tool, Key{}, r.run); got != "3" {
			t.Errorf("a run that began earlier replaced a later one's result: %s", got)
		}
	})
}

// A run that ends its goroutine fails, and leaves nothing behind.
func TestExitedRun(t *testing.T) {
	t.Parallel()
	tool := New(1<<20, 10, anySize).Offer(time.Minute)
	exits := func(context.Context) (json.RawMessage, error) {
		runtime.Goexit()
		return nil, nil
	}
	if _, _, err := tool.Do(t.Context(), Key{}, 0, exits); !errors.Is(err, ErrExited) {
		t.Errorf("error is %v", err)
	}
	if got, hit := do(t, tool, Key{}, (&runs{}).run); got != "1" || hit {
		t.Errorf("afterwards: %s, hit %t", got, hit)
	}
}

// Stats says how much is kept: bytes, the entries' own size included, and entries.
func (c *Cache) Stats() (size int64, entries int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size, c.used.Len()
}
