package meshtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/broker"
	"github.com/toolmesh/toolmesh/internal/bus"
)

// startTimeout bounds the start of a broker or a cluster. It is generous, as machines that run
// tests are busy.
const startTimeout = 60 * time.Second

// Option adjusts a broker of a test.
type Option struct{ set func(*broker.Options) }

// MaxPayload sets the largest message in bytes.
func MaxPayload(bytes int) Option {
	return Option{func(o *broker.Options) { o.MaxPayload = bytes }}
}

// Config adds nats-server configuration text: accounts, users, permissions.
func Config(text string) Option {
	return Option{func(o *broker.Options) { o.Config += text + "\n" }}
}

// Server is one broker of a test. Its methods may be called concurrently; it ends
// with the test.
type Server struct {
	// URL is where clients connect. It stays the same over restarts.
	URL string

	options broker.Options
	mu      sync.Mutex
	running *broker.Broker
}

// Broker starts a broker with JetStream on a free loopback port; its files are
// in a temporary folder of the test.
func Broker(t testing.TB, options ...Option) *Server {
	t.Helper()
	s := newServer(t, options)
	if err := s.start(t.Context()); err != nil {
		t.Fatalf("start a broker: %v", err)
	}
	return s
}

func newServer(t testing.TB, options []Option) *Server {
	t.Helper()
	var o broker.Options
	for _, option := range options {
		if option.set != nil {
			option.set(&o)
		}
	}
	o.StoreDir = t.TempDir()
	if o.Name == "" {
		o.Name = "test"
	}
	if o.MaxMemory == 0 {
		o.MaxMemory = 1 << 30
	}
	s := &Server{options: o}
	t.Cleanup(s.Stop)
	t.Cleanup(func() { dumpOnFailure(t) })
	return s
}

// start starts the broker, on the port it had before if it had one.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return nil
	}
	for {
		b, err := broker.Start(ctx, s.options)
		if err == nil {
			s.running = b
			s.URL = b.URL()
			_, address, _ := strings.Cut(b.URL(), "://")
			s.options.Listen = address
			return nil
		}
		// A connection may have the port as its own end for a moment, as it was free while the
		// broker was down.
		taken := strings.Contains(err.Error(), "address already in use")
		if s.options.Listen == "" && !taken {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Start starts the broker again after [Server.Stop], on the same port and files.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.start(t.Context()); err != nil {
		t.Fatalf("start the broker again: %v", err)
	}
}

// Stop ends the broker and returns when its port and files are free.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		s.running.Shutdown()
		s.running = nil
	}
}

// Restart stops and starts the broker on the same port and files. Connections
// made with the mesh's policy come back by themselves.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	s.Start(t)
}

// Server is the running nats-server; nil while it is stopped.
func (s *Server) Server() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil
	}
	return s.running.Server()
}

// Address is the host and port of URL.
func (s *Server) Address() string {
	_, address, _ := strings.Cut(s.URL, "://")
	return address
}

// Connect connects with the mesh's connection policy and further options, and
// closes the connection at the end of the test.
func (s *Server) Connect(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return connect(t, s.URL, options)
}

func connect(t testing.TB, url string, options []nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(bus.ConnectOptions(&bus.ConnectConfig{Name: t.Name()}), options...)...)
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// FreePorts returns loopback addresses that were free a moment ago. Their ports are below those
// that systems assign to connections, of which other tests make thousands meanwhile.
func FreePorts(t testing.TB, n int) []string {
	t.Helper()
	addresses := make([]string, n)
	for i := range addresses {
		var l net.Listener
		var err error
		for range 100 {
			if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.N(12_000))); err == nil {
				break
			}
		}
		if err != nil {
			t.Fatalf("find a free port: %v", err)
		}
		defer l.Close()
		addresses[i] = l.Addr().String()
	}
	return addresses
}

// Until calls ok until it is true, soon again at first and then less often, as many conditions cost
// the processor that they wait for. It fails the test with the text after a minute. It is for
// conditions that give no signal.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for pause := 2 * time.Millisecond; !ok(); pause = min(pause+pause/4, 40*time.Millisecond) {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not so after %v", what, startTimeout)
		case <-time.After(pause):
		}
	}
}
