package broker_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/internal/broker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, o broker.Options) *broker.Broker {
	t.Helper()
	if o.StoreDir == "" {
		o.StoreDir = t.TempDir()
	}
	b, err := broker.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	return b
}

func TestStartServesJetStream(t *testing.T) {
	t.Parallel()
	b := start(t, broker.Options{MaxPayload: 4096, Name: "one"})
	if !strings.HasPrefix(b.URL(), "nats://127.0.0.1:") || strings.HasSuffix(b.URL(), ":0") {
		t.Fatalf("URL %s", b.URL())
	}
	for name, options := range map[string][]nats.Option{"tcp": nil, "in process": {nats.InProcessServer(b)}} {
		nc, err := nats.Connect(b.URL(), options...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer nc.Close()
		if nc.MaxPayload() != 4096 || nc.ConnectedServerName() != "one" {
			t.Errorf("%s: payload %d, name %s", name, nc.MaxPayload(), nc.ConnectedServerName())
		}
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.AccountInfo(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(b.Shutdown) // every call waits
	}
	wg.Wait()
	if b.Server().Running() {
		t.Error("still running after Shutdown")
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = broker.Start(t.Context(), broker.Options{Listen: l.Addr().String(), StoreDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()) || !strings.Contains(err.Error(), "another") {
		t.Fatalf("%v, want an error that names %s and what to do", err, l.Addr())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		ctx  context.Context
		o    broker.Options
		says string
	}{
		"no store":     {t.Context(), broker.Options{}, "StoreDir"},
		"no port":      {t.Context(), broker.Options{StoreDir: dir, Listen: "127.0.0.1"}, "Listen"},
		"bad port":     {t.Context(), broker.Options{StoreDir: dir, Listen: "127.0.0.1:99999"}, "Listen"},
		"tiny payload": {t.Context(), broker.Options{StoreDir: dir, MaxPayload: 10}, "MaxPayload"},
		"config":       {t.Context(), broker.Options{StoreDir: dir, Config: "users ["}, "Config"},
		"over":         {over, broker.Options{StoreDir: dir}, "canceled"},
		"store":        {t.Context(), broker.Options{StoreDir: "/dev/null/x"}, "cannot start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := broker.Start(tt.ctx, tt.o)
			if err == nil {
				b.Shutdown()
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("%v, want an error that says %q", err, tt.says)
			}
		})
	}
}

func TestStoreIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 2 {
		b := start(t, broker.Options{StoreDir: dir})
		nc, err := nats.Connect(b.URL())
		if err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KEPT"})
		} else {
			_, err = js.Stream(t.Context(), "KEPT")
		}
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
		b.Shutdown()
	}
}

// The reserved bytes of streams are known from their files before a broker starts, which must have
// room for them.
func TestReserved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got := broker.Reserved(dir); got != 0 {
		t.Errorf("an empty folder reserves %d bytes", got)
	}
	b := start(t, broker.Options{StoreDir: dir})
	nc, err := nats.Connect(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for name, bytes := range map[string]int64{"A": 3e9, "B": 2e9, "C": -1} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, MaxBytes: bytes}); err != nil {
			t.Fatal(err)
		}
	}
	b.Shutdown()
	if got := broker.Reserved(dir); got != 5e9 {
		t.Errorf("the streams reserve %d bytes, want 5000000000", got)
	}
}
