package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) {
	meshtest.Parallel(8)
	meshtest.Main(m)
}

type refundArgs struct {
	Order  string `json:"order"`
	Amount int    `json:"amount"`
}

type refundResult struct {
	Order    string `json:"order"`
	Refunded int    `json:"refunded"`
}

func refund(_ context.Context, in refundArgs) (refundResult, error) {
	if in.Amount < 0 {
		return refundResult{}, errors.New("a negative refund is a charge")
	}
	return refundResult{Order: in.Order, Refunded: in.Amount}, nil
}

type countArgs struct {
	To int `json:"to"`
}

func count(ctx context.Context, in countArgs) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for i := 1; i <= in.To; i++ {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// serve starts a host of index "billing" and stops it with the test.
func serve(t *testing.T, top *meshtest.Topology, i int, opts *host.Options) *host.Host {
	t.Helper()
	o := host.Options{Index: "billing"}
	if opts != nil {
		o = *opts
	}
	nc := top.ServeOn(t, i)
	h := testmesh.Host(t, nc, &o)
	if o.Index == "billing" {
		for name, handler := range map[string]host.Handler{
			"refund": host.Func(refund), "count": host.Stream(count),
			"sleep": host.HandlerFunc(sleep), "fail_after": host.HandlerFunc(failAfter),
		} {
			if _, err := h.Handle(name, handler); err != nil {
				t.Fatal(err)
			}
		}
	}
	testmesh.Start(t, h)
	joined(t, nc, h)
	return h
}

// sleep waits until its call is over, or for {"ms"}.
func sleep(ctx context.Context, call *host.Call, sink host.Sink) error {
	var in struct {
		MS int `json:"ms"`
	}
	if err := json.Unmarshal(call.Args, &in); err != nil {
		return err
	}
	timer := time.NewTimer(time.Duration(in.MS) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return sink.Send(ctx, json.RawMessage(`"slept"`))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// failAfter sends {"items"} items and fails.
func failAfter(ctx context.Context, call *host.Call, sink host.Sink) error {
	var in struct {
		Items int `json:"items"`
	}
	if err := json.Unmarshal(call.Args, &in); err != nil {
		return err
	}
	for i := range in.Items {
		if err := sink.Send(ctx, json.RawMessage(fmt.Sprint(i))); err != nil {
			return err
		}
	}
	return errors.New("out of items")
}

func newClient(t *testing.T, top *meshtest.Topology, i int) *client.Client {
	t.Helper()
	c := testmesh.Client(t, top.CallOn(t, i), &client.Options{Session: top.Session})
	return c
}

// untilServed calls until interest has spread through the cluster.
func untilServed(t *testing.T, c *client.Client, id subjects.ToolID, args any) *client.Result {
	t.Helper()
	var result *client.Result
	meshtest.Until(t, "tool "+string(id)+" is served", func() bool {
		r, err := c.Call(t.Context(), id, args)
		result = r
		return err == nil
	})
	return result
}

func TestCall(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		h := serve(t, top, 0, nil)
		c := newClient(t, top, 1)
		r := untilServed(t, c, "billing.refund", map[string]any{"order": "A1", "amount": 7})
		if diff := cmp.Diff(`{"order":"A1","refunded":7}`, string(r.Value)); diff != "" {
			t.Errorf("result (-want +got):\n%s", diff)
		}
		if r.Node != h.Node() {
			t.Errorf("node = %q, want %q", r.Node, h.Node())
		}
		_, err := c.Call(t.Context(), "billing.refund", map[string]any{"order": "A1", "amount": -1})
		e := toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeToolError || e.Message != "a negative refund is a charge" || e.Started != toolmesh.StartedYes {
			t.Errorf("failing tool: %#v", e)
		}
		_, err = c.Call(t.Context(), "billing.refund", map[string]any{"order": 5, "extra": 1})
		e = toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeInvalidArguments || e.Started != toolmesh.StartedNo {
			t.Fatalf("bad arguments: %#v", e)
		}
		if list, _ := e.Details["errors"].([]any); len(list) != 3 {
			t.Errorf("details.errors = %v, want order, amount and extra", e.Details["errors"])
		}
		_, err = c.Call(t.Context(), "billing.sleep", map[string]any{"ms": 60_000}, client.WithTimeout(50*time.Millisecond))
		if toolmesh.CodeOf(err) != toolmesh.CodeDeadlineExceeded {
			t.Errorf("timeout: %v", err)
		}
	})
}

func TestStream(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		serve(t, top, 0, nil)
		c := newClient(t, top, 1)
		untilServed(t, c, "billing.refund", map[string]any{"order": "A1", "amount": 7})
		for _, n := range []int{0, 1, 3, 5000} {
			next := 1
			for chunk, err := range c.Stream(t.Context(), "billing.count", countArgs{To: n}) {
				if err != nil {
					t.Fatalf("stream of %d: after %d items: %v", n, next-1, err)
				}
				var got int
				if err := chunk.Decode(&got); err != nil || got != next || chunk.Seq != int64(next) {
					t.Fatalf("stream of %d: item %d = %s (seq %d)", n, next, chunk.Data, chunk.Seq)
				}
				next++
			}
			if next != n+1 {
				t.Errorf("stream of %d ended after %d items", n, next-1)
			}
		}
		for _, items := range []int{0, 3} {
			got := 0
			var last error
			for _, err := range c.Stream(t.Context(), "billing.fail_after", map[string]any{"items": items}) {
				if last = err; err == nil {
					got++
				}
			}
			if got != items || toolmesh.CodeOf(last) != toolmesh.CodeToolError {
				t.Errorf("failing after %d items: %d items, then %v", items, got, last)
			}
		}
	})
}

// A host that is stopped during its start ends without an error, and leaves nothing.
func TestRunWithAnEndedContext(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	for range 5 {
		h, err := host.New(broker.Connect(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- h.Run(ctx) }()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("got %v", err)
		}
	}
}

// A node whose lease is written too slowly serves meanwhile and retries: it neither fails to
// start nor ends.
func TestLeaseThatIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t, meshtest.Config(`mappings: { "$KV.MESH_NODES.slow": "lost.slow" }`))
	nc := s.Connect(t)
	attempts, err := nc.SubscribeSync("lost.slow")
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	h := newDesk().host(t, s.Connect(t), &host.Options{Node: "slow"})
	if err := h.Start(t.Context()); err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { meshtest.End(t, h) })
	for n := range 3 {
		if _, err := attempts.NextMsg(time.Minute); err != nil {
			t.Fatalf("attempt %d: %v", n+1, err)
		}
	}
	if _, err := nc.Request("tools.default.desk.note", []byte(`{"key":"k"}`), time.Minute); err != nil {
		t.Errorf("a call: %v", err)
	}
	if h.Unregistered() == nil || h.Unready() == nil {
		t.Errorf("it is in the registry: %v, %+v", h.Unregistered(), h.Figures())
	}
}

// A host without a registry serves, and reports the broker's reason for it; a broker that can never have the
// registry is an error at once.
func TestMissingRegistryHasAReason(t *testing.T) {
	t.Parallel()
	cluster := meshtest.Cluster(t, 2)
	h := testmesh.Host(t, cluster[0].Connect(t), &host.Options{Index: "desk", StoreOptions: host.StoreOptions{Replicas: 3}})
	if err := h.Start(t.Context()); err != nil {
		t.Fatalf("start in a cluster that lacks a server: %v", err)
	}
	if why := h.Unregistered(); why == nil || !strings.Contains(why.Error(), "no suitable peers") {
		t.Errorf("it is not in the registry for %v, want: no suitable peers", why)
	}
	alone := testmesh.Host(t, meshtest.Broker(t).Connect(t), &host.Options{Index: "desk", StoreOptions: host.StoreOptions{Replicas: 3}})
	if err := alone.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "non-clustered") {
		t.Errorf("start of three copies on one server: %v, want the broker's reason", err)
	}
}
