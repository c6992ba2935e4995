package store_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// open makes a Store whose Bus ends with the test, before its connection does.
func open(t testing.TB, nc *nats.Conn, options *bus.Options) store.Store {
	t.Helper()
	b, err := bus.New(nc, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return store.Of(b)
}

func wantCode(t *testing.T, err error, code toolmesh.Code, started toolmesh.Started) {
	t.Helper()
	if got := toolmesh.CodeOf(err); got != code {
		t.Fatalf("code %q (%v), want %q", got, err, code)
	}
	if got := toolmesh.AsError(err).Started; got != started {
		t.Fatalf("started %v (%v), want %v", got, err, started)
	}
}

func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing came", what)
		panic("unreachable")
	}
}
