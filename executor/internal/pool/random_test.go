package pool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

// With random events of workers and callers, each call has one outcome, its tool ran at most
// once, and the pool is idle afterwards.
func TestRandomEvents(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				var ran sync.Map
				p, ps := open(t, config(func(c *pool.Config) {
					c.Async, c.Once = seed%2 == 1, seed%5 == 4
					c.MaxWorkers, c.MaxCalls = 3, 3
					c.IdleAfter = 40 * time.Millisecond
					c.Recycle = pool.Recycle{Calls: 20, Age: time.Second}
					c.Grace = 20 * time.Millisecond
				}), func(w *work) (string, error) {
					var act struct {
						Call  int
						Sleep time.Duration
						Die   bool
					}
					if err := json.Unmarshal([]byte(w.args), &act); err != nil {
						return "", err
					}
					if _, twice := ran.LoadOrStore(act.Call, true); twice {
						t.Errorf("call %d ran twice", act.Call)
					}
					after, stop := context.WithTimeout(context.Background(), act.Sleep)
					defer stop()
					if result, err := w.wait(after.Done()); err != nil || !act.Die {
						return result, err
					}
					return w.die(1)
				})
				const calls = 200
				var all sync.WaitGroup
				for i := range calls {
					ctx, cancel := context.WithCancel(t.Context())
					if random.IntN(3) == 0 {
						time.AfterFunc(time.Duration(random.IntN(40))*time.Millisecond, cancel)
					}
					call := args(`{"Call": %d, "Sleep": %d, "Die": %v}`, i, random.IntN(20)*int(time.Millisecond), random.IntN(8) == 0)
					all.Go(func() {
						defer cancel()
						o := <-begin(ctx, p, call)
						_, begun := ran.Load(i)
						if e := toolmesh.AsError(o.err); o.err != nil && begun && e.Started == toolmesh.StartedNo {
							t.Errorf("call %d ran, and its caller is told that it did not: %v", i, o.err)
						}
						if o.err == nil && o.body != `"waited"` {
							t.Errorf("call %d: %q", i, o.body)
						}
					})
					time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
					if list := ps.list(); random.IntN(20) == 0 && len(list) > 0 {
						list[random.IntN(len(list))].Kill()
					}
				}
				all.Wait()
				time.Sleep(time.Minute)
				if s := p.Stats(); s.Busy != 0 || s.Waiting != 0 || s.Starting != 0 || s.Workers > 1 {
					t.Errorf("at rest: %+v", s)
				}
			})
		})
	}
}
