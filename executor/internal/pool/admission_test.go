package pool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

// nested makes a tool's calls in the pool that it is itself in.
type nested struct {
	pool.Nested
	pool  *pool.Pool
	depth int
}

func (n nested) Call(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error) {
	body, _, err := n.pool.Call(ctx, pool.Call{Tool: name, Args: args, Depth: n.depth, Nested: nested{pool: n.pool, depth: n.depth + 1}})
	return body, err
}

func (n nested) Stream(context.Context, string, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return nil
}

// recursive is a tool that calls itself, its arguments' length times.
func recursive(w *work) (string, error) {
	if w.args == "" {
		return "0", nil
	}
	below, err := w.call("t.tool", w.args[1:])
	if err != nil {
		return "", err
	}
	return below + fmt.Sprint(len(w.args)), nil
}

// Calls that tools make get workers though all places are taken by calls that wait
// for them, and the calls that compute are never more than the limit.
func TestNestedCallsDoNotWaitForEachOther(t *testing.T) {
	for _, async := range []bool{false, true} {
		for limit := 1; limit <= 3; limit++ {
			t.Run(fmt.Sprint(async, limit), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					var computing, most atomic.Int32
					p, _ := open(t, config(func(c *pool.Config) { c.Async, c.MaxWorkers, c.MaxCalls = async, limit, limit }),
						func(w *work) (string, error) {
							if n := computing.Add(1); n > most.Load() {
								most.Store(n)
							}
							time.Sleep(time.Millisecond)
							computing.Add(-1)
							return recursive(w)
						})
					var ends []<-chan outcome
					for range 5 {
						ends = append(ends, begin(t.Context(), p, pool.Call{Args: json.RawMessage("....."), Nested: nested{pool: p, depth: 1}}))
					}
					for _, end := range ends {
						if o := <-end; o.err != nil || o.body != "012345" {
							t.Errorf("%+v", o)
						}
					}
					// A call that waits for one that has just ended may go on next to the following one.
					if n := int(most.Load()); n > 2*limit {
						t.Errorf("%d calls computed at once, the limit is %d", n, limit)
					}
				})
			})
		}
	}
}

// stuck makes calls that end with their context.
type stuck struct{ nested }

func (stuck) Call(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Calls that wait for nested ones take no place of those that compute, but no more of
// them begin than the limit says.
func TestCallsThatWaitAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = 2, 2 }), recursive)
		ctx, cancel := context.WithCancel(t.Context())
		var ends []<-chan outcome
		for depth := range 2 {
			for range 5 {
				ends = append(ends, begin(ctx, p, pool.Call{Args: json.RawMessage("."), Depth: depth, Nested: stuck{}}))
			}
		}
		time.Sleep(time.Second)
		if s := p.Stats(); s.Busy != 4 || s.Waiting != 6 {
			t.Errorf("%+v, want two calls of each depth to have begun", s)
		}
		cancel()
		for _, end := range ends {
			wantCode(t, (<-end).err, toolmesh.CodeCancelled)
		}
	})
}
