package bus_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Messages that have arrived are delivered before Drain returns, whatever the broker does; it
// waits only briefly for a broker that does not answer.
func TestDrain(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*meshtest.Proxy){
		"with its broker":         func(*meshtest.Proxy) {},
		"a broker that is gone":   func(p *meshtest.Proxy) { p.Cut(true) },
		"a broker that is silent": (*meshtest.Proxy).Blackhole,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := meshtest.Broker(t)
			proxy := meshtest.NewProxy(t, broker)
			nc := proxy.Connect(t)
			b := open(t, nc, &bus.Options{})
			const sent = 20
			first, release := make(chan struct{}), make(chan struct{})
			var handled atomic.Int64
			slow, err := nc.Subscribe("slow", func(*nats.Msg) {
				if handled.Add(1) == 1 {
					close(first)
					<-release
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			into := make(chan *nats.Msg, sent)
			channel, err := nc.ChanSubscribe("channel", into)
			if err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			other := broker.Connect(t)
			for range sent {
				_ = other.Publish("slow", nil)
				_ = other.Publish("channel", nil)
			}
			receive(t, first, "the first message")
			meshtest.Until(t, "all have arrived", func() bool {
				left, _, _ := slow.Pending()
				return left >= sent-1 && len(into) == sent
			})
			cut(proxy)
			drained := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			go func() { drained <- b.Drain(ctx, slow, channel) }()
			select {
			case err := <-drained:
				t.Fatalf("drained with messages left: %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			close(release)
			if err := receive(t, drained, "the end of the drain"); err != nil {
				t.Errorf("drain: %v", err)
			}
			if n := handled.Load(); n != sent || len(into) != sent {
				t.Errorf("%d and %d of %d messages were handed out", n, len(into), sent)
			}
		})
	}
}

// A subscription that is retired while a message waits, and whose connection is lost meanwhile, takes no part of its
// queue group's messages at the next connection.
func TestRetiredWithMessagesLeft(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	proxy := meshtest.NewProxy(t, broker)
	nc := proxy.Connect(t)
	b := open(t, nc, &bus.Options{})
	first, release := make(chan struct{}), make(chan struct{})
	var handled atomic.Int64
	retired, err := nc.QueueSubscribe("work", "q", func(*nats.Msg) {
		if handled.Add(1) == 1 {
			close(first)
			<-release
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	other := broker.Connect(t)
	_, _ = other.Publish("work", nil), other.Publish("work", nil)
	receive(t, first, "the first message")
	meshtest.Until(t, "the second has arrived", func() bool { left, _, _ := retired.Pending(); return left > 0 })
	b.Retire(retired)
	proxy.Cut(true)
	meshtest.Until(t, "the connection is lost", func() bool { return !nc.IsConnected() })
	proxy.Heal()
	meshtest.Until(t, "the connection is back", func() bool { return nc.IsConnected() && nc.Flush() == nil })
	close(release)
	meshtest.Until(t, "the subscription has ended", func() bool { return !retired.IsValid() })
	if _, err := other.QueueSubscribe("work", "q", func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := other.Request("work", nil, 5*time.Second); err != nil {
			t.Fatalf("a request went to the subscription that is gone: %v", err)
		}
	}
}
