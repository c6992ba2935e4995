package deploy

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
)

// A bundle is in the mesh as long as a record names it. A process that removes
// or changes a record deletes the bundle that it named, if no other record does.
// Each node looks now and then for what a process left that was killed in between,
// or between storing a bundle and writing its record.
//
// No record is left without its bundle: an install stores it before it writes
// the record, and makes sure of it afterwards, which makes it new. A process
// that deletes reads the bundle, then the records, then deletes the bundle as it
// was read. If the install made sure before that reading, its record is seen; if
// after it, the deletion is refused; if after the deletion, the install stores it
// again.

const (
	// bundleAge is how long a bundle that no record names is kept for an install that
	// is about to write one, or to fetch what was uploaded.
	bundleAge = 15 * time.Minute
	// bundleSettle is how long ago one must have been stored that is known to be
	// needed no more: replicas of the registry may lag.
	bundleSettle = 5 * time.Second
	// collectWithin bounds one look for what is not needed.
	collectWithin = time.Minute
)

// collectLoop looks for bundles that nobody needs: at the start, when a record has
// gone that named one, and now and then: nodes take turns by chance.
func (m *Manager) collectLoop() {
	for {
		timer := time.NewTimer(m.collect())
		select {
		case <-timer.C:
		case <-m.collecting:
		case <-m.base.Done():
			timer.Stop()
			return
		}
	}
}

// collect deletes the bundles that no record names, if they are old, or if their
// record has gone and they have settled. It returns in how long to look again.
func (m *Manager) collect() (next time.Duration) {
	ctx, cancel := context.WithTimeout(m.base, collectWithin)
	defer cancel()
	m.mu.Lock()
	released := m.released
	m.released = make(map[string]bool)
	m.mu.Unlock()
	waiting, err := m.dropUnnamed(ctx, released)
	if err == nil {
		err = m.bus.ClearBundles(ctx, m.bundleAge)
	}
	if err != nil && m.base.Err() == nil {
		m.log.Warn("bundles not cleaned up, it is tried again later", slog.String("error", err.Error()))
	}
	if len(waiting) == 0 {
		return m.bundleAge/2 + rand.N(m.bundleAge)
	}
	m.mu.Lock()
	maps.Copy(m.released, waiting)
	m.mu.Unlock()
	return min(bundleSettle, m.bundleAge)
}

// dropUnnamed deletes the bundles that no record names, and returns those of the
// released ones that it is too early for, or that could not be looked at.
func (m *Manager) dropUnnamed(ctx context.Context, released map[string]bool) (waiting map[string]bool, err error) {
	all, err := m.bus.Bundles(ctx)
	if err != nil {
		return released, err
	}
	named, err := m.store.Bundles(ctx) // after the bundles, see above
	if err != nil {
		return released, err
	}
	now := m.bus.Time()
	waiting = make(map[string]bool)
	for _, b := range all {
		if named[b.Digest] {
			continue
		}
		age := m.bundleAge
		if released[b.Digest] {
			age = min(bundleSettle, age)
		}
		if now.Now.Sub(b.Stored)-now.Bound >= age {
			if err = m.bus.DropBundle(ctx, b); err == nil {
				m.log.Info("bundle removed: no index needs it", slog.String("bundle", b.Digest))
				continue
			}
			if !errors.Is(err, store.ErrConflict) { // else it was stored again: there may be a record now
				return released, err
			}
		}
		if released[b.Digest] {
			waiting[b.Digest] = true
		}
	}
	return waiting, nil
}

// release has the bundle of a record that was removed or changed deleted soon,
// unless another record names it.
func (m *Manager) release(digest string) {
	if digest == "" {
		return
	}
	m.mu.Lock()
	m.released[digest] = true
	m.mu.Unlock()
	wake.Up(m.collecting)
}

// ensureBundle stores the bundle in file, or has the one that is there count as new.
func (m *Manager) ensureBundle(ctx context.Context, digest, file string) error {
	f, err := os.Open(file) //nolint:gosec // a path of our own
	if err != nil {
		return installFailed("folder", "the bundle cannot be read back: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	if _, err := m.bus.PutBundle(ctx, digest, f); err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the bundle cannot be stored in the mesh: %w", err)
	}
	return nil
}

// hold sees to it that the bundle of a record that is about to be replaced is
// there for as long as the record may come back.
func (m *Manager) hold(ctx context.Context, before, record registry.IndexRecord) {
	if before.Bundle == "" || before.Bundle == record.Bundle {
		return
	}
	if _, err := m.bus.RenewBundle(ctx, before.Bundle); err != nil && ctx.Err() == nil {
		m.log.Warn("the earlier bundle cannot be kept", slog.String("bundle", before.Bundle), slog.String("error", err.Error()))
	}
}
