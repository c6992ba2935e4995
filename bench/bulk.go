package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/tool"
)

// serviceIndex is that of a Go service that embeds a router.
const serviceIndex = "service"

// startService is a Go service that runs batches, too. args: as for dial.
func startService(ctx context.Context, args []string) (role, error) {
	nc, err := dial(args[0])
	if err != nil {
		return role{}, err
	}
	r, err := router.New(nc, nil)
	if err != nil {
		return role{}, err
	}
	_, err = r.Handle(serviceIndex, "refund", host.Func(refund), host.Annotate(tool.Annotations{
		ParallelSafe: true, ResourceKey: tool.ResourceKey{Parts: []string{"order", "{order}"}},
	}))
	if err == nil {
		_, err = r.Handle(serviceIndex, "turn", host.Func(refund), host.Annotate(tool.Annotations{LaneScope: tool.LaneSession}))
	}
	if err == nil {
		_, err = r.Handle(serviceIndex, "echo", host.HandlerFunc(func(ctx context.Context, call *host.Call, sink host.Sink) error {
			return sink.Send(ctx, call.Args)
		}), host.Schema(json.RawMessage(`{"type":"object"}`), nil))
	}
	if err == nil {
		err = r.Start(ctx)
	}
	if err != nil {
		return role{}, err
	}
	owner, err := ownLanes(ctx, args[0])
	if err != nil {
		return role{}, err
	}
	do := func(_ context.Context, q request) (answer, error) { return answer{}, errUnknown(q) }
	stop := stops(r.Stop, nc)
	return role{do: do, stop: func() { owner(); stop() }}, nil
}

// ownLanes has another node own the lanes of the session, so that a call of one is not
// where they are.
func ownLanes(ctx context.Context, url string) (stop func(), err error) {
	nc, err := dial(url)
	if err != nil {
		return nil, err
	}
	r, err := router.New(nc, nil)
	if err == nil {
		_, err = r.Handle("owner", "turn", host.Func(refund), host.Annotate(tool.Annotations{LaneScope: tool.LaneSession}))
	}
	if err == nil {
		err = r.Start(ctx)
	}
	if err == nil {
		_, err = r.Call(ctx, "owner.turn", json.RawMessage(callArgs))
	}
	return stops(r.Stop, nc), err
}

// batches times batches, each of so many calls.
func (c *caller) batches(ctx context.Context, n, calls int) (answer, error) {
	members := make([]client.BatchCall, calls)
	for i := range members {
		members[i] = client.BatchCall{
			Tool: serviceIndex + ".refund", Args: json.RawMessage(`{"order":"` + strconv.Itoa(i) + `","amount":7}`),
		}
	}
	a, err := each(n, func() error {
		results, err := c.mesh.Batch(ctx, members)
		for i := range results {
			if err == nil {
				err = results[i].Err
			}
		}
		return err
	})
	a.Ops *= calls
	return a, err
}

// measureBulk is what many calls at once cost, against the same calls one by one.
func (p *plan) measureBulk(ctx context.Context, stderr io.Writer, s *stage, r *result) error {
	service, err := startChild(ctx, stderr, "service", s.broker.hello)
	if err != nil {
		return err
	}
	defer service.end()
	sides := []struct {
		name string
		ask  request
	}{
		{"one call", request{Do: "unary", Side: sideService, N: p.Calls / 2}},
		{"batch of 10", request{Do: "batch", N: max(p.Calls/10, 1), Callers: 10}},
		{"64 callers", request{Do: "burst", Side: sideService, N: p.Burst, Callers: burstCallers}},
		{"batch of 1000", request{Do: "batch", N: max(p.Burst/1000, 1), Callers: 1000}},
		{"two writes", request{Do: "writes", N: p.Calls / 2}},
		{"with a key", request{Do: "keyed", N: p.Calls / 2}},
		{"with a turn", request{Do: "turns", N: p.Calls / 2}},
		{"two publishes", request{Do: "publishes", N: p.Calls / 2}},
		{"a task", request{Do: "tasks", N: p.Calls / 2}},
		{"64 MB by hand", request{Do: "objects", N: 1}},
		{"64 MB", request{Do: "large", N: 1}},
	}
	got := map[string][]answer{}
	for round := range p.Rounds + 1 {
		for _, side := range sides {
			one, err := s.caller.ask(side.ask)
			if err != nil {
				return fmt.Errorf("%s: %w", side.name, err)
			}
			if round > 0 { // each side is warm
				got[side.name] = append(got[side.name], one)
			}
		}
	}
	r.samples["bulk"] = got
	return nil
}

// writes times what an idempotency key costs at least: a key of a bucket that is created,
// and then updated.
func (c *caller) writes(ctx context.Context, n int) (answer, error) {
	js, err := jetstream.New(c.raw)
	if err != nil {
		return answer{}, err
	}
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "RAW_KEYS"})
	if err != nil {
		return answer{}, err
	}
	return each(n, func() error {
		key := uuid.NewString()
		revision, err := kv.Create(ctx, key, []byte(callArgs))
		if err == nil {
			_, err = kv.Update(ctx, key, []byte(callResult), revision)
		}
		return err
	})
}

// wideArgs is 64 MB of arguments, which are the result as well.
var wideArgs = sync.OnceValue(func() json.RawMessage {
	return json.RawMessage(`{"text":"` + strings.Repeat("0123456789abcdef", 4_000_000) + `"}`)
})

// objects times what a large argument and a large result cost at least: each is put into an
// object store, and got from there.
func (c *caller) objects(ctx context.Context, n int) (answer, error) {
	js, err := jetstream.New(c.raw)
	if err != nil {
		return answer{}, err
	}
	store, err := js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "RAW_OBJECTS"})
	if err != nil {
		return answer{}, err
	}
	return each(n, func() error {
		for _, name := range []string{"argument", "result"} {
			if _, err := store.PutBytes(ctx, name, wideArgs()); err != nil {
				return err
			}
			if _, err := store.GetBytes(ctx, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// large times calls with that argument and result.
func (c *caller) large(ctx context.Context, n int) (answer, error) {
	return each(n, func() error {
		r, err := c.mesh.Call(ctx, serviceIndex+".echo", wideArgs())
		if err == nil && len(r.Value) != len(wideArgs()) {
			err = fmt.Errorf("%d bytes came back", len(r.Value))
		}
		return err
	})
}

// keyed times calls that have an idempotency key each.
func (c *caller) keyed(ctx context.Context, n int) (answer, error) {
	return each(n, func() error {
		_, err := c.mesh.Call(ctx, serviceIndex+".refund", json.RawMessage(callArgs), client.WithIdempotencyKey(uuid.NewString()))
		return err
	})
}

// turns times calls that each have a turn in a lane, which is another node's and which
// nobody else wants.
func (c *caller) turns(ctx context.Context, n int) (answer, error) {
	return each(n, func() error {
		_, err := c.mesh.Call(ctx, serviceIndex+".turn", json.RawMessage(callArgs))
		return err
	})
}

// publishes times two messages that a stream acknowledges.
func (c *caller) publishes(ctx context.Context, n int) (answer, error) {
	js, err := jetstream.New(c.raw)
	if err != nil {
		return answer{}, err
	}
	if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "RAW_TASKS", Subjects: []string{"raw.tasks"}}); err != nil {
		return answer{}, err
	}
	return each(n, func() error {
		for range 2 {
			if _, err := js.Publish(ctx, "raw.tasks", []byte(callArgs)); err != nil {
				return err
			}
		}
		return nil
	})
}

// tasks times tasks from their submission to their results.
func (c *caller) tasks(ctx context.Context, n int) (answer, error) {
	return each(n, func() error {
		task, err := c.mesh.Submit(ctx, serviceIndex+".refund", json.RawMessage(callArgs), nil)
		if err == nil {
			_, err = task.Wait(ctx)
		}
		return err
	})
}

const sideService = "service" // a tool of a service that runs batches

// perCall is the time of one call of many.
func perCall(a answer) float64 { return float64(a.Took) / float64(a.Ops) }

func (r *result) concludeBulk() {
	got := r.samples["bulk"]
	if len(got) == 0 {
		return
	}
	r.compared("bulk: batch of 10 no-op Go tools against one call, p50", got["batch of 10"], got["one call"], p50, micros, &bound{must: 3, goal: 2})
	both := make([]answer, len(got["one call"]))
	for i, one := range got["one call"] {
		both[i] = answer{P50: one.P50 + got["two writes"][i].P50}
	}
	r.compared("bulk: a call with an idempotency key against one without and two writes to a bucket, p50", got["with a key"], both, p50, micros, &bound{must: 1.3, goal: 1.1})
	r.compared("bulk: a call in a session's lane that is another node's, against one without, p50", got["with a turn"], got["one call"], p50, micros, &bound{must: 2.2, goal: 1.8})
	r.compared("bulk: a task from its submission to its result against two acknowledged JetStream publishes, p50", got["a task"], got["two publishes"], p50, micros, &bound{must: 20, goal: 12})
	r.compared("bulk: 64 MB argument and result against an object store's put and get of both, p50", got["64 MB"], got["64 MB by hand"], p50, wholeMillis, &bound{must: 1.5, goal: 1.2})
	r.compared("bulk: a call in a batch of 1,000 against one by 64 callers", got["batch of 1000"], got["64 callers"], perCall, micros, &bound{must: 0.7, goal: 0.4})
}
