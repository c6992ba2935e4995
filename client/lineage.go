package client

import (
	"context"

	"github.com/toolmesh/toolmesh/subjects"
)

// Lineage says that a call is made on behalf of another one: which one that is,
// and how many there are above the new one.
type Lineage struct {
	Parent subjects.RPCID
	Depth  int
}

// LineageKey is the key of a context's *[Lineage]. The context that a host gives
// to a handler has one, so that a call that is made under it travels as a nested
// one, and calls that go round in a circle come to an end. [WithParent] stands
// above it.
type LineageKey struct{}

func lineageOf(ctx context.Context) Lineage {
	if l, ok := ctx.Value(LineageKey{}).(*Lineage); ok && l != nil {
		return *l
	}
	return Lineage{}
}
