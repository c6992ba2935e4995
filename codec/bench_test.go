package codec

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// The unary path: each of these runs once per call.

var (
	benchArgs   = []byte(`{"city":"Oslo","days":3,"units":"metric"}`)
	benchResult = json.RawMessage(`{"summary":"rain in Oslo","high":12,"low":7,"wind":{"speed":5,"from":"SW"}}`)
	benchCall   = Call{
		RPCID: "rpc_018f5c0d1c7a7b3e9a4d2f6e8b0c1d2e", Session: "s1", Tool: "weather.forecast", Timeout: 30 * time.Second,
		Deadline: time.UnixMilli(1700000000000), Keepalive: true, WantLoad: true,
	}
)

func BenchmarkParseRequest(b *testing.B) {
	for name, c := range map[string]struct {
		header Header
		body   []byte
	}{
		"plain":          {nil, benchArgs},
		"plain5headers":  {benchCall.Header(), benchArgs},
		"plainForeign":   {Header{"Mesh-Rpc-Id": {"r"}, "X-Request-Id": {"1"}, "Nats-Msg-Id": {"2"}, "mesh-timeout-ms": {"100"}}, benchArgs},
		"envelope":       {nil, []byte(`{"type":"rpc_tool_call","rpc_id":"rpc_018f5c0d","tool_id":"weather.forecast","args":[],"kwargs":{"city":"Oslo","days":3}}`)},
		"plain100KBText": {benchCall.Header(), append(append([]byte(`{"t":"`), make([]byte, 100<<10)...), `"}`...)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseRequest(forecast, c.header, c.body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkParseBatch is a batch of 7 MiB.
func BenchmarkParseBatch(b *testing.B) {
	subject := subjects.Subject{Session: "s1"}
	args := json.RawMessage(`{"rows":[` + strings.Repeat(`{"city":"Oslo","days":3,"at":1.5},`, 210) + `0]}`)
	members := make([]Member, MaxBatch)
	for i := range members {
		members[i] = Member{Index: i, Tool: "weather.forecast", Args: args}
	}
	body := EncodeBatch("b1", members, true)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseBatch(subject, nil, body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkResult(b *testing.B) {
	request, err := ParseRequest(forecast, benchCall.Header(), benchArgs)
	if err != nil {
		b.Fatal(err)
	}
	for name, r := range map[string]*Request{
		"plain":    request,
		"envelope": envelopeOf(b, "rpc_tool_call", `"rpc_018f5c0d"`),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, body := r.Result(identity, benchResult, Load{3, 8}); len(body) == 0 {
					b.Fatal("empty")
				}
			}
		})
	}
}

func BenchmarkParseReply(b *testing.B) {
	request, err := ParseRequest(forecast, benchCall.Header(), benchArgs)
	if err != nil {
		b.Fatal(err)
	}
	header, body := request.Result(identity, benchResult, Load{3, 8})
	failed, failedBody := request.Failure(identity, toolmesh.Errorf(toolmesh.CodeToolError, "no such city"), Load{3, 8})
	chunk, chunkBody := (&Chunk{Type: ChunkData, Seq: 7, Data: benchResult}).Encode("rpc_1", "")
	for name, c := range map[string]struct {
		header Header
		body   []byte
		kind   ReplyKind
	}{
		"result": {header, body, ReplyResult},
		"error":  {failed, failedBody, ReplyError},
		"chunk":  {chunk, chunkBody, ReplyChunk},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r := ParseReply(c.header, c.body); r.Kind != c.kind {
					b.Fatalf("kind %d", r.Kind)
				}
			}
		})
	}
}

func BenchmarkCallHeader(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if len(benchCall.Header()) == 0 {
			b.Fatal("empty")
		}
	}
}

func BenchmarkChunkEncode(b *testing.B) {
	c := Chunk{Type: ChunkData, Seq: 7, Data: benchResult}
	b.ReportAllocs()
	for b.Loop() {
		if header, _ := c.Encode("rpc_1", ""); len(header) == 0 {
			b.Fatal("empty")
		}
	}
}
