package cache

import (
	"bytes"
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// entrySize is the approximate size of an entry besides its result, in bytes.
const entrySize = 512

// Key identifies the calls of a tool that may share a result.
type Key struct {
	Session subjects.SessionID // empty where all sessions share
	Epoch   string             // of the session
	Args    [32]byte           // SHA-256 of the canonical arguments, and all else that counts
}

// Cache holds the cached results of one node. Its methods, and those of its tools, may be called
// concurrently.
type Cache struct {
	maxBytes   int64
	maxEntries int
	fits       func(size int) bool

	mu   sync.Mutex
	size int64
	used *list.List // of *entry, the latest used first
}

// entry is one result that is kept.
type entry struct {
	tool    *Tool
	key     Key
	result  json.RawMessage
	began   time.Time // when the run began that made it
	expires time.Time
}

func (e *entry) size() int64 { return int64(len(e.result)) + entrySize }

// New returns a cache of at most so many bytes, entries' own size included, and so many entries. A
// result above an answer's size is not cached: its callers get an error.
func New(maxBytes int64, maxEntries int, fits func(size int) bool) *Cache {
	return &Cache{maxBytes: maxBytes, maxEntries: maxEntries, fits: fits, used: list.New()}
}

// Tool is one tool as it is offered now: at one revision, with one schema.
type Tool struct {
	cache *Cache
	ttl   time.Duration

	// Guarded by cache.mu.
	kept map[Key]*list.Element
	runs map[Key]*flight
	over bool
}

// Offer begins to keep results of a tool, each for ttl. Withdraw it.
func (c *Cache) Offer(ttl time.Duration) *Tool {
	return &Tool{cache: c, ttl: ttl, kept: make(map[Key]*list.Element), runs: make(map[Key]*flight)}
}

// Withdraw removes the tool's results and caches none of it any more, not even of running calls.
func (t *Tool) Withdraw() {
	c := t.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	t.over = true
	for _, e := range t.kept {
		c.drop(e)
	}
}

// Sweep drops results that have expired, and those of sessions for which goesOn is false. It
// calls goesOn with the lock held.
func (c *Cache) Sweep(goesOn func(session subjects.SessionID, epoch string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for next := c.used.Front(); next != nil; {
		e, of := next, next.Value.(*entry) //nolint:forcetypeassert // it holds nothing else
		next = next.Next()
		if !now.Before(of.expires) || of.key.Session != "" && !goesOn(of.key.Session, of.key.Epoch) {
			c.drop(e)
		}
	}
}

// drop forgets an entry; c.mu is held.
func (c *Cache) drop(e *list.Element) {
	of := c.used.Remove(e).(*entry) //nolint:forcetypeassert // it holds nothing else
	delete(of.tool.kept, of.key)
	c.size -= of.size()
}

// Get returns the result that is kept for a key, which must not be changed.
func (t *Tool) Get(key Key) (result json.RawMessage, ok bool) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	return t.get(key)
}

// get is Get with the lock held.
func (t *Tool) get(key Key) (json.RawMessage, bool) {
	e := t.kept[key]
	if e == nil {
		return nil, false
	}
	of := e.Value.(*entry) //nolint:forcetypeassert // it holds nothing else
	if !time.Now().Before(of.expires) {
		t.cache.drop(e)
		return nil, false
	}
	t.cache.used.MoveToFront(e)
	return of.result, true
}

// keep keeps the result of a run that began at a time, unless that of a later one is
// there.
func (t *Tool) keep(key Key, result json.RawMessage, began time.Time) {
	c := t.cache
	of := &entry{tool: t, key: key, result: result, began: began, expires: time.Now().Add(t.ttl)}
	if of.size() > c.maxBytes || !c.fits(len(result)) {
		return
	}
	// It may be a part of a larger text, which would be kept with it.
	of.result = bytes.Clone(result)
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.over {
		return
	}
	if e := t.kept[key]; e != nil {
		if e.Value.(*entry).began.After(began) { //nolint:forcetypeassert // it holds nothing else
			return
		}
		c.drop(e)
	}
	t.kept[key] = c.used.PushFront(of)
	c.size += of.size()
	for c.size > c.maxBytes || c.used.Len() > c.maxEntries {
		c.drop(c.used.Back())
	}
}

// ErrExited is the error of a run that ended its goroutine instead of returning.
var ErrExited = errors.New("the run ended its goroutine")

// Run runs the tool. It must not panic.
type Run func(ctx context.Context) (json.RawMessage, error)

// flight is one run for all that wait for it.
type flight struct {
	depth   int
	waiting int // guarded by the cache's lock
	stop    context.CancelCauseFunc

	done   chan struct{}
	result json.RawMessage // once done is closed
	err    error
}

// Do returns the result that is kept for a key, that of the run which goes on for it,
// or that of run, which is then called. hit says that it was not: the result was made
// for another call. A result is kept, an error is not.
//
// An execution belongs to all that wait for it. ctx is its caller's own: when it ends, Do returns
// its error, and the execution goes on for the others. After the last of them its context ends with
// the same cause, and Do returns run's result. If the execution fails, the others run the tool
// themselves, as their own error might have been another. run is called on its own goroutine, which
// ends before the last waiting Do.
//
// depth is how many calls are above this one. It waits for runs of at least its own
// depth only: those above it may be waiting for it.
func (t *Tool) Do(ctx context.Context, key Key, depth int, run Run) (result json.RawMessage, hit bool, err error) {
	c := t.cache
	c.mu.Lock()
	if result, ok := t.get(key); ok {
		c.mu.Unlock()
		return result, true, nil
	}
	f := t.runs[key]
	began := false
	switch {
	case f != nil && f.depth < depth:
		c.mu.Unlock()
		result, err = t.Fresh(ctx, key, run)
		return result, false, err
	case f != nil:
		f.waiting++
	default:
		began = true
		f = t.begin(key, depth, run)
	}
	c.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		if !t.leave(key, f, context.Cause(ctx)) {
			return nil, !began, ctx.Err()
		}
		<-f.done
		return f.result, !began, f.err
	}
	if f.err != nil && !began {
		result, err = t.Fresh(ctx, key, run)
		return result, false, err
	}
	return f.result, !began, f.err
}

// Fresh runs the tool for one caller, ignores a cached result, and replaces it.
func (t *Tool) Fresh(ctx context.Context, key Key, run Run) (json.RawMessage, error) {
	at := time.Now()
	result, err := run(ctx)
	if err == nil {
		t.keep(key, result, at)
	}
	return result, err
}

// begin starts a run that one caller waits for; the lock is held.
func (t *Tool) begin(key Key, depth int, run Run) *flight {
	ctx, stop := context.WithCancelCause(context.Background())
	f := &flight{depth: depth, waiting: 1, stop: stop, done: make(chan struct{})}
	t.runs[key] = f
	at := time.Now()
	go func() { // ends before those that wait for it
		f.err = ErrExited
		defer func() {
			if f.err == nil {
				t.keep(key, f.result, at)
			}
			t.cache.mu.Lock()
			t.end(key, f)
			t.cache.mu.Unlock()
			close(f.done)
			stop(nil)
		}()
		f.result, f.err = run(ctx)
	}()
	return f
}

// leave removes one waiter from an execution, and reports whether it was the last one: then the
// execution is stopped, and no caller joins it.
func (t *Tool) leave(key Key, f *flight, cause error) (last bool) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	if f.waiting--; f.waiting > 0 {
		return false
	}
	t.end(key, f)
	f.stop(cause)
	return true
}

// end has no call join a run any more; the lock is held.
func (t *Tool) end(key Key, f *flight) {
	if t.runs[key] == f {
		delete(t.runs, key)
	}
}
