package callout_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/callout"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// holder is a client with a token.
type holder struct {
	nc     *nats.Conn
	client *client.Client
}

func (h *holder) call(t *testing.T, tool string) error {
	t.Helper()
	_, err := h.client.Call(t.Context(), subjects.ToolID("lab."+tool), nil, client.WithTimeout(10*time.Second))
	return err
}

// allowed fails unless the token may call the tools of may, and none of not.
func (h *holder) allowed(t *testing.T, may, not []string) {
	t.Helper()
	for _, one := range may {
		if err := h.call(t, one); err != nil {
			t.Errorf("%s: %v", one, err)
		}
	}
	for _, one := range not {
		if err := h.call(t, one); toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied {
			t.Errorf("%s: %v, want permission_denied", one, err)
		}
	}
}

// again connects anew, as a client does when its connection has come to its end.
func again(t *testing.T, h *holder) {
	t.Helper()
	before := h.nc.Stats().Reconnects
	if err := h.nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the client is connected again", func() bool { return h.nc.Stats().Reconnects > before && h.nc.IsConnected() })
}

// A narrowed token calls its tools alone, in any form of its globs, and its rights at the broker
// are renewed. It ends when it expires, when it is revoked, and with its session.
func TestNarrowedTokens(t *testing.T) {
	t.Parallel()
	k := meshtest.WithKeys(t)
	records := sessions(t, k.As(t, access.Node))
	issuer, err := access.ReadIssuer(access.IssuerFile(k.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	r, err := router.New(k.As(t, access.Node), nil)
	if err == nil {
		err = r.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r) })
	h, err := host.New(k.As(t, access.Node), &host.Options{Index: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	serve := func(name string, a tool.Annotations) {
		t.Helper()
		if _, err := h.Handle(name, host.HandlerFunc(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
			return sink.Send(ctx, json.RawMessage("1"))
		}), host.Annotate(a)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"read", "write", "deep.write"} {
		serve(name, tool.Annotations{ReadOnly: name == "read"})
	}
	testmesh.Start(t, h)
	t.Cleanup(func() { _ = h.Stop(context.WithoutCancel(t.Context())) })
	answer(t, k, issuer, callout.Options{Renew: time.Hour, Seen: r.Seen})
	if err := records.CreateSession(t.Context(), registry.SessionRecord{ID: "mine", Epoch: "1", Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	hold := func(record registry.TokenRecord) *holder {
		t.Helper()
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		if record.Key, err = pair.PublicKey(); err != nil {
			t.Fatal(err)
		}
		record.Session, record.Epoch, record.Created = "mine", "1", time.Now()
		if err := records.CreateToken(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		one := &holder{}
		meshtest.Until(t, "token "+record.ID+" is admitted", func() bool {
			one.nc, err = nats.Connect(k.URL, append(bus.ConnectOptions(nil), nats.Nkey(record.Key, pair.Sign), nats.CustomInboxPrefix("_INBOX_mine"))...)
			return err == nil
		})
		t.Cleanup(one.nc.Close)
		if one.client, err = client.New(one.nc, &client.Options{Session: "mine"}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(one.client.Close)
		return one
	}
	meshtest.Until(t, "the tools are known", func() bool {
		view := r.Seen()
		if view == nil {
			return false
		}
		route, _ := view.Route("mine", "lab.deep.write")
		return len(route.Nodes) > 0
	})

	whole := hold(registry.TokenRecord{ID: "whole"})
	whole.allowed(t, []string{"read", "write", "deep.write"}, nil)
	exact := hold(registry.TokenRecord{ID: "exact", Tools: []string{"lab.*"}})
	exact.allowed(t, []string{"read", "write"}, []string{"deep.write"})
	hold(registry.TokenRecord{ID: "deep", Tools: []string{"lab.deep.**", "other.x*"}}).allowed(t, []string{"deep.write"}, []string{"read"})
	hold(registry.TokenRecord{ID: "readers", ReadOnly: true}).allowed(t, []string{"read"}, []string{"write", "deep.write"})
	listed := hold(registry.TokenRecord{ID: "listed", Tools: []string{"lab.wri*", "lab.late*"}})
	listed.allowed(t, []string{"write"}, []string{"read", "deep.write", "late"})

	// Nor is there a way round by the calls that a server makes.
	if _, err := exact.client.Batch(t.Context(), []client.BatchCall{{Tool: "lab.deep.write"}}); toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied {
		t.Errorf("a batch: %v", err)
	}
	if _, err := exact.client.Submit(t.Context(), "lab.deep.write", nil, nil); toolmesh.CodeOf(err) != toolmesh.CodePermissionDenied {
		t.Errorf("a task: %v", err)
	}

	serve("late", tool.Annotations{})
	meshtest.Until(t, "a tool that came later can be called by a new connection", func() bool {
		again(t, listed)
		return listed.call(t, "late") == nil
	})

	brief := hold(registry.TokenRecord{ID: "brief", Expires: time.Now().Add(3 * time.Second)})
	refused := func(of *holder) func() bool {
		return func() bool {
			_ = of.nc.ForceReconnect() // until the change is known it is admitted again
			return !of.nc.IsConnected() && errors.Is(of.nc.LastError(), nats.ErrAuthorization)
		}
	}
	meshtest.Until(t, "the broker ends the connection of a token that has expired", func() bool {
		return !brief.nc.IsConnected() && errors.Is(brief.nc.LastError(), nats.ErrAuthorization)
	})
	if err := records.DeleteToken(t.Context(), "mine", "whole"); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "a revoked token is refused", refused(whole))
	if err := records.DeleteSession(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	if err := records.CreateSession(t.Context(), registry.SessionRecord{ID: "mine", Epoch: "2", Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "a token of an earlier session of the name is refused", refused(exact))
}
