package batch_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/router"
)

// Repetitions of a batch hold none of its arguments, and the arguments of all batches are bounded
// together: under 1 kB each on the wire, 7 MiB in memory.
func TestArgumentsOfBatchesAreBounded(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close() //nolint:errcheck // in memory
	m := single(t, 1, router.Options{})
	body := enc.EncodeAll([]byte(`{"type":"rpc_batch_call","requests":[{"tool_id":"stage.safe","kwargs":{"name":"held","wait":"door","path":"`+strings.Repeat("x", 7<<20)+`"}}]}`), nil)
	answers := make(chan *nats.Msg, 200)
	inbox := nats.NewInbox()
	if _, err := m.nc.ChanSubscribe(inbox+".*", answers); err != nil {
		t.Fatal(err)
	}
	sent := 0
	send := func(id string) {
		t.Helper()
		sent++
		header := nats.Header{"Mesh-Rpc-Id": {id}, "Content-Encoding": {"zstd"}, "Mesh-Timeout-Ms": {"600000"}}
		if err := m.nc.PublishMsg(&nats.Msg{Subject: "mesh.batch.default", Reply: fmt.Sprint(inbox, ".", sent), Header: header, Data: body}); err != nil {
			t.Fatal(err)
		}
	}
	before := heap()
	const again, others, most = 30, 25, 18 // in half of 256 MiB
	send("one")
	m.stage.began(t, "held")
	for range again {
		send("one")
	}
	for n := range others {
		send("other" + strconv.Itoa(n))
	}
	for range others + 1 - most {
		if a := <-answers; a.Header.Get("Mesh-Error-Code") != "busy" || a.Header.Get("Mesh-Started") != "false" || !strings.Contains(string(a.Data), `"limit":"arguments"`) {
			t.Fatalf("one more: %v %.300s", a.Header, a.Data)
		}
	}
	if grown := heap() - before; grown > 400<<20 {
		t.Errorf("%d batches and %d repetitions hold %d MB", most, again, grown>>20)
	}
	m.stage.open("door", most)
	for range most + again {
		if a := <-answers; a.Header.Get("Mesh-Error-Code") != "" {
			t.Errorf("a batch that was taken: %v %.300s", a.Header, a.Data)
		}
	}
}
