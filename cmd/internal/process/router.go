package process

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// Router is the command mesh-router: it joins a mesh and answers the registry's
// questions until a signal ends it. env is the process's environment.
func Router(ctx context.Context, args, env []string, stdout, stderr io.Writer, version string) int {
	var s settings.Router
	loaded := settings.Load(env, &s)
	cmd := &cobra.Command{
		Use: "mesh-router", Short: "A router of a mesh: answers the registry's questions",
		Long: `mesh-router joins the mesh at --server and answers what clients ask of the
registry. It ends on SIGINT and SIGTERM. Each setting is a variable or a flag; the
flag wins.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serveRouter(cmd.Context(), &s, env, stderr, version)
		},
	}
	settings.Bind(cmd.Flags(), &s)
	return execute(ctx, cmd, &s.Connection, loaded, args, env, stdout, stderr, version)
}

func serveRouter(ctx context.Context, s *settings.Router, env []string, stderr io.Writer, version string) error {
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
	nc, err := join(ctx, s.Connection, "mesh-router", env, log)
	if err != nil {
		return err
	}
	defer nc.Close()
	r, err := router.New(nc, &router.Options{
		Session: subjects.SessionID(s.Session.Session), Version: version,
		SessionPolicy: string(s.Policy.SessionPolicy), Logger: log,
		Replicas: int(s.Store.Replicas), ChunksStorage: string(s.Store.ChunksStorage), ChunksMax: int64(s.Store.ChunksMax), PayloadsMax: int64(s.Store.PayloadsMax),
	})
	if err != nil {
		return err
	}
	watch(r)
	if err := r.Start(ctx); err != nil {
		_ = r.Close()
		return err
	}
	keys, err := serveSessionKeys(ctx, nc, issuer, s.Auth, log)
	if err != nil {
		_ = r.Close()
		return err
	}
	defer keys()
	log.Info("ready", slog.String("node", string(r.Node())), slog.String("version", version))
	<-ctx.Done()
	log.Info("stopping: signalled")
	if err := r.Close(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	log.Info("stopped")
	return nil
}
