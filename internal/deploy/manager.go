package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	retryFirst = time.Second
	retryMost  = 2 * time.Minute
	// closeWithin is how long the calls of a revision that was replaced may run on.
	closeWithin = 5 * time.Minute
)

// Options adjusts a [Manager].
type Options struct {
	// Logger takes what happens; nil discards it.
	Logger *slog.Logger
}

// key names an index, mesh-wide or private to a session.
type key struct {
	name    subjects.IndexName
	session subjects.SessionID
}

// entry is one index on this node.
type entry struct {
	mu       sync.Mutex // held while the index is built or taken away
	instance Instance
	record   registry.IndexRecord // that instance is of, or that failed
	failures int
	retryAt  time.Time
	failed   bool
}

// Manager keeps what a node serves in line with what is installed. Its methods
// may be called concurrently.
type Manager struct {
	bus     *bus.Bus
	view    *registry.View
	store   *registry.Store
	builder Builder
	server  Server
	dir     string
	log     *slog.Logger

	base   context.Context // ends with Stop
	end    context.CancelFunc
	wg     sync.WaitGroup
	kick   chan struct{}
	cancel func()

	mu      sync.Mutex
	entries map[key]*entry
	rounds  chan struct{} // closed and replaced after each reconciliation
	settled bool          // the last one left nothing to do but failures
}

// New makes a manager that keeps its files below dir. Start it.
func New(b *bus.Bus, view *registry.View, store *registry.Store, builder Builder, server Server, dir string, opts *Options) *Manager {
	m := &Manager{
		bus: b, view: view, store: store, builder: builder, server: server, dir: dir,
		log: slog.New(slog.DiscardHandler), kick: make(chan struct{}, 1),
		entries: make(map[key]*entry), rounds: make(chan struct{}),
	}
	if opts != nil && opts.Logger != nil {
		m.log = opts.Logger
	}
	m.base, m.end = context.WithCancel(context.Background())
	return m
}

// Start begins to serve what is installed, in the background.
func (m *Manager) Start() {
	m.cancel = m.view.OnChange(m.wake)
	m.wake()
	m.wg.Go(m.loop)
}

func (m *Manager) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// Stop ends installs and builds that are under way, and closes every instance.
// ctx bounds how long their calls may run on.
func (m *Manager) Stop(ctx context.Context) error {
	if m.cancel != nil {
		m.cancel()
	}
	m.end()
	m.wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, e := range m.entries {
		e.mu.Lock()
		if e.instance != nil {
			errs = append(errs, e.instance.Close(ctx))
			e.instance = nil
		}
		e.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Ready waits until every index that is installed is served by this node, or
// has failed here.
func (m *Manager) Ready(ctx context.Context) error {
	for {
		m.mu.Lock()
		settled, round := m.settled, m.rounds
		m.mu.Unlock()
		if settled {
			return nil
		}
		select {
		case <-round:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (m *Manager) loop() {
	timer := time.NewTimer(retryMost)
	defer timer.Stop()
	for {
		select {
		case <-m.base.Done():
			return
		case <-m.kick:
		case <-timer.C:
		}
		next := m.reconcile(m.base)
		timer.Reset(next)
		m.mu.Lock()
		m.settled = true
		close(m.rounds)
		m.rounds = make(chan struct{})
		m.mu.Unlock()
	}
}

// reconcile does one round over everything that is installed or served, and
// returns when the next one is due at the latest.
func (m *Manager) reconcile(ctx context.Context) time.Duration {
	wanted := make(map[key]registry.IndexRecord)
	for _, r := range m.view.Indexes() {
		if r.State != registry.IndexRemoved && r.Bundle != "" {
			wanted[key{r.Name, r.Session}] = r
		}
	}
	next := retryMost
	for k, r := range wanted {
		if ctx.Err() != nil {
			return next
		}
		if wait := m.bring(ctx, k, r); wait > 0 {
			next = min(next, wait)
		}
	}
	m.mu.Lock()
	var gone []key
	for k := range m.entries {
		if _, ok := wanted[k]; !ok {
			gone = append(gone, k)
		}
	}
	m.mu.Unlock()
	for _, k := range gone {
		m.drop(ctx, k)
	}
	return next
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
	return a.Bundle == b.Bundle && a.Revision == b.Revision && maps.Equal(readSettings(a).Env, readSettings(b).Env)
}

func readSettings(r registry.IndexRecord) (s settings) {
	_ = json.Unmarshal(r.Settings, &s) // absent or another version's: no values
	return s
}

// bring serves one index as its record says, and returns after how long to try
// again; 0 if that is not needed.
func (m *Manager) bring(ctx context.Context, k key, r registry.IndexRecord) time.Duration {
	e := m.entry(k)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.instance != nil && r.InstalledAt.Before(e.record.InstalledAt) {
		return 0 // the view has yet to see what was installed here
	}
	if same(e.record, r) && (e.instance != nil || e.failed) {
		if !e.failed {
			return 0
		}
		if wait := time.Until(e.retryAt); wait > 0 {
			return wait
		}
	}
	log := m.log.With(slog.String("index", string(r.Name)), slog.String("revision", r.Revision))
	log.Info("building index")
	began := time.Now()
	var b Build
	i, err := func() (Instance, error) {
		var err error
		if b, err = m.unpack(ctx, r); err != nil {
			return nil, err
		}
		return m.builder.Open(ctx, b, func(step, state string, percent int) {
			log.Debug("building index", slog.String("step", step), slog.String("state", state), slog.Int("percent", percent))
		})
	}()
	if err == nil {
		if err = m.replace(ctx, e, i, r); err != nil {
			_ = i.Close(ctx)
		}
	}
	if ctx.Err() != nil {
		return retryFirst
	}
	if err != nil {
		if !same(e.record, r) {
			e.failures = 0
		}
		e.record, e.failed = r, true
		wait := min(retryFirst<<min(e.failures, 10), retryMost)
		e.failures++
		e.retryAt = time.Now().Add(wait)
		log.Error("index is not served", slog.String("error", err.Error()), slog.Duration("retry", wait))
		if b.Manifest != nil && e.instance == nil {
			if err := m.server.PublishFailed(ctx, b, toolmesh.AsError(err).Message); err != nil {
				log.Warn("failure not published", slog.String("error", err.Error()))
			}
		}
		return wait
	}
	log.Info("index is served", slog.Int("tools", len(i.Tools())), slog.Int("unavailable", len(i.Unavailable())), slog.Duration("took", time.Since(began)))
	return 0
}

// replace publishes an instance and lets the one before it drain; e.mu is held.
func (m *Manager) replace(ctx context.Context, e *entry, i Instance, r registry.IndexRecord) error {
	if err := m.server.Publish(ctx, i); err != nil {
		return err
	}
	old := e.instance
	e.instance, e.record, e.failed, e.failures = i, r, false, 0
	if old != nil {
		m.retire(old)
	}
	return nil
}

// retire lets the calls of an instance end, and then ends it.
func (m *Manager) retire(i Instance) {
	m.wg.Go(func() {
		ctx, cancel := context.WithTimeout(m.base, closeWithin)
		defer cancel()
		if err := i.Close(ctx); err != nil && m.base.Err() == nil {
			m.log.Warn("replaced index did not end by itself", slog.String("index", string(i.Build().Name)), slog.String("error", err.Error()))
		}
	})
}

// drop takes an index away that is no longer installed.
func (m *Manager) drop(ctx context.Context, k key) {
	e := m.entry(k)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.instance == nil && !e.failed {
		return
	}
	// The view may have yet to see what was just installed here. Asked under the
	// lock: an install that held it until now has stored its record.
	if _, err := m.store.Index(ctx, k.name, k.session); !errors.Is(err, bus.ErrNoKey) {
		return
	}
	if err := m.server.Withdraw(ctx, k.name, k.session); err != nil {
		m.log.Warn("index not withdrawn", slog.String("index", string(k.name)), slog.String("error", err.Error()))
		return
	}
	if e.instance != nil {
		m.retire(e.instance)
	}
	e.instance, e.failed, e.record = nil, false, registry.IndexRecord{}
	m.log.Info("index is no longer served", slog.String("index", string(k.name)))
}

// unpack fetches a record's bundle, unless it is here already, and reads it.
func (m *Manager) unpack(ctx context.Context, r registry.IndexRecord) (Build, error) {
	b := Build{Name: r.Name, Session: r.Session, Revision: r.Revision, Env: readSettings(r).Env}
	var err error
	if b.Dir, err = m.folder(r.Name, r.Session, r.Bundle); err != nil {
		return b, err
	}
	if _, err := os.Stat(b.Dir); err != nil {
		bundle, err := m.bus.GetBundle(ctx, r.Bundle)
		if err != nil {
			return b, toolmesh.Errorf(toolmesh.CodeUnavailable, "the bundle of index %q cannot be fetched: %w", r.Name, err)
		}
		defer bundle.Close() //nolint:errcheck // only read
		if err := index.Unpack(ctx, bundle, b.Dir, r.Bundle, nil); err != nil {
			return b, err
		}
	}
	return b, m.read(&b)
}

// read loads what a build's folder holds.
func (m *Manager) read(b *Build) (err error) {
	if b.Manifest, err = index.Load(b.Dir); err != nil {
		return err
	}
	b.Lock, err = os.ReadFile(filepath.Join(b.Dir, index.MetaDir, index.LockFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return installFailed("lock", "the lock of index %q cannot be read: %w", b.Name, err)
	}
	return nil
}

// folder is where a bundle is unpacked for one index: the source tree is its
// own, Python writes its bytecode there.
func (m *Manager) folder(name subjects.IndexName, session subjects.SessionID, digest string) (string, error) {
	k, err := subjects.IndexKey(name, session)
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "index %q: %w", name, err)
	}
	return filepath.Join(m.dir, "indexes", k, digest), nil
}

func installFailed(reason, format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInstallFailed, format, args...).WithDetail("reason", reason).
		WithOrigin(toolmesh.OriginAgent).WithStarted(toolmesh.StartedNo)
}
