package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// What an object store keeps, as the NATS clients agree on it (ADR-20): for each
// object one message that describes it, and its parts under an id of their own.
// The library's own calls overwrite and delete a description whatever it is by
// now; whether a bundle may go has to be decided and done in one.
var (
	bundleStream = subjects.ObjectStream(subjects.ObjectBundles)
	bundleMetas  = subjects.ObjectMetas(subjects.ObjectBundles)
	bundleParts  = subjects.ObjectParts(subjects.ObjectBundles)
)

// StoredBundle is a bundle in the mesh.
type StoredBundle struct {
	Digest string
	// Stored is when it was stored, or was to be stored again and was there, by
	// the broker's clock.
	Stored time.Time

	info     jetstream.ObjectInfo
	revision uint64 // of its description
}

func bundleSubject(digest string) string {
	return bundleMetas + base64.URLEncoding.EncodeToString([]byte(digest))
}

// Bundles lists what is in the store. Any replica answers: the list may be a
// moment old.
func (st Store) Bundles(ctx context.Context) ([]StoredBundle, error) {
	all, err := st.readBundles(ctx, bundleMetas+">")
	return slices.DeleteFunc(all, func(s StoredBundle) bool { return s.info.Deleted }), err
}

// Bundle returns one bundle; [ErrNoKey] if it is not there. Where a replica does
// not know of it the leader is asked: what was stored before is found.
func (st Store) Bundle(ctx context.Context, digest string) (StoredBundle, error) {
	all, err := st.readBundles(ctx, bundleSubject(digest))
	if err == nil && (len(all) == 0 || all[0].info.Deleted) {
		all, err = st.askLeader(ctx, digest)
	}
	if err != nil {
		return StoredBundle{}, err
	}
	if len(all) == 0 || all[0].info.Deleted {
		return StoredBundle{}, fmt.Errorf("bundle %s: %w", digest, ErrNoKey)
	}
	return all[0], nil
}

// askLeader is readBundles for one bundle, from the store's leader.
func (st Store) askLeader(ctx context.Context, digest string) (all []StoredBundle, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = st.retry(ctx, "read the bundles", func(ctx context.Context) error {
		m, err := st.latest(ctx, bundleStream, bundleSubject(digest))
		if m != nil {
			all = appendBundle(nil, m)
		}
		return err
	})
	return all, err
}

// readBundles reads descriptions, those of deleted bundles too. Any replica answers. A store
// that nobody has yet is waited for, unless the leader says that there is none.
func (st Store) readBundles(ctx context.Context, subject string) ([]StoredBundle, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var all []StoredBundle
	err := st.retry(ctx, "read the bundles", func(ctx context.Context) error {
		all = nil
		for m, err := range st.Read(ctx, Query{Stream: bundleStream, Subject: subject}) {
			if errors.Is(err, nats.ErrNoResponders) {
				_, missing := st.JetStream().ObjectStore(ctx, subjects.ObjectBundles)
				err = cmp.Or(missing, err)
			}
			if err != nil {
				return fmt.Errorf("read the bundles: %w", err)
			}
			all = appendBundle(all, m)
		}
		return nil
	})
	return all, err
}

// appendBundle appends what a message describes, unless it is nothing of ours.
func appendBundle(all []StoredBundle, m *Stored) []StoredBundle {
	s := StoredBundle{Stored: m.Time, revision: m.Seq}
	if json.Unmarshal(m.Data, &s.info) != nil || s.info.NUID == "" || bundleSubject(s.info.Name) != m.Subject {
		return all
	}
	s.Digest = s.info.Name
	return append(all, s)
}

// bundles binds the object store.
func (st Store) bundles(ctx context.Context) (objects jetstream.ObjectStore, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = st.retry(ctx, "object store "+subjects.ObjectBundles, func(ctx context.Context) error {
		objects, err = st.JetStream().ObjectStore(ctx, subjects.ObjectBundles)
		return err
	})
	return objects, err
}

// PutBundle stores what r reads under its digest, any text without spaces, and
// reports whether it was new. A bundle that is there already counts as stored now,
// see [Store.Bundles], and r is not read. The caller vouches for the digest.
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

// GetBundle reads a bundle; the caller closes it. Reading to the end verifies
// what was stored: what is damaged, or deleted meanwhile, ends with an error. A
// bundle that is not there is [ErrNoKey]. Parts that one server of those that share
// the store does not have yet are waited for.
func (st Store) GetBundle(ctx context.Context, digest string) (io.ReadCloser, error) {
	s, err := st.Bundle(ctx, digest)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(st.copyBundle(ctx, s, w)) }() // ends when r has been read or is closed
	return r, nil
}

// errIncomplete is what a replica that lags, or a store that has lost messages,
// says by having nothing more.
var errIncomplete = errors.New("the rest of it is not there")

// copyBundle writes the parts of a bundle to w. It waits up to retryTimeout for
// the next one.
func (st Store) copyBundle(ctx context.Context, s StoredBundle, w io.Writer) error {
	what := "get bundle " + s.Digest
	sum := sha256.New()
	out := io.MultiWriter(sum, w)
	q := Query{Stream: bundleStream, Subject: bundleParts + s.info.NUID}
	_, err := st.readParts(ctx, what, q, int(s.info.Chunks), func(part *Stored) (bool, error) {
		_, err := out.Write(part.Data)
		return true, err
	})
	if err != nil {
		return err
	}
	if got := codec.DigestText(sum.Sum(nil)); got != s.info.Digest {
		return toolmesh.Errorf(toolmesh.CodeInternal, "%s: it is damaged: its digest is %s, stored was %s; install the index again", what, got, s.info.Digest).
			WithOrigin(toolmesh.OriginMesh)
	}
	return nil
}

// changeAttempts bounds how often a change of a bundle may lose to others.
const changeAttempts = 10

// RenewBundle has a bundle count as stored now, and reports whether it is there.
func (st Store) RenewBundle(ctx context.Context, digest string) (bool, error) {
	return st.changeBundle(ctx, digest, func(ctx context.Context, s StoredBundle) error {
		_, err := st.describe(ctx, s)
		return err
	})
}

// DeleteBundle removes a bundle; one that is not there is no error.
func (st Store) DeleteBundle(ctx context.Context, digest string) error {
	_, err := st.changeBundle(ctx, digest, st.DropBundle)
	return err
}

// changeBundle changes a bundle as it was read, and reads it again when others were
// ahead. It reports whether the bundle is there.
func (st Store) changeBundle(ctx context.Context, digest string, change func(context.Context, StoredBundle) error) (bool, error) {
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

// DropBundle deletes a bundle as it was read. One that was renewed or deleted
// since is [ErrConflict], and stays as it is.
func (st Store) DropBundle(ctx context.Context, s StoredBundle) error {
	s.info.Deleted = true
	s.info.Size, s.info.Chunks, s.info.Digest = 0, 0, ""
	var err error
	if s.revision, err = st.describe(ctx, s); err != nil {
		return err
	}
	return st.clear(ctx, s)
}

// clear removes what is left of a bundle that is marked as deleted: its parts,
// and at last the mark, without which nobody would know of them.
func (st Store) clear(ctx context.Context, s StoredBundle) error {
	stream, err := st.JetStream().Stream(ctx, bundleStream)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(bundleParts+s.info.NUID))
	}
	if err == nil {
		err = stream.DeleteMsg(ctx, s.revision)
	}
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		return apiError("delete bundle "+s.Digest, err)
	}
	return nil
}

// describe writes a bundle's description in place of the one that was read.
func (st Store) describe(ctx context.Context, s StoredBundle) (revision uint64, err error) {
	s.info.ModTime = time.Time{} // the broker's time of the message is what counts
	data, err := json.Marshal(s.info)
	if err != nil {
		return 0, fmt.Errorf("describe bundle %s: %w", s.Digest, err)
	}
	m := nats.NewMsg(bundleSubject(s.Digest))
	m.Data = data
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	return st.publish(ctx, m, "change bundle "+s.Digest, jetstream.WithExpectStream(bundleStream), jetstream.WithExpectLastSequencePerSubject(s.revision))
}

// ClearBundles removes what was in the store when processes were killed, or was
// replaced, if it is older than age: the parts of bundles that were being stored,
// and of those that were being deleted. What cannot be removed holds up nothing else.
func (st Store) ClearBundles(ctx context.Context, age time.Duration) error {
	stream, err := st.JetStream().Stream(ctx, bundleStream)
	if err != nil {
		return apiError("read the bundles", err)
	}
	// The parts first: what has no description after that had none, or lost it.
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(bundleParts+">"))
	if err != nil {
		return apiError("read the bundles", err)
	}
	all, err := st.readBundles(ctx, bundleMetas+">")
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
				err = stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
			}
			if err != nil {
				failed = append(failed, apiError("clear the bundles", err))
			}
		}
	}
	return errors.Join(failed...)
}
