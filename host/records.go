package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// recordBytes is the approximate max size of a record of tools: one more tool means that it
	// is written again.
	recordBytes = 16 << 10
	// recordHeadroom is the room that a message keeps for the record's own fields and headers,
	// next to a tool.
	recordHeadroom = 1024
	// writersAtOnce is how many services are written at once.
	writersAtOnce = 16
)

// records are the registry's intended state of this node's services. Publishing changes them in
// memory; bring writes them, each service independently.
type records struct {
	*publisher

	mu       sync.Mutex // guards the fields below and those of the listings; no other lock is taken under it
	listings map[serviceKey]*listing
}

// listing holds the records of one service, each small enough for a message.
type listing struct {
	key     serviceKey
	writing sync.Mutex // one writer at a time; taken before records.mu

	of      *service // as it was published last, of which the records are
	epoch   string   // of the session, as it was written last
	entries map[subjects.ToolID]*entry
	records map[subjects.ToolsKey][]*entry
	dirty   map[subjects.ToolsKey]bool // records that are to be written, or deleted
	room    int                        // parts before this one are full
}

// entry is the record of one tool.
type entry struct {
	route      registry.ToolRoute // without the digest
	descriptor *tool.Descriptor   // nil: nothing is known
	digest     string             // of the descriptor in the registry
	size       int                // in a record
	key        subjects.ToolsKey  // of the record that it is in
}

func sizeOf(entries []*entry) (n int) {
	for _, e := range entries {
		n += e.size
	}
	return n
}

func newEntry(d *tool.Descriptor, r registry.ToolRoute) *entry {
	if d != nil {
		a := d.Annotations
		r.Streaming, r.Idempotent, r.ParallelSafe = a.Streaming, a.Idempotent, a.ParallelSafe
	}
	data, _ := json.Marshal(r) // texts and flags
	return &entry{route: r, descriptor: d, size: len(data) + len(",") + 64}
}

// same reports whether two entries say the same.
func (e *entry) same(other *entry) bool {
	return e.route == other.route && e.descriptor == other.descriptor
}

// listing returns that of a service; r.mu is held.
func (r *records) listing(s *service) *listing {
	l := r.listings[s.key]
	if l == nil {
		l = &listing{
			key: s.key, of: s, entries: make(map[subjects.ToolID]*entry),
			records: make(map[subjects.ToolsKey][]*entry), dirty: make(map[subjects.ToolsKey]bool),
		}
		r.listings[s.key] = l
	}
	if l.of.revision != s.revision || l.of.tenure != s.tenure {
		l.rewrite()
	}
	l.of = s
	return l
}

// put adds or replaces the record of one tool of a service.
func (r *records) put(s *service, e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listing(s).put(e, r.limit())
}

// replace makes the records of a service those of its present tools.
func (r *records) replace(s *service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.listing(s)
	all := make(map[subjects.ToolID]*entry, len(s.tools)+len(s.unavailable))
	for id, o := range s.tools {
		all[id] = o.entry
	}
	for _, e := range s.unavailable {
		all[e.route.ID] = e
	}
	for id := range l.entries {
		if all[id] == nil {
			l.remove(id)
		}
	}
	for _, e := range slices.SortedFunc(maps.Values(all), func(a, b *entry) int { return cmp.Compare(a.route.ID, b.route.ID) }) {
		l.put(e, r.limit())
	}
}

// again has all records of a service written once more.
func (r *records) again(key serviceKey) {
	r.mu.Lock()
	if l := r.listings[key]; l != nil {
		l.rewrite()
	}
	r.mu.Unlock()
	r.presence.Wake()
}

// limit is how large a record may become.
func (r *records) limit() int {
	if most := r.bus.MaxPayload(); most > 0 {
		return int(min(recordBytes, most/2))
	}
	return recordBytes
}

func (l *listing) put(e *entry, limit int) {
	if old := l.entries[e.route.ID]; old != nil {
		if old.same(e) {
			return
		}
		l.remove(e.route.ID)
	}
	e.key = subjects.ToolsKey{Session: l.key.session, Index: l.key.index}
	if l.key.index == "" {
		e.key.Tool = e.route.ID
	} else {
		for ; ; l.room++ {
			e.key.Part = l.room
			if in := l.records[e.key]; len(in) == 0 || sizeOf(in)+e.size <= limit {
				break
			}
		}
	}
	l.records[e.key] = append(l.records[e.key], e)
	l.entries[e.route.ID] = e
	l.dirty[e.key] = true
}

func (l *listing) remove(id subjects.ToolID) {
	e := l.entries[id]
	delete(l.entries, id)
	l.records[e.key] = slices.DeleteFunc(l.records[e.key], func(one *entry) bool { return one == e })
	l.room = min(l.room, e.key.Part)
	l.dirty[e.key] = true
}

// rewrite has all records written anew.
func (l *listing) rewrite() {
	for key := range l.records {
		l.dirty[key] = true
	}
}

// claim claims the name of an index for its source, once.
func (r *records) claim(ctx context.Context, s *service) error {
	r.mu.Lock()
	done := !s.unclaimed
	r.mu.Unlock()
	if done || r.presence.Lease() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, presence.AttemptWait)
	defer cancel()
	err := r.store.ClaimIndex(ctx, registry.IndexRecord{
		Name: s.key.index, Session: s.key.session, Source: registry.ServiceSource + string(s.key.index), Revision: s.revision, State: registry.IndexInstalled,
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.unclaimed = false
	return nil
}

// later reports whether the registry may take a refused record later.
func later(err error) bool {
	return store.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// bring writes the records of keys, or all that the registry does not have yet. The next call
// repeats failed writes.
func (r *records) bring(ctx context.Context, keys ...serviceKey) error {
	if len(keys) == 0 {
		r.mu.Lock()
		for key, l := range r.listings {
			if len(l.dirty) > 0 {
				keys = append(keys, key)
			}
		}
		r.mu.Unlock()
	}
	var all errgroup.Group
	all.SetLimit(writersAtOnce)
	for _, key := range keys {
		all.Go(func() error { return r.bringOne(ctx, key) })
	}
	return all.Wait()
}

// bringOne writes the descriptors before the records that name them. Without a lease
// it does nothing.
func (r *records) bringOne(ctx context.Context, key serviceKey) error {
	held := r.presence.Lease()
	r.mu.Lock()
	l := r.listings[key]
	r.mu.Unlock()
	if held == nil || l == nil {
		return nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := r.begin(ctx, l); err != nil {
		return err
	}
	for {
		at, entries, ok := r.next(l)
		if !ok {
			return nil
		}
		err := r.write(ctx, held, l, at, entries)
		switch {
		case err == nil:
		case later(err):
			r.mu.Lock()
			l.dirty[at] = true
			r.mu.Unlock()
			return err
		default:
			r.log.Error("tools are not in the registry", slog.String("index", string(l.key.index)),
				slog.String("session", string(l.key.session)), slog.Int("tools", len(entries)), slog.String("error", err.Error()))
		}
	}
}

// begin writes the preconditions of a listing: the claim of its name, and the session's epoch.
func (r *records) begin(ctx context.Context, l *listing) error {
	r.mu.Lock()
	idle := len(l.dirty) == 0 || len(l.entries) == 0
	of := l.of
	r.mu.Unlock()
	if idle {
		return nil
	}
	if err := r.claim(ctx, of); err != nil {
		if later(err) {
			return err
		}
		r.mu.Lock()
		clear(l.dirty) // no record has been written
		delete(r.listings, l.key)
		r.mu.Unlock()
		r.giveUp(l.key, err)
		return nil
	}
	epoch, err := r.sessions.Bind(ctx, l.key.session, of.tenure)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.epoch != epoch {
		l.epoch = epoch
		l.rewrite()
	}
	return nil
}

// next takes a record that is to be written. A listing of which nothing is left is
// forgotten.
func (r *records) next(l *listing) (at subjects.ToolsKey, entries []*entry, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at = range l.dirty {
		delete(l.dirty, at)
		if entries = slices.Clone(l.records[at]); len(entries) == 0 {
			delete(l.records, at)
		}
		return at, entries, true
	}
	if len(l.entries) == 0 && r.listings[l.key] == l {
		delete(r.listings, l.key)
	}
	return at, nil, false
}

// write writes one record, or deletes it if it is empty.
func (r *records) write(ctx context.Context, held *registry.Lease, l *listing, at subjects.ToolsKey, entries []*entry) error {
	if len(entries) == 0 {
		return held.Withdraw(ctx, at)
	}
	if err := r.describe(ctx, entries); err != nil {
		return err
	}
	r.mu.Lock()
	to := registry.ToolsRecord{Session: at.Session, Index: at.Index, Part: at.Part, Revision: l.of.revision, Epoch: l.epoch, Alike: l.of.revision != ""}
	for _, e := range entries {
		route := e.route
		route.Digest = e.digest
		to.Tools = append(to.Tools, route)
		to.Alike = to.Alike && route.Reason == "" && route.Notice == "" && route.Warning == ""
	}
	r.mu.Unlock()
	slices.SortFunc(to.Tools, func(a, b registry.ToolRoute) int { return cmp.Compare(a.ID, b.ID) })
	return held.Publish(ctx, to)
}

// describe has the registry hold the descriptors of tools.
func (r *records) describe(ctx context.Context, entries []*entry) error {
	var todo []*entry
	var all []*tool.Descriptor
	r.mu.Lock()
	for _, e := range entries {
		if e.descriptor != nil && e.digest == "" {
			todo, all = append(todo, e), append(all, e.descriptor)
		}
	}
	r.mu.Unlock()
	digests, err := r.store.PutDescriptors(ctx, all...)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, e := range todo {
		e.digest = digests[i]
	}
	return nil
}
