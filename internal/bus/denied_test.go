package bus_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// The broker refuses publishes one by one. Its error fails only the refused call, and no call
// that has had an answer.
func TestDeniedPublishFailsOneCall(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	asked := make(chan *nats.Msg, 3)
	worker := s.Connect(t)
	if _, err := worker.ChanSubscribe("work", asked); err != nil {
		t.Fatal(err)
	}
	if err := worker.Flush(); err != nil {
		t.Fatal(err)
	}
	b := open(t, s.Connect(t), nil)
	heard, failed := make(chan struct{}, 1), make(chan int, 3)
	for n := range 3 {
		in, err := b.Open(func(_ *nats.Msg, err error) {
			if err == nil {
				heard <- struct{}{}
			} else if e := toolmesh.AsError(err); e.Code == toolmesh.CodePermissionDenied && e.Started == toolmesh.StartedNo {
				failed <- n
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if err := in.Send(nats.NewMsg("work")); err != nil {
			t.Fatal(err)
		}
	}
	if err := (<-asked).Respond([]byte("I work")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-heard:
	case <-time.After(time.Minute):
		t.Fatal("nothing was heard")
	}
	for _, want := range []int{1, 2} {
		b.Denied(`nats: Permissions Violation for Publish to "work"`)
		if len(failed) != 1 {
			t.Fatalf("%d calls have failed, want one", len(failed))
		}
		if got := <-failed; got != want {
			t.Errorf("call %d has failed, want %d", got, want)
		}
	}
	if b.Denied(`nats: Permissions Violation for Publish to "work"`); len(failed) != 0 {
		t.Error("the call that runs has failed")
	}
}
