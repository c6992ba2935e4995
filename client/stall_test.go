package client_test

import (
	"context"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// While the caller's connection is blocked, its calls, including new ones, end at their timeout;
// arriving messages are handled; and the client closes.
func TestConnectionStalls(t *testing.T) {
	t.Parallel()
	// Less than the 20 s after which the broker closes such a connection, and the
	// minute after which nats.go gives a write up: then everything goes on.
	const unstalled = 15 * time.Second
	d := newTools()
	broker := meshtest.Broker(t)
	d.serve(t, broker.Connect(t), nil)
	proxy := meshtest.NewProxy(t, broker)
	nc := proxy.Connect(t)
	c := newClient(t, nc, nil)
	const items = 100 // within the reader's first credit; it gives more on the way
	stream := make(chan counted, 1)
	first := make(chan int, items)
	go func() {
		stream <- countItems(t, c, t.Context(), toolArgs{Key: "gen", N: items, Gate: true}, func(i int) { first <- i })
	}()
	d.gate("gen").release <- struct{}{}
	wait(t, "first item", first)
	limited, cancel := context.WithTimeout(t.Context(), 2*time.Second) // before the silence counts
	defer cancel()
	call := func(key string) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := c.Call(limited, "desk.hold", toolArgs{Key: key})
			ended <- err
		}()
		return ended
	}
	before := call("before")
	wait(t, "start", d.gate("before").started)
	proxy.Stall()
	t.Cleanup(proxy.Heal)
	meshtest.Clog(t, nc)
	timer := time.NewTimer(unstalled)
	defer timer.Stop()
	for what, ended := range map[string]<-chan error{"before": before, "meanwhile": call("meanwhile")} {
		select {
		case err := <-ended:
			if code := toolmesh.CodeOf(err); code != toolmesh.CodeDeadlineExceeded {
				t.Errorf("the call made %s the stall: %v, want deadline_exceeded", what, err)
			}
		case <-timer.C:
			t.Fatalf("the call made %s the stall goes on", what)
		}
	}
	close(d.gate("gen").release)
	timer.Reset(unstalled)
	select {
	case s := <-stream:
		if s.err != nil || s.items != items {
			t.Errorf("stream: %d items, then %v", s.items, s.err)
		}
	case <-timer.C:
		t.Fatal("the stream's items are not taken")
	}
	closed := make(chan struct{})
	go func() {
		c.Close()
		close(closed)
	}()
	timer.Reset(unstalled)
	select {
	case <-closed:
	case <-timer.C:
		t.Fatal("Close waits for the connection")
	}
}
