package registry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Store reads and writes the registry's records other than a node's own, which
// [Lease] writes: descriptors, indexes, sessions. It keeps the descriptors that
// it has read. Its methods may be called concurrently.
type Store struct {
	bus   store.Store
	cache descriptorCache
}

// NewStore returns a store on a connection. It sends nothing yet.
func NewStore(c Conn) (*Store, error) {
	b := bus.Of(c)
	if err := b.Check(); err != nil {
		return nil, err
	}
	return &Store{bus: store.Of(b), cache: descriptorCache{limit: 32 << 20, items: make(map[string]*tool.Descriptor)}}, nil
}

// PutDescriptors stores descriptors under their digests, which it returns in order, unless
// they exist.
func (s *Store) PutDescriptors(ctx context.Context, all ...*tool.Descriptor) (digests []string, err error) {
	digests = make([]string, len(all))
	for i, d := range all {
		if digests[i], err = d.Digest(); err != nil {
			return nil, err
		}
	}
	there := make(map[string]*tool.Descriptor)
	if len(all) > 1 { // one read spares a write for each that is there
		if there, err = s.Descriptors(ctx, digests); err != nil {
			return nil, err
		}
	}
	var puts errgroup.Group
	puts.SetLimit(16)
	for i, d := range all {
		if digest := digests[i]; there[digest] == nil && s.cache.get(digest) == nil {
			puts.Go(func() error { return s.putDescriptor(ctx, digest, d) })
		}
	}
	return digests, puts.Wait()
}

func (s *Store) putDescriptor(ctx context.Context, digest string, d *tool.Descriptor) error {
	data, err := d.Encode()
	if err != nil {
		return err
	}
	if err := putSchema(ctx, s.bus, digest, data); err != nil {
		return fmt.Errorf("publish the descriptor of tool %q: %w", d.ID, err)
	}
	s.cache.put(digest, d, len(data))
	return nil
}

// putSchema stores data under its digest, in place of what another process may have written there.
func putSchema(ctx context.Context, b store.Store, digest string, data []byte) error {
	key := store.Key{Bucket: subjects.BucketSchemas, Name: digest}
	_, err := b.Create(ctx, key, data, 0)
	if !errors.Is(err, store.ErrConflict) {
		return err
	}
	there, err := b.Latest(ctx, key)
	if err == nil && !bytes.Equal(there.Value, data) {
		_, err = b.Put(ctx, key, data, 0)
	}
	return err
}

// Descriptor returns the descriptor of a digest, from the cache if it was read
// before. It is shared: do not change it. A digest that is not stored is
// tool_not_found.
func (s *Store) Descriptor(ctx context.Context, digest string) (*tool.Descriptor, error) {
	all, err := s.Descriptors(ctx, []string{digest})
	if err != nil {
		return nil, err
	}
	d := all[digest]
	if d == nil {
		return nil, toolmesh.Errorf(toolmesh.CodeToolNotFound, "the registry holds no descriptor %s", digest).
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
	}
	return d, nil
}

// schemasAtOnce is how many descriptors, or lists of tools, one read asks for.
const schemasAtOnce = 256

// Descriptors returns the descriptors of many digests with few reads. A digest
// that is not stored, or whose descriptor is damaged, is missing in the result.
func (s *Store) Descriptors(ctx context.Context, digests []string) (map[string]*tool.Descriptor, error) {
	out := make(map[string]*tool.Descriptor, len(digests))
	asked := make(map[string]bool)
	var missing []string
	for _, digest := range digests {
		if d := s.cache.get(digest); d != nil {
			out[digest] = d
			continue
		}
		_, err := subjects.Subject{Kind: subjects.KindRegistryChange, Bucket: subjects.BucketSchemas, Key: digest}.Build()
		if err != nil || asked[digest] {
			continue // only a damaged record has an invalid key
		}
		asked[digest] = true
		missing = append(missing, subjects.KVSubject(subjects.BucketSchemas, digest))
	}
	for some := range slices.Chunk(missing, schemasAtOnce) {
		q := store.Query{Stream: subjects.KVStream(subjects.BucketSchemas), Last: some}
		for m, err := range values(ctx, s.bus, subjects.BucketSchemas, q) {
			if err != nil {
				return nil, fmt.Errorf("read descriptors: %w", err)
			}
			if d, err := tool.Decode(m.Data, m.name); err == nil {
				out[m.name] = d
				s.cache.put(m.name, d, len(m.Data))
			}
		}
	}
	return out, nil
}

// value is the stored message of a key.
type value struct {
	*store.Stored
	name string // of the key
}

// values reads the values of a bucket, without the marks of deleted keys.
func values(ctx context.Context, b store.Store, bucket string, q store.Query) iter.Seq2[value, error] {
	return func(yield func(value, error) bool) {
		for m, err := range b.Read(ctx, q) {
			if err != nil {
				yield(value{}, err)
				return
			}
			if name, ok := subjects.KVKey(bucket, m.Subject); ok && !store.Gone(m.Header) && !yield(value{m, name}, nil) {
				return
			}
		}
	}
}

// ClaimIndex writes an index's record, and refuses a name that another source or owner
// has, or that is mesh-wide while the record is private to a session, or the
// other way round. The same source may write its record again and again.
func (s *Store) ClaimIndex(ctx context.Context, r IndexRecord) error { return s.claim(ctx, r, false) }

// ReplaceIndex is [Store.ClaimIndex] which may also take an installed index over from another
// source or owner. Names of services stay theirs.
func (s *Store) ReplaceIndex(ctx context.Context, r IndexRecord) error { return s.claim(ctx, r, true) }

func (s *Store) claim(ctx context.Context, r IndexRecord, over bool) error {
	key := indexKey(r.Name, r.Session)
	switch {
	case key.err != nil:
		return key.err
	case len(r.Settings) > 0 && !json.Valid(r.Settings):
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the installer's settings of index %q are not JSON", r.Name)
	}
	data := encodeRecord(r)
	for range claimAttempts {
		revision, err := s.free(ctx, r, over)
		if err != nil {
			return err
		}
		revision, err = replace(ctx, s.bus, key.Key, data, revision, 0)
		if err == nil {
			return s.confirmClaim(ctx, r, key.Key, revision)
		}
		if errors.Is(err, store.ErrConflict) { // another process wrote, or a replica lagged: look again
			err = pause(ctx, claimPause)
		}
		if err != nil {
			return fmt.Errorf("claim index %q: %w", r.Name, err)
		}
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "index %q is being changed by others all the time: try again", r.Name).
		WithOrigin(toolmesh.OriginMesh)
}

const (
	claimAttempts = 20
	claimPause    = 20 * time.Millisecond
)

// confirmClaim reads the claims once more: those of two sessions, or of one and the whole mesh,
// have two keys, and may have been written at the same time. The earlier one stays.
func (s *Store) confirmClaim(ctx context.Context, r IndexRecord, key store.Key, revision uint64) error {
	claims, err := s.claims(ctx, r)
	if err != nil {
		return err
	}
	for _, c := range claims {
		if !c.conflicts(r) || c.revision >= revision {
			continue
		}
		if err := s.bus.Delete(ctx, key, revision); err != nil && !errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("give back index %q: %w", r.Name, err)
		}
		return claimed(r, c.record)
	}
	return nil
}

// CheckClaim returns the error that [Store.ClaimIndex], or with over [Store.ReplaceIndex],
// would refuse a record with now, so that no work is done for it.
func (s *Store) CheckClaim(ctx context.Context, r IndexRecord, over bool) error {
	_, err := s.free(ctx, r, over)
	return err
}

// free returns the revision of the record that a claim replaces, 0 without one. The error says
// why the name is taken.
func (s *Store) free(ctx context.Context, r IndexRecord, over bool) (revision uint64, err error) {
	claims, err := s.claims(ctx, r)
	if err != nil {
		return 0, err
	}
	for _, c := range claims {
		if own := c.record.Session == r.Session && c.record.Bundle != ""; c.conflicts(r) && (!over || !own) {
			return 0, claimed(r, c.record)
		}
		if c.record.Session == r.Session {
			revision = c.revision
		}
	}
	return revision, nil
}

func claimed(wanted, has IndexRecord) error {
	where := "the whole mesh"
	if has.Session != "" {
		where = fmt.Sprintf("session %q", has.Session)
	}
	text := fmt.Sprintf("the index name %q belongs to %s in %s: choose another name (--name)", wanted.Name, has.Source, where)
	switch {
	case has.Session == wanted.Session && has.Bundle != "":
		text = fmt.Sprintf("the index name %q belongs to %s%s in %s: choose another name (--name), or replace that index (--replace)",
			wanted.Name, has.Source, another(has, wanted), where)
	case has.Yields(wanted): // the owner is right, the reach is not
		text = fmt.Sprintf("index %q is installed for %s already, and a name is either for the whole mesh or for sessions: uninstall it there, or choose another name (--name)",
			wanted.Name, where)
	}
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%s", text).
		WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo).WithDetail("index", string(wanted.Name)).WithDetail("source", has.Source)
}

// another distinguishes the source of another owner from the wanted one, in a text.
func another(has, wanted IndexRecord) string {
	if has.Source != wanted.Source {
		return ""
	}
	return " of another owner (key " + has.Owner + ")"
}

type indexClaim struct {
	record   IndexRecord
	revision uint64
}

// conflicts reports whether two records cannot both have their name: it belongs to
// one source and owner, for the whole mesh or for sessions.
func (c indexClaim) conflicts(r IndexRecord) bool {
	return !c.record.Yields(r) || (c.record.Session == "") != (r.Session == "")
}

// claims returns the records that decide about a claim: the one that it replaces, the one for
// the whole mesh, and the first of those private to sessions, which all have one source.
func (s *Store) claims(ctx context.Context, r IndexRecord) ([]indexClaim, error) {
	whole, own := indexKey(r.Name, ""), indexKey(r.Name, r.Session)
	if err := cmp.Or(whole.err, own.err); err != nil {
		return nil, err
	}
	stream := subjects.KVStream(subjects.BucketIndexes)
	subject := func(key string) string { return subjects.KVSubject(subjects.BucketIndexes, key) }
	var all []indexClaim
	for _, q := range []store.Query{
		{Stream: stream, Last: slices.Compact([]string{subject(whole.Name), subject(own.Name)})},
		// Marks of sessions that have just ended may come before the existing records.
		{Stream: stream, Subject: subject(whole.Name + ".*"), First: 2},
	} {
		for m, err := range values(ctx, s.bus, subjects.BucketIndexes, q) {
			if err != nil {
				return nil, fmt.Errorf("read index %q: %w", r.Name, err)
			}
			c := indexClaim{revision: m.Seq}
			if err := json.Unmarshal(m.Data, &c.record); err != nil {
				return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "the record of index %q is not readable: %w", r.Name, err)
			}
			all = append(all, c)
			if q.Subject != "" {
				break
			}
		}
	}
	return all, nil
}

// Index returns an index's record, mesh-wide or private to a session. A missing
// one is [store.ErrNoKey].
func (s *Store) Index(ctx context.Context, name subjects.IndexName, session subjects.SessionID) (IndexRecord, error) {
	return read[IndexRecord](ctx, indexKey(name, session), s.bus.Get)
}

// DeleteIndex removes an index's record; one that does not exist is no error.
func (s *Store) DeleteIndex(ctx context.Context, name subjects.IndexName, session subjects.SessionID) error {
	return s.delete(ctx, indexKey(name, session))
}

// recordKey is where a record is kept, or why its names have no key.
type recordKey struct {
	store.Key
	err error
}

func indexKey(name subjects.IndexName, session subjects.SessionID) recordKey {
	key, err := subjects.IndexKey(name, session)
	if err != nil {
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "index %q: %w", name, err)
	}
	return recordKey{store.Key{Bucket: subjects.BucketIndexes, Name: key}, err}
}

// Bundles returns the digests that the records of indexes name now. A lagging replica is
// unavailable, as its answer would make needed bundles look unneeded.
func (s *Store) Bundles(ctx context.Context) (map[string]bool, error) {
	name := subjects.KVStream(subjects.BucketIndexes)
	stream, err := s.bus.JetStream().Stream(ctx, name) // its leader answers
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the registry cannot be read: %w", err).WithOrigin(toolmesh.OriginMesh)
	}
	want := stream.CachedInfo().State
	named := make(map[string]bool)
	var last, count uint64
	for m, err := range s.bus.Read(ctx, store.Query{Stream: name, Subject: subjects.KVAll(subjects.BucketIndexes)}) {
		if err != nil {
			return nil, fmt.Errorf("read the indexes: %w", err)
		}
		last, count = m.Seq, count+1
		if store.Gone(m.Header) {
			continue
		}
		var r IndexRecord
		if err := json.Unmarshal(m.Data, &r); err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "the record %s is not readable: %w", m.Subject, err)
		}
		if r.Bundle != "" {
			named[r.Bundle] = true
		}
	}
	// The last message may be the mark of a key's end, which does not stay.
	now := s.bus.Time()
	rested := now.Now.Sub(want.LastTime)-now.Bound > restedAfter
	if last < want.LastSeq && (!rested || count < want.Msgs) {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "a replica of the registry lags: try again").WithOrigin(toolmesh.OriginMesh)
	}
	return named, nil
}

// restedAfter is the time without a write after which the number of records tells whether all
// were read: longer than the mark of a key's end is kept.
const restedAfter = 2 * time.Minute

// CreateSession writes a session's record; one that exists is [store.ErrConflict].
// A record with a TTL expires by itself.
func (s *Store) CreateSession(ctx context.Context, r SessionRecord) error {
	key := sessionKey(r.ID)
	if r.Key != "" {
		key.err = cmp.Or(key.err, mayHaveKeys(r.ID))
	}
	return s.create(ctx, "session", string(r.ID), key, r, r.TTL)
}

// mayHaveKeys refuses a session whose name is not one of sessions with keys.
func mayHaveKeys(id subjects.SessionID) error {
	if _, err := subjects.CallerRights(id, false); err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%w", err)
	}
	return nil
}

// Session returns a session's record; one that was not created is [store.ErrNoKey].
func (s *Store) Session(ctx context.Context, id subjects.SessionID) (SessionRecord, error) {
	return read[SessionRecord](ctx, sessionKey(id), s.bus.Get)
}

// Epoch returns the epoch of a session as it is now, empty for one that was not created or has
// ended. No replica that lags is asked. It waits for the store for 5 s at most.
func (s *Store) Epoch(ctx context.Context, id subjects.SessionID) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r, err := read[SessionRecord](ctx, sessionKey(id), s.bus.Latest)
	if errors.Is(err, store.ErrNoKey) {
		return "", nil
	}
	return r.Epoch, err
}

// DeleteSession removes a session's record; one that does not exist is no error.
func (s *Store) DeleteSession(ctx context.Context, id subjects.SessionID) error {
	return s.delete(ctx, sessionKey(id))
}

func sessionKey(id subjects.SessionID) recordKey {
	key, err := subjects.SessionKey(id)
	if err != nil {
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "session %q: %w", id, err)
	}
	return recordKey{store.Key{Bucket: subjects.BucketSessions, Name: key}, err}
}

// read returns the record of a key, as get finds it.
func read[Record any](ctx context.Context, key recordKey, get func(context.Context, store.Key) (store.Entry, error)) (r Record, err error) {
	if key.err != nil {
		return r, key.err
	}
	e, err := get(ctx, key.Key)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(e.Value, &r); err != nil {
		return r, toolmesh.Errorf(toolmesh.CodeProtocolError, "the record %s is not readable: %w", key.Key, err)
	}
	return r, nil
}

// replace writes a key that must still have the given revision; 0: the key must not exist.
func replace(ctx context.Context, b store.Store, key store.Key, data []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if revision == 0 {
		return b.Create(ctx, key, data, ttl)
	}
	return b.Update(ctx, key, data, revision, ttl)
}

// create writes a new record; its key must not exist. what and name are for errors.
func (s *Store) create(ctx context.Context, what, name string, key recordKey, record any, ttl time.Duration) error {
	if key.err != nil {
		return key.err
	}
	if _, err := s.bus.Create(ctx, key.Key, encodeRecord(record), ttl); err != nil {
		return fmt.Errorf("create %s %q: %w", what, name, err)
	}
	return nil
}

func (s *Store) delete(ctx context.Context, key recordKey) error {
	if key.err != nil {
		return key.err
	}
	if _, err := s.bus.Get(ctx, key.Key); errors.Is(err, store.ErrNoKey) {
		return nil
	}
	return s.bus.Delete(ctx, key.Key, 0)
}

func pause(ctx context.Context, d time.Duration) error {
	wake.After(ctx, d)
	return ctx.Err()
}

// descriptorCache keeps descriptors up to a limit of their encoded bytes, and is then emptied.
type descriptorCache struct {
	limit int

	mu    sync.Mutex
	size  int
	items map[string]*tool.Descriptor
}

func (c *descriptorCache) get(digest string) *tool.Descriptor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.items[digest]
}

func (c *descriptorCache) put(digest string, d *tool.Descriptor, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.items[digest] != nil {
		return
	}
	if c.size += size; c.size > c.limit {
		clear(c.items)
		c.size = size
	}
	c.items[digest] = d
}
