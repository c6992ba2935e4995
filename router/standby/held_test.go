package standby_test

import (
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/router/standby"
)

// heap returns the size of the process's heap.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close() //nolint:errcheck // in memory
	return string(enc.EncodeAll([]byte(text), nil))
}

// Calls that wait are held as they came: under 1 kB each, where they would be 7 MiB.
func TestWaitingCallsAreHeldCompressed(t *testing.T) {
	r := newRig(t, single(t), 1, &standby.Options{})
	long := strings.Repeat("x", 7<<20)
	plain := zipped(t, `{"city":"`+long+`"}`)
	batch := zipped(t, `{"type":"rpc_batch_call","requests":[{"tool_id":"weather.today","kwargs":{"city":"`+long+`"}}]}`)
	const calls = 10 // of each form: 210 MB if they were held as they are read
	before := heap()
	var answers []<-chan *nats.Msg
	header := func(n int) nats.Header {
		return nats.Header{"Content-Encoding": {"zstd"}, "Mesh-Rpc-Id": {"r" + strconv.Itoa(n)}}
	}
	for n := range calls {
		envelope := zipped(t, `{"type":"rpc_tool_call","rpc_id":"e`+strconv.Itoa(n)+`","tool_id":"weather.today","kwargs":{"city":"`+long+`"}}`)
		answers = append(answers, r.request("weather.today", plain, header(n)), r.request("weather.today", envelope, nats.Header{"Content-Encoding": {"zstd"}}))
		if err := r.nc.PublishMsg(&nats.Msg{Subject: "mesh.batch." + r.session(), Reply: r.nc.NewInbox(), Header: header(n), Data: []byte(batch)}); err != nil {
			t.Fatal(err)
		}
	}
	r.awaits(3 * calls)
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("%d calls that wait hold %d MB", 3*calls, grown>>20)
	}
	r.node("n1", 2)
	for _, a := range answers {
		if m := <-a; m.Header.Get("Mesh-Error-Code") != "" || strings.Contains(string(m.Data), "error") {
			t.Errorf("a call that has waited: %v %.200s", m.Header, m.Data)
		}
	}
}

// Waiting calls are bounded in bytes. A session leaves a share to others, and so do all sessions
// that were never created together.
func TestWaitingCallsAreBoundedInBytes(t *testing.T) {
	r := newRig(t, single(t), 1, &standby.Options{})
	body := `{"city":"` + strings.Repeat("x", 900<<10) + `"}`
	answers := make(chan *nats.Msg, 100)
	in, err := r.nc.ChanSubscribe("_INBOX.held.*", answers)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Unsubscribe() //nolint:errcheck // the connection ends
	ask := func(session string, n int) {
		if err := r.nc.PublishRequest("tools."+session+".weather.today", "_INBOX.held."+session+strconv.Itoa(n), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	const calls, most = 50, 36 // of 0.9 MB, in half of 64 MB
	for n := range calls {
		ask("made-up-"+strconv.Itoa(n%7), n)
	}
	for range calls - most {
		e := failure(t, <-answers)
		if e.Code != toolmesh.CodeBusy || e.Started != toolmesh.StartedNo || e.Details["limit"] != "held_bytes" {
			t.Fatalf("one more of the session: %+v", e)
		}
	}
	ask("default", 1)
	r.awaits(most + 1)
	r.node("n1", 2) // with more at once a busy machine passes bodies on for longer than a node may be silent
	for range most + 1 {
		if m := <-answers; codec.ParseReply(codec.Header(m.Header), m.Data).Kind == codec.ReplyError {
			t.Errorf("a call that has waited: %v %s", m.Header, m.Data)
		}
	}
	r.awaits(0)
	ask("greedy", calls)
	if m := <-answers; m.Header.Get("Mesh-Node") == "" {
		t.Errorf("once there is room: %v %s", m.Header, m.Data)
	}
}
