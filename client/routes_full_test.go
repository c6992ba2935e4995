package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// learner is a client that learns routes and asks nobody for them.
func learner(routes int) *Client {
	c := &Client{shared: &shared{}}
	ctx, end := context.WithCancel(context.Background())
	end()
	c.shared.base = ctx
	c.shared.routes.init()
	for i := range routes {
		c.learn(subjects.SessionID(fmt.Sprint("s", i)), "desk.note")
	}
	return c
}

// A call through the queue group does not look at all routes each time, nor are
// those in use forgotten for it.
func TestManyRoutesAreInUse(t *testing.T) {
	t.Parallel()
	c := learner(maxRoutes)
	var swept time.Time
	for i := range 100 {
		c.learn("another", subjects.ToolID(fmt.Sprint("desk.tool", i)))
		if now := c.shared.routes.swept; i > 0 && now != swept {
			t.Fatalf("all of %d routes in use were looked at again", maxRoutes)
		}
		swept = c.shared.routes.swept
	}
	known := 0
	for i := range maxRoutes {
		if c.shared.routes.known[routeKey{subjects.SessionID(fmt.Sprint("s", i)), "desk.note"}] != nil {
			known++
		}
	}
	if known != maxRoutes {
		t.Errorf("%d of %d routes in use are still known", known, maxRoutes)
	}
}

// Routes that nobody uses any more make room for those in use.
func TestUnusedRoutesMakeRoom(t *testing.T) {
	t.Parallel()
	c := learner(maxRoutes)
	for _, r := range c.shared.routes.known {
		r.used = r.used.Add(-2 * routeKeep)
	}
	for i := range 100 {
		c.learn("another", subjects.ToolID(fmt.Sprint("desk.tool", i)))
	}
	known := c.shared.routes.known
	if known[routeKey{"another", "desk.tool99"}] == nil || len(known) > maxRoutes {
		t.Errorf("%d routes, the last one among them: %v", len(known), known[routeKey{"another", "desk.tool99"}] != nil)
	}
}

// Beyond the most that are remembered, one short id is forgotten for each new one.
func TestManyShortIDs(t *testing.T) {
	t.Parallel()
	var r routes
	r.init()
	const more = 100
	for i := range maxRoutes + more {
		r.setAlias("default", subjects.ToolID(fmt.Sprint("t", i)), "desk.note")
	}
	if n := len(r.aliases); n != maxRoutes {
		t.Errorf("%d short ids are remembered, want %d", n, maxRoutes)
	}
}
