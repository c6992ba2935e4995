package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// stopper is a log that blocks its writers until it is released.
type stopper struct {
	slog.Handler
	line    string
	reached chan struct{}
	goOn    chan struct{}
	once    sync.Once
}

func stopAt(line string) *stopper {
	return &stopper{Handler: slog.DiscardHandler, line: line, reached: make(chan struct{}, 16), goOn: make(chan struct{})}
}

func (s *stopper) release() { s.once.Do(func() { close(s.goOn) }) }

func (s *stopper) Enabled(context.Context, slog.Level) bool { return true }

func (s *stopper) Handle(_ context.Context, r slog.Record) error {
	if r.Message == s.line {
		s.reached <- struct{}{}
		<-s.goOn
	}
	return nil
}

// over is an ended context: requests to the registry fail at once.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// unserved waits until a request for a tool finds no subscription.
func unserved(t *testing.T, nc *nats.Conn, subject string) {
	t.Helper()
	n := 0
	meshtest.Until(t, subject+" has no subscription", func() bool {
		n++
		_, err := nc.Request(subject, fmt.Appendf(nil, `{"key":"%d"}`, n), 10*time.Second)
		return errors.Is(err, nats.ErrNoResponders)
	})
}

// A drain begins while a service waits for the registry, and nothing of that is served later.
func TestDrainWhileAServiceIsPublished(t *testing.T) {
	t.Parallel()
	at := stopAt("the session of the tools is not known yet")
	r := newRig(t, &rigOptions{host: host.Options{Logger: slog.New(at)}})
	t.Cleanup(at.release)
	published, drained := make(chan error, 1), make(chan error, 1)
	go func() {
		d := &tool.Descriptor{ID: "late", Name: "late", InputSchema: []byte(`{"type":"object"}`), Source: tool.SourceGo}
		published <- r.h.Publish(over(), host.Service{Session: "s", Tools: []host.Tool{{Descriptor: d, Handler: host.HandlerFunc(r.note)}}})
	}()
	wait(t, "a service asks the registry", at.reached)
	go func() { drained <- r.h.Drain(t.Context()) }()
	unserved(t, r.nc, "tools.default.desk.note")
	at.release()
	if err := wait(t, "the service is published, or not", published); err == nil {
		t.Error("a service was published on a node that drains")
	}
	if err := wait(t, "the drain", drained); err != nil {
		t.Error(err)
	}
	unserved(t, r.nc, "tools.s.late")
}

// While a node stops, a tool that is being removed has no subscription left.
func TestStopWhileAToolIsRemoved(t *testing.T) {
	t.Parallel()
	at := stopAt("the registry is not up to date: it is tried again")
	r := newRig(t, &rigOptions{host: host.Options{Logger: slog.New(at)}})
	t.Cleanup(at.release)
	removed := make(chan error, 1)
	go func() {
		_, err := r.h.Remove(over(), "desk", "", "desk.note")
		removed <- err
	}()
	wait(t, "the removal waits for the registry", at.reached)
	stop(t, r.h)
	unserved(t, r.nc, "tools.default.desk.note")
	at.release()
	if err := wait(t, "the removal", removed); err != nil && !errors.Is(err, context.Canceled) {
		t.Log(err) // the connection may be gone
	}
}

// A tool that is removed while the connection is lost has no subscription at the next one.
func TestToolIsRemovedDuringACut(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	proxy := meshtest.NewProxy(t, broker)
	t.Cleanup(proxy.Heal)
	d, nc, caller := newDesk(), proxy.Connect(t), broker.Connect(t)
	h := d.serve(t, nc, &host.Options{})
	proxy.Cut(true)
	meshtest.Until(t, "the connection is lost", func() bool { return !nc.IsConnected() })
	if _, err := h.Remove(over(), "desk", "", "desk.note"); err != nil {
		t.Fatal(err)
	}
	proxy.Heal()
	meshtest.Until(t, "the connection is back", func() bool { return nc.IsConnected() && nc.Flush() == nil })
	unserved(t, caller, "tools.default.desk.note")
}
