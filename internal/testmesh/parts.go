package testmesh

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
)

// Bus makes a bus of a connection.
func Bus(t testing.TB, nc *nats.Conn, opts *bus.Options) *bus.Bus {
	t.Helper()
	b := must(bus.New(nc, opts))(t)
	t.Cleanup(b.Close)
	return b
}

// View opens a view of the registry; the bus ends it.
func View(t testing.TB, b *bus.Bus, opts *registry.ViewOptions) *registry.View {
	t.Helper()
	return must(registry.OpenView(t.Context(), b, opts))(t)
}

// Store makes a store of the registry's records.
func Store(t testing.TB, b *bus.Bus) *registry.Store {
	t.Helper()
	return must(registry.NewStore(b))(t)
}

// Client makes a client.
func Client(t testing.TB, nc *nats.Conn, opts *client.Options) *client.Client {
	t.Helper()
	c := must(client.New(nc, opts))(t)
	t.Cleanup(c.Close)
	return c
}

// Host makes a host, which ends without a drain. Start it when it has its handlers.
func Host(t testing.TB, nc *nats.Conn, opts *host.Options) *host.Host {
	t.Helper()
	h := must(host.New(nc, opts))(t)
	t.Cleanup(func() { meshtest.End(t, h) })
	return h
}

// Router makes a router, which ends without a drain. Start it when it has its parts.
func Router(t testing.TB, nc *nats.Conn, opts *router.Options) *router.Router {
	t.Helper()
	r := must(router.New(nc, opts))(t)
	t.Cleanup(func() { meshtest.End(t, r) })
	return r
}

// Start starts a host, a router or another service.
func Start(t testing.TB, s interface {
	Start(ctx context.Context) error
}) {
	t.Helper()
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
