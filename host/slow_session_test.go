package host

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// The first answer about a service's session counts, also where the session has been
// made again, and a function is added in it, before the answer comes.
func TestASlowAnswerAboutASession(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	record := func(text string, header nats.Header) {
		t.Helper()
		m := &nats.Msg{Subject: "$KV.MESH_SESSIONS.s", Data: []byte(text), Header: header}
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	newHost := func(opts *Options) *Host {
		h, err := New(broker.Connect(t), opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Stop(t.Context()) })
		return h
	}
	if err := newHost(&Options{Index: "other"}).Start(t.Context()); err != nil { // makes the registry
		t.Fatal(err)
	}
	record(`{"id":"s","epoch":"1"}`, nil)

	h := newHost(&Options{Session: "s"})
	echo := Func(func(_ context.Context, in struct{}) (struct{}, error) { return in, nil })
	if _, err := h.Handle("earlier", echo); err != nil {
		t.Fatal(err)
	}
	ask, answered, release := h.sessions.Ask, make(chan struct{}), make(chan struct{})
	var asked atomic.Int64
	h.sessions.Ask = func(s subjects.SessionID) (string, error) {
		epoch, err := ask(s)
		switch asked.Add(1) {
		case 1:
			return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "not yet")
		case 2:
			close(answered)
			<-release
		}
		return epoch, err
	}
	var calls sync.WaitGroup
	calls.Go(func() {
		if err := h.Start(t.Context()); err != nil {
			t.Error(err)
		}
	})
	<-answered
	record("", nats.Header{"KV-Operation": {"DEL"}})
	record(`{"id":"s","epoch":"2"}`, nil)
	calls.Go(func() {
		if _, err := h.Handle("later", echo); err != nil {
			t.Error(err)
		}
	})
	meshtest.Until(t, "the function waits for the answer", func() bool {
		free := h.publisher.changing.TryLock()
		if free {
			h.publisher.changing.Unlock()
		}
		return !free
	})
	close(release)
	calls.Wait()
	meshtest.Until(t, "the tool of the session before is gone", func() bool {
		_, err := nc.Request("tools.s.earlier", []byte(`{}`), time.Minute)
		return errors.Is(err, nats.ErrNoResponders)
	})
	if m, err := nc.Request("tools.s.later", []byte(`{}`), time.Minute); err != nil || m.Header.Get("Mesh-Error-Code") != "" {
		t.Errorf("what was registered in the next session: %v %v", err, m)
	}
}
