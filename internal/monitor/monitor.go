package monitor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/registry"
)

const (
	// lookWithin is how long the process may take to say how it is. Nothing of that
	// waits for anything but locks.
	lookWithin = 5 * time.Second
	// staleAfter is the max age of a complete view: older figures are left out, and an autoscaler
	// without figures changes nothing.
	staleAfter = 5 * time.Second
	// stopWithin is how long requests that are being answered have at the end.
	stopWithin = time.Second
)

// Member is the process that a [Monitor] looks at: an agent or a router. Its methods
// may be called concurrently and at any time, and wait for no broker.
type Member interface {
	// Stuck returns why the process makes no progress even with a healthy broker; nil while it
	// does.
	Stuck() error
	// Condition returns why the process is not ready; nil while it is. note is for people; it may
	// be empty.
	Condition() (note string, err error)
	// Figures are those of the node that the process is; nil while it is none.
	Figures() *host.Figures
	// Seen returns the process's view of the mesh; nil while it has none.
	Seen() *registry.View
}

// Options adjusts a [Monitor].
type Options struct {
	// Version is the program's version, for toolmesh_build_info. Defaults to "unknown".
	Version string
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// Monitor is an HTTP server that says how one process is. Its methods may be called
// concurrently.
type Monitor struct {
	version string
	server  *http.Server
	listen  net.Listener
	watched atomic.Pointer[Member]
	wg      sync.WaitGroup
	stop    sync.Once
}

// Start listens on an address, HOST:PORT, and answers until [Monitor.Stop]; until [Monitor.Watch]
// it answers that the process starts. The error is unavailable if it cannot listen there, for
// example because the address is in use.
func Start(ctx context.Context, address string, opts *Options) (*Monitor, error) {
	o := *cmp.Or(opts, &Options{})
	log := cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	var config net.ListenConfig
	listen, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "%w", err)
	}
	m := &Monitor{version: cmp.Or(o.Version, "unknown"), listen: listen}
	errorLog := slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collector{m}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	handle := func(pattern string, h http.Handler) {
		mux.Handle("GET "+pattern, http.TimeoutHandler(h, lookWithin, "stuck: the process cannot say how it is within "+lookWithin.String()+"\n"))
	}
	handle("/healthz", http.HandlerFunc(m.health))
	handle("/readyz", http.HandlerFunc(m.readiness))
	handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorLog: errorLog, ErrorHandling: promhttp.ContinueOnError}))
	handle("/demand", http.HandlerFunc(m.allDemand))
	handle("/demand/{pool}", http.HandlerFunc(m.poolDemand))
	m.server = &http.Server{
		Handler: mux, ErrorLog: errorLog, MaxHeaderBytes: 16 << 10,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * lookWithin, IdleTimeout: time.Minute,
	}
	m.wg.Go(func() {
		if err := m.server.Serve(listen); !errors.Is(err, http.ErrServerClosed) {
			log.Error("health and metrics are not served any more", slog.String("error", err.Error()))
		}
	})
	return m, nil
}

// Address is where the monitor listens, with the port that the system has chosen where
// that asked for was 0.
func (m *Monitor) Address() string { return m.listen.Addr().String() }

// Watch sets the process to show, from now on and also after it has stopped.
func (m *Monitor) Watch(member Member) { m.watched.Store(&member) }

// Stop ends the server. It may be called more than once; every call waits.
func (m *Monitor) Stop() {
	m.stop.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
		defer cancel()
		if m.server.Shutdown(ctx) != nil {
			_ = m.server.Close()
		}
	})
	m.wg.Wait()
}

// member is the process to show; nil before Watch.
func (m *Monitor) member() Member {
	if w := m.watched.Load(); w != nil {
		return *w
	}
	return nil
}

func (m *Monitor) condition() (note string, err error) {
	member := m.member()
	if member == nil {
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "the process is starting, or waits for the NATS server")
	}
	return member.Condition()
}

// demands returns the demand of the pools; the error says why this process cannot tell.
func (m *Monitor) demands() ([]Demand, error) {
	var view *registry.View
	if member := m.member(); member != nil {
		view = member.Seen()
	}
	if view == nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "this process has no view of the mesh: it starts, or ends")
	}
	if stale := view.Stale(); stale > staleAfter {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "this process has heard nothing of the mesh for %v", stale.Round(time.Second))
	}
	if !view.KnowsLoads() {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "an agent does not follow more than %d nodes: ask a router", registry.SparingMax)
	}
	nodes := view.Loads()
	if len(nodes) > 0 && !slices.ContainsFunc(nodes, func(n registry.NodeStatus) bool { return n.Alive }) {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "no heartbeat of any node comes: the NATS server may be frozen")
	}
	return Demands(nodes, view.Awaited()), nil
}

// health answers whether the process gets on. The figures are read for the locks on the
// way to them, which calls need, too: where one is never let go, this takes too long.
func (m *Monitor) health(w http.ResponseWriter, _ *http.Request) {
	if member := m.member(); member != nil {
		if err := member.Stuck(); err != nil {
			say(w, http.StatusServiceUnavailable, "stuck: "+text(err))
			return
		}
		member.Figures()
		if view := member.Seen(); view != nil {
			view.Stale()
		}
	}
	say(w, http.StatusOK, "alive")
}

func (m *Monitor) readiness(w http.ResponseWriter, _ *http.Request) {
	note, err := m.condition()
	switch {
	case err != nil:
		say(w, http.StatusServiceUnavailable, "not ready: "+text(err))
	case note != "":
		say(w, http.StatusOK, "ready; "+note)
	default:
		say(w, http.StatusOK, "ready")
	}
}

func (m *Monitor) allDemand(w http.ResponseWriter, _ *http.Request) {
	all, err := m.demands()
	answer(w, map[string]any{"pools": all}, err)
}

func (m *Monitor) poolDemand(w http.ResponseWriter, r *http.Request) {
	all, err := m.demands()
	answer(w, demandOf(r.PathValue("pool"), all), err)
}

func answer(w http.ResponseWriter, value any, err error) {
	if err != nil {
		say(w, http.StatusServiceUnavailable, text(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client has gone
}

func say(w http.ResponseWriter, status int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, strings.Join(strings.Fields(line), " ")+"\n")
}

// text is an error's message without its code.
func text(err error) string { return toolmesh.AsError(err).Message }
