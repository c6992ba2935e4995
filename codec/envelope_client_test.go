package codec

import (
	"encoding/json"

	"github.com/toolmesh/toolmesh"
)

// ParseEnvelope reads a reply of the envelope form for tests: a response, one chunk of a stream, or
// the rpc_stream_end that older hosts send after it (ReplyEnd). id is the call's as it was echoed,
// a number or text. Like [ParseReply] it never fails: an unreadable reply is a ReplyError with
// protocol_error. A complete chunk without a count has its number as the count.
func ParseEnvelope(body []byte) (reply Reply, id json.RawMessage) {
	reply.High = -1
	var m struct {
		Type      string          `json:"type"`
		RPCID     json.RawMessage `json:"rpc_id"`
		Status    string          `json:"status"`
		Result    json.RawMessage `json:"result"`
		ChunkType ChunkType       `json:"chunk_type"`
		Data      json.RawMessage `json:"data"`
		Seq       int64           `json:"seq"`
		Error     *toolmesh.Error `json:"error"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		reply.Kind = ReplyError
		reply.Err = toolmesh.Errorf(toolmesh.CodeProtocolError, "a reply is not an envelope: %v", err)
		return reply, nil
	}
	switch {
	case (m.Type == typeToolResponse || m.Type == typeResponse) && m.Status == "ok":
		reply.Body = m.Result
	case (m.Type == typeToolResponse || m.Type == typeResponse) && m.Status == "error":
		reply.Kind, reply.Err = ReplyError, readError(m.Error)
	case m.Type == "rpc_stream_end":
		reply.Kind = ReplyEnd
	case m.Type == typeChunk && m.ChunkType == ChunkData && m.Seq > 0:
		reply.Kind, reply.Chunk = ReplyChunk, Chunk{Type: ChunkData, Seq: m.Seq, Data: m.Data}
	case m.Type == typeChunk && m.ChunkType == ChunkComplete:
		reply.Kind, reply.Chunk = ReplyChunk, Chunk{Type: ChunkComplete, Seq: m.Seq, Count: max(m.Seq-1, 0)}
	case m.Type == typeChunk && m.ChunkType == ChunkError:
		reply.Kind = ReplyChunk
		reply.Chunk = Chunk{Type: ChunkError, Seq: m.Seq, Count: max(m.Seq-1, 0), Err: readError(m.Error)}
	default:
		reply.Kind = ReplyError
		reply.Err = toolmesh.Errorf(toolmesh.CodeProtocolError, "a reply of type %q, status %q, chunk type %q is not known", m.Type, m.Status, m.ChunkType)
	}
	return reply, m.RPCID
}
