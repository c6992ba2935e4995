package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// `mesh audit -f` shows each call that the mesh keeps once, also those that end while its connection is cut, and those of
// a stream that was made anew.
func TestFollowedAuditGoesOnBehindACut(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	h, err := host.New(s.Connect(t), &host.Options{Index: "lab", StoreOptions: host.StoreOptions{Audit: true}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Handle("pay", host.Func(func(context.Context, struct{}) (int, error) { return 1, nil })); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	t.Cleanup(func() { _ = h.Stop(context.WithoutCancel(t.Context())) })
	c := testmesh.Client(t, s.Connect(t), nil)
	proxy := meshtest.NewProxy(t, s)
	follow := meshCommand(t, t.TempDir(), "audit", "-f", "--json", "--server="+proxy.URL)
	shown := newWatch("")
	follow.Stdout, follow.Stderr = shown, os.Stderr
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = follow.Process.Kill(); _ = follow.Wait() }()
	b := testmesh.Bus(t, s.Connect(t), nil)
	calls := []subjects.RPCID{"before", "meanwhile", "behind", "anew", "later", "removed"}
	for _, rpc := range calls {
		switch rpc {
		case "meanwhile":
			proxy.Cut(true)
		case "behind":
			proxy.Heal()
		case "anew": // the new stream has fewer calls than the old one
			if err := errors.Join(b.JetStream().DeleteStream(t.Context(), subjects.StreamAudit), store.Of(b).Ensure(t.Context(), &store.Layout{Audit: true})); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Call(t.Context(), "lab.pay", nil, client.WithRPCID(rpc)); err != nil {
			t.Fatal(err)
		}
		if rpc != "meanwhile" {
			meshtest.Until(t, "the last call is shown", func() bool { return strings.Contains(shown.text(), string(rpc)) })
		}
	}
	stream, err := b.JetStream().Stream(t.Context(), subjects.StreamAudit)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := s.Connect(t).SubscribeSync("$JS.API.DIRECT.GET." + subjects.StreamAudit)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 3); err != nil { // the latest one, as if it had expired
		t.Fatal(err)
	}
	for again := 0; again < 2; { // all is read again once, and not at each interval
		var asked struct{ Seq uint64 }
		if m, err := requests.NextMsg(time.Minute); err != nil || json.Unmarshal(m.Data, &asked) != nil {
			t.Fatal(m, err)
		}
		switch {
		case asked.Seq == 1:
			again++
		case again == 1:
			again = 3
		}
		if again == 2 {
			t.Error("all that is kept is read at each interval")
		}
	}
	var got []subjects.RPCID
	for line := range strings.Lines(shown.text()) {
		var e codec.CallEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got = append(got, e.RPCID)
	}
	slices.Sort(got) // nodes send events, and calls that end one after the other may be kept in another order
	slices.Sort(calls)
	if !slices.Equal(got, calls) {
		t.Errorf("shown are %q", got)
	}
}
