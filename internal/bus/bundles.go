package bus

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"

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
// what was stored: what is damaged, or deleted meanwhile, ends with an error. A
// bundle that is not there is [ErrNoKey]. Parts that one server of those that share
// the store does not have yet are waited for.
func (b *Bus) GetBundle(ctx context.Context, digest string) (io.ReadCloser, error) {
	s, err := b.Bundle(ctx, digest)
	if err != nil {
		return nil, err
	}
	next, stop := iter.Pull2(b.parts(ctx, s))
	return &bundleReader{next: next, stop: stop}, nil
}

// bundleReader reads what a sequence of parts yields.
type bundleReader struct {
	next func() ([]byte, error, bool)
	stop func()
	rest []byte
	err  error // what the sequence ended with
}

func (r *bundleReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		part, err, more := r.next()
		if !more {
			err = io.EOF
		}
		r.rest, r.err = part, err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *bundleReader) Close() error {
	r.stop()
	return nil
}

// errIncomplete is what a replica that lags, or a store that has lost messages,
// says by having nothing more.
var errIncomplete = errors.New("the rest of it is not there")

// parts reads what a bundle consists of, some at a time.
func (b *Bus) parts(ctx context.Context, s StoredBundle) iter.Seq2[[]byte, error] {
	what := "get bundle " + s.Digest
	return func(yield func([]byte, error) bool) {
		sum := sha256.New()
		q := Query{Stream: bundleStream, Subject: bundleParts + s.info.NUID, From: 1, MaxBytes: directBytes}
		for left := int64(s.info.Chunks); left > 0; {
			var got [][]byte
			waiting, cancel := context.WithTimeout(ctx, retryTimeout)
			err := b.retry(waiting, what, func(ctx context.Context) error {
				for m, err := range b.Read(ctx, q) {
					if err != nil {
						if len(got) == 0 {
							return err
						}
						break // the next question begins behind what has come
					}
					got = append(got, m.Data)
					q.From = m.Seq + 1
				}
				if len(got) == 0 {
					return errIncomplete
				}
				return nil
			})
			cancel()
			if err != nil {
				yield(nil, err)
				return
			}
			for _, part := range got {
				sum.Write(part)
				if !yield(part, nil) {
					return
				}
			}
			left -= int64(len(got))
		}
		if got := bundleSum + base64.URLEncoding.EncodeToString(sum.Sum(nil)); got != s.info.Digest {
			yield(nil, toolmesh.Errorf(toolmesh.CodeInternal, "%s: it is damaged: its digest is %s, stored was %s; install the index again", what, got, s.info.Digest).
				WithOrigin(toolmesh.OriginMesh))
		}
	}
}

// HasBundle reports whether a bundle is there.
func (b *Bus) HasBundle(ctx context.Context, digest string) (bool, error) {
	_, err := b.Bundle(ctx, digest)
	if errors.Is(err, ErrNoKey) {
		return false, nil
	}
	return err == nil, err
}

// DeleteBundle removes a bundle; one that is not there is no error.
func (b *Bus) DeleteBundle(ctx context.Context, digest string) error {
	_, err := b.changeBundle(ctx, digest, b.DropBundle)
	return err
}

func objectError(what string, err error) error {
	switch {
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
