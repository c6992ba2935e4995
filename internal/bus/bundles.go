package bus

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// bundles binds the object store, and makes it if asked.
func (b *Bus) bundles(ctx context.Context, copies int, create bool) (jetstream.ObjectStore, error) {
	b.mu.Lock()
	store := b.objects
	b.mu.Unlock()
	if store != nil && !create {
		return store, nil
	}
	err := b.retry(ctx, "object store "+subjects.ObjectBundles, func(ctx context.Context) error {
		var err error
		store, err = b.js.ObjectStore(ctx, subjects.ObjectBundles)
		if !create || !errors.Is(err, jetstream.ErrBucketNotFound) {
			return err
		}
		config := jetstream.ObjectStoreConfig{
			Bucket: subjects.ObjectBundles, Description: "Bundles of indexes by digest", Replicas: max(copies, 1),
		}
		if copies == 0 && b.nc.ConnectedClusterName() != "" {
			config.Replicas = mostCopies
		}
		store, err = b.js.CreateObjectStore(ctx, config)
		if copies == 0 && isAPIError(err, errNoSuitablePeers, errNotClustered) {
			config.Replicas = 1
			store, err = b.js.CreateObjectStore(ctx, config)
		}
		if errors.Is(err, jetstream.ErrBucketExists) {
			store, err = b.js.ObjectStore(ctx, subjects.ObjectBundles)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.objects = store
	b.mu.Unlock()
	return store, nil
}

// PutBundle stores what r reads under its digest, any text without spaces. A
// bundle that is there already counts as stored now, see [Bus.Bundles], and r is
// not read. The caller vouches for the digest.
func (b *Bus) PutBundle(ctx context.Context, digest string, r io.Reader) error {
	have, err := b.RenewBundle(ctx, digest)
	if err != nil || have {
		return err
	}
	store, err := b.bundles(ctx, 0, false)
	if err != nil {
		return err
	}
	if _, err := store.Put(ctx, jetstream.ObjectMeta{Name: digest}, r); err != nil {
		return objectError("store bundle "+digest, err)
	}
	return nil
}

// GetBundle reads a bundle; the caller closes it. Reading to the end verifies
// what was stored: a transfer that was damaged ends with an error. A bundle that
// is not there is [ErrNoKey].
func (b *Bus) GetBundle(ctx context.Context, digest string) (io.ReadCloser, error) {
	store, err := b.bundles(ctx, 0, false)
	if err != nil {
		return nil, err
	}
	object, err := store.Get(ctx, digest)
	if err != nil {
		return nil, objectError("get bundle "+digest, err)
	}
	return object, nil
}

// HasBundle reports whether a bundle is there.
func (b *Bus) HasBundle(ctx context.Context, digest string) (bool, error) {
	store, err := b.bundles(ctx, 0, false)
	if err != nil {
		return false, err
	}
	switch _, err := store.GetInfo(ctx, digest); {
	case err == nil:
		return true, nil
	case errors.Is(err, jetstream.ErrObjectNotFound):
		return false, nil
	default:
		return false, objectError("look for bundle "+digest, err)
	}
}

// DeleteBundle removes a bundle; one that is not there is no error.
func (b *Bus) DeleteBundle(ctx context.Context, digest string) error {
	store, err := b.bundles(ctx, 0, false)
	if err != nil {
		return err
	}
	if err := store.Delete(ctx, digest); err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		return objectError("delete bundle "+digest, err)
	}
	return nil
}

func objectError(what string, err error) error {
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound):
		return fmt.Errorf("%s: %w", what, ErrNoKey)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, nats.ErrConnectionClosed):
		return errClosed()
	case notReady(err):
		return apiError(what, err)
	case errors.Is(err, jetstream.ErrAsyncPublishTimeout):
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s: the NATS server did not confirm it; its disk may be full: %w", what, err).
			WithOrigin(toolmesh.OriginMesh)
	default:
		return toolmesh.Errorf(toolmesh.CodeInternal, "%s: %w", what, err).WithOrigin(toolmesh.OriginMesh)
	}
}
