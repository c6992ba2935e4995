package host_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// secretive is a handler that knows a secret.
type secretive struct{ host.Handler }

func (secretive) Redact(text string) string { return strings.ReplaceAll(text, "hunter2", "***") }

// Each call is an event while events have a subscriber, also a call that the node refuses. With
// an audit the mesh stores the events, with the key of the caller's inbox; a node with
// AuditArguments adds the arguments, without its secrets.
func TestCallsAreAudited(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	running, proceed := make(chan struct{}), make(chan struct{})
	start := func(o host.Options) {
		o.Node, o.Revision = subjects.NodeID(o.Index), "r1"
		h, err := host.New(s.Connect(t), &o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Handle("pay", secretive{host.Func(func(_ context.Context, a struct{ To string }) (string, error) {
			switch a.To {
			case "":
				return "", errors.New("nobody to pay")
			case "wait":
				close(running)
				<-proceed
			}
			return a.To, nil
		})}, host.Schema(nil, json.RawMessage(`{"type":"string"}`)), host.Annotate(tool.Annotations{CacheTTL: time.Minute, LaneScope: tool.LaneNode})); err != nil {
			t.Fatal(err)
		}
		testmesh.Start(t, h)
		t.Cleanup(func() { _ = h.Stop(context.WithoutCancel(t.Context())) })
	}
	inbox, err := subjects.InboxPrefix("ann")
	if err != nil {
		t.Fatal(err)
	}
	inbox = subjects.KeyedInbox(inbox, "0123456789abcdef")
	keyed, plain := s.Connect(t, nats.CustomInboxPrefix(inbox)), s.Connect(t)
	pay := func(nc *nats.Conn, id subjects.ToolID, rpc subjects.RPCID, to string) toolmesh.Code {
		c := testmesh.Client(t, nc, &client.Options{Session: "ann"})
		_, err = c.Call(t.Context(), id, map[string]string{"To": to}, client.WithRPCID(rpc))
		return toolmesh.CodeOf(err)
	}
	told := func(data []byte) (e codec.CallEvent) {
		if err := json.Unmarshal(data, &e); err != nil || e.Time.IsZero() || e.DurationMS < 0 {
			t.Errorf("%s: %v", data, err)
		}
		return e
	}

	start(host.Options{Index: "quiet", Slots: 1})
	if code := pay(keyed, "quiet.pay", "unheard", "bob"); code != "" {
		t.Fatal(code)
	}
	events := make(chan *nats.Msg, 1000)
	if _, err := plain.ChanSubscribe(subjects.AllCallEvents, events); err != nil || plain.Flush() != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "calls are heard", func() bool {
		pay(plain, "quiet.pay", subjects.NewRPCID("rpc_"), "bob")
		return len(events) > 0
	})
	waited := make(chan toolmesh.Code, 1)
	go func() { waited <- pay(plain, "quiet.pay", "waits", "wait") }()
	<-running
	for header, want := range map[string]toolmesh.Code{
		codec.HeaderTimeout + "=soon": toolmesh.CodeInvalidRequest, codec.HeaderRevision + "=r0": toolmesh.CodeUnavailable, codec.HeaderTimeout + "=1": toolmesh.CodeBusy,
	} {
		m := nats.NewMsg("tools.ann.quiet.pay")
		name, value, _ := strings.Cut(header, "=")
		m.Header.Set(name, value)
		m.Header.Set(codec.HeaderRPCID, "refused_"+string(want))
		m.Data = []byte(`{"To":"eve"}`)
		if _, err := keyed.RequestMsg(m, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	close(proceed)
	if code := <-waited; code != "" {
		t.Fatal(code)
	}
	want := map[subjects.RPCID]toolmesh.Code{
		"waits": "", "refused_invalid_request": toolmesh.CodeInvalidRequest, "refused_unavailable": toolmesh.CodeUnavailable, "refused_busy": toolmesh.CodeBusy,
	}
	for len(want) > 0 {
		e := told((<-events).Data)
		code, listed := want[e.RPCID]
		if listed && (e.Code != code || e.Tool != "quiet.pay" || e.Node != "quiet" || (e.Key != "") != (code != "") || e.Arguments != nil) {
			t.Errorf("%+v", e)
		}
		delete(want, e.RPCID)
	}
	b := testmesh.Bus(t, s.Connect(t), nil)
	if _, err := b.JetStream().Stream(t.Context(), subjects.StreamAudit); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("kept without an audit: %v", err)
	}

	start(host.Options{Index: "lab", StoreOptions: host.StoreOptions{Audit: true}, AuditArguments: true})
	pay(keyed, "lab.pay", "one", "hunter2")
	pay(plain, "lab.pay", "two", "hunter2") // from the cache
	pay(keyed, "lab.pay", "bad", "")
	// Arguments for an unknown tool are left out, as they may hold any secrets, and so are large
	// ones.
	pay(keyed, "lab.pay", "large", strings.Repeat("x", 64<<10))
	gone := nats.NewMsg("mesh.node.lab.tools.ann.lab.gone")
	gone.Header.Set(codec.HeaderRPCID, "gone")
	gone.Data = []byte(`{"To":"hunter2"}`)
	if _, err := plain.RequestMsg(gone, time.Minute); err != nil {
		t.Fatal(err)
	}
	kept := make(map[subjects.RPCID]codec.CallEvent)
	meshtest.Until(t, "five calls are kept", func() bool {
		for m, err := range store.Of(b).Read(t.Context(), store.Query{Stream: subjects.StreamAudit, Subject: subjects.AllCallEvents}) {
			if err != nil {
				t.Fatal(err)
			}
			e := told(m.Data)
			kept[e.RPCID] = e
		}
		return len(kept) == 5
	})
	event := func(rpc subjects.RPCID, key, status string, code toolmesh.Code, to string) codec.CallEvent {
		args, err := json.Marshal(map[string]string{"To": to})
		if err != nil {
			t.Fatal(err)
		}
		return codec.CallEvent{
			Key: key, Session: "ann", Tool: "lab.pay", Revision: "r1", RPCID: rpc, Node: "lab", Status: status, Code: code,
			Arguments: json.RawMessage(strings.ReplaceAll(string(args), "hunter2", "***")), ArgumentsDigest: fmt.Sprintf("%x", sha256.Sum256(args)),
		}
	}
	for _, rpc := range []subjects.RPCID{"large", "gone"} {
		if e := kept[rpc]; e.Arguments != nil || e.ArgumentsDigest == "" {
			t.Errorf("%+v", e)
		}
		delete(kept, rpc)
	}
	if diff := cmp.Diff(map[subjects.RPCID]codec.CallEvent{
		"one": event("one", "0123456789abcdef", "ok", "", "hunter2"),
		"bad": event("bad", "0123456789abcdef", "error", toolmesh.CodeToolError, ""),
		"two": event("two", "", "ok", "", "hunter2"),
	}, kept, cmpopts.IgnoreFields(codec.CallEvent{}, "Time", "DurationMS")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
