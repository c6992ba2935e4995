package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/deep"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	retryFirst = time.Second
	retryMost  = 2 * time.Minute
	// closeWithin bounds the calls that still run on a replaced revision.
	closeWithin = 5 * time.Minute
	// linger is how long a replaced revision takes calls that were routed to it before.
	linger = 2 * time.Second
	// leavesEvery is how often this node checks whether others serve an index that it leaves.
	leavesEvery = time.Second
	// buildWait is the time after which a build of an installed index gives up its place among
	// the concurrent builds, and Ready waits for it no longer.
	buildWait = 10 * time.Second
)

// Options adjusts a [Manager].
type Options struct {
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
	// PrivateSources lets installs fetch from this machine and from private networks.
	// Defaults to false, as the caller of an install may be elsewhere.
	PrivateSources bool
	// Apart runs git for the sources of others. Defaults to this process.
	Apart *index.Apart
	// Node is the node's id. Defaults to none.
	Node subjects.NodeID
	// Labels returns the node's labels now: an index may be for nodes with some labels only.
	// A change of the labels must also change the view. Defaults to none.
	Labels func() map[string]string
}

// key names an index, mesh-wide or private to a session.
type key struct {
	name    subjects.IndexName
	session subjects.SessionID
}

// entry is one index on this node. mu is held while it is built or dropped.
type entry struct {
	mu       sync.Mutex
	instance Instance
	record   registry.IndexRecord // that instance is of, or that failed
	failures int
	retryAt  time.Time
	failed   bool // the build of record; an earlier instance may still serve
	forgot   bool // the registry was made anew, and does not list it

	began atomic.Int64  // when the build that runs began, as [bus.Mono]; 0: none does
	built atomic.Uint32 // result of the last build of the installed revision, readable without mu

	under under // mu of the manager guards it
}

// under identifies the build of an entry, until its instance is published.
type under struct {
	job    string               // the install; empty for an index that is installed already
	record registry.IndexRecord // of an index that is installed already
	end    context.CancelCauseFunc
}

// errUninstalled ends a build.
var errUninstalled = errors.New("it was uninstalled, or another revision of it was installed")

// endable marks the build of an entry as cancellable; e.mu is held. publish reports whether the
// build may be published: from then on only the end of the node cancels it.
func (m *Manager) endable(ctx context.Context, e *entry, u under) (_ context.Context, publish func() bool, end context.CancelCauseFunc) {
	ctx, u.end = context.WithCancelCause(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	e.under = u
	return ctx, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		e.under = under{}
		return ctx.Err() == nil
	}, u.end
}

// interrupt ends the build of an entry if which says so.
func (m *Manager) interrupt(e *entry, which func(under) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := e.under.end != nil && which(e.under)
	if found {
		e.under.end(errUninstalled)
	}
	return found
}

// lockWithin bounds how long an install waits for the end of another one of its name.
const lockWithin = time.Minute

func (m *Manager) lock(ctx context.Context, e *entry, name subjects.IndexName, j *job) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lockWithin, errHeld)
	defer cancel()
	told := ""
	for !e.mu.TryLock() {
		m.mu.Lock()
		holder := e.under.job
		m.mu.Unlock()
		if holder != told {
			told = holder
			j.emit(Line{Job: j.id, Step: "wait", State: "running", Percent: new(20), For: holder})
		}
		if wake.After(ctx, 50*time.Millisecond) {
			continue
		}
		if err := context.Cause(ctx); !errors.Is(err, errHeld) {
			return err
		}
		return toolmesh.Errorf(toolmesh.CodeBusy, "index %q is still being installed here (%s) after %v: wait until mesh indexes shows it, or end that with mesh uninstall %s", name, cmp.Or(told, "a build"), lockWithin, name).
			WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo).WithDetail("job", told)
	}
	return nil
}

var errHeld = errors.New("another install of the name has not ended")

// How a build ended.
const (
	builtNot uint32 = iota // none has
	builtServed
	builtFailed // or no tool of it can be served
)

// slow reports whether a build has run for longer than most.
func (e *entry) slow(most time.Duration) bool {
	began := e.began.Load()
	return began != 0 && time.Since(bus.MonoTime(began)) >= most
}

// Manager keeps the served indexes of a node in line with the installed ones. Its methods may be
// called concurrently.
type Manager struct {
	bus     store.Store
	view    *registry.View
	store   *registry.Store
	builder Builder
	server  Server
	dir     string
	opts    Options
	log     *slog.Logger

	base   context.Context // ends with Stop
	end    context.CancelFunc
	wg     sync.WaitGroup
	kick   chan struct{} // indexes are to be brought in line
	cancel func()

	collecting chan struct{} // bundles are to be looked for

	builds chan struct{} // a slot for each build that may run at once

	buildWait, bundleAge time.Duration // the constants, but in tests

	mu       sync.Mutex
	entries  map[key]*entry
	inUse    map[string]int  // folders, by the instances that run in them
	released map[string]bool // bundles without a record
}

// New makes a manager that keeps its files below dir. Start it.
func New(b *bus.Bus, view *registry.View, records *registry.Store, builder Builder, server Server, dir string, opts *Options) *Manager {
	o := *cmp.Or(opts, &Options{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Labels == nil {
		o.Labels = func() map[string]string { return nil }
	}
	m := &Manager{
		bus: store.Of(b), view: view, store: records, builder: builder, server: server, dir: dir, opts: o,
		log: o.Logger, kick: make(chan struct{}, 1), collecting: make(chan struct{}, 1),
		builds: make(chan struct{}, max(2, runtime.GOMAXPROCS(0))), buildWait: buildWait, bundleAge: bundleAge,
		entries: make(map[key]*entry), inUse: make(map[string]int), released: make(map[string]bool),
	}
	m.base, m.end = context.WithCancel(context.Background())
	return m
}

// Start begins to serve the installed indexes, in the background.
func (m *Manager) Start() {
	m.sweep()
	m.cancel = m.view.Notify(m.kick, registry.ChangedIndexes, registry.ChangedNodes)
	m.wake()
	m.wg.Go(m.loop)
	m.wg.Go(m.collectLoop)
}

// wake starts a reconciliation soon.
func (m *Manager) wake() { wake.Up(m.kick) }

// Stop ends installs and builds that are under way, and closes every instance.
// ctx bounds how long their calls may run on.
func (m *Manager) Stop(ctx context.Context) error {
	if m.cancel != nil {
		m.cancel()
	}
	m.end()
	m.wg.Wait()
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.entries))
	m.mu.Unlock()
	var errs []error
	for _, e := range all {
		e.mu.Lock()
		if e.instance != nil {
			errs = append(errs, m.close(ctx, e.instance))
			e.instance = nil
		}
		e.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Ready waits until every installed index is served by this node, has failed here, or takes
// longer than buildWait.
func (m *Manager) Ready(ctx context.Context) error {
	for {
		waits := false
		for k := range m.wanted() {
			e := m.entry(k)
			waits = waits || e.built.Load() == builtNot && !e.slow(m.buildWait)
		}
		if !waits {
			return nil
		}
		if !wake.After(ctx, readyEvery) {
			return context.Cause(ctx)
		}
	}
}

// readyEvery is how often [Manager.Ready] looks.
const readyEvery = 20 * time.Millisecond

// Outstanding returns the installed indexes that this node has neither built nor failed to
// build yet, and those that it failed to build, both sorted. It waits for no build.
func (m *Manager) Outstanding() (building, failed []subjects.IndexName) {
	for k := range m.wanted() {
		switch m.entry(k).built.Load() {
		case builtNot:
			building = append(building, k.name)
		case builtFailed:
			failed = append(failed, k.name)
		}
	}
	slices.Sort(building)
	slices.Sort(failed)
	return building, failed
}

func (m *Manager) loop() {
	for next := retryMost; ; next = m.reconcile(m.base) {
		select {
		case <-m.base.Done():
			return
		case <-m.kick:
		case <-time.After(next):
		}
	}
}

// reconcile starts the work on each index that differs from its record and is not being worked
// on, on a goroutine of its own, as one may take minutes. The goroutine wakes the loop when it
// is done. It returns the max time until the next round.
func (m *Manager) reconcile(ctx context.Context) (next time.Duration) {
	known := m.known()
	wanted := m.placed(known)
	next = retryMost
	for k, r := range known {
		if s, _ := m.view.Session(k.session); r.Epoch != "" && s.Epoch != r.Epoch {
			m.wg.Go(func() { m.expire(ctx, r) })
		}
	}
	for k, r := range wanted {
		e := m.entry(k)
		if !e.mu.TryLock() {
			m.interrupt(e, func(u under) bool { return u.job == "" && !same(u.record, r) })
			next = min(next, leavesEvery) // the holder of the lock, such as a removal, may not wake this loop
			continue
		}
		e.forgot = false
		wait, todo := e.needs(r)
		if !todo {
			e.mu.Unlock()
			if wait > 0 {
				next = min(next, wait)
			}
			continue
		}
		m.wg.Go(func() {
			defer m.wake()
			defer e.mu.Unlock()
			m.bring(ctx, e, r)
		})
	}
	m.mu.Lock()
	all := maps.Clone(m.entries)
	m.mu.Unlock()
	for k, e := range all {
		if _, ok := wanted[k]; ok {
			continue // it stays
		}
		if !e.mu.TryLock() {
			m.interrupt(e, func(u under) bool { return u.job == "" })
			next = min(next, leavesEvery) // the holder of the lock, such as a look that came too early, may not wake this loop
			continue
		}
		if e.instance == nil && !e.failed || e.forgot {
			e.mu.Unlock()
			continue
		}
		r, installed := known[k]
		if installed && !m.leaves(e, r) {
			e.mu.Unlock()
			next = min(next, leavesEvery) // others may come to serve it
			continue
		}
		next = min(next, leavesEvery) // the registry may say otherwise now, and the view has said all
		m.wg.Go(func() {
			defer e.mu.Unlock()
			// The view may not know yet of an install that has just ended here.
			now, err := m.store.Index(ctx, k.name, k.session)
			if errors.Is(err, store.ErrDeleted) || errors.Is(err, store.ErrNoKey) && !m.forgotten(ctx, e) || err == nil && m.leaves(e, now) {
				m.drop(ctx, k, e)
			}
		})
	}
	return next
}

// forgotten reports whether the registry was made anew since an index was installed: that it has no
// record is no uninstall then, and the index is served until this node stops. Sessions end with the
// registry. e.mu is held.
func (m *Manager) forgotten(ctx context.Context, e *entry) bool {
	if e.record.Epoch != "" {
		return false
	}
	s, err := m.bus.JetStream().Stream(ctx, subjects.KVStream(subjects.BucketIndexes))
	e.forgot = err == nil && s.CachedInfo().Created.After(e.record.InstalledAt)
	return e.forgot || err != nil // then it is asked again
}

// wanted are the indexes that the view knows to be installed for this node.
func (m *Manager) wanted() map[key]registry.IndexRecord { return m.placed(m.known()) }

// known are the indexes that the view knows to be installed, for this node or others.
func (m *Manager) known() map[key]registry.IndexRecord {
	known := make(map[key]registry.IndexRecord)
	for _, r := range m.view.Indexes() {
		if r.Bundle != "" {
			known[key{r.Name, r.Session}] = r
		}
	}
	return known
}

// needs says whether a record must be built now, and if not, in how long; 0 is never. e.mu is
// held.
func (e *entry) needs(r registry.IndexRecord) (wait time.Duration, todo bool) {
	if e.instance != nil && r.InstalledAt.Before(e.record.InstalledAt) {
		return 0, false // the view lags behind the install
	}
	if !same(e.record, r) || e.instance == nil && !e.failed {
		return 0, true
	}
	e.record = r // it may have been installed again, into a new registry
	if !e.failed {
		return 0, false
	}
	wait = time.Until(e.retryAt)
	return wait, wait <= 0
}

func (m *Manager) entry(k key) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[k]
	if e == nil {
		e = &entry{}
		m.entries[k] = e
	}
	return e
}

// same reports whether two records ask for the same thing to be served.
func same(a, b registry.IndexRecord) bool {
	return a.Bundle == b.Bundle && a.Revision == b.Revision && a.Epoch == b.Epoch && maps.Equal(readSettings(a).Env, readSettings(b).Env) &&
		slices.Equal(readSettings(a).Paths, readSettings(b).Paths)
}

func newBuild(r registry.IndexRecord) Build {
	s := readSettings(r)
	return Build{Name: r.Name, Session: r.Session, Revision: r.Revision, Env: s.Env, Paths: s.Paths}
}

func readSettings(r registry.IndexRecord) (s settings) {
	_ = json.Unmarshal(r.Settings, &s) // absent or another version's: no values
	return s
}

// bring serves one index as its record says; e.mu is held.
func (m *Manager) bring(ctx context.Context, e *entry, r registry.IndexRecord) {
	select {
	case m.builds <- struct{}{}:
	case <-ctx.Done():
		return
	}
	leave := sync.OnceFunc(func() { <-m.builds })
	defer leave()
	if ctx.Err() != nil {
		return
	}
	e.began.Store(bus.Mono(time.Now()))
	defer e.began.Store(0)
	slow := time.AfterFunc(m.buildWait, leave)
	defer slow.Stop()
	log := m.log.With(slog.String("index", string(r.Name)), slog.String("revision", r.Revision))
	log.Info("building index")
	base := ctx
	ctx, publish, end := m.endable(ctx, e, under{record: r})
	defer end(nil)
	defer publish()
	began := time.Now()
	b, err := m.unpack(ctx, r)
	var i Instance
	if err == nil {
		i, err = m.open(ctx, b, func(step, state string, percent int) {
			log.Debug("building index", slog.String("step", step), slog.String("state", state), slog.Int("percent", percent))
		})
	}
	if err == nil {
		if !publish() {
			err = errUninstalled
		} else {
			err = m.replace(base, e, i, r)
		}
		if err != nil {
			m.discard(base, e, i)
		}
	}
	if ctx.Err() != nil {
		log.Info("build of index ended", slog.String("error", context.Cause(ctx).Error()))
		return
	}
	if err == nil {
		log.Info("index is served", slog.Int("tools", len(i.Descriptors())), slog.Int("unavailable", len(i.Unavailable())), slog.Duration("took", time.Since(began)))
		return
	}
	if !same(e.record, r) {
		e.failures = 0
	}
	e.record, e.failed = r, true
	e.built.Store(builtFailed)
	wait := min(retryFirst<<min(e.failures, 10), retryMost)
	e.failures++
	e.retryAt = time.Now().Add(wait)
	log.Error("index is not served", slog.String("error", err.Error()), slog.Duration("retry", wait))
	if b.Manifest != nil && e.instance == nil {
		if err := m.server.PublishFailed(ctx, b, toolmesh.AsError(err).Message); err != nil {
			log.Warn("failure not published", slog.String("error", err.Error()))
		}
	}
}

// open imports a build and counts its folder as in use until the instance is
// closed with [Manager.close].
func (m *Manager) open(ctx context.Context, b Build, progress Progress) (Instance, error) {
	m.mu.Lock()
	m.inUse[b.Dir]++
	m.mu.Unlock()
	i, err := m.builder.Open(ctx, b, progress)
	if err != nil {
		m.left(b.Dir)
	}
	return i, err
}

func (m *Manager) left(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inUse[dir]--; m.inUse[dir] == 0 {
		delete(m.inUse, dir)
	}
}

func (m *Manager) close(ctx context.Context, i Instance) error {
	defer m.left(i.Build().Dir)
	return i.Close(ctx)
}

// discard ends an instance that was never published; e.mu is held.
func (m *Manager) discard(ctx context.Context, e *entry, i Instance) {
	_ = m.close(context.WithoutCancel(ctx), i)
	m.clean(e, i.Build().Dir)
}

// clean removes a build's folder unless it is needed; e.mu is held.
func (m *Manager) clean(e *entry, dir string) {
	m.mu.Lock()
	inUse := m.inUse[dir] > 0
	m.mu.Unlock()
	if inUse || dir == "" || e.record.Bundle == filepath.Base(dir) {
		return
	}
	m.remove(m.own(dir))
	m.remove(dir)
	m.forget(filepath.Dir(dir))
}

// HomesDir is the folder with the homes of the indexes' tools, by the names of the indexes'
// folders.
const HomesDir = "homes"

// forget removes the folder of an index, if that holds no revision any more, and with
// it the home of its tools.
func (m *Manager) forget(folder string) {
	if err := os.Remove(folder); err == nil {
		m.remove(filepath.Join(m.dir, HomesDir, filepath.Base(folder)))
		m.remove(filepath.Join(m.dir, recordsDir, filepath.Base(folder)))
	}
}

func (m *Manager) remove(dir string) {
	if err := deep.RemoveAll(dir); err != nil {
		m.log.Warn("folder not removed", slog.String("dir", dir), slog.String("error", err.Error()))
	}
}

// sweep removes the folders that an earlier process left: of installs that did not end, and of
// indexes that are not installed.
func (m *Manager) sweep() {
	keep := make(map[string]bool)
	for _, r := range m.wanted() {
		if dir, err := m.folder(r.Name, r.Session, r.Bundle); err == nil {
			keep[dir], keep[m.own(dir)] = true, true
		}
	}
	m.remove(filepath.Join(m.dir, "jobs"))
	for part, done := range map[string]func(folder string){"indexes": m.forget, recordsDir: func(folder string) { _ = os.Remove(folder) }} {
		names, _ := filepath.Glob(filepath.Join(m.dir, part, "*"))
		for _, name := range names {
			builds, _ := os.ReadDir(name)
			for _, b := range builds {
				if dir := filepath.Join(name, b.Name()); !keep[dir] {
					m.remove(dir)
				}
			}
			done(name)
		}
	}
}

// replace publishes an instance and lets the one before it drain; e.mu is held.
func (m *Manager) replace(ctx context.Context, e *entry, i Instance, r registry.IndexRecord) error {
	if err := m.server.Publish(ctx, i); err != nil {
		return err
	}
	m.swap(e, i, r)
	return nil
}

// swap puts an instance of a record, or none, in place of the earlier one, which ends after its
// calls; e.mu is held.
func (m *Manager) swap(e *entry, i Instance, r registry.IndexRecord) {
	old, before := e.instance, e.record
	e.instance, e.record, e.failed, e.failures = i, r, false, 0
	switch {
	case i == nil:
		e.built.Store(builtNot)
	case len(i.Descriptors()) == 0 && len(i.Unavailable()) > 0:
		e.built.Store(builtFailed) // its modules cannot be imported here
	default:
		e.built.Store(builtServed)
	}
	if old != nil {
		m.wg.Go(func() { m.retire(e, old) })
	}
	if before.Bundle == "" {
		return
	}
	// A revision that failed before has no instance that would clean up.
	if dir, err := m.folder(before.Name, before.Session, before.Bundle); err == nil {
		m.clean(e, dir)
	}
}

// retire ends an instance after its calls.
func (m *Manager) retire(e *entry, i Instance) {
	ctx, cancel := context.WithTimeout(m.base, closeWithin)
	defer cancel()
	wake.After(ctx, linger) // a call that has found this instance may not have reached it yet
	if err := m.close(ctx, i); err != nil && m.base.Err() == nil {
		m.log.Warn("replaced index did not end in time: it is ended", slog.String("index", string(i.Build().Name)), slog.String("error", err.Error()))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	m.clean(e, i.Build().Dir)
}

// drop withdraws an index that is not installed, or not for this node; e.mu is held.
func (m *Manager) drop(ctx context.Context, k key, e *entry) {
	if e.instance == nil && !e.failed {
		return // it is gone already
	}
	if err := m.server.Withdraw(ctx, k.name, k.session); err != nil {
		m.log.Warn("index not withdrawn", slog.String("index", string(k.name)), slog.String("error", err.Error()))
		return
	}
	m.swap(e, nil, registry.IndexRecord{})
	m.log.Info("index is no longer served", slog.String("index", string(k.name)))
}

// unpack fetches a record's bundle, unless it is here already and whole, and reads it.
func (m *Manager) unpack(ctx context.Context, r registry.IndexRecord) (Build, error) {
	b := newBuild(r)
	var err error
	if b.Dir, err = m.folder(r.Name, r.Session, r.Bundle); err != nil {
		return b, err
	}
	return b, m.place(ctx, &b, r.Bundle, func() (io.ReadCloser, error) {
		bundle, err := m.bus.GetBundle(ctx, r.Bundle)
		if err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the bundle of index %q cannot be fetched: %w", r.Name, err)
		}
		return bundle, nil
	})
}

// place unpacks a bundle, unless it is there already and whole, and reads it.
func (m *Manager) place(ctx context.Context, b *Build, digest string, open func() (io.ReadCloser, error)) error {
	b.Own = m.own(b.Dir)
	p, err := index.Place(ctx, b.Dir, b.Own, digest, open)
	if p.Replaced {
		m.log.Warn("source differs from its bundle: it is unpacked again", slog.String("dir", b.Dir))
	}
	b.Manifest, b.Lock = p.Manifest, p.Meta[index.LockFile]
	return err
}

// folder is where a bundle is unpacked for one index: the source tree is its own.
func (m *Manager) folder(name subjects.IndexName, session subjects.SessionID, digest string) (string, error) {
	k, err := subjects.IndexKey(name, session)
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "index %q: %w", name, err)
	}
	return filepath.Join(m.dir, "indexes", k, digest), nil
}

// recordsDir is the folder with the agent's own files of unpacked bundles, by the names of
// their folders. No process of an index reads or writes there.
const recordsDir = "records"

// own is the agent's own folder of a bundle that is unpacked to dir.
func (m *Manager) own(dir string) string {
	return filepath.Join(m.dir, recordsDir, filepath.Base(filepath.Dir(dir)), filepath.Base(dir))
}

func installFailed(reason, format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInstallFailed, format, args...).WithDetail("reason", reason).
		WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
}
