package deploy

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
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
	// releaseAttempts bounds how often that is tried before it is left to the next
	// look.
	releaseAttempts = 10
	// collectWithin bounds one look for what is not needed.
	collectWithin = time.Minute
)

// collectLoop looks for bundles that nobody needs, at the start and then now and
// then: nodes take turns by chance.
func (m *Manager) collectLoop() {
	for {
		ctx, cancel := context.WithTimeout(m.base, collectWithin)
		if err := m.collect(ctx); err != nil && m.base.Err() == nil {
			m.log.Warn("bundles not cleaned up", slog.String("error", err.Error()))
		}
		cancel()
		if !m.pause(m.bundleAge/2 + rand.N(m.bundleAge)) {
			return
		}
	}
}

func (m *Manager) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-m.base.Done():
		return false
	}
}

// collect deletes the bundles that are old and that no record names.
func (m *Manager) collect(ctx context.Context) error {
	all, err := m.bus.Bundles(ctx)
	if err != nil {
		return err
	}
	named, err := m.store.Bundles(ctx) // after the bundles, see above
	if err != nil {
		return err
	}
	for _, b := range all {
		if named[b.Digest] || m.since(b) < m.bundleAge {
			continue
		}
		if err := m.bus.DropBundle(ctx, b); err == nil {
			m.log.Info("bundle removed: no index needs it", slog.String("bundle", b.Digest))
		} else if !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	return m.bus.ClearBundles(ctx, m.bundleAge)
}

// since is how long ago a bundle was stored, at least.
func (m *Manager) since(b bus.StoredBundle) time.Duration {
	now := m.bus.Time()
	return now.Now.Sub(b.Stored) - now.Bound
}

// release deletes, in the background, the bundle of a record that was removed or
// changed, unless another record names it.
func (m *Manager) release(digest string) {
	if digest == "" || m.base.Err() != nil {
		return
	}
	m.wg.Go(func() {
		var wait time.Duration
		var err error
		for range releaseAttempts {
			wait, err = m.dropUnnamed(digest)
			if bus.IsUnavailable(err) {
				wait = bundleSettle
			}
			if wait <= 0 || !m.pause(wait) {
				break
			}
		}
		if err != nil && m.base.Err() == nil {
			m.log.Warn("bundle not removed, it is tried again later", slog.String("bundle", digest), slog.String("error", err.Error()))
		}
	})
}

// dropUnnamed deletes a bundle that no record names; wait is in how long it may be.
func (m *Manager) dropUnnamed(digest string) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(m.base, collectWithin)
	defer cancel()
	b, err := m.bus.Bundle(ctx, digest)
	if errors.Is(err, bus.ErrNoKey) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if wait := min(bundleSettle, m.bundleAge) - m.since(b); wait > 0 {
		return wait, nil
	}
	named, err := m.store.Bundles(ctx)
	if err != nil || named[digest] {
		return 0, err
	}
	err = m.bus.DropBundle(ctx, b)
	if errors.Is(err, bus.ErrConflict) {
		return bundleSettle, nil // it was stored again: look whether there is a record now
	}
	return 0, err
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
