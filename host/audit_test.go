package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// What became of each call is kept, of one that failed and of a result that was kept, too, with
// the key that the caller's inbox names and without its arguments. A node that is not told to
// says nothing.
func TestCallsAreAudited(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	for _, audited := range []bool{true, false} {
		index := subjects.IndexName("quiet")
		if audited {
			index = "lab"
		}
		h, err := host.New(s.Connect(t), &host.Options{Index: index, Node: subjects.NodeID(index), Revision: "r1", StoreOptions: host.StoreOptions{Audit: audited}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Handle("pay", host.Func(func(_ context.Context, a struct{ To string }) (string, error) {
			if a.To == "" {
				return "", errors.New("nobody to pay")
			}
			return a.To, nil
		}), host.Annotate(tool.Annotations{CacheTTL: time.Minute})); err != nil {
			t.Fatal(err)
		}
		if err := h.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Stop(context.WithoutCancel(t.Context())) })
	}
	inbox, err := subjects.KeyedInbox("ann", "0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	for i, nc := range []*nats.Conn{s.Connect(t, nats.CustomInboxPrefix(inbox)), s.Connect(t)} {
		c, err := client.New(nc, &client.Options{Session: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if _, err := c.Call(t.Context(), "quiet.pay", map[string]string{"To": "bob"}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Call(t.Context(), "lab.pay", map[string]string{"To": "bob"}, client.WithRPCID(subjects.RPCID([]string{"one", "two"}[i]))); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if _, err := c.Call(t.Context(), "lab.pay", map[string]string{"To": ""}, client.WithRPCID("bad")); toolmesh.CodeOf(err) != toolmesh.CodeToolError {
				t.Fatal(err)
			}
		}
	}
	kept := make(map[subjects.RPCID]codec.CallEvent)
	b, err := bus.New(s.Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	meshtest.Until(t, "three calls are kept", func() bool {
		for m, err := range store.Of(b).Read(t.Context(), store.Query{Stream: subjects.StreamAudit, Subject: subjects.AllCallEvents}) {
			var e codec.CallEvent
			if err == nil {
				err = json.Unmarshal(m.Data, &e)
			}
			if err != nil {
				t.Fatal(err)
			}
			if e.Time.IsZero() || e.DurationMS < 0 {
				t.Errorf("%+v", e)
			}
			kept[e.RPCID] = e
		}
		return len(kept) == 3
	})
	event := func(rpc subjects.RPCID, key, status string, code toolmesh.Code, digest string) codec.CallEvent {
		return codec.CallEvent{Key: key, Session: "ann", Tool: "lab.pay", Revision: "r1", RPCID: rpc, Node: "lab", Status: status, Code: code, ArgumentsDigest: digest}
	}
	bob, nobody := kept["one"].ArgumentsDigest, kept["bad"].ArgumentsDigest
	want := map[subjects.RPCID]codec.CallEvent{
		"one": event("one", "0123456789abcdef", "ok", "", bob),
		"bad": event("bad", "0123456789abcdef", "error", toolmesh.CodeToolError, nobody),
		"two": event("two", "", "ok", "", bob),
	}
	if diff := cmp.Diff(want, kept, cmpopts.IgnoreFields(codec.CallEvent{}, "Time", "DurationMS")); diff != "" || len(bob) != 64 || bob == nobody {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
