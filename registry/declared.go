package registry

import (
	"context"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
)

// The states of an entry of a file of indexes.
const (
	DeclaredInstalled  = "installed"
	DeclaredInstalling = "installing"
	DeclaredRemoving   = "removing"
	DeclaredFailed     = "failed"
)

// DeclaredRecord names the process that keeps the indexes of the mesh as a file lists them, with
// its progress: MESH_LANES/indexes. It is a lease: it expires after [LeaseTTL] unless it is
// written again.
type DeclaredRecord struct {
	// Holder tells the process that has the lease from others.
	Holder  string          `json:"holder"`
	File    string          `json:"file"`
	Entries []DeclaredIndex `json:"entries"`
}

// DeclaredIndex is the state of an entry. The one without a name is the file itself.
type DeclaredIndex struct {
	Name   subjects.IndexName `json:"name,omitempty"`
	Source string             `json:"source,omitempty"`
	State  string             `json:"state"`
	// Code and Reason are those of the failure.
	Code   toolmesh.Code `json:"code,omitempty"`
	Reason string        `json:"reason,omitempty"`
	// Since is when the state began, in the broker's time.
	Since time.Time `json:"since,omitzero"`
}

var declaredKey = store.Key{Bucket: subjects.BucketLanes, Name: subjects.DeclaredKey}

// Declared returns the record of the process that keeps the indexes of a file, and its revision.
// Without such a process the error is [store.ErrNoKey].
func (s *Store) Declared(ctx context.Context) (r DeclaredRecord, revision uint64, err error) {
	r, err = read[DeclaredRecord](ctx, recordKey{Key: declaredKey}, func(ctx context.Context, key store.Key) (store.Entry, error) {
		e, err := s.bus.Latest(ctx, key)
		revision = e.Revision
		return e, err
	})
	return r, revision, err
}

// KeepDeclared acquires the lease, with revision 0, or renews it over the known revision, and
// returns the new one. If another process holds it the error is [store.ErrConflict].
func (s *Store) KeepDeclared(ctx context.Context, r DeclaredRecord, revision uint64) (uint64, error) {
	return replace(ctx, s.bus, declaredKey, encodeRecord(r), revision, LeaseTTL)
}

// LeaveDeclared releases the lease, if it still has the revision.
func (s *Store) LeaveDeclared(ctx context.Context, revision uint64) error {
	return s.bus.Delete(ctx, declaredKey, revision)
}
