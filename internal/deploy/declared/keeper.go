package declared

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/awaiting"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
)

// Options adjusts a [Keeper].
type Options struct {
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
	// Env are the variables that entries may name, each K=V. Defaults to none.
	Env []string
}

const (
	// lookEvery is how often the file and the registry are looked at.
	lookEvery = 2 * time.Second
	// retryFirst is the delay before the first retry of a failed entry; it doubles up to retryMost.
	retryFirst = 5 * time.Second
	retryMost  = 5 * time.Minute
	// atOnce is how many indexes are worked on at the same time.
	atOnce = 4
	// storeWait bounds one question to the registry.
	storeWait = 2 * time.Second
)

// Keeper keeps the indexes of a mesh as a file lists them, while it has the lease to do
// so. Start it and Stop it, once each.
type Keeper struct {
	bus    *bus.Bus
	view   *registry.View
	store  *registry.Store
	file   string
	holder string
	env    []string
	log    *slog.Logger

	lookEvery, retryFirst, holdsFor time.Duration // the constants, but in tests

	base context.Context // ends with Stop
	end  context.CancelFunc
	wg   sync.WaitGroup

	leading  atomic.Pointer[term] // nil while another process leads
	awaiting *awaiting.Teller
}

// New makes a keeper of a file, which need not be there yet. The connection needs the
// rights of an administrator.
func New(b *bus.Bus, view *registry.View, store *registry.Store, file string, opts *Options) *Keeper {
	o := *cmp.Or(opts, &Options{})
	k := &Keeper{
		bus: b, view: view, store: store, file: file, holder: uuid.NewString(), env: o.Env,
		lookEvery: lookEvery, retryFirst: retryFirst, holdsFor: registry.HoldsFor,
		log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)).With(slog.String("file", file)),
	}
	k.base, k.end = context.WithCancel(context.Background())
	return k
}

// Start begins, in the background. Entries that no node is there for are demand of their
// pool, as calls are that wait for a node: one at zero gets a node that can install them.
func (k *Keeper) Start() {
	k.awaiting = awaiting.Tell(k.bus, k.awaited)
	k.wg.Go(k.run)
}

// Stop cancels the work of the keeper and hands the lease over. Agents finish what they have begun.
func (k *Keeper) Stop() {
	k.end()
	k.wg.Wait()
	k.awaiting.Close()
}

// awaited returns the entries that wait for a node, by pool.
func (k *Keeper) awaited() map[string]codec.Awaited {
	t := k.leading.Load()
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]codec.Awaited)
	for _, w := range t.works {
		if !w.lacking.IsZero() {
			all[w.pool] = all[w.pool].Add(codec.Awaited{Calls: 1, OldestMS: time.Since(w.lacking).Milliseconds()})
		}
	}
	return all
}

// run waits for the lease, and leads while it has it.
func (k *Keeper) run() {
	told := false
	for {
		t := newTerm(k)
		began := time.Now()
		revision, err := k.write(t, 0)
		switch {
		case err == nil:
			k.log.Info("this process keeps the indexes of the mesh as the file lists them")
			k.lead(t, revision, began)
			told = false
		case !errors.Is(err, store.ErrConflict) && k.base.Err() == nil && !told:
			k.log.Warn("lease for the indexes could not be acquired: it is tried again", slog.String("error", err.Error()))
			told = true
		}
		if !wake.After(k.base, registry.RenewEvery) {
			return
		}
	}
}

func (k *Keeper) write(t *term, revision uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(k.base, storeWait)
	defer cancel()
	return k.store.KeepDeclared(ctx, t.record(), revision)
}

// lead does the work and reports it with each renewal of the lease, until that is lost or the keeper
// stops.
func (k *Keeper) lead(t *term, revision uint64, began time.Time) {
	ctx, end := context.WithCancel(k.base)
	held := time.AfterFunc(time.Until(began.Add(k.holdsFor)), end) // also while the file or the store is waited for
	k.leading.Store(t)
	defer k.leading.Store(nil)
	var err error
	for ctx.Err() == nil {
		t.look(ctx, Read(k.file, k.env))
		sent, wait, next := time.Now(), k.lookEvery, uint64(0)
		if next, err = k.write(t, revision); errors.Is(err, store.ErrConflict) {
			if next, err = k.again(err); err == nil {
				revision = next
				continue
			}
		}
		switch {
		case err == nil:
			revision = next
			held.Reset(time.Until(sent.Add(k.holdsFor)))
		case errors.Is(err, store.ErrConflict):
			end()
		default:
			wait = registry.RenewEvery / 10
		}
		select {
		case <-ctx.Done():
		case <-t.wake:
		case <-time.After(wait):
		}
	}
	held.Stop()
	end()
	t.wg.Wait() // nothing is asked for once another one leads
	if k.base.Err() == nil {
		k.log.Warn("the lease for the indexes is lost: another process may have it", slog.String("error", cmp.Or(err, errors.New("no renewal came in time, as where this process was held up or the file is slow")).Error()))
		return
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeWait)
	defer cancel()
	if err := k.store.LeaveDeclared(leave, revision); err != nil {
		k.log.Warn("the lease for the indexes could not be handed over: it expires by itself", slog.String("error", err.Error()))
	}
}

// again returns the revision of this process's own record after a conflict: the answer to
// a renewal may have been lost.
func (k *Keeper) again(conflict error) (uint64, error) {
	ctx, cancel := context.WithTimeout(k.base, storeWait)
	defer cancel()
	r, revision, err := k.store.Declared(ctx)
	if errors.Is(err, store.ErrNoKey) || err == nil && r.Holder != k.holder {
		return 0, conflict
	}
	return revision, err
}

// reasonMost bounds a reason in the record, in bytes.
const reasonMost = 1000

// declaredOf is the record of an entry with the error of its last attempt, nil if it is in line.
func declaredOf(e Entry, state string, err error) registry.DeclaredIndex {
	d := registry.DeclaredIndex{Name: e.Name, Source: e.Source, State: state}
	if failure := toolmesh.AsError(err); failure != nil {
		d.State, d.Code, d.Reason = registry.DeclaredFailed, failure.Code, failure.Message
		if len(d.Reason) > reasonMost {
			d.Reason = string([]rune(d.Reason)[:reasonMost/4]) + "…"
		}
	}
	return d
}

// sameState reports whether two say the same, but for since when.
func sameState(a, b registry.DeclaredIndex) bool {
	a.Since, b.Since = time.Time{}, time.Time{}
	return a == b
}
