package client

import (
	"context"
	"fmt"
	"testing"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// learner is a client that learns routes without asking for them.
func learner(n int) *Client {
	c := &Client{shared: &shared{routes: routes{known: make(map[routeKey]*route)}}}
	ctx, end := context.WithCancel(context.Background())
	end()
	c.shared.base = ctx
	for i := range n {
		c.learn(subjects.SessionID(fmt.Sprint("s", i)), "desk.note")
	}
	return c
}

// Beyond the most that are remembered, one route is forgotten for each new one.
func TestManyRoutes(t *testing.T) {
	t.Parallel()
	const more = 100
	c := learner(maxRoutes + more)
	known := c.shared.routes.known
	if last := known[routeKey{subjects.SessionID(fmt.Sprint("s", maxRoutes+more-1)), "desk.note"}]; last == nil || len(known) != maxRoutes {
		t.Errorf("%d routes are remembered, want %d; the last one among them: %v", len(known), maxRoutes, last != nil)
	}
}

// Beyond the most that are remembered, one short id is forgotten for each new one.
func TestManyShortIDs(t *testing.T) {
	t.Parallel()
	r := routes{known: make(map[routeKey]*route)}
	const more = 100
	for i := range maxRoutes + more {
		r.setAlias("default", subjects.ToolID(fmt.Sprint("t", i)), "desk.note")
	}
	if n := len(r.known); n != maxRoutes {
		t.Errorf("%d short ids are remembered, want %d", n, maxRoutes)
	}
}

// A node of little weight gets few calls, of two nodes too, however free it is: but all while the
// other one is full.
func TestWeightsOfTwoNodes(t *testing.T) {
	t.Parallel()
	slow, busy := &seat{Peer: &bus.Peer{}}, &seat{Peer: &bus.Peer{}}
	slow.weight.Store(1000)
	busy.weight.Store(1e6)
	busy.SetLoad(codec.Load{InFlight: 1, Slots: 2})
	chosen := func() (n int) {
		for range 10_000 {
			if better([]*seat{slow, busy}) == slow {
				n++
			}
		}
		return n
	}
	if n := chosen(); n > 100 {
		t.Errorf("the node of weight 0.001 has %d of 10000 calls, want about 20", n)
	}
	busy.full.Store(1<<63 - 1)
	if n := chosen(); n != 10_000 {
		t.Errorf("%d of 10000 calls went to the node that has room", n)
	}
}
