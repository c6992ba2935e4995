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

// A bundle is in the mesh as long as a record names it. A process that removes or changes a
// record deletes the bundle of the old one, unless another record names it. Each node looks
// regularly for bundles of processes that were killed in between, or between storing a bundle
// and writing its record.
//
// No record lacks its bundle. An install stores the bundle before it writes the record, and
// renews it afterwards. A process that deletes a bundle reads it, then the records, and then
// deletes it at the revision that it has read. So if the install renewed the bundle before
// that reading, its record is seen; if after it, the deletion is refused; and if after the
// deletion, the install stores the bundle again.

const (
	// bundleAge is how long a bundle without a record is kept, for an install that is about to
	// write one or to fetch an upload.
	bundleAge = 15 * time.Minute
	// bundleSettle is the min age of a bundle whose record was removed: replicas of the
	// registry may lag.
	bundleSettle = 5 * time.Second
	// collectWithin bounds one round.
	collectWithin = time.Minute
)

// collectLoop deletes unneeded bundles: at the start, after a record was removed, and at random
// intervals, so that the nodes alternate.
func (m *Manager) collectLoop() {
	for {
		select {
		case <-time.After(m.collect()):
		case <-m.collecting:
		case <-m.base.Done():
			return
		}
	}
}

// collect deletes the bundles that no record names, if they are old, or if their record was
// removed and they have settled. It returns the time until the next round.
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

// dropUnnamed deletes the bundles that no record names. It returns the released ones that are
// too young, or that it could not read.
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
		if named[b.Name] {
			continue
		}
		age := m.bundleAge
		if released[b.Name] {
			age = min(bundleSettle, age)
		}
		if now.Now.Sub(b.Stored)-now.Bound >= age {
			if err = m.bus.DropBundle(ctx, b); err == nil {
				m.log.Info("bundle removed: no index needs it", slog.String("bundle", b.Name))
				continue
			}
			if !errors.Is(err, store.ErrConflict) { // else it was stored again: there may be a record now
				return released, err
			}
		}
		if released[b.Name] {
			waiting[b.Name] = true
		}
	}
	return waiting, nil
}

// release deletes the bundle of a removed or changed record soon, unless another record names
// it.
func (m *Manager) release(digest string) {
	if digest == "" {
		return
	}
	m.mu.Lock()
	m.released[digest] = true
	m.mu.Unlock()
	wake.Up(m.collecting)
}

// ensureBundle stores the bundle in file, or renews the stored one.
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

// hold keeps the bundle of a record that is about to be replaced for as long as the record may
// come back.
func (m *Manager) hold(ctx context.Context, before, record registry.IndexRecord) {
	if before.Bundle == "" || before.Bundle == record.Bundle {
		return
	}
	if _, err := m.bus.RenewBundle(ctx, before.Bundle); err != nil && ctx.Err() == nil {
		m.log.Warn("the earlier bundle cannot be kept", slog.String("bundle", before.Bundle), slog.String("error", err.Error()))
	}
}
