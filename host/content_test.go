package host_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// A caller that speaks MessagePack and one that speaks JSON see the same, in every form.
func TestMessagePackCallers(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	packed := func(a answer) string {
		t.Helper()
		if got := a.Header.Get("Content-Type"); got != "application/msgpack" {
			t.Errorf("the answer is %q: %q", got, a.Data)
		}
		plain, err := codec.Unpack(a.Data, 0)
		if err != nil {
			t.Errorf("%v: %q", err, a.Data)
		}
		return string(plain)
	}
	for _, args := range []string{
		`{"key":"a","n":3}`, `{"key":"bytes","data":{"$bytes":"AP8="}}`, `{"key":"b","list":[1,-2,18446744073709551615,2.5,null,true,"é\u0000",1.0,1e6,1e-9]}`,
	} {
		plain := r.call("note", args)
		a := r.call("note", string(codec.Pack(nil, []byte(args))), "Content-Type", "application/msgpack", "Mesh-Rpc-Id", fmt.Sprint("p", len(args)))
		var want, got any
		if err := json.Unmarshal(plain.Data, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(packed(a)), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s\n%s", args, diff)
		}
	}
	bad := r.call("add", string(codec.Pack(nil, []byte(`{"a":"x"}`))), "Content-Type", "application/msgpack")
	if got := packed(bad); bad.Header.Get("Mesh-Error-Code") != "invalid_arguments" || !strings.Contains(got, `"code":"invalid_arguments"`) {
		t.Errorf("an error: %v %s", bad.Header, got)
	}
	envelope := codec.Pack(nil, []byte(`{"type":"rpc_tool_call","rpc_id":7,"tool_id":"desk.add","args":[1],"kwargs":{"b":2}}`))
	if got := packed(r.call("add", string(envelope), "Content-Type", "application/msgpack")); got != `{"type":"rpc_tool_response","rpc_id":7,"status":"ok","result":3}` {
		t.Errorf("an envelope: %s", got)
	}
	in := r.inbox()
	r.send(in, "tools.default.desk.gen", string(codec.Pack(nil, []byte(`{"key":"s","n":2,"size":5}`))), "Content-Type", "application/msgpack", "Mesh-Stream", "inbox")
	for _, want := range []string{`"1.."`, `"2.."`} {
		if got := packed(in.next()); got != want {
			t.Errorf("an item: %s, want %s", got, want)
		}
	}
	if end := in.next(); end.Header.Get("Mesh-Chunk") != "complete" || len(end.Data) != 0 {
		t.Errorf("the end: %v %q", end.Header, end.Data)
	}
}

// Long answers are compressed for callers that accept it; a compressed body is read, up to a
// bound.
func TestCompressedBodies(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{}, broker: []meshtest.Option{}})
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	args := `{"key":"z","text":"` + strings.Repeat("long ", 20_000) + `"}`
	a := r.call("note", string(w.EncodeAll([]byte(args), nil)), "Content-Encoding", "zstd", "Accept-Encoding", "zstd")
	plain, err := d.DecodeAll(a.Data, nil)
	if a.Header.Get("Content-Encoding") != "zstd" || err != nil || string(plain) != args {
		t.Errorf("%v, %d bytes, %v", a.Header, len(a.Data), err)
	}
	if a := r.call("note", args); string(a.Data) != args || a.Header.Get("Content-Encoding") != "" {
		t.Errorf("without a word of it: %v", a.Header)
	}
	bomb := w.EncodeAll(make([]byte, 100<<20), nil)
	if a := r.call("note", string(bomb), "Content-Encoding", "zstd", "Mesh-Rpc-Id", "bomb"); a.code() != "payload_too_large" || a.Error.started() != "false" {
		t.Errorf("a bomb: %s", a.Data)
	}
}
