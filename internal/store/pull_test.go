package store_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestPulls(t *testing.T) {
	t.Parallel()
	b := open(t, meshtest.Broker(t).Connect(t), nil)
	if err := b.Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := b.EnsureConsumer(t.Context(), subjects.StreamTasks, jetstream.ConsumerConfig{Durable: "one", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	p, err := b.OpenPulls()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	ask := func(wait time.Duration) (m *nats.Msg, status string) {
		t.Helper()
		if err := p.Ask(subjects.StreamTasks, "one", wait); err != nil {
			t.Fatal(err)
		}
		m = <-p.Messages()
		consumer, status := p.Read(m)
		if consumer != "one" {
			t.Fatalf("%q %v is of consumer %q", m.Subject, m.Header, consumer)
		}
		return m, status
	}
	if _, status := ask(0); status != "404" {
		t.Errorf("of an empty queue: status %q", status)
	}
	if err := b.Publish(t.Context(), nats.NewMsg("mesh.tasks.normal.0.s.x")); err != nil {
		t.Fatal(err)
	}
	m, status := ask(time.Minute)
	if status != "" || m.Subject != "mesh.tasks.normal.0.s.x" {
		t.Fatalf("%q, status %q", m.Subject, status)
	}
	if err := m.Nak(); err != nil {
		t.Fatal(err)
	}
	m, _ = ask(time.Minute)
	if meta, err := m.Metadata(); err != nil || meta.NumDelivered != 2 {
		t.Errorf("delivered again: %+v %v", meta, err)
	}
	if err := m.Ack(); err != nil {
		t.Fatal(err)
	}
	if _, status := ask(0); status != "404" {
		t.Errorf("an acknowledged message is delivered again: status %q", status)
	}
}
