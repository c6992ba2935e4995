package awaiting

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// every is the pace of the heartbeats.
const every = time.Second

// Teller tells the mesh which calls and tasks of this process wait for a node. It sends
// heartbeats under an id of its own, which has no lease, each second while something waits.
// Its methods may be called concurrently.
type Teller struct {
	bus     *bus.Bus
	of      func() map[string]codec.Awaited
	subject string
	beat    codec.Heartbeat
	said    bool // the last heartbeat said that something waits; the loop's own
	wakes   chan struct{}
	end     context.CancelFunc
	wg      sync.WaitGroup
}

// Tell begins to tell the sum of what the functions return, until [Teller.Close]. The functions
// must not block.
func Tell(b *bus.Bus, of ...func() map[string]codec.Awaited) *Teller {
	id := "awaiting-" + uuid.NewString()
	subject, _ := subjects.Heartbeat(subjects.NodeID(id)) // a plain token
	ctx, end := context.WithCancel(context.Background())
	a := &Teller{
		bus: b, subject: subject, wakes: make(chan struct{}, 1), end: end,
		beat: codec.Heartbeat{Node: id, Boot: uuid.NewString(), State: string(registry.StateServing)},
		of: func() map[string]codec.Awaited {
			all := make(map[string]codec.Awaited)
			for _, one := range of {
				for pool, n := range one() {
					all[pool] = all[pool].Add(n)
				}
			}
			return all
		},
	}
	a.wg.Go(func() { a.loop(ctx) })
	return a
}

// Wake sends a heartbeat soon, as something has begun to wait.
func (a *Teller) Wake() { wake.Up(a.wakes) }

// Close ends the heartbeats; the last one says that nothing waits.
func (a *Teller) Close() {
	a.end()
	a.wg.Wait()
}

func (a *Teller) loop(ctx context.Context) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			a.tell(nil)
			return
		case <-a.wakes:
		case <-ticker.C:
		}
		a.tell(a.of())
	}
}

func (a *Teller) tell(what map[string]codec.Awaited) {
	if len(what) == 0 && !a.said || !a.bus.Connected() {
		return
	}
	a.said = len(what) > 0
	a.beat.Awaited = what
	_ = a.bus.Conn().PublishMsg(&nats.Msg{Subject: a.subject, Data: codec.Encode(a.beat)}) // the next one says it too
}
