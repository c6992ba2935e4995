package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/broker"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/callout"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/internal/store"
)

// upFlags are the flags of `mesh up` that are not settings.
type upFlags struct {
	idle       time.Duration
	detach     bool
	natsListen string
	open       bool // without keys
}

const defaultListen = "127.0.0.1:4222"

func (a *app) upCommand() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use: "up", Short: "Start a mesh on this machine: a NATS server and an agent",
		Long: `Start a mesh on this machine: a NATS server with JetStream and an agent, in one
process. When calls can be served it prints one line, ready nats=URL http=URL; then
it runs until Ctrl-C, SIGTERM or mesh down, and lets its calls end first. Other
commands find it by themselves. Installed indexes stay in the data folder.

HTTP and MCP clients find the tools at the second URL, unless --gateway-listen is off.

The server has keys, in keys/ of the data folder; the commands of this user find
them. Without a key a client may only list and call tools of the session default.
mesh node invite prints the line by which another machine joins.`,
		Example: "  mesh up -d\n  mesh install ./examples/indexes/weather\n  mesh call weather.forecast.today city=Oslo\n  mesh down",
		Args:    nothing,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return f.check(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.detach {
				a.warnOpen(f)
				return a.detach(cmd.Context(), cmd.Flags())
			}
			return a.up(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVarP(&f.detach, "detach", "d", false, "run in the background; returns when calls can be served")
	flags.StringVar(&f.natsListen, "nats-listen", defaultListen, "`HOST:PORT` of the NATS server; port 0 takes a free one")
	flags.BoolVar(&f.open, "open", false, "start it without keys: any program that reaches the server may do everything")
	flags.DurationVar(&f.idle, "idle", 0, "stop after this time without a connected client (default never)")
	settings.Bind(flags, &a.set.Node)
	settings.Bind(flags, &a.set.Policy)
	settings.Bind(flags, &a.set.Store)
	settings.Bind(flags, &a.set.Gateway)
	return cmd
}

func (f upFlags) check(cmd *cobra.Command) error {
	if f.idle < 0 {
		return usage(cmd, "--idle %v: a duration above 0, such as 5m", f.idle)
	}
	if _, _, err := net.SplitHostPort(f.natsListen); err != nil {
		return usage(cmd, "--nats-listen %s: write HOST:PORT", f.natsListen)
	}
	for _, name := range []string{"server", "context", "creds", "nkey"} {
		if cmd.Flags().Changed(name) {
			return usage(cmd, "mesh up runs a NATS server of its own: --%s is for joining another one, which mesh-agent does", name)
		}
	}
	return nil
}

// machine is a mesh in this process.
type machine struct {
	a      *app
	log    *slog.Logger
	folder *process.Folder
	record connect.Record
	ends   []func(ctx context.Context) error // of the started parts, in order of start
	// gateway is the address for HTTP and MCP clients; empty for none.
	gateway string
	done    <-chan struct{}
	lost    func() error // why the mesh ends without a drain
	// clients returns the number of clients of the NATS server.
	clients func() int
}

// up runs a mesh until it is stopped.
func (a *app) up(ctx context.Context, f upFlags) error {
	// A person at a terminal wants the ready line and failures; a log file wants all events.
	level := slog.LevelInfo
	if a.term.err {
		level = slog.LevelWarn
	}
	m := &machine{a: a, log: process.Logger(a.err, a.set.Logging, level)}
	started := a.running("starting: building what is installed", "")
	err := m.start(ctx, f)
	started()
	if err == nil {
		ready := readyLine + m.record.URL
		if m.gateway != "" {
			ready += " http=" + m.gateway
		}
		fmt.Fprintln(a.out, ready)
		if a.term.err {
			fmt.Fprintln(a.err, a.term.dim("Ctrl-C stops it"))
		}
		err = m.serve(ctx, f.idle)
		if a.term.err {
			fmt.Fprintln(a.err, a.term.dim("stopping: calls in flight end first; Ctrl-C again does not wait"))
		}
	}
	if stopped := m.stop(ctx); err == nil {
		err = stopped
	}
	return err
}

// serve returns once the mesh must end: at the end of ctx, of its agent, or of the time idle in which only this process
// was connected; never for 0.
func (m *machine) serve(ctx context.Context, idle time.Duration) error {
	look := time.NewTicker(min(cmp.Or(idle, time.Hour)/4+time.Millisecond, time.Second))
	defer look.Stop()
	for used := time.Now(); ; {
		select {
		case <-ctx.Done():
			m.log.Info("stopping: signalled")
			return nil
		case <-m.done:
			err := m.lost()
			if err == nil {
				m.log.Info("stopping: drained")
			}
			return err
		case <-look.C:
			if idle == 0 || m.clients() > 1 { // one is this process
				used = time.Now()
			} else if time.Since(used) >= idle {
				m.log.Info("stopping: no client is connected", slog.Duration("for", idle))
				return nil
			}
		}
	}
}

// start starts the mesh. stop ends the started parts, also after an error.
func (m *machine) start(ctx context.Context, f upFlags) error {
	dir, err := process.DataFolder(m.a.env, m.a.set.DataDir)
	if err != nil {
		return usage(nil, "%s", err.Error())
	}
	if m.folder, err = process.OpenFolder(dir); err != nil {
		return m.a.inUse(dir, err)
	}
	m.ends = append(m.ends, func(context.Context) error { return m.folder.Close() })
	m.a.warnOpen(f)
	files := filepath.Join(dir, "nats")
	memory, disk := roomFor(m.a.set.Store, broker.Reserved(files))
	options := bus.ConnectOptions(&bus.ConnectConfig{Name: "mesh-agent", Logger: m.log})
	var config string
	var issuer *access.Issuer
	if !f.open {
		keys, err := access.OpenKeys(dir)
		if err != nil {
			return err
		}
		if issuer, err = access.NewIssuer(); err != nil {
			return err
		}
		if config, err = keys.Config(issuer, access.Admin); err != nil {
			return err
		}
		// As administrator: this process keeps all keys, and its settings apply to the mesh's
		// streams.
		key, err := access.Option(access.File(dir, access.Admin))
		if err != nil {
			return err
		}
		options = append(options, key, nats.CustomInboxPrefix(access.Node.Inbox()))
	}
	served, err := broker.Start(ctx, broker.Options{
		Listen: f.natsListen, StoreDir: files, MaxMemory: memory, MaxStore: disk, Logger: m.log,
		Config: config,
	})
	if err != nil {
		return brokerError(f.natsListen, err)
	}
	m.clients = served.Server().NumClients
	m.ends = append(m.ends, func(context.Context) error { served.Shutdown(); return nil })
	nc, err := nats.Connect("", append(options, nats.InProcessServer(served))...)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInternal, "connect to the broker of this process: %w", err)
	}
	m.ends = append(m.ends, func(context.Context) error { nc.Close(); return nil })
	unpace := process.Pace()
	m.ends = append(m.ends, func(context.Context) error { unpace(); return nil })
	agent, err := process.NewAgent(nc, m.folder, process.NodeConfig{
		Node: m.a.set.Node, Policy: m.a.set.Policy, Store: m.a.set.Store,
		Version: process.ThisBuild(version, commit).Version, Environ: m.a.env, Last: true, Logger: m.log,
	})
	if err != nil {
		return err
	}
	m.ends = append(m.ends, func(ctx context.Context) error { return process.StopAgent(ctx, agent, m.a.set.DrainTimeout) })
	if err := agent.Start(ctx); err != nil {
		return err
	}
	if err := agent.Ready(ctx); err != nil {
		return err
	}
	if issuer != nil {
		keys, err := callout.Serve(ctx, nc, issuer, callout.Options{Server: served, Seen: agent.Seen, Logger: m.log})
		if err != nil {
			return err
		}
		m.ends = append(m.ends, func(context.Context) error { keys.Stop(); return nil })
	}
	address, free := m.a.set.GatewayListen, false
	if address == "" {
		address, free = process.DefaultGateway, true
	}
	// Over TCP: in process, nats.go learns of a refusal only by a timeout.
	dial := func(own ...nats.Option) (*nats.Conn, error) {
		return nats.Connect(served.URL(), append(bus.ConnectOptions(&bus.ConnectConfig{Name: "mesh-gateway", Logger: m.log}), own...)...)
	}
	url, stop, err := process.ServeGateway(ctx, m.a.set.Gateway, address, free, agent, dial, process.ThisBuild(version, commit).Version, m.log)
	if err != nil {
		return err
	}
	m.gateway = url
	m.ends = append(m.ends, func(context.Context) error { stop(); return nil })
	m.done, m.lost = agent.Done(), agent.Err
	m.record = connect.Record{
		URL: served.URL(), PID: os.Getpid(), Process: connect.ProcessID(os.Getpid()),
		DataDir: dir, Listen: f.natsListen, Keys: !f.open, Started: time.Now().UTC(),
	}
	return m.tell()
}

// roomFor returns how much memory and disk the broker's streams may take: the chunks in the
// settings, the reservations of existing streams, and the default of a broker for the rest.
func roomFor(s settings.Store, reserved int64) (memory, disk int64) {
	memory, disk = broker.DefaultMaxMemory, broker.DefaultMaxStore
	chunks := int64(s.ChunksMax)
	if chunks == 0 {
		chunks = store.DefaultChunksBytes
	}
	if s.ChunksStorage == "memory" {
		memory += chunks
		chunks = 0
	}
	payloads := cmp.Or(int64(s.PayloadsMax), store.DefaultPayloadsBytes)
	files := chunks + min(payloads, math.MaxInt64-chunks)
	return memory, disk + min(max(files, reserved), math.MaxInt64-disk)
}

// stop ends the started parts, the last one first. Parts that do not end in time end with the
// process.
func (m *machine) stop(ctx context.Context) error {
	var errs []error
	for _, end := range slices.Backward(m.ends) {
		errs = append(errs, end(ctx))
	}
	return errors.Join(errs...)
}

// tell records the address of the mesh in the data folder, and in the state folder for commands
// without --server.
func (m *machine) tell() error {
	path := filepath.Join(m.record.DataDir, upFile)
	before, _, _ := connect.ReadRecord(path) // of a killed process
	if err := m.record.Write(path); err != nil {
		return err
	}
	m.ends = append(m.ends, func(context.Context) error { _ = os.Remove(path); return nil })
	if err := connect.StateOf(m.a.env).Write(m.record, before); err != nil {
		m.log.Warn("other commands need --server", slog.String("server", m.record.URL), slog.String("error", err.Error()))
	}
	m.ends = append(m.ends, func(context.Context) error { connect.StateOf(m.a.env).Remove(m.record); return nil })
	return nil
}

// readyLine is the prefix of the ready line; a space ends the URL.
const readyLine = "ready nats="

// upFile is the name of the mesh's record in a data folder.
const upFile = "up.json"

// warnOpen warns of the rights of strangers in the mesh.
func (a *app) warnOpen(f upFlags) {
	switch {
	case f.open:
		fmt.Fprintf(a.err, "mesh: warning: any program that reaches %s can install and call tools: --open starts it without keys\n", f.natsListen)
	case !loopback(f.natsListen):
		fmt.Fprintf(a.err, "mesh: warning: any program that reaches %s can call the tools of the session default, without a key\n", f.natsListen)
	}
}

// loopback reports whether only this machine reaches an address.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// inUse explains an error of a data folder that another mesh uses.
func (a *app) inUse(dir string, err error) error {
	if r, alive, _ := connect.ReadRecord(filepath.Join(dir, upFile)); alive && errors.Is(err, process.ErrInUse) {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "a mesh runs already in %s, at %s: stop it with mesh down, or give another --data-dir", dir, r.URL)
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "%w", err)
}

// brokerError names the flag if the address is at fault.
func brokerError(listen string, err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "address already in use"):
		return toolmesh.Errorf(toolmesh.CodeUnavailable,
			"%s is taken, perhaps by another NATS server or mesh: choose another address with --nats-listen (--nats-listen 127.0.0.1:0 takes any free port)", listen)
	case strings.Contains(text, "listen"):
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "the NATS server cannot listen on %s, choose another address with --nats-listen: %w", listen, err)
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "the NATS server does not start: %w", err)
}
