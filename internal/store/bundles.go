package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

var (
	bundleStream = subjects.ObjectStream(subjects.ObjectBundles)
	bundleParts  = subjects.ObjectParts(subjects.ObjectBundles)
)

// A bundle is named by its digest. Its description is written and deleted by compare-and-set, which
// the library's own calls are not: a bundle that is renewed stays.

// Bundles lists the stored bundles. Any replica answers: the list may be a
// moment old.
func (st Store) Bundles(ctx context.Context) ([]Object, error) {
	all, err := st.readBundles(ctx)
	return slices.DeleteFunc(all, func(s Object) bool { return s.info.Deleted }), err
}

// Bundle returns one bundle, or [ErrNoKey]; see [Store.find].
func (st Store) Bundle(ctx context.Context, digest string) (Object, error) {
	return st.find(ctx, subjects.ObjectBundles, digest)
}

// readBundles reads all descriptions, those of deleted bundles too. Any replica answers. A store
// without a leader is waited for, unless JetStream says that it does not exist.
func (st Store) readBundles(ctx context.Context) ([]Object, error) {
	var all []Object
	err := st.retry(ctx, "read the bundles", func(ctx context.Context) error {
		all = nil
		for m, err := range st.Read(ctx, Query{Stream: bundleStream, Subject: subjects.ObjectMetas(subjects.ObjectBundles) + ">"}) {
			if errors.Is(err, nats.ErrNoResponders) {
				_, missing := st.JetStream().ObjectStore(ctx, subjects.ObjectBundles)
				err = cmp.Or(missing, err)
			}
			if err != nil {
				return fmt.Errorf("read the bundles: %w", err)
			}
			if o, ok := readObject(m); ok && objectSubject(subjects.ObjectBundles, o.info.Name) == m.Subject {
				all = append(all, o)
			}
		}
		return nil
	})
	return all, err
}

func (st Store) bundles(ctx context.Context) (objects jetstream.ObjectStore, err error) {
	err = st.retry(ctx, "object store "+subjects.ObjectBundles, func(ctx context.Context) error {
		objects, err = st.JetStream().ObjectStore(ctx, subjects.ObjectBundles)
		return err
	})
	return objects, err
}

// PutBundle stores the content of r under its digest, any text without spaces, and
// reports whether it was new. A stored bundle is renewed, and r is not read. The caller
// vouches for the digest.
func (st Store) PutBundle(ctx context.Context, digest string, r io.Reader) (stored bool, err error) {
	have, err := st.RenewBundle(ctx, digest)
	if err != nil || have {
		return false, err
	}
	store, err := st.bundles(ctx)
	if err != nil {
		return false, err
	}
	if _, err := store.Put(ctx, jetstream.ObjectMeta{Name: digest}, r); err != nil {
		return false, apiError("store bundle "+digest, err)
	}
	return true, nil
}

// GetBundle reads a bundle, or returns [ErrNoKey]; the caller closes it. Reading to the end
// verifies the digest: a bundle that is damaged, or deleted meanwhile, ends with an error.
// Parts that a replica does not have yet are waited for.
func (st Store) GetBundle(ctx context.Context, digest string) (io.ReadCloser, error) {
	s, err := st.Bundle(ctx, digest)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(st.copyBundle(ctx, s, w)) }() // ends when r has been read or is closed
	return r, nil
}

// copyBundle writes the parts of a bundle to w.
func (st Store) copyBundle(ctx context.Context, s Object, w io.Writer) error {
	got, err := st.copy(ctx, subjects.ObjectBundles, s, w)
	if err == nil && got != s.Digest {
		err = toolmesh.Errorf(toolmesh.CodeInternal, "get bundle %s: it is damaged: its digest is %s, stored was %s; install the index again", s.Name, got, s.Digest).
			WithOrigin(toolmesh.OriginMesh)
	}
	return err
}

// changeAttempts bounds how often a change of a bundle may lose to others.
const changeAttempts = 10

// RenewBundle sets the time of a bundle to now, and reports whether it exists.
func (st Store) RenewBundle(ctx context.Context, digest string) (bool, error) {
	return st.changeBundle(ctx, digest, func(ctx context.Context, s Object) error {
		_, err := st.describe(ctx, subjects.ObjectBundles, s)
		return err
	})
}

// DeleteBundle removes a bundle, if it exists.
func (st Store) DeleteBundle(ctx context.Context, digest string) error {
	_, err := st.changeBundle(ctx, digest, st.DropBundle)
	return err
}

// changeBundle changes a bundle as it was read, and reads it again after a conflict. It
// reports whether the bundle exists.
func (st Store) changeBundle(ctx context.Context, digest string, change func(context.Context, Object) error) (bool, error) {
	for range changeAttempts {
		s, err := st.Bundle(ctx, digest)
		if errors.Is(err, ErrNoKey) {
			return false, nil
		}
		if err == nil {
			err = change(ctx, s)
		}
		if !errors.Is(err, ErrConflict) {
			return err == nil, err
		}
		if !wake.After(ctx, 20*time.Millisecond) { // a replica may lag
			return false, fmt.Errorf("change bundle %s: %w", digest, ctx.Err())
		}
	}
	return false, fmt.Errorf("change bundle %s: %w", digest, ErrConflict)
}

// DropBundle deletes a bundle as it was read, or returns [ErrConflict] if it was renewed or
// deleted since.
func (st Store) DropBundle(ctx context.Context, s Object) error {
	s.info.Deleted = true
	s.info.Size, s.info.Chunks, s.info.Digest = 0, 0, ""
	var err error
	if s.revision, err = st.describe(ctx, subjects.ObjectBundles, s); err != nil {
		return err
	}
	return st.clear(ctx, s)
}

// clear removes the parts of a bundle that is marked as deleted, and then the mark, which
// leads to the parts.
func (st Store) clear(ctx context.Context, s Object) error {
	if err := st.Purge(ctx, bundleStream, bundleParts+s.info.NUID); err != nil {
		return err
	}
	stream, err := st.JetStream().Stream(ctx, bundleStream)
	if err == nil {
		err = stream.DeleteMsg(ctx, s.revision)
	}
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		return apiError("delete bundle "+s.Name, err)
	}
	return nil
}

// ClearBundles removes parts, older than age, of bundles with an unfinished upload or deletion,
// left by a process that ended. It continues after failures, and joins them.
func (st Store) ClearBundles(ctx context.Context, age time.Duration) error {
	// The parts first: those without a description after that never had one, or lost it.
	info, err := st.Info(ctx, bundleStream, bundleParts+">")
	if err != nil {
		return err
	}
	all, err := st.readBundles(ctx)
	if err != nil {
		return err
	}
	now := st.Time()
	old := func(at time.Time) bool { return now.Now.Sub(at) >= age+now.Bound }
	known := make(map[string]bool, len(all))
	var failed []error
	for _, s := range all {
		known[s.info.NUID] = true
		if s.info.Deleted && old(s.Stored) {
			failed = append(failed, st.clear(ctx, s))
		}
	}
	for subject := range info.State.Subjects {
		if known[strings.TrimPrefix(subject, bundleParts)] {
			continue
		}
		for m, err := range st.Read(ctx, Query{Stream: bundleStream, Last: []string{subject}}) {
			if err == nil && old(m.Time) { // else it is being stored
				err = st.Purge(ctx, bundleStream, subject)
			}
			if err != nil {
				failed = append(failed, apiError("clear the bundles", err))
			}
		}
	}
	return errors.Join(failed...)
}
