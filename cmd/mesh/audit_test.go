package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// `mesh audit -f` shows each call that the mesh keeps once, also those that end while its connection is cut. The events
// of two calls may be kept in either order.
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
	for _, rpc := range []subjects.RPCID{"before", "meanwhile", "behind"} {
		switch rpc {
		case "meanwhile":
			proxy.Cut(true)
		case "behind":
			proxy.Heal()
		}
		if _, err := c.Call(t.Context(), "lab.pay", nil, client.WithRPCID(rpc)); err != nil {
			t.Fatal(err)
		}
		if rpc == "before" {
			meshtest.Until(t, "the first call is shown", func() bool { return strings.Contains(shown.text(), string(rpc)) })
		}
	}
	meshtest.Until(t, "both other calls are shown", func() bool {
		return strings.Contains(shown.text(), "meanwhile") && strings.Contains(shown.text(), "behind")
	})
	var got []subjects.RPCID
	for line := range strings.Lines(shown.text()) {
		var e codec.CallEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got = append(got, e.RPCID)
	}
	slices.Sort(got)
	if !slices.Equal(got, []subjects.RPCID{"before", "behind", "meanwhile"}) {
		t.Errorf("shown are %q", got)
	}
}
