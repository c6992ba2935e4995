package batch

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
)

// A keepalive of a batch that is passed on delays nothing while an earlier one waits to be sent:
// the newest one goes.
func TestKeepalivesThatWait(t *testing.T) {
	t.Parallel()
	f := &forwarded{caller: &reader{b: &codec.Batch{}}, alive: make(chan *nats.Msg, 1)}
	f.caller.b.Keepalive = true
	newest := &nats.Msg{}
	f.Keepalive(&nats.Msg{}, nil)
	f.Keepalive(newest, nil)
	if m := <-f.alive; m != newest {
		t.Error("an earlier one")
	}
}
