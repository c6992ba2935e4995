package codec

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// headerOf makes a header of lines "name: value".
func headerOf(text string) Header {
	header := make(Header)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok && name != "" {
			header[name] = append(header[name], strings.TrimSpace(value))
		}
	}
	return header
}

// oneLine fails when a header that we made could become two, or is not ASCII.
func oneLine(t *testing.T, header Header) {
	t.Helper()
	for name, values := range header {
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n\x00") || !isASCII(v) {
				t.Fatalf("header %s is %q", name, v)
			}
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, seed := range [][2]string{
		{"", ""},
		{"", `{"city":"Oslo"}`},
		{"Mesh-Rpc-Id: r\nMesh-Timeout-Ms: 100\nMesh-Stream: inbox", `{}`},
		{"Mesh-Rpc-Id: r\nMesh-Again: 2600", `{}`},
		{"mesh-rpc-id: r\nMesh-Rpc-Id: s", `{}`},
		{"Mesh-Rpc-Id: büro\nMesh-Parent: x--cb1rosjf", `{}`},
		{"Mesh-Tool: weather.forecast\nMesh-Session: s1\nMesh-Require: stream,x", `{}`},
		{"Mesh-Proto: 2", ""},
		{"Content-Type: application/msgpack", `{"type":"rpc_tool_call","rpc_id":1}`},
		{"", `{"type":"rpc_tool_call","rpc_id":7,"tool_id":"weather.forecast","args":[1],"kwargs":{"a":null}}`},
		{"", `{"type":"rpc_tool_stream","rpc_id":"\ud83d","tool_id":"weather.forecast"}`},
		{"", `{"type":"rpc_call","rpc_id":"","tool_id":null,"kwargs":[]}`},
		{"", "\t{ \"rpc\\u005fid\" :\r 1e5 , \"kwargs\":{\"a\\\"}\":[{}]},\"args\" : [\"]\", {}] ,\"type\":null,\"type\":\"\\\\\"} "},
	} {
		f.Add(seed[0], []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, head string, body []byte) {
		sameSplit(t, body)
		header := headerOf(head)
		before := bytes.Clone(body)
		r, refusal := ParseRequest(forecast, header, body)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if r == nil {
			t.Fatal("there is no request to answer")
		}
		if r.Session != "s1" || r.Tool != "weather.forecast" {
			t.Fatalf("the subject's names became %q, %q", r.Session, r.Tool)
		}
		// Any message is answered: once, in its form, with its id.
		var answer Header
		var data []byte
		if refusal != nil {
			if !refusal.Code.Valid() || refusal.Started != toolmesh.StartedNo || refusal.Message == "" {
				t.Fatalf("refused with %+v", refusal)
			}
			answer, data = r.Failure(identity, refusal, Load{})
		} else {
			if len(r.Args) == 0 || r.Timeout < 0 || r.Again < 0 || r.Credit < 0 || r.Hops < 0 || r.Depth < 0 {
				t.Fatalf("accepted as %+v", r)
			}
			if r.RPCID != "" {
				if _, err := subjects.Ctl(r.Session, r.RPCID); err != nil {
					t.Fatalf("the call %q cannot be cancelled: %v", r.RPCID, err)
				}
			}
			answer, data = r.Result(identity, json.RawMessage(`{"ok":true}`), Load{})
		}
		oneLine(t, answer)
		if answer.Get(HeaderContentEncoding) == "zstd" {
			t.Fatalf("so small an answer is compressed: %d bytes", len(data))
		}
		if answer.Get(HeaderContentType) == "application/msgpack" {
			plain, err := Unpack(data, 0)
			if err != nil {
				t.Fatalf("the answer is not MessagePack: %v", err)
			}
			data = plain
			answer = maps.Clone(answer)
			if delete(answer, HeaderContentType); len(answer) == 0 {
				answer = nil
			}
		}
		if !json.Valid(data) || !utf8.Valid(data) {
			t.Fatalf("the answer is not JSON: %q", data)
		}
		reply, id := ParseReply(answer, data), json.RawMessage(nil)
		if r.Form != FormPlain {
			if len(answer) != 0 {
				t.Fatalf("an envelope is answered with headers: %v", answer)
			}
			if reply, id = ParseEnvelope(data); r.rawID != nil && string(id) != string(compacted(r.rawID)) {
				t.Fatalf("the id %s is echoed as %s", r.rawID, id)
			}
		}
		failed := reply.Kind == ReplyError || reply.Kind == ReplyChunk && reply.Chunk.Type == ChunkError
		if failed != (refusal != nil) {
			t.Fatalf("refusal %v is answered by %+v", refusal, reply)
		}
	})
}

// sameSplit compares our reading of an object's top level with encoding/json's.
func sameSplit(t *testing.T, body []byte) {
	t.Helper()
	var e envelope
	ok := unmarshal(body, &e) == nil
	var fields map[string]json.RawMessage
	if want := json.Unmarshal(body, &fields) == nil && fields != nil; ok != want {
		t.Fatalf("an object is %t, want %t", ok, want)
	}
	if !ok {
		return
	}
	for key, got := range map[string][]byte{"type": e.Type, "rpc_id": e.RPCID, "tool_id": e.ToolID, "args": e.Args, "kwargs": e.Kwargs} {
		if !bytes.Equal(got, fields[key]) {
			t.Fatalf("field %s is %q, want %q", key, got, fields[key])
		}
	}
}

// compacted is encoding/json's form of a raw value: half a surrogate and bytes that are not UTF-8
// stay as they are.
func compacted(raw json.RawMessage) []byte {
	var buf bytes.Buffer
	if err := json.Compact(&buf, raw); err != nil {
		return raw
	}
	return buf.Bytes()
}

func FuzzParseReply(f *testing.F) {
	for _, seed := range [][2]string{
		{"", ""},
		{"", "1"},
		{"Mesh-Rpc-Id: r\nMesh-Node: n\nMesh-Boot: b\nMesh-Load: 1/2", `{"a":1}`},
		{"Mesh-Error-Code: busy\nNats-Service-Error-Code: 429", `{"error":{"code":"busy","message":"m","started":false}}`},
		{"nats-service-error-code: 418", `{"error":null}`},
		{"Mesh-Keepalive: 1\nMesh-High: 4", ""},
		{"Mesh-High: 4;terminal", ""},
		{"Status: 503", ""},
		{"Mesh-Chunk: error\nMesh-Seq: 2\nMesh-Count: 1", `{"code":"x"}`},
		{"Mesh-Chunk: 0", "0"}, // a chunk that cannot be read was half of one, beside the error
	} {
		f.Add(seed[0], []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, head string, body []byte) {
		for _, read := range []func() Reply{
			func() Reply { return ParseReply(headerOf(head), body) },
			func() Reply { r, _ := ParseEnvelope(body); return r },
		} {
			r := read()
			if (r.Kind == ReplyError) != (r.Err != nil) {
				t.Fatalf("kind %d with error %v", r.Kind, r.Err)
			}
			if r.Err != nil && !r.Err.Code.Valid() {
				t.Fatalf("code %q", r.Err.Code)
			}
			if (r.Kind == ReplyChunk) != (r.Chunk.Type != "") {
				t.Fatalf("kind %d with a chunk of type %q", r.Kind, r.Chunk.Type)
			}
			if r.High < -1 || r.Load.InFlight < 0 || r.Load.Slots < 0 {
				t.Fatalf("high %d, load %+v", r.High, r.Load)
			}
			// A received error can be passed on.
			if r.Err != nil {
				header, data := ErrorReply(r.Err)
				oneLine(t, header)
				if again := ParseReply(header, data); again.Kind != ReplyError || again.Err.Code != r.Err.Code {
					t.Fatalf("%+v is passed on as %+v", r.Err, again.Err)
				}
			}
		}
	})
}

func FuzzParseChunk(f *testing.F) {
	for _, seed := range [][2]string{
		{"Mesh-Chunk: data\nMesh-Seq: 1", `{"a":1}`},
		{"Mesh-Chunk: complete\nMesh-Seq: 2\nMesh-Count: 1", ""},
		{"Mesh-Chunk: error\nMesh-Seq: 2\nMesh-Count: 1", `{"code":"tool_error","message":"m"}`},
		{"mesh-chunk: data\nMESH-SEQ: -1", "x"},
	} {
		f.Add(seed[0], []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, head string, body []byte) {
		c, err := ParseChunk(headerOf(head), body)
		if err != nil {
			if toolmesh.CodeOf(err) != toolmesh.CodeProtocolError {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if c.Seq < 1 || c.Terminal() && c.Count != c.Seq-1 || (c.Type == ChunkError) != (c.Err != nil) {
			t.Fatalf("accepted as %+v", c)
		}
		header, data := c.Encode("r", "")
		again, err := ParseChunk(header, data)
		if err != nil || again.Type != c.Type || again.Seq != c.Seq || again.Count != c.Count {
			t.Fatalf("%+v came back as %+v, %v", c, again, err)
		}
		if c.Type == ChunkData && len(c.Data) > 0 && !bytes.Equal(again.Data, c.Data) {
			t.Fatalf("the item %q came back as %q", c.Data, again.Data)
		}
	})
}

func FuzzControl(f *testing.F) {
	for _, seed := range []string{``, `{"type":"cancel"}`, `{"type":"credit","seq":4}`, `{"from_seq":1,"max_bytes":2}`, `{"from_seq":"1"}`, `300;terminal`, `3/8`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if c, refusal := ParseControl(nil, body); refusal == nil {
			if c.Type != ControlCancel && c.Type != ControlCredit || c.Type == ControlCredit && c.Seq < 0 {
				t.Fatalf("accepted as %+v", c)
			}
			if again, refusal := ParseControl(nil, Encode(c)); refusal != nil || again != c {
				t.Fatalf("%+v came back as %+v, %v", c, again, refusal)
			}
		} else if refusal.Code != toolmesh.CodeInvalidRequest {
			t.Fatalf("refused with %v", refusal)
		}
		if r, refusal := ParseReplay(nil, body); refusal == nil {
			if r.FromSeq < 1 || r.MaxBytes < 1 {
				t.Fatalf("accepted as %+v", r)
			}
			if again, refusal := ParseReplay(nil, Encode(r)); refusal != nil || again != r {
				t.Fatalf("%+v came back as %+v, %v", r, again, refusal)
			}
		} else if refusal.Code != toolmesh.CodeInvalidRequest {
			t.Fatalf("refused with %v", refusal)
		}
		if high, err := ParseHigh(string(body)); err == nil {
			if again, err := ParseHigh(high.String()); err != nil || again != high || high.Seq < 0 {
				t.Fatalf("%+v came back as %+v, %v", high, again, err)
			}
		}
		if load, ok := ParseLoad(string(body)); ok {
			if again, ok := ParseLoad(load.String()); !ok || again != load {
				t.Fatalf("%+v came back as %+v", load, again)
			}
		}
		if text := HeaderText(string(body)); strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) || len(text) > 600 {
			t.Fatalf("HeaderText: %q", text)
		}
	})
}
