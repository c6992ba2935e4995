package codec

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/toolmesh/toolmesh"
)

func TestChunk(t *testing.T) {
	t.Parallel()
	stream := envelopeOf(t, "rpc_tool_stream", `7`)
	failed := &toolmesh.Error{Code: toolmesh.CodeToolError, Message: "boom", Type: "ValueError"}
	object := `{"code":"tool_error","message":"boom","retryable":false,"type":"ValueError"}`
	for name, c := range map[string]struct {
		chunk    Chunk
		epoch    string
		header   Header
		body     string
		envelope string
	}{
		"an item": {
			Chunk{Type: ChunkData, Seq: 1, Data: json.RawMessage(`{"a": 1}`)}, "", h("Mesh-Rpc-Id", "r", "Mesh-Seq", "1", "Mesh-Chunk", "data"), `{"a": 1}`,
			`{"type":"rpc_stream_chunk","rpc_id":7,"chunk_type":"data","data":{"a":1},"seq":1}`,
		},
		"nothing as an item": {
			Chunk{Type: ChunkData, Seq: 2}, "4", h("Mesh-Rpc-Id", "r", "Mesh-Seq", "2", "Mesh-Chunk", "data", "Mesh-Epoch", "4"), `null`,
			`{"type":"rpc_stream_chunk","rpc_id":7,"chunk_type":"data","data":null,"seq":2}`,
		},
		"the last": {
			Chunk{Type: ChunkComplete, Seq: 3, Count: 2}, "", h("Mesh-Rpc-Id", "r", "Mesh-Seq", "3", "Mesh-Chunk", "complete", "Mesh-Count", "2"), ``,
			`{"type":"rpc_stream_chunk","rpc_id":7,"chunk_type":"complete","seq":3}`,
		},
		"the last of none": {
			Chunk{Type: ChunkComplete, Seq: 1}, "", h("Mesh-Rpc-Id", "r", "Mesh-Seq", "1", "Mesh-Chunk", "complete", "Mesh-Count", "0"), ``,
			`{"type":"rpc_stream_chunk","rpc_id":7,"chunk_type":"complete","seq":1}`,
		},
		"a failure": {
			Chunk{Type: ChunkError, Seq: 3, Count: 2, Err: failed}, "", h("Mesh-Rpc-Id", "r", "Mesh-Seq", "3", "Mesh-Chunk", "error", "Mesh-Count", "2"), object,
			`{"type":"rpc_stream_chunk","rpc_id":7,"chunk_type":"error","seq":3,"error":` + object + `}`,
		},
	} {
		header, body := c.chunk.Encode("r", c.epoch)
		if diff := cmp.Diff(c.header, header); diff != "" || string(body) != c.body {
			t.Errorf("%s: got %s, header (-want +got):\n%s", name, body, diff)
		}
		want := c.chunk
		if want.Type == ChunkData && want.Data == nil {
			want.Data = jsonNull
		}
		got, err := ParseChunk(header, body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(toolmesh.Error{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if c.chunk.Terminal() != (c.chunk.Type != ChunkData) {
			t.Errorf("%s: Terminal is %t", name, c.chunk.Terminal())
		}
		if got := c.chunk.Envelope(stream); string(got) != c.envelope {
			t.Errorf("%s: got %s, want %s", name, got, c.envelope)
		}
	}
}

func TestParseChunkRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Header{
		"nothing":                     {},
		"no number":                   h("Mesh-Chunk", "data"),
		"item 0":                      h("Mesh-Chunk", "data", "Mesh-Seq", "0"),
		"a number that is none":       h("Mesh-Chunk", "data", "Mesh-Seq", "1.5"),
		"a number beyond any":         h("Mesh-Chunk", "data", "Mesh-Seq", "9223372036854775808"),
		"no type":                     h("Mesh-Seq", "1"),
		"a type of later":             h("Mesh-Chunk", "pack", "Mesh-Seq", "1"),
		"a terminal without a count":  h("Mesh-Chunk", "complete", "Mesh-Seq", "1"),
		"a count that disagrees":      h("Mesh-Chunk", "complete", "Mesh-Seq", "3", "Mesh-Count", "3"),
		"a failure without a count":   h("Mesh-Chunk", "error", "Mesh-Seq", "3"),
		"a count that is no number":   h("Mesh-Chunk", "error", "Mesh-Seq", "3", "Mesh-Count", "two"),
		"a number with a line behind": h("Mesh-Chunk", "data", "Mesh-Seq", "1\n"),
	} {
		if got, err := ParseChunk(c, []byte(`{"code":"busy"}`)); toolmesh.CodeOf(err) != toolmesh.CodeProtocolError {
			t.Errorf("%s: got %+v, %v, want protocol_error", name, got, err)
		}
	}
	// A stream that failed has failed, whether or not we can read how.
	for body, want := range map[string]toolmesh.Code{
		``: toolmesh.CodeProtocolError, `x`: toolmesh.CodeProtocolError, `null`: toolmesh.CodeProtocolError, `{}`: toolmesh.CodeProtocolError,
		`{"code":"teapot","message":"m"}`: toolmesh.CodeInternal, `{"code":"busy","message":"m"}`: toolmesh.CodeBusy,
	} {
		got, err := ParseChunk(h("mesh-chunk", "error", "MESH-SEQ", "3", "mesh-count", "2"), []byte(body))
		if err != nil || got.Err == nil || got.Err.Code != want {
			t.Errorf("%s: got %+v, %v, want %s", body, got.Err, err, want)
		}
	}
}

func TestHighRoundTrips(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]High{"0": {}, "300": {Seq: 300}, "300;terminal": {300, true}, "0;terminal": {0, true}} {
		if got, err := ParseHigh(text); err != nil || got != want || got.String() != text {
			t.Errorf("ParseHigh(%q): got %+v, %v", text, got, err)
		}
		if got := ParseReply(ReplayEnd(want), nil); got.Kind != ReplyEnd || got.High != want.Seq || got.Terminal != want.Terminal {
			t.Errorf("%q ends a replay as %+v", text, got)
		}
	}
	for _, text := range []string{"", "-1", "x", "1;", "1;end", "1;terminal;", ";terminal", "1 ;terminal"} {
		if got, err := ParseHigh(text); toolmesh.CodeOf(err) != toolmesh.CodeProtocolError {
			t.Errorf("ParseHigh(%q): got %+v, %v, want protocol_error", text, got, err)
		}
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]Control{
		``: {Type: ControlCancel}, " \n": {Type: ControlCancel}, `{"type":"cancel"}`: {Type: ControlCancel}, `{"type":"cancel","why":1}`: {Type: ControlCancel},
		`{"type":"credit","seq":40}`: {ControlCredit, 40}, `{"type":"credit","seq":0}`: {ControlCredit, 0},
		`{"type":"credit","seq":40.0}`: {ControlCredit, 40}, `{"type":"cancel","seq":"x"}`: {Type: ControlCancel},
	} {
		got, err := ParseControl(nil, []byte(body))
		if err != nil || got != want {
			t.Errorf("ParseControl(%s): got %+v, %v, want %+v", body, got, err, want)
			continue
		}
		if again, err := ParseControl(nil, Encode(got)); err != nil || again != want {
			t.Errorf("%s encodes as %s", body, Encode(got))
		}
	}
	for _, body := range []string{`x`, `{}`, `[]`, `null`, `"cancel"`, `{"type":"pause"}`, `{"type":"credit","seq":-1}`, `{"type":"credit","seq":"4"}`, `{"type":"credit","seq":1.5}`, `{"type":"cancel"}{}`, `{"TYPE":"cancel"}`, `{"type":7}`} {
		if got, err := ParseControl(nil, []byte(body)); err == nil || err.Code != toolmesh.CodeInvalidRequest {
			t.Errorf("ParseControl(%s): got %+v, %v, want invalid_request", body, got, err)
		}
	}
	if got := string(Encode(Cancelled{true})) + string(Encode(Cancelled{})); got != `{"cancelled":true}{"cancelled":false}` {
		t.Errorf("Cancelled: got %s", got)
	}
	beat := Heartbeat{Node: "n", Boot: "b", State: "serving", Slots: 4, InFlight: 1, Queued: 2}
	if got := string(Encode(beat)); got != `{"node":"n","boot":"b","state":"serving","slots":4,"in_flight":1,"queued":2}` {
		t.Errorf("Heartbeat: got %s", got)
	}
}

func TestReplayRequest(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]ReplayRequest{
		`{"from_seq":1}`:                       {1, DefaultReplayBytes},
		`{"from_seq":5,"max_bytes":10}`:        {5, 10},
		`{"from_seq":5,"max_bytes":0}`:         {5, DefaultReplayBytes},
		`{"from_seq":5,"max_bytes":null}`:      {5, DefaultReplayBytes},
		` {"from_seq":9007199254740993,"a":1}`: {9007199254740993, DefaultReplayBytes},
		`{"from_seq":2.0,"max_bytes":1e3}`:     {2, 1000},
	} {
		got, err := ParseReplay(nil, []byte(body))
		if err != nil || got != want {
			t.Errorf("ParseReplay(%s): got %+v, %v, want %+v", body, got, err, want)
			continue
		}
		if again, err := ParseReplay(nil, Encode(got)); err != nil || again != want {
			t.Errorf("%s encodes as %s", body, Encode(got))
		}
	}
	for body, text := range map[string]string{
		``: "absent", `x`: "JSON", `[]`: "an object", `{"from_seq":1} x`: "JSON", `{"FROM_SEQ":1}`: "absent", `{}`: "absent", `{"from_seq":null}`: "null", `{"from_seq":0}`: "0", `{"from_seq":-1}`: "-1",
		`{"from_seq":1.5}`: "1.5", `{"from_seq":"5"}`: `"5"`, `{"from_seq":1e300}`: "1e300", `{"from_seq":1e-1}`: "1e-1", `{"from_seq":-2.0}`: "-2.0", `{"from_seq":99999999999999999999}`: "99999999999999999999",
		`{"from_seq":1,"max_bytes":-1}`: "max_bytes", `{"from_seq":1,"max_bytes":"1MB"}`: "max_bytes",
	} {
		_, err := ParseReplay(nil, []byte(body))
		if err == nil || err.Code != toolmesh.CodeInvalidRequest || !strings.Contains(err.Message, text) {
			t.Errorf("ParseReplay(%s): got %v, want invalid_request naming %s", body, err, text)
		}
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for _, feature := range Features() {
		if _, err := ParseRequest(forecast, h("Mesh-Require", feature), nil); err != nil {
			t.Errorf("a node that advertises %s refuses it: %v", feature, err)
		}
	}
	Features()[0] = "changed"
	if Features()[0] == "changed" {
		t.Error("Features hands out its own list")
	}
	_, err := ParseRequest(forecast, h("Mesh-Proto", "7"), nil)
	if err == nil || err.Details["proto"] == nil {
		t.Errorf("got %+v, want the versions that are spoken in details.proto", err)
	}
	_, err = ParseRequest(forecast, h("Mesh-Require", "teleport"), nil)
	if err == nil || err.Details["require"] != "teleport" {
		t.Errorf("got %+v, want the name in details.require", err)
	}
}
