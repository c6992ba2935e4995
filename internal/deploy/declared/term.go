package declared

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// term is one time of leading.
type term struct {
	k     *Keeper
	wake  chan struct{} // of capacity 1: work has ended
	slots chan struct{} // one for each index that is worked on
	wg    sync.WaitGroup

	mu    sync.Mutex
	works map[subjects.IndexName]*work
	told  []registry.DeclaredIndex
}

// work is the state of one index's installs and removals.
type work struct {
	digest   string // of the entry that it is for; empty: the index is to go
	busy     bool
	err      error // of the last attempt
	done     bool  // the last attempt succeeded: the view may have yet to see it
	failures int
	next     time.Time // not before
	// lacking is since when no agent has the labels that the entry asks for, and pool the
	// one that would have some; zero: some agent has, or no node of a pool would.
	lacking time.Time
	pool    string
}

func newTerm(k *Keeper) *term {
	return &term{k: k, wake: make(chan struct{}, 1), slots: make(chan struct{}, atOnce), works: make(map[subjects.IndexName]*work)}
}

func (t *term) record() registry.DeclaredRecord {
	t.mu.Lock()
	defer t.mu.Unlock()
	return registry.DeclaredRecord{Holder: t.k.holder, File: t.k.file, Entries: slices.Clone(t.told)}
}

// look begins the necessary work, and reports the state of all entries.
func (t *term) look(ctx context.Context, f File) {
	installed := make(map[subjects.IndexName]registry.IndexRecord)
	for _, r := range t.k.view.Indexes() {
		if r.Session == "" && r.Bundle != "" {
			installed[r.Name] = r
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var now []registry.DeclaredIndex
	if f.Err != nil {
		now = append(now, declaredOf(Entry{Source: t.k.file}, "", f.Err))
	}
	listed := make(map[subjects.IndexName]bool)
	for _, e := range f.Entries {
		listed[e.Name] = true
		if e.Err != nil {
			if w := t.works[e.Name]; w != nil {
				w.lacking = time.Time{}
			}
			now = append(now, declaredOf(e, "", e.Err))
			continue
		}
		w := t.work(e.Name, e.Request.Managed)
		r, there := installed[e.Name]
		inLine := there && r.Managed == w.digest
		t.lacks(w, registry.IndexRecord{On: e.Request.On}, inLine)
		switch {
		case w.busy:
		case inLine:
			w.err, w.done, w.failures = nil, true, 0
		case !time.Now().Before(w.next):
			t.begin(ctx, e.Name, w, func(ctx context.Context) error { return t.k.bring(ctx, e) })
		}
		state := registry.DeclaredInstalling
		if w.done {
			state = registry.DeclaredInstalled
		}
		now = append(now, declaredOf(e, state, w.err))
	}
	if f.whole() {
		for _, name := range slices.Sorted(maps.Keys(installed)) {
			if r := installed[name]; r.Managed == "" || listed[name] {
				continue
			}
			w := t.work(name, "")
			if !w.busy && !time.Now().Before(w.next) {
				t.begin(ctx, name, w, func(ctx context.Context) error { return t.k.remove(ctx, name) })
			}
			if !w.done { // else the view has yet to see it
				now = append(now, declaredOf(Entry{Name: name, Source: installed[name].Source}, registry.DeclaredRemoving, w.err))
			}
		}
	}
	maps.DeleteFunc(t.works, func(name subjects.IndexName, w *work) bool {
		_, there := installed[name]
		return !w.busy && !listed[name] && !there
	})
	t.tell(now)
}

// lacks notes whether a node is missing that could install an entry. Once it has come the
// entry is tried at once. t.mu is held.
func (t *term) lacks(w *work, wanted registry.IndexRecord, inLine bool) {
	switch of := len(wanted.On) == 0 || wanted.On[registry.PoolLabel] != ""; {
	case of && !inLine && t.k.view.Placed(wanted) == 0:
		if w.lacking.IsZero() {
			w.lacking, w.pool = time.Now(), wanted.Pool()
			t.k.awaiting.Wake()
		}
	case !w.lacking.IsZero():
		w.lacking, w.next = time.Time{}, time.Time{}
	}
}

// work returns the work on an index for an entry's digest: a changed entry is tried at once. A
// removal waits for another look, as the file may be half written. t.mu is held.
func (t *term) work(name subjects.IndexName, digest string) *work {
	w := t.works[name]
	fresh := work{digest: digest}
	if digest == "" {
		fresh.next = time.Now().Add(t.k.lookEvery)
	}
	if w == nil {
		w = &fresh
		t.works[name] = w
	}
	if w.digest != digest && !w.busy {
		*w = fresh
	}
	return w
}

// begin runs do, an install or removal of an index, on a goroutine of its own; t.mu is held.
func (t *term) begin(ctx context.Context, name subjects.IndexName, w *work, do func(context.Context) error) {
	w.busy, w.done = true, false
	t.wg.Go(func() {
		select {
		case t.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := do(ctx)
		<-t.slots
		if ctx.Err() != nil {
			return
		}
		t.mu.Lock()
		w.busy, w.err, w.done = false, err, err == nil
		wait := t.k.lookEvery // the view may have yet to see it
		if err != nil {
			wait = min(t.k.retryFirst<<min(w.failures, 20), retryMost)
			w.failures++
		}
		w.next = time.Now().Add(wait)
		t.mu.Unlock()
		log := t.k.log.With(slog.String("index", string(name)))
		if err != nil {
			log.Warn("index differs from its entry in the file", slog.String("code", string(toolmesh.CodeOf(err))),
				slog.String("error", err.Error()), slog.Duration("retry", wait))
		} else {
			log.Info("index agrees with its entry in the file")
		}
		wake.Up(t.wake)
	})
}

// tell records the state of all entries, and logs the faults of the file and its entries; t.mu is
// held.
func (t *term) tell(now []registry.DeclaredIndex) {
	for n := range now {
		if at := slices.IndexFunc(t.told, func(d registry.DeclaredIndex) bool { return sameState(d, now[n]) }); at >= 0 {
			now[n].Since = t.told[at].Since
			continue
		}
		now[n].Since = t.k.bus.Time().Now.UTC()
		// A failed attempt is in the log already; a fault of an entry that is served is not.
		w := t.works[now[n].Name]
		if now[n].State == registry.DeclaredFailed && (w == nil || now[n].Reason != declaredOf(Entry{}, "", w.err).Reason) {
			t.k.log.Warn("some entries of the file of indexes are not installed", slog.String("index", string(now[n].Name)), slog.String("error", now[n].Reason))
		}
	}
	t.told = now
}

// bring has an index installed as an entry says.
func (k *Keeper) bring(ctx context.Context, e Entry) error {
	inLine := func() (bool, error) {
		r, err := k.store.Index(ctx, e.Name, "")
		if errors.Is(err, store.ErrNoKey) {
			return false, nil
		}
		return err == nil && r.Managed == e.Request.Managed, err
	}
	if done, err := inLine(); done || err != nil {
		return err // the view has yet to see it
	}
	if err := last(deploy.Install(ctx, k.bus, e.Request, nil)); err != nil {
		return err
	}
	done, err := inLine()
	if err == nil && !done {
		err = toolmesh.Errorf(toolmesh.CodeUnavailable, "index %q was installed and is not recorded as this entry's: the agent is of an earlier version, or another user has installed it meanwhile", e.Name)
	}
	return err
}

// remove has an index uninstalled that no entry names any more, if it is still one of the
// file's.
func (k *Keeper) remove(ctx context.Context, name subjects.IndexName) error {
	r, err := k.store.Index(ctx, name, "")
	if errors.Is(err, store.ErrNoKey) || err == nil && r.Managed == "" {
		return nil
	}
	if err != nil {
		return err
	}
	return last(deploy.Ask(ctx, k.bus, "", "uninstall", map[string]any{"name": name}, nil))
}

// last is the error that the answer of an agent ends with.
func last(answer iter.Seq2[json.RawMessage, error]) (err error) {
	for _, err = range answer {
	}
	return err
}
