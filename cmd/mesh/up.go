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
	"strconv"
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
	_, port, err := net.SplitHostPort(f.natsListen)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return usage(cmd, "--nats-listen %s: write HOST:PORT, with a port from 0 to 65535", f.natsListen)
	}
	for _, name := range []string{"server", "context", "creds", "nkey"} {
		if cmd.Flags().Changed(name) {
			return usage(cmd, "mesh up runs a NATS server of its own: --%s is for joining another one, which mesh-agent does", name)
		}
	}
	return nil
}

// up runs a mesh until it is stopped.
func (a *app) up(ctx context.Context, f upFlags) (err error) {
	process.OutliveReaders()
	// A person at a terminal wants the ready line and failures; a log file wants all events.
	level := slog.LevelInfo
	if a.term.err {
		level = slog.LevelWarn
	}
	log := process.Logger(a.err, a.set.Logging, level)
	started := a.running("starting: building what is installed", "")
	defer started()
	dir, err := process.DataFolder(a.env, a.set.DataDir)
	if err != nil {
		return usage(nil, "%s", err.Error())
	}
	folder, err := process.OpenFolder(dir)
	if err != nil {
		return a.inUse(dir, err)
	}
	defer func() { _ = folder.Close() }()
	a.warnOpen(f)
	served, nc, issuer, err := a.startBroker(ctx, f, dir, log)
	if served != nil {
		defer served.Shutdown()
	}
	if err != nil {
		return err
	}
	defer nc.Close()
	defer process.Pace()()
	build := process.ThisBuild(version, commit).Version
	agent, err := process.NewAgent(nc, folder, process.NodeConfig{
		Node: a.set.Node, Policy: a.set.Policy, Store: a.set.Store, Version: build, Environ: a.env, Last: true, Logger: log,
	})
	if err != nil {
		return err
	}
	defer func() {
		if stopped := process.StopAgent(ctx, agent, a.set.DrainTimeout); err == nil {
			err = stopped
		}
	}()
	if err := agent.Start(ctx); err != nil {
		return err
	}
	if err := agent.Ready(ctx); err != nil {
		return err
	}
	if issuer != nil {
		keys, err := callout.Serve(ctx, nc, issuer, callout.Options{Server: served, Seen: agent.Seen, Logger: log})
		if err != nil {
			return err
		}
		defer keys.Stop()
	}
	// Over TCP: in process, nats.go learns of a refusal only by a timeout.
	dial := func(own ...nats.Option) (*nats.Conn, error) {
		return nats.Connect(served.URL(), append(bus.ConnectOptions(&bus.ConnectConfig{Name: "mesh-gateway", Logger: log}), own...)...)
	}
	address := cmp.Or(a.set.GatewayListen, process.DefaultGateway)
	gateway, stop, err := process.ServeGateway(ctx, a.set.Gateway, address, a.set.GatewayListen == "", agent, dial, build, log)
	if err != nil {
		return err
	}
	defer stop()
	forget, err := a.record(connect.Record{
		URL: served.URL(), PID: os.Getpid(), Process: connect.ProcessID(os.Getpid()),
		DataDir: dir, Listen: f.natsListen, Keys: !f.open, Started: time.Now().UTC(),
	}, log)
	if err != nil {
		return err
	}
	defer forget()
	started()
	ready := readyLine + served.URL()
	if gateway != "" {
		ready += " http=" + gateway
	}
	fmt.Fprintln(a.out, ready)
	if a.term.err {
		fmt.Fprintln(a.err, a.term.dim("Ctrl-C stops it"))
	}
	err = serve(ctx, f.idle, agent.Done(), agent.Err, served.Server().NumClients, log)
	if a.term.err {
		fmt.Fprintln(a.err, a.term.dim("stopping: calls in flight end first; Ctrl-C again does not wait"))
	}
	return err
}

// serve returns once the mesh must end: at the end of ctx, when its agent is done, or of the time idle in which only this
// process was connected; never for 0. lost is why the agent ends without a drain.
func serve(ctx context.Context, idle time.Duration, done <-chan struct{}, lost func() error, clients func() int, log *slog.Logger) error {
	look := time.NewTicker(min(cmp.Or(idle, time.Hour)/4+time.Millisecond, time.Second))
	defer look.Stop()
	for used := time.Now(); ; {
		select {
		case <-ctx.Done():
			log.Info("stopping: signalled")
			return nil
		case <-done:
			err := lost()
			if err == nil {
				log.Info("stopping: drained")
			}
			return err
		case <-look.C:
			if idle == 0 || clients() > 1 { // one is this process
				used = time.Now()
			} else if time.Since(used) >= idle {
				log.Info("stopping: no client is connected", slog.Duration("for", idle))
				return nil
			}
		}
	}
}

// startBroker starts the NATS server and connects to it. Shut the server down, also after an error. issuer answers for
// the keys of sessions; nil without keys.
func (a *app) startBroker(ctx context.Context, f upFlags, dir string, log *slog.Logger) (served *broker.Broker, nc *nats.Conn, issuer *access.Issuer, err error) {
	files := filepath.Join(dir, "nats")
	memory, disk := roomFor(a.set.Store, broker.Reserved(files))
	options := bus.ConnectOptions(&bus.ConnectConfig{Name: "mesh-agent", Logger: log})
	var config string
	if !f.open {
		keys, err := access.OpenKeys(dir)
		if err != nil {
			return nil, nil, nil, err
		}
		if issuer, err = access.NewIssuer(); err != nil {
			return nil, nil, nil, err
		}
		if config, err = keys.Config(issuer, access.Admin); err != nil {
			return nil, nil, nil, err
		}
		// As administrator: this process keeps all keys, and its settings apply to the mesh's
		// streams.
		key, err := access.Option(access.File(dir, access.Admin))
		if err != nil {
			return nil, nil, nil, err
		}
		options = append(options, key, nats.CustomInboxPrefix(access.Node.Inbox()))
	}
	served, err = broker.Start(ctx, broker.Options{
		Listen: f.natsListen, StoreDir: files, MaxMemory: memory, MaxStore: disk, Logger: log, Config: config,
	})
	if err != nil {
		return nil, nil, nil, brokerError(f.natsListen, err)
	}
	nc, err = nats.Connect("", append(options, nats.InProcessServer(served))...)
	if err != nil {
		return served, nil, nil, toolmesh.Errorf(toolmesh.CodeInternal, "connect to the broker of this process: %w", err)
	}
	return served, nc, issuer, nil
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

// record writes the address of the mesh into the data folder, and into the state folder for commands without --server,
// until forget is called.
func (a *app) record(r connect.Record, log *slog.Logger) (forget func(), err error) {
	path := filepath.Join(r.DataDir, upFile)
	before, _, _ := connect.ReadRecord(path) // of a killed process
	if err := r.Write(path); err != nil {
		return nil, err
	}
	state := connect.StateOf(a.env)
	if err := state.Write(r, before); err != nil {
		log.Warn("other commands need --server", slog.String("server", r.URL), slog.String("error", err.Error()))
	}
	return func() { state.Remove(r); _ = os.Remove(path) }, nil
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
