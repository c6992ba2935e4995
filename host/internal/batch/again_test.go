package batch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

func TestMain(m *testing.M) {
	meshtest.Parallel(8)
	meshtest.Main(m)
}

// A call of a batch is the same call where it is sent alone, or by another node, under its
// rpc_id: it gets the result, not an error with started false.
func TestMembersSentAgain(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{})
	const body = `{"type":"rpc_batch_call","batch_id":"whole","requests":[
		{"index":0,"tool_id":"stage.keyed","kwargs":{"name":"named","path":"a","wait":"door"}},
		{"index":1,"tool_id":"keyed","kwargs":{"name":"placed","path":"b","wait":"door"}}]}`
	batches := make(chan string, 1)
	go func() {
		batches <- string(m.requestTo(t, "mesh.node.node-0.batch.default", nats.Header{"Mesh-Hops": {"1"}}, body)[0].Data)
	}()
	m.stage.began(t, "named")
	m.stage.began(t, "placed")
	plain := make(chan *nats.Msg, 2)
	for _, one := range [][2]string{{"whole.0", `{"name":"named","path":"a","wait":"door"}`}, {"whole.1", `{"name":"placed","path":"b","wait":"door"}`}} {
		go func() {
			plain <- m.requestTo(t, "mesh.node.node-0.tools.default.stage.keyed", nats.Header{"Mesh-Rpc-Id": {one[0]}}, one[1])[0]
		}()
	}
	again := make(chan string, 1)
	go func() {
		again <- string(m.requestTo(t, "mesh.node.node-0.batch.default", nats.Header{"Mesh-Hops": {"1"}}, body)[0].Data)
	}()
	m.stage.open("door", 10)
	for range 2 {
		if a := <-plain; a.Header.Get("Mesh-Error-Code") != "" || string(a.Data) != `"named"` && string(a.Data) != `"placed"` {
			t.Errorf("sent alone: %v %s", a.Header, a.Data)
		}
	}
	if first, second := <-batches, <-again; first != second {
		t.Errorf("%s and %s", first, second)
	}
	if a, b := m.stage.ran("named"), m.stage.ran("placed"); a != 1 || b != 1 {
		t.Errorf("run %d and %d times", a, b)
	}
	// A request in another form, with the name of a call that ran, may be that call.
	other := m.requestTo(t, "mesh.node.node-0.tools.default.stage.keyed", nats.Header{"Mesh-Rpc-Id": {"whole.0"}}, `{"name":"other"}`)[0]
	if code, started := other.Header.Get("Mesh-Error-Code"), other.Header.Get("Mesh-Started"); code != "invalid_request" || started != "" {
		t.Errorf("another body: %s %q", code, started)
	}
}

// The caller of a batch dies: its running calls are cancelled.
func TestCallerOfABatchIsGone(t *testing.T) {
	t.Parallel()
	for _, node := range []string{"node-0", "node-1"} { // one of them passes it on
		t.Run(node, func(t *testing.T) {
			t.Parallel()
			at := &place{broker: meshtest.Broker(t)}
			m := open(t, at, 2, router.Options{})
			dead := at.Call(t)
			inbox := dead.NewInbox()
			if _, err := dead.SubscribeSync(inbox); err != nil {
				t.Fatal(err)
			}
			const body = `{"type":"rpc_batch_call","batch_id":"b","requests":[{"tool_id":"stage.unsafe","kwargs":{"name":"first","wait":"door"}},{"tool_id":"stage.unsafe","kwargs":{"name":"second"}}]}`
			if err := dead.PublishMsg(&nats.Msg{Subject: "mesh.node." + node + ".batch.default", Reply: inbox, Header: nats.Header{"Mesh-Keepalive": {"1"}}, Data: []byte(body)}); err != nil {
				t.Fatal(err)
			}
			m.stage.began(t, "first")
			dead.Close()
			meshtest.Until(t, "what runs of it has ended", func() bool { return slices.Contains(m.stage.log(), "-first") })
			if n := m.stage.ran("second"); n != 0 {
				t.Errorf("the rest ran %d times", n)
			}
		})
	}
}

// The caller of a batch dies that is to outlive it: another process asks for it later.
func TestABatchOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	at := &place{broker: meshtest.Broker(t)}
	m := open(t, at, 1, router.Options{})
	dead := at.Call(t)
	inbox := dead.NewInbox()
	if _, err := dead.SubscribeSync(inbox + ".*"); err != nil {
		t.Fatal(err)
	}
	const body = `{"type":"rpc_batch_call","batch_id":"%[1]s","requests":[{"tool_id":"stage.safe","kwargs":{"name":"%[1]s","wait":"door"}}]}`
	for id, header := range map[string]nats.Header{"kept": {"Mesh-Keepalive": {"1"}, "Mesh-Outlive": {"1"}}, "dropped": {"Mesh-Keepalive": {"1"}}} {
		if err := dead.PublishMsg(&nats.Msg{Subject: "mesh.batch.default", Reply: inbox + "." + id, Header: header, Data: fmt.Appendf(nil, body, id)}); err != nil {
			t.Fatal(err)
		}
		m.stage.began(t, id)
	}
	dead.Close()
	meshtest.Until(t, "the other batch has ended", func() bool { return slices.Contains(m.stage.log(), "-dropped") })
	m.stage.open("door", 1)
	answer := m.requestTo(t, "mesh.batch.default", nil, fmt.Sprintf(body, "kept"))[0]
	if !strings.Contains(string(answer.Data), `"result":"kept"`) {
		t.Errorf("asked for later: %s", answer.Data)
	}
}

// The caller of a batch dies, and another one has joined its running calls through another node:
// they go on.
func TestBatchThatAnotherCallerHasJoined(t *testing.T) {
	t.Parallel()
	for _, ways := range [][2]string{{"node-0", "node-1"}, {"node-1", "node-0"}} { // one of them passes it on
		t.Run(ways[0], func(t *testing.T) {
			t.Parallel()
			at := &place{broker: meshtest.Broker(t)}
			m := open(t, at, 2, router.Options{})
			const body = `{"type":"rpc_batch_call","batch_id":"b","requests":[{"tool_id":"stage.unsafe","kwargs":{"name":"first","wait":"door"}},{"tool_id":"stage.unsafe","kwargs":{"name":"second"}}]}`
			ask := func(nc *nats.Conn, node string) *nats.Subscription {
				inbox := nc.NewInbox()
				sub, err := nc.SubscribeSync(inbox)
				if err == nil {
					err = nc.PublishMsg(&nats.Msg{Subject: "mesh.node." + node + ".batch.default", Reply: inbox, Header: nats.Header{"Mesh-Keepalive": {"1"}}, Data: []byte(body)})
				}
				if err != nil {
					t.Fatal(err)
				}
				return sub
			}
			dead := at.Call(t)
			ask(dead, ways[0])
			m.stage.began(t, "first")
			joined := ask(at.Call(t), ways[1])
			next := func() *nats.Msg {
				got, err := joined.NextMsg(time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			next() // it has joined
			dead.Close()
			for range 12 { // one a second: the node that has passed it on has missed its caller by then
				if got := next(); got.Header.Get("Mesh-Keepalive") == "" {
					t.Fatalf("the batch has ended: %s", got.Data)
				}
			}
			m.stage.open("door", 10)
			for got := next(); ; got = next() {
				if got.Header.Get("Mesh-Keepalive") == "" {
					if strings.Contains(string(got.Data), "cancelled") {
						t.Errorf("the caller that has joined is told %s", got.Data)
					}
					break
				}
			}
			if n := m.stage.ran("second"); n != 1 {
				t.Errorf("the second call ran %d times", n)
			}
		})
	}
}

// A session that is created under the name of one that has ended gets no answers of that one. Nothing says of a batch
// of the ended one that it has not run.
func TestBatchesOfTheNextSession(t *testing.T) {
	t.Parallel()
	m := single(t, 1, router.Options{})
	r := m.routers[0]
	for n := 1; n <= 2; n++ {
		s, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "again"})
		if err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the node knows the session", func() bool {
			all, err := r.Sessions(t.Context())
			return err == nil && len(all) == 1
		})
		const batch = `{"type":"rpc_batch_call","batch_id":"b","requests":[{"tool_id":"stage.safe","kwargs":{"name":"of a session"}}]}`
		answer := m.requestTo(t, "mesh.batch.again", nil, batch)[0]
		if m.stage.ran("of a session") != n || answer.Header.Get("Mesh-Error-Code") != "" {
			t.Errorf("session %d: %v %s", n, answer.Header, answer.Data)
		}
		if err := r.EndSession(t.Context(), s.ID()); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "the session has ended", func() bool {
			all, err := r.Sessions(t.Context())
			return err == nil && len(all) == 0
		})
		again := m.requestTo(t, "mesh.batch.again", nats.Header{"Mesh-Again": {"1"}, "Mesh-Boot": answer.Header["Mesh-Boot"]}, batch)[0]
		if again.Header.Get("Mesh-Error-Code") == "" || again.Header.Get("Mesh-Started") != "" {
			t.Errorf("session %d has ended, and its batch is sent again: %v %s", n, again.Header, again.Data)
		}
	}
}

// A batch may have run on a node that is lost, so another node does not run it when it is sent again.
func TestBatchSentAgainToAnyNode(t *testing.T) {
	t.Parallel()
	m := single(t, 1, router.Options{})
	const batch = `{"type":"rpc_batch_call","batch_id":"%s","requests":[{"tool_id":"stage.safe","kwargs":{"name":"again"}}]}`
	first := m.request(t, nil, fmt.Sprintf(batch, "first"))[0]
	for boot, code := range map[string]string{"": "node_lost", first.Header.Get("Mesh-Boot"): ""} {
		header := nats.Header{"Mesh-Again": {"1"}}
		if boot != "" {
			header["Mesh-Boot"] = []string{boot}
		}
		answer := m.request(t, header, fmt.Sprintf(batch, "again"+boot))[0]
		if answer.Header.Get("Mesh-Error-Code") != code || answer.Header.Get("Mesh-Started") != "" {
			t.Errorf("to the boot %q: %v %s", boot, answer.Header, answer.Data)
		}
	}
	if known := m.request(t, nats.Header{"Mesh-Again": {"1"}}, fmt.Sprintf(batch, "first"))[0]; string(known.Data) != string(first.Data) {
		t.Errorf("one that it knows: %s", known.Data)
	}
	if n := m.stage.ran("again"); n != 2 {
		t.Errorf("%d batches ran", n)
	}
}
