package main

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

type link struct {
	nc      *nats.Conn
	domain  string // of JetStream; "" for the connection's own
	bus     *bus.Bus
	client  *client.Client
	session subjects.SessionID
	url     string // without secrets
}

// withMesh finds the mesh, connects, and runs do. If no node answers, the error says so instead of
// the failure that followed from it.
func (a *app) withMesh(ctx context.Context, do func(ctx context.Context, l *link) error) error {
	l, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	err = do(ctx, l)
	if err == nil || ctx.Err() != nil {
		return err
	}
	var done *reported
	if isUsage(err) || errors.As(err, &done) {
		return err
	}
	return l.explained(ctx, err)
}

// onMesh adapts a command that needs a mesh to cobra; see withMesh.
func (a *app) onMesh(do func(ctx context.Context, l *link, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.withMesh(cmd.Context(), func(ctx context.Context, l *link) error { return do(ctx, l, args) })
	}
}

// explained replaces an error that means that no node exists. err keeps saying whether something
// has begun: nodes may have left since.
func (l *link) explained(ctx context.Context, err error) error {
	e := toolmesh.AsError(err)
	if e.Code == toolmesh.CodeUnavailable || e.Code == toolmesh.CodeInternal {
		if none := l.noMesh(ctx); none != nil {
			return toolmesh.AsError(none).WithStarted(e.Started)
		}
	}
	return err
}

// withView runs do with a view of the registry.
func (a *app) withView(ctx context.Context, do func(context.Context, *link, *registry.View) error) error {
	return a.withMesh(ctx, func(ctx context.Context, l *link) error {
		if none := l.noMesh(ctx); none != nil {
			return none
		}
		if err := inventory.MayAsk(ctx, l.bus, l.domain); err != nil {
			return err
		}
		view, err := registry.OpenView(ctx, l.bus, &registry.ViewOptions{Logger: a.log})
		if err != nil {
			return err
		}
		defer view.Close()
		return do(ctx, l, view)
	})
}

// connect connects as an administrator; see connectAs.
func (a *app) connect(ctx context.Context) (*link, error) {
	return a.connectAs(ctx, "mesh", access.Admin)
}

// connectAs connects to the mesh that flags, variables, a context or the records of `mesh up` name,
// else to the NATS default port. It uses the given name, and without credentials the key and the
// inbox of the role.
func (a *app) connectAs(ctx context.Context, name string, role access.Role) (*link, error) {
	session := subjects.SessionID(a.set.Session.Session)
	inboxes, err := connect.Inboxes(role, session)
	if err != nil {
		return nil, usage(nil, "%s", err.Error())
	}
	nc, domain, err := connect.Connect(ctx, connect.Options{
		Settings: a.set.Connection.Settings(), Env: a.env, Name: name, Role: role, Inboxes: inboxes, Logger: a.log,
		SayServer: "--server", SaySession: "--session",
	})
	if err != nil {
		return nil, err
	}
	l := &link{nc: nc, domain: domain, session: session, url: connect.Redact(nc.ConnectedUrl())}
	if l.bus, err = bus.New(nc, &bus.Options{Domain: domain, Caller: session, Logger: a.log}); err == nil {
		l.client, err = client.NewOn(l.bus, &client.Options{Session: l.session, QueueOnly: true, Logger: a.log})
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *link) close() {
	if l.client != nil {
		l.client.Close()
	}
	if l.bus != nil {
		l.bus.Close()
	}
	l.nc.Close()
}

// noMesh returns an error if the broker answers but no node of a mesh does.
func (l *link) noMesh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	subject, err := subjects.Registry(l.session, registry.VerbList)
	if err != nil {
		return nil
	}
	_, err = l.bus.Request(ctx, &nats.Msg{Subject: subject, Data: []byte(`{"limit":1}`)})
	if !errors.Is(err, nats.ErrNoResponders) {
		return nil
	}
	return refused(toolmesh.OriginCaller, toolmesh.CodeUnavailable, "no mesh at %s: a NATS server answers, but no node; run mesh up", l.url)
}

// last passes each line of an agent's answer to take until that returns false, and returns the last
// line.
func last(answer iter.Seq2[json.RawMessage, error], take func(json.RawMessage) bool) (line json.RawMessage, err error) {
	for line, err = range answer {
		if err != nil {
			return nil, err
		}
		if take != nil && !take(line) {
			break
		}
	}
	return line, nil
}
