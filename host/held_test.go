package host_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// heap returns the size of the process's heap.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// zipped is arguments of the desk that have 7 MiB, and under 1 kB on their way.
func zipped(t *testing.T, key string) string {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close() //nolint:errcheck // in memory
	return string(enc.EncodeAll([]byte(`{"key":"`+key+`","text":"`+strings.Repeat("x", 7<<20)+`"}`), nil))
}

// Repetitions that wait for the end of a call hold none of its arguments.
func TestRepetitionsHoldNoArguments(t *testing.T) {
	r := newRig(t, nil)
	body := zipped(t, "k")
	gate := r.gate("k")
	before := heap()
	const again = 100
	inboxes := make([]*inbox, again)
	for i := range inboxes {
		inboxes[i] = r.inbox()
		r.send(inboxes[i], "tools.default.desk.hold", body, "Mesh-Rpc-Id", "k", "Content-Encoding", "zstd")
		if i == 0 {
			wait(t, "the call begins", gate.started)
		}
	}
	r.settled()
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("a call and %d repetitions hold %d MB", again, grown>>20)
	}
	gate.release <- struct{}{}
	for _, in := range inboxes {
		if a := in.next(); a.code() != "ok" {
			t.Errorf("a repetition: %v %s", a.Header, a.Data)
		}
	}
}

// The name of a call that has ended is kept, and nothing else of its headers.
func TestEndedCallsHoldNoHeaders(t *testing.T) {
	r := newRig(t, nil)
	before := heap()
	const calls = 2000
	in := r.inbox()
	for n := range calls {
		r.send(in, "tools.default.desk.session", `{}`, "Mesh-Rpc-Id", "h"+strconv.Itoa(n), "Long", strings.Repeat("x", 30<<10))
		if a := in.next(); a.code() != "ok" {
			t.Fatalf("%v %s", a.Header, a.Data)
		}
	}
	if grown := heap() - before; grown > 24<<20 {
		t.Errorf("%d calls that have ended hold %d MB", calls, grown>>20)
	}
}

// The arguments on a node are bounded, for every kind of wait. A session leaves a share to
// others, and gets an error beyond its own.
func TestArgumentsAreBounded(t *testing.T) {
	r := newRig(t, &rigOptions{host: host.Options{Slots: 100}})
	const calls, most = 40, 18     // of 7 MiB, in half of 256
	const long = "Mesh-Timeout-Ms" // a busy machine takes more than the 30 s of other calls
	for what, tc := range map[string]struct {
		begin   int // of most
		headers []string
	}{
		"run":            {most, nil},
		"wait for a key": {1, []string{keyHeader, "one"}},
	} {
		gate := r.gate(what)
		body := zipped(t, what)
		before := heap()
		in := r.inbox()
		for i := range calls {
			r.send(in, "tools.default.desk.hold", body, append([]string{"Mesh-Rpc-Id", what + strconv.Itoa(i), "Content-Encoding", "zstd", long, "600000"}, tc.headers...)...)
		}
		for range calls - most {
			a := in.next()
			if a.code() != "busy" || a.Error.started() != "false" || a.Error.Details["limit"] != "arguments" || a.Error.Details["retry_after_ms"] == nil {
				t.Fatalf("one more: %v %s", a.Header, a.Data)
			}
		}
		for range tc.begin {
			wait(t, "a call begins", gate.started)
		}
		// Calls that were refused may not have returned yet.
		meshtest.Until(t, fmt.Sprintf("%d calls that %s hold at most 200 MB", most, what), func() bool { return heap()-before <= 200<<20 })
		if a := r.call("note", `{"key":"small"}`, long, "600000"); a.code() != "ok" {
			t.Errorf("a small call of the session: %v", a.Error)
		}
		if a := r.ask("tools.other.desk.note", zipped(t, "other"), "Content-Encoding", "zstd", long, "600000", "Mesh-Accept-Ref", "1"); a.code() != "ok" {
			t.Errorf("a call of another session: %v", a.Error)
		}
		for range tc.begin {
			gate.release <- struct{}{}
		}
		for range most {
			if a := in.next(); a.code() != "ok" {
				t.Errorf("a call that was taken: %v", a.Error)
			}
		}
		if a := r.call("note", body, "Content-Encoding", "zstd", long, "600000", "Mesh-Accept-Ref", "1"); a.code() != "ok" {
			t.Errorf("once the others have ended: %v", a.Error)
		}
	}
}

// Arguments that are too large for their tool are refused before they are read.
func TestArgumentsAreRefusedBySize(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	err := r.h.Publish(t.Context(), host.Service{Index: "small", Tools: []host.Tool{{Descriptor: &tool.Descriptor{ID: "small.one", Name: "one", Source: tool.SourceGo}, Handler: host.HandlerFunc(r.note), MaxArgs: 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	store := objects(t, r.nc)
	info, err := store.PutBytes(t.Context(), "default.x", large("k", 2<<20))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "OBJ_MESH_PAYLOADS")
	if err != nil {
		t.Fatal(err)
	}
	// Nothing can be read.
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("$O.MESH_PAYLOADS.C."+info.NUID)); err != nil {
		t.Fatal(err)
	}
	a := r.ask("tools.default.small.one", "", "Mesh-Ref", info.Name, "Mesh-Digest", info.Digest)
	if a.code() != "payload_too_large" || a.Error.started() != "false" || a.Error.Details["limit"] != float64(1<<20) {
		t.Errorf("the answer: %v %s", a.Header, a.Data)
	}
	a = r.ask("tools.default.small.one", zipped(t, "k"), "Content-Encoding", "zstd")
	if a.code() != "payload_too_large" || a.Error.started() != "false" {
		t.Errorf("the answer to a body: %v %s", a.Header, a.Data)
	}
}

// Arguments by reference go with their call, however that ends, unless it may be sent again.
func TestArgumentsGoWithTheirCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	store := objects(t, r.nc)
	for what, tc := range map[string]struct {
		tool, code string
		args       json.RawMessage
		headers    []string
	}{
		"a tool that fails":          {"fail", "tool_error", json.RawMessage(`{"code":"tool_error","text":"` + strings.Repeat("x", 2<<20) + `"}`), nil},
		"a time that is up":          {"hold", "deadline_exceeded", large("x", 2<<20), []string{"Mesh-Timeout-Ms", "5000"}},
		"a time that was up":         {"note", "deadline_exceeded", large("x", 2<<20), []string{"Mesh-Timeout-Ms", "0"}},
		"arguments that do not fit":  {"add", "invalid_arguments", large("x", 2<<20), nil},
		"a result that is too large": {"note", "payload_too_large", large("x", 2<<20), nil},
	} {
		info, err := store.PutBytes(t.Context(), "default."+tc.code+tc.tool, tc.args)
		if err != nil {
			t.Fatal(err)
		}
		if a := r.call(tc.tool, "", append(tc.headers, "Mesh-Ref", info.Name, "Mesh-Digest", info.Digest)...); a.code() != tc.code {
			t.Errorf("%s: %v %s", what, a.Header, a.Data)
		}
	}
	meshtest.Until(t, "nothing stays in the store", func() bool { return payloadsLeft(t, r.nc) == 0 })
	info, err := store.PutBytes(t.Context(), "default.again", large("again", 2<<20))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if a := r.call("note", "", "Mesh-Revision", "other", "Mesh-Ref", info.Name, "Mesh-Digest", info.Digest); a.code() != "unavailable" {
			t.Errorf("%v", a.Header)
		}
	}
	if _, err := store.GetInfo(t.Context(), info.Name); err != nil {
		t.Errorf("what may be sent again: %v", err)
	}
}
