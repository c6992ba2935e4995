package process

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/deploy/declared"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/router/standby"
	"github.com/toolmesh/toolmesh/subjects"
)

// Router is the command mesh-router: it joins a mesh and answers requests to the registry until a
// signal. env is the process's environment.
func Router(ctx context.Context, args, env []string, stdout, stderr io.Writer, version string) int {
	var s settings.Router
	cmd := &cobra.Command{
		Use: "mesh-router", Short: "A router of a mesh: answers the registry's questions",
		Long: `mesh-router joins the mesh at --server and answers requests to the registry. With
--indexes it makes agents install, upgrade and remove the indexes that a file lists, if
no other router does so already. It ends on SIGINT and SIGTERM. Each setting is a
variable or a flag; the flag wins.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serveRouter(cmd.Context(), &s, env, stderr, version)
		},
	}
	return execute(ctx, cmd, &s, &s.Connection, args, env, stdout, stderr, version)
}

func serveRouter(ctx context.Context, s *settings.Router, env []string, stderr io.Writer, version string) error {
	OutliveReaders()
	defer Pace()()
	log := Logger(stderr, s.Logging, slog.LevelInfo)
	issuer, err := readIssuer(s.Auth)
	if err != nil {
		return err
	}
	watch, stop, err := serveMonitor(ctx, s.Monitoring, version, log)
	if err != nil {
		return err
	}
	defer stop()
	role := access.Node
	if s.Indexes != "" {
		role = access.Admin // agents install for administrators only
	}
	nc, err := join(ctx, s.Connection, "mesh-router", role, env, log)
	if err != nil {
		return err
	}
	defer nc.Close()
	r, err := router.New(nc, &router.Options{
		Version: version, SessionPolicy: s.Policy.SessionPolicy, Logger: log,
		Standby: held(s), StoreOptions: storeOptions(s.Store),
	})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // no effect after the call below
	watch(r)
	if err := r.Start(ctx); err != nil {
		return err
	}
	keys, err := serveSessionKeys(ctx, nc, issuer, s.Auth, r.Seen, log)
	if err != nil {
		return err
	}
	defer keys()
	_, unserve, err := ServeGateway(ctx, s.Gateway, s.GatewayListen, false, r, dialAs(nc, log), version, log)
	if err != nil {
		return err
	}
	defer unserve()
	kept, err := keepIndexes(ctx, nc, r, s, env, log)
	if err != nil {
		return err
	}
	log.Info("ready", slog.String("node", string(r.Node())), slog.String("version", version))
	<-ctx.Done()
	log.Info("stopping: signalled")
	unserve() // first: the gateway needs the router's view to check tokens
	kept()
	if err := r.Close(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	log.Info("stopped")
	return nil
}

// keepIndexes keeps the indexes of the mesh as the file in the settings lists them, if any, until
// stopped.
func keepIndexes(ctx context.Context, nc *nats.Conn, r *router.Router, s *settings.Router, env []string, log *slog.Logger) (stop func(), err error) {
	if s.Indexes == "" {
		return func() {}, nil
	}
	view, err := r.View(ctx)
	if err != nil {
		return nil, err
	}
	b, err := bus.New(nc, &bus.Options{Logger: log})
	if err != nil {
		return nil, err
	}
	if err := b.CheckRights(ctx, "have agents install what --indexes lists: that takes an administrator's key", subjects.InstallerRights()); err != nil {
		b.Close()
		return nil, err
	}
	records, err := registry.NewStore(b)
	if err != nil {
		return nil, err
	}
	k := declared.New(b, view, records, s.Indexes, &declared.Options{Env: env, Logger: log})
	k.Start()
	return func() {
		k.Stop()
		b.Close()
	}, nil
}

// held returns the options for calls that wait for a node; nil if none may.
func held(s *settings.Router) *standby.Options {
	if s.HeldCalls == 0 {
		return nil
	}
	return &standby.Options{Calls: s.HeldCalls, Timeout: s.HeldTimeout}
}
