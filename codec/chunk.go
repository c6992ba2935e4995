package codec

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// ChunkType is the type of a chunk.
type ChunkType string

// The types of chunk. Exactly one terminal, complete or error, ends a stream.
const (
	ChunkData     ChunkType = "data"
	ChunkComplete ChunkType = "complete"
	ChunkError    ChunkType = "error"
)

// Chunk is one item of a stream, or its terminal.
type Chunk struct {
	Type ChunkType
	Seq  int64           // items from 1; of a terminal Count + 1
	Data json.RawMessage // of an item
	Ref  *Ref            // where Data is, for an item that is in the object store; else nil
	// Count is how many items there were, in a terminal.
	Count int64
	Err   *toolmesh.Error // of an error terminal
}

// Terminal reports whether nothing follows.
func (c *Chunk) Terminal() bool { return c.Type != ChunkData }

// Encode renders the chunk as it is stored and delivered. epoch may be empty.
func (c *Chunk) Encode(rpc subjects.RPCID, epoch string) (Header, []byte) {
	h := Header{HeaderRPCID: {NameHeader(rpc)}, HeaderSeq: {strconv.FormatInt(c.Seq, 10)}, HeaderChunk: {string(c.Type)}}
	if epoch != "" {
		h.Set(HeaderEpoch, epoch)
	}
	if c.Ref != nil {
		c.Ref.put(h)
		return h, nil
	}
	if c.Type == ChunkData {
		if len(c.Data) == 0 {
			return h, jsonNull
		}
		return h, c.Data
	}
	h.Set(HeaderCount, strconv.FormatInt(c.Count, 10))
	if c.Type == ChunkError {
		return h, Encode(sendable(c.Err))
	}
	return h, nil
}

// ParseChunk reads a chunk; a malformed one is a protocol_error.
func ParseChunk(h Header, body []byte) (Chunk, error) {
	c := Chunk{Type: ChunkType(h.Get(HeaderChunk))}
	var err error
	if c.Seq, err = strconv.ParseInt(h.Get(HeaderSeq), 10, 64); err != nil || c.Seq < 1 {
		return c, malformedChunk(HeaderSeq, h.Get(HeaderSeq))
	}
	switch c.Type {
	case ChunkData:
		c.Data = body
		if name := h.Get(HeaderRef); name != "" && len(body) == 0 {
			c.Ref = &Ref{Name: name, Digest: h.Get(HeaderDigest)}
		}
		return c, nil
	case ChunkComplete, ChunkError:
	default:
		return c, malformedChunk(HeaderChunk, string(c.Type))
	}
	if c.Count, err = strconv.ParseInt(h.Get(HeaderCount), 10, 64); err != nil || c.Count != c.Seq-1 {
		return c, malformedChunk(HeaderCount, h.Get(HeaderCount))
	}
	if c.Type == ChunkError {
		var e *toolmesh.Error
		if json.Unmarshal(body, &e) != nil || e != nil && e.Code == "" {
			e = nil
		}
		c.Err = readError(e)
	}
	return c, nil
}

func malformedChunk(name, value string) error {
	return toolmesh.Errorf(toolmesh.CodeProtocolError, "a chunk's header %s is %q", name, value)
}

// Envelope renders the chunk for a stream of the envelope form.
func (c *Chunk) Envelope(r *Request) []byte {
	m := streamChunk{Type: typeChunk, RPCID: r.echoID(), ChunkType: string(c.Type), Seq: c.Seq, Data: c.Data}
	switch {
	case c.Ref != nil: // it is in the store for others
		m.ChunkType, m.Data = string(ChunkError), nil
		m.Error = withType(toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "item %d is too large for a message: send headers, with %s", c.Seq, HeaderAcceptRef))
	case c.Type == ChunkData && len(c.Data) == 0:
		m.Data = jsonNull
	case c.Type == ChunkData && !json.Valid(c.Data):
		m.ChunkType, m.Data, m.Error = string(ChunkError), nil, withType(NotJSON())
	}
	if c.Err != nil {
		m.Error = withType(c.Err)
	}
	return Encode(m)
}

// High ends the answer to a replay: the last stored item, and whether the terminal is stored.
type High struct {
	Seq      int64
	Terminal bool
}

// String renders 300 or 300;terminal.
func (h High) String() string {
	s := strconv.FormatInt(h.Seq, 10)
	if h.Terminal {
		s += ";terminal"
	}
	return s
}

// ParseHigh reads the value of Mesh-High.
func ParseHigh(v string) (High, error) {
	n, rest, more := strings.Cut(v, ";")
	seq, err := strconv.ParseInt(n, 10, 64)
	if err != nil || seq < 0 || more && rest != "terminal" {
		return High{}, toolmesh.Errorf(toolmesh.CodeProtocolError, "header %s is %q", HeaderHigh, v)
	}
	return High{Seq: seq, Terminal: more}, nil
}
