package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// Equal lists of tools of several nodes are stored once, among the descriptors, and the nodes'
// records name them by their digest. So the mesh stores, sends and reads the tools of a
// revision once, not once for each node that serves it.

const (
	// sharedFrom is the min size in bytes of a list that is stored by itself.
	sharedFrom = 1 << 10
	// listTries is how often a missing list is read at short intervals: its node stored it
	// before its record, but a replica may lag.
	listTries = 10
)

// listSum names a list: the digest of its tools as they are written.
type listSum [sha256.Size]byte

func (s listSum) String() string { return hex.EncodeToString(s[:]) }

// storedTools is a stored record: with its tools, or with the digest of their list.
type storedTools struct {
	ToolsRecord
	Tools json.RawMessage `json:"tools,omitempty"`
	List  string          `json:"list,omitempty"`
}

// sum returns the digest of the list of the record's tools.
func (s *storedTools) sum() (sum listSum, err error) {
	if s.List == "" {
		return sha256.Sum256(s.Tools), nil
	}
	if n, err := hex.Decode(sum[:], []byte(s.List)); err != nil || n != len(sum) || len(s.List) != 2*len(sum) {
		return sum, fmt.Errorf("%q names no list", s.List)
	}
	return sum, nil
}

// storedRecord is a record that the node keeps in the store.
type storedRecord struct {
	key  store.Key
	data []byte
	// tools are the list that data names; nil if data contains the tools.
	tools []byte
}

// publication makes the stored form of a record.
func publication(name string, r ToolsRecord) (p storedRecord) {
	p.key = store.Key{Bucket: subjects.BucketTools, Name: name}
	stored := storedTools{ToolsRecord: r, Tools: encodeRecord(r.Tools)}
	if r.Alike && len(stored.Tools) >= sharedFrom {
		p.tools = stored.Tools
		stored.Tools, stored.List = nil, listSum(sha256.Sum256(p.tools)).String()
	}
	p.data = encodeRecord(stored)
	return p
}

// putTools writes a record, and before it the list that it names.
func (l *Lease) putTools(ctx context.Context, p storedRecord) error {
	if p.tools != nil {
		list := listSum(sha256.Sum256(p.tools)).String()
		there, err := l.bus.Get(ctx, store.Key{Bucket: subjects.BucketSchemas, Name: list})
		if err != nil || !bytes.Equal(there.Value, p.tools) { // most are there
			if err := putSchema(ctx, l.bus, list, p.tools); err != nil {
				return err
			}
		}
	}
	_, err := l.bus.Put(ctx, p.key, p.data, 0)
	return err
}

// wantedList is a list that records name and that the view has not read.
type wantedList struct {
	tries   int
	records map[string]change // by key
}

// want notes that a change of a record waits for its list. The lock is held.
func (v *View) want(sum listSum, c change) {
	w := v.wanted[sum]
	if w == nil {
		w = &wantedList{records: make(map[string]change)}
		v.wanted[sum] = w
	}
	w.records[c.key] = c
	wake.Up(v.kick)
}

// unwant forgets that a key's record waits for a list, as there is a later record. The lock is
// held.
func (v *View) unwant(key string) {
	maps.DeleteFunc(v.wanted, func(_ listSum, w *wantedList) bool {
		delete(w.records, key)
		return len(w.records) == 0
	})
}

// wants reports whether lists are to be read. The lock is held.
func (v *View) wants() bool {
	for _, w := range v.wanted {
		if w.tries < listTries {
			return true
		}
	}
	return false
}

// readLists reads the lists that records wait for; with look also those that were missing
// listTries times.
func (v *View) readLists(ctx context.Context, look bool) error {
	var names []string
	v.mu.RLock()
	for sum, w := range v.wanted {
		if look || w.tries < listTries {
			names = append(names, subjects.KVSubject(subjects.BucketSchemas, sum.String()))
		}
	}
	v.mu.RUnlock()
	for some := range slices.Chunk(names, schemasAtOnce) {
		q := store.Query{Stream: subjects.KVStream(subjects.BucketSchemas), Last: some}
		for m, err := range values(ctx, v.bus, subjects.BucketSchemas, q) {
			if err != nil {
				return toolmesh.Errorf(toolmesh.CodeUnavailable, "read lists of tools: %w", err).WithOrigin(toolmesh.OriginMesh)
			}
			v.takeList(m.Data)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for sum, w := range v.wanted {
		if w.tries++; w.tries == listTries {
			v.log.Warn("a list of tools is missing: the tools of the nodes that name it are unknown", slog.String("list", sum.String()))
		}
	}
	return nil
}

// takeList applies the records that wait for a list.
func (v *View) takeList(tools []byte) {
	sum := listSum(sha256.Sum256(tools)) // the key it lay under counts for nothing
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.wanted[sum]
	if w == nil {
		return
	}
	delete(v.wanted, sum)
	for _, c := range w.records {
		v.setTools(c, tools)
	}
	v.touched(ChangedTools)
}
