package batch_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// Large answers of batches to one connection are held back until its caller says that it has
// read others, each result as it ends included; small ones, and those to other connections,
// are not.
func TestBatchAnswersArePaced(t *testing.T) {
	t.Parallel()
	m := single(t, 1, router.Options{})
	const window, size = 16 << 20, 900 << 10
	const fit = window / size
	for _, delivery := range []string{"", "inbox"} {
		inbox := nats.NewInbox() + "."
		sub, err := m.nc.SubscribeSync(inbox + ">")
		if err != nil {
			t.Fatal(err)
		}
		send := func(id, requests string) {
			t.Helper()
			header := nats.Header{"Mesh-Read": {"1"}}
			if delivery != "" {
				header.Set("Mesh-Stream", delivery)
			}
			body := fmt.Sprintf(`{"type":"rpc_batch_call","batch_id":%q,"requests":[%s]}`, id, requests)
			if err := m.nc.PublishMsg(&nats.Msg{Subject: "mesh.batch.default", Reply: inbox + id, Header: header, Data: []byte(body)}); err != nil {
				t.Fatal(err)
			}
		}
		next := func() *nats.Msg {
			t.Helper()
			a, err := sub.NextMsg(waitTimeout)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		began := time.Now()
		const one = `{"index":%d,"tool_id":"stage.safe","kwargs":{"name":"large","size":%d}}`
		const large = fit + 8
		if delivery == "" {
			for n := range large {
				send(fmt.Sprint("b", n), fmt.Sprintf(one, 0, size))
			}
		} else { // the results together fit no message: only each alone is answered with
			all := make([]string, large)
			for n := range all {
				all[n] = fmt.Sprintf(one, n, size)
			}
			send("all", strings.Join(all, ","))
		}
		var first *nats.Msg
		for n := range fit {
			a := next()
			if len(a.Data) < size || a.Header.Get("Mesh-Read") != "1" {
				t.Fatalf("answer %d to %s: %d bytes, %v", n, a.Subject, len(a.Data), a.Header)
			}
			if first == nil {
				first = a
			}
		}
		send("small", fmt.Sprintf(one, 0, 1))
		if a := next(); !strings.HasSuffix(a.Subject, ".small") {
			if time.Since(began) > 4*time.Second {
				t.Skip("the machine is so slow that silence counts as read")
			}
			t.Fatalf("%s comes with %d bytes where %d are unread", a.Subject, len(a.Data), fit*size)
		}
		for delivery != "" && len(next().Data) > 0 { // all of small, and its end
		}
		confirm := func(a *nats.Msg) {
			t.Helper()
			token, err := subjects.EncodeToken(a.Header.Get("Mesh-Rpc-Id"))
			if err != nil {
				t.Fatal(err)
			}
			if err := m.nc.Publish("mesh.node.node-0.ctl.default."+token, codec.Encode(codec.Control{Type: codec.ControlRead})); err != nil {
				t.Fatal(err)
			}
		}
		confirm(first)
		for range large - fit {
			confirm(next())
		}
		_ = sub.Unsubscribe()
	}
}
