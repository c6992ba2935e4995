package host_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// NATS does not check a reply subject against the rights of its sender: a node
// that answered any would be everybody's deputy. Measured before there was a
// rule: a session with rights to its own tools deleted a stream, and wrote
// another node's lease.
func TestForeignReplySubjectsAreNotAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{Service: "-"}})
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	// A call and a stream that the control and replay subjects could touch.
	held, streamed := r.inbox(), r.inbox()
	own := func(in *inbox, kind string) *inbox { // the other kinds of inboxes
		return openInbox(t, r.nc, strings.Replace(in.Subject, "_INBOX.", "_INBOX_"+kind+".", 1))
	}
	held, streamed = own(held, "default"), own(streamed, "mesh_router1")
	r.send(held, "tools.default.desk.hold", `{"key":"victim"}`, "Mesh-Rpc-Id", "victim")
	wait(t, "start", r.gate("victim").started)
	r.send(streamed, "tools.default.desk.gen", `{"key":"stored","n":3}`, "Mesh-Rpc-Id", "stored", "Mesh-Stream", "inbox")
	streamed.chunks()
	before := subjectsOf(t, js)

	replies := []string{
		"$KV.MESH_NODES.victim", "$KV.MESH_NODES." + string(r.h.Node()), "$JS.API.STREAM.DELETE.MESH_CHUNKS",
		"$JS.API.STREAM.PURGE.KV_MESH_NODES", "$SYS.REQ.USER.INFO", "mesh.chunks.default.forged",
		"mesh.hb." + string(r.h.Node()), "mesh.ctl.default.victim", "mesh.node." + string(r.h.Node()) + ".ctl.default.victim",
		"tools.default.desk.note", directed(r.h, "default", "desk.note"), "mesh.live.default.victim",
		"_INBOX_other.abc", "_INBOX_default", "_INBOX_default.", "_INBOX_defaul.abc", "_INBOX_defaultx.abc", "_INBOX", "_INBOX.", "_INBOXabc",
		"_INBOX.*", "_INBOX.>", "_INBOX.a.>", "_INBOX_default.*", ">", "*",
		"anything.else", "_inbox.abc",
		// "_R_." and "_GR_." are refused by the broker itself.
	}
	requests := []struct {
		subject, body string
		headers       []string
		noReply       bool // may come without one
	}{
		{"tools.default.desk.note", `{"key":"deputy"}`, nil, false},
		{"tools.default.desk.note", `{"key":"deputy"}`, []string{"Mesh-Rpc-Id", "deputy"}, false},
		{"tools.default.desk.gen", `{"key":"deputy","n":2}`, []string{"Mesh-Stream", "inbox"}, false},
		{"tools.default.desk.gen", `{"key":"deputy","n":2}`, []string{"Mesh-Stream", "1"}, false},
		{"tools.default.desk.gen", `{"type":"rpc_tool_stream","rpc_id":"deputy","tool_id":"desk.gen","kwargs":{"key":"deputy","n":2}}`, nil, false},
		{"tools.default.desk.note", `{"type":"rpc_tool_call","rpc_id":"","tool_id":"wrong"}`, nil, false}, // not even refused
		{directed(r.h, "default", "desk.note"), `{"key":"deputy"}`, nil, false},
		{directed(r.h, "default", "desk.missing"), `{}`, nil, false},
		{"mesh.node." + string(r.h.Node()) + ".ctl.default.victim", "", nil, true},
		{"mesh.node." + string(r.h.Node()) + ".ctl.default.victim", `{"type":"cancel"}`, nil, true},
		{"mesh.ctl.default.victim", "", nil, true},
		{"mesh.ctl.default.victim", "rubbish", nil, true},
		{"mesh.replay.default.stored", `{"from_seq":1}`, nil, false},
		{"mesh.replay.default.stored", `rubbish`, nil, false},
	}
	sent := uint64(0)
	for _, q := range requests {
		all := replies
		if !q.noReply {
			all = append([]string{""}, replies...)
		}
		for _, reply := range all {
			m := &nats.Msg{Subject: q.subject, Reply: reply, Data: []byte(q.body), Header: headers(q.headers...)}
			if err := r.nc.PublishMsg(m); err != nil {
				t.Fatalf("%s with reply %q: %v", q.subject, reply, err)
			}
			sent++
		}
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := r.nc.LastError(); err != nil {
		t.Fatalf("the broker took not all of them: %v", err)
	}
	meshtest.Until(t, "all are refused", func() bool { return r.h.Figures().RefusedReplies >= sent })
	if n := r.h.Figures().RefusedReplies; n != sent {
		t.Errorf("%d of %d are refused: some answer was a request", n, sent)
	}
	if n := r.ran("deputy"); n != 0 {
		t.Errorf("%d of them were run", n)
	}
	close(r.gate("victim").release)
	if cause := wait(t, "end", r.gate("victim").ended); cause != nil {
		t.Errorf("the call that was to be cancelled: %v", cause)
	}
	held.next()
	streamed.next() // the empty message that ends it
	streamed.none("the stream's reader")
	after := subjectsOf(t, js)
	for subject, n := range after {
		if before[subject] == 0 && strings.HasPrefix(subject, "mesh.") || strings.HasSuffix(subject, ".victim") {
			t.Errorf("%s holds %d messages that nobody was to write", subject, n)
		}
	}
	for subject := range before {
		if after[subject] == 0 {
			t.Errorf("%s is gone", subject)
		}
	}
	// The same requests with an inbox are answered: it is the reply that was refused.
	good := own(r.inbox(), "default")
	for _, q := range requests[:4] {
		r.send(good, q.subject, strings.ReplaceAll(q.body, "deputy", "good"), slices.DeleteFunc(slices.Clone(q.headers), func(s string) bool { return s == "Mesh-Rpc-Id" || s == "deputy" })...)
		good.next()
	}
}

// subjectsOf counts the messages on every subject of the mesh's streams.
func subjectsOf(t *testing.T, js jetstream.JetStream) map[string]uint64 {
	t.Helper()
	all := make(map[string]uint64)
	for _, name := range []string{"MESH_CHUNKS", "KV_MESH_NODES", "KV_MESH_TOOLS"} {
		s, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		for subject, n := range info.State.Subjects {
			all[subject] = n
		}
	}
	return all
}
