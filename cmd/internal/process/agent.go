package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/callout"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// NodeConfig configures an agent besides its connection.
type NodeConfig struct {
	Node    settings.Node
	Policy  settings.Policy
	Store   settings.Store
	Version string
	// Environ is the environment of interpreters, uv and git.
	Environ []string
	// Last says that the mesh ends with this agent.
	Last   bool
	Logger *slog.Logger
}

// NewAgent makes an agent with its files in folder. Start it.
func NewAgent(nc *nats.Conn, folder *Folder, c NodeConfig) (*agent.Agent, error) {
	id, err := folder.NodeID(c.Node.Node)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		// Tools run as other users and read installed files. Secret files get their own mode.
		syscall.Umask(0o022)
	}
	c.Store.Audit = c.Store.Audit || c.Node.AuditArguments
	return agent.New(nc, folder.Dir, &agent.Options{
		Node: id, Labels: c.Node.Labels, Slots: c.Node.Slots, Sandbox: c.Node.Sandbox, WorkerUser: c.Node.WorkerUser, PrivateSources: c.Node.PrivateSources,
		Limits: c.Node.Limits.Of(executor.MemoryShare), MaxLimits: c.Node.MaxLimits.Of(executor.MemoryShare),
		MaxTimeout: c.Node.MaxTimeout, Version: c.Version, SessionPolicy: c.Policy.SessionPolicy,
		StoreOptions: storeOptions(c.Store), PayloadMax: int64(c.Node.PayloadMax), AuditArguments: c.Node.AuditArguments,
		StreamQuota: int64(c.Node.SessionStreamQuota), CacheBytes: int64(c.Node.CacheMax), CacheEntries: c.Node.CacheEntries, Environments: c.Node.Environments, Environ: c.Environ, ToolEnv: c.Node.ToolEnv, Last: c.Last, Logger: c.Logger,
	})
}

// storeOptions returns the options of the mesh's streams.
func storeOptions(s settings.Store) host.StoreOptions {
	return host.StoreOptions{
		Replicas: s.Replicas, ChunksStorage: s.ChunksStorage, ChunksMax: int64(s.ChunksMax), PayloadsMax: int64(s.PayloadsMax), Audit: s.Audit,
	}
}

// StopAgent drains an agent and ends it. Calls have the given time to end.
func StopAgent(ctx context.Context, a *agent.Agent, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	return a.Stop(ctx)
}

// Agent is the command mesh-agent: it joins a mesh and serves installed indexes until a signal or a
// drain. env is the process's environment.
func Agent(ctx context.Context, args, env []string, stdout, stderr io.Writer, version string) int {
	var s settings.Agent
	cmd := &cobra.Command{
		Use: "mesh-agent", Short: "One machine of a mesh: serves the tools that are installed",
		Long: `mesh-agent joins the mesh at --server and serves the indexes that are installed
there. It ends on SIGINT and SIGTERM after its calls have ended, or when its node
is drained. Each setting is a variable or a flag; the flag wins.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return serveAgent(cmd.Context(), &s, env, stderr, version) },
	}
	return execute(ctx, cmd, &s, &s.Connection, args, env, stdout, stderr, version)
}

func serveAgent(ctx context.Context, s *settings.Agent, env []string, stderr io.Writer, version string) error {
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
	dir, err := DataFolder(env, s.DataDir)
	if err != nil {
		return err
	}
	folder, err := OpenFolder(dir)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	nc, err := join(ctx, s.Connection, "mesh-agent", access.Node, env, log)
	if err != nil {
		return err
	}
	defer nc.Close()
	a, err := NewAgent(nc, folder, NodeConfig{Node: s.Node, Policy: s.Policy, Store: s.Store, Version: version, Environ: env, Logger: log})
	if err != nil {
		return err
	}
	watch(a)
	log.Info("starting", slog.String("node", string(a.Node())), slog.String("version", version), slog.String("data_dir", folder.Dir))
	if err := a.Start(ctx); err != nil {
		return err
	}
	keys, err := serveSessionKeys(ctx, nc, issuer, s.Auth, a.Seen, log)
	if err != nil {
		return errors.Join(err, StopAgent(ctx, a, s.DrainTimeout))
	}
	defer keys()
	if err := a.Ready(ctx); err == nil {
		log.Info("ready", slog.String("node", string(a.Node())))
	}
	select {
	case <-ctx.Done():
		log.Info("stopping: signalled")
	case <-a.Done():
		if a.Err() == nil {
			log.Info("stopping: drained")
		}
	}
	if err := StopAgent(ctx, a, s.DrainTimeout); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if err := a.Err(); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// readIssuer reads the issuer's key; nil if the settings name none.
func readIssuer(s settings.Auth) (*access.Issuer, error) {
	if s.AuthIssuer == "" {
		return nil, nil
	}
	return access.ReadIssuer(s.AuthIssuer)
}

// serveSessionKeys admits the keys of sessions with the issuer's key, if any, until stopped.
func serveSessionKeys(ctx context.Context, nc *nats.Conn, issuer *access.Issuer, s settings.Auth, seen func() *registry.View, log *slog.Logger) (stop func(), err error) {
	if issuer == nil {
		return func() {}, nil
	}
	keys, err := callout.Serve(ctx, nc, issuer, callout.Options{Renew: s.AuthRenew, Seen: seen, Logger: log})
	if err != nil {
		return nil, err
	}
	return keys.Stop, nil
}

// join connects as a node, without credentials with the key of its role. It waits for a broker that
// is not up yet, and returns the error if the broker refuses the key.
func join(ctx context.Context, c settings.Connection, name string, role access.Role, env []string, log *slog.Logger) (*nats.Conn, error) {
	nc, domain, err := connect.Connect(ctx, connect.Options{
		Settings: connect.Settings(c), Env: env, Name: name, Role: role, Inboxes: []string{subjects.InboxNode}, Wait: true, Logger: log, SayServer: "--server",
	})
	if err == nil && domain != "" {
		nc.Close()
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the NATS context names the JetStream domain %s, which %s does not use: give it servers of that domain, and a context without one", domain, name)
	}
	if err != nil || nc.IsConnected() {
		return nc, err
	}
	log.Info("waiting for the NATS server", slog.String("servers", connect.Redact(strings.Join(nc.Servers(), ","))))
	for !nc.IsConnected() {
		if !wake.After(ctx, 50*time.Millisecond) {
			nc.Close()
			return nil, context.Cause(ctx)
		}
		if err := nc.LastError(); errors.Is(err, nats.ErrAuthorization) {
			at := strings.Join(nc.Servers(), ",")
			nc.Close()
			return nil, connect.Explain(at, "--server", err)
		}
	}
	return nc, nil
}

type wrong struct{ error }

// execute runs a command that has only settings, spec with c in it, and returns its exit status.
func execute(ctx context.Context, cmd *cobra.Command, spec any, c *settings.Connection, args, env []string, stdout, stderr io.Writer, version string) int {
	stderr = Visible(stderr)
	loaded := settings.Load(env, spec)
	settings.Bind(cmd.Flags(), spec)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.Version = version
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return wrong{fmt.Errorf("%s takes no arguments, and got %q", cmd.Name(), args[0])}
		}
		return nil
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrong{err} })
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if loaded != nil {
			return wrong{loaded}
		}
		if unknown := settings.Unknown(env); len(unknown) > 0 {
			return wrong{fmt.Errorf("unknown variable %s: correct or unset it; --help lists the settings", unknown[0])}
		}
		if err := settings.Settle(env, cmd.Flags(), c); err != nil {
			return wrong{err}
		}
		return nil
	}
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	ctx, stop := Interrupts(ctx)
	defer stop()
	err := cmd.ExecuteContext(ctx)
	var usage wrong
	switch {
	case err == nil:
		return StatusOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s: %s\n", cmd.Name(), usage.Error())
		return StatusUsage
	case Interrupted(ctx) && errors.Is(err, ErrInterrupted):
		return StatusInterrupted
	}
	e := toolmesh.AsError(err)
	fmt.Fprintf(stderr, "%s: %s\n", cmd.Name(), e.Message)
	return max(Status(e.Code), StatusFailed)
}
