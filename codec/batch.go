package codec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/subjects"
)

// Types of a batch and its answer.
const (
	typeBatch         = "rpc_batch_call"
	typeBatchResponse = "rpc_batch_response"
)

// MaxBatch is how many calls a batch may have.
const MaxBatch = 1000

// Batch is a request on mesh.batch: several calls, whose results are answered
// together.
type Batch struct {
	Request // of all of them: its RPCID is the batch's id, its Args are not set
	Members []Member
	// Independent says that the caller vouches for its calls: any two may overlap unless
	// their resource keys are equal, or a tool is declared unsafe.
	Independent bool
}

// Member is one call of a batch.
type Member struct {
	Index      int
	Tool       subjects.ToolID
	Args       json.RawMessage   // the arguments object, never empty
	Positional []json.RawMessage // positional arguments, which come before
	Timeout    time.Duration     // from the batch's arrival; 0: none of its own
	Err        *toolmesh.Error   // why it cannot be called; the others can
}

// Size is how many bytes of memory the members' arguments take.
func (b *Batch) Size() (n int64) {
	for i := range b.Members {
		n += sizeOf(b.Members[i].Args, b.Members[i].Positional)
	}
	return n
}

// Drop forgets the members, which are not executed.
func (b *Batch) Drop() {
	b.Members = nil
	b.Request.Drop()
}

// RPCID is the name of a member's call.
func (b *Batch) RPCID(m *Member) subjects.RPCID { return MemberID(b.Request.RPCID, m.Index) }

// MemberID is the name of the call with an index in a batch.
func MemberID(batch subjects.RPCID, index int) subjects.RPCID {
	return batch + "." + subjects.RPCID(strconv.Itoa(index))
}

// ParseBatch reads a request that arrived on a batch subject, directed or not. s is that
// subject, parsed. On an error, which has started:false, the returned Batch still says how
// to answer, and under which id if one could be read.
func ParseBatch(s subjects.Subject, h Header, body []byte) (*Batch, *toolmesh.Error) {
	b := &Batch{Request: Request{Call: Call{Session: s.Session}, body: body}}
	err := b.parsePlain(h, body)
	members := func() {
		if bad := b.Decode(); err == nil && bad != nil {
			err = bad
		} else if err == nil {
			body = b.Args // as JSON
		}
		if bad := b.parseMembers(body); err == nil {
			err = bad
		}
	}
	if b.Encoded() {
		fair.Heavy(members)
	} else {
		members()
	}
	b.Args = nil
	if err != nil {
		return b, refused(err)
	}
	return b, nil
}

func (b *Batch) parseMembers(body []byte) error {
	var wire struct {
		Type     json.RawMessage `json:"type"`
		ID       json.RawMessage `json:"batch_id"`
		Requests wireList        `json:"requests"`
		Parallel json.RawMessage `json:"parallel"`
	}
	if unmarshal(body, &wire) != nil {
		return invalid(`the body is not {"type":"rpc_batch_call","batch_id":…,"requests":[…]}`)
	}
	if text, _ := jsonText(wire.Type); text != typeBatch {
		return invalid("type is %.40s: on this subject it is %q", cmp.Or(string(wire.Type), "absent"), typeBatch)
	}
	if err := b.setBatchID(wire.ID); err != nil {
		return err
	}
	if b.Delivery != DeliverNone && b.Delivery != DeliverInbox {
		return invalid("header %s is 1: the results of a batch come to the reply subject, say inbox", HeaderStream)
	}
	if b.IdempotencyKey != "" {
		return invalid("header %s: a batch cannot have an idempotency key, only a call with one result", HeaderIdempotencyKey)
	}
	if wire.Parallel != nil && json.Unmarshal(wire.Parallel, &b.Independent) != nil {
		return invalid("parallel is %.40s: it is true or false", wire.Parallel)
	}
	members := wire.Requests
	switch {
	case members == nil:
		return invalid("requests is missing or no list")
	case len(members) == 0:
		return invalid("the batch has no requests")
	case len(members) > MaxBatch:
		return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the batch has %d requests, at most %d are taken", len(members), MaxBatch).WithDetail("limit", MaxBatch)
	}
	b.Members = make([]Member, len(members))
	seen := make(map[int]bool, len(members))
	for i, raw := range members {
		members[i] = nil // the member has its own copy
		m := &b.Members[i]
		if err := m.parse(i, raw); err != nil {
			return err
		}
		if seen[m.Index] {
			return invalid("requests[%d] has the index %d of another request: give each request its own index", i, m.Index)
		}
		seen[m.Index] = true
	}
	return nil
}

// setBatchID takes the batch's id, which the header may name as well.
func (b *Batch) setBatchID(raw json.RawMessage) error {
	header := b.Request.RPCID
	if raw == nil && header == "" && b.IsAgain {
		return unnamed("batch_id")
	}
	if raw == nil {
		b.Request.RPCID = cmp.Or(header, subjects.NewRPCID("batch_"))
		return nil
	}
	if err := b.setRawID("batch_id", raw); err != nil {
		return err
	}
	if header != "" && !subjects.SameName(header, b.Request.RPCID) {
		return invalid("header %s is %q, batch_id %q: it is the same id", HeaderRPCID, header, b.Request.RPCID)
	}
	return nil
}

// parse reads a member. The error is one of the batch; m.Err is of this call alone.
func (m *Member) parse(i int, raw []byte) error {
	*m = Member{Index: i, Args: json.RawMessage("{}")}
	var wire wireMember
	if unmarshal(raw, &wire) != nil {
		return invalid("requests[%d] is not an object", i)
	}
	if wire.Index != nil {
		n, err := strconv.ParseUint(string(wire.Index), 10, 31)
		if err != nil {
			return invalid("requests[%d] has the index %.40s: it is a whole number from 0 on", i, wire.Index)
		}
		m.Index = int(n) //nolint:gosec // of 31 bits
	}
	if err := m.read(&wire); err != nil {
		m.Err = refused(err)
	}
	return nil
}

// wireList is the elements of a list, as they came; nil for anything else.
type wireList []json.RawMessage

// UnmarshalJSON never fails, so that the message can name the field.
func (l *wireList) UnmarshalJSON(data []byte) error {
	*l = nil // of a repeated one the last counts
	_ = jsonv2.Unmarshal(data, (*[]json.RawMessage)(l), anyText)
	return nil
}

// wireMember is a [Member] as it is read: each field as it came, nil if it is absent.
type wireMember struct {
	Index   json.RawMessage `json:"index"`
	Tool    json.RawMessage `json:"tool_id"`
	Args    json.RawMessage `json:"args"`
	Kwargs  json.RawMessage `json:"kwargs"`
	Timeout json.RawMessage `json:"timeout_ms"`
}

func (m *Member) read(wire *wireMember) error {
	name, ok := jsonText(wire.Tool)
	if m.Tool = subjects.ToolID(name); !ok || name == "" {
		return invalid("tool_id is missing or not text")
	}
	var err error
	if m.Args, m.Positional, err = readArgs("", wire.Args, wire.Kwargs); err != nil {
		return err
	}
	if wire.Timeout != nil && !isNull(wire.Timeout) {
		n, err := strconv.ParseInt(string(wire.Timeout), 10, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) || n < 1 {
			return invalid("timeout_ms is %.40s: it is a whole number of milliseconds from 1 on", wire.Timeout)
		}
		m.Timeout = toolmesh.Millis(n)
	}
	return nil
}

// BatchResult is the result of one call of a batch.
type BatchResult struct {
	Index    int
	RPCID    subjects.RPCID
	Result   json.RawMessage // JSON; nothing for null
	Ref      *Ref            // where the result is, if it is in the object store; else nil
	Err      *toolmesh.Error
	LaneWait time.Duration // for how long it waited for calls that it must not overlap with
}

// wireResult is a [BatchResult] as it travels.
type wireResult struct {
	Index    int             `json:"index"`
	RPCID    subjects.RPCID  `json:"rpc_id"`
	LaneWait int64           `json:"lane_wait_ms,omitempty"`
	Status   string          `json:"status"`
	Err      *toolmesh.Error `json:"error,omitempty"`
	Ref      string          `json:"ref,omitempty"`
	Digest   string          `json:"digest,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
}

// Encode renders the result.
func (r *BatchResult) Encode() []byte {
	wire := wireResult{Index: r.Index, RPCID: r.RPCID, LaneWait: r.LaneWait.Milliseconds(), Status: "ok"}
	switch {
	case r.Err != nil:
		wire.Status, wire.Err = "error", withType(r.Err)
	case r.Ref != nil:
		wire.Ref, wire.Digest = r.Ref.Name, r.Ref.Digest
	default: // as the tool wrote it, behind the rest
		value := r.Result
		if len(value) == 0 {
			value = jsonNull
		}
		head := bytes.TrimSuffix(Encode(wire), []byte("}"))
		return slices.Concat(head, []byte(`,"result":`), value, []byte("}"))
	}
	return Encode(wire)
}

// Results renders the answer of a batch that was taken. results are encoded, a JSON array
// in the order of its members.
func (b *Batch) Results(id *Identity, results json.RawMessage) (Header, []byte) {
	return b.Encode(id.header(&b.Request), b.ResultsBody(results))
}

// ResultsBody is the body of that answer, as JSON.
func (b *Batch) ResultsBody(results json.RawMessage) []byte {
	return slices.Concat([]byte(`{"type":"`+typeBatchResponse+`","batch_id":`), b.echoID(), []byte(`,"results":`), results, []byte("}"))
}

// Failure renders the answer of a batch that was not taken.
func (b *Batch) Failure(id *Identity, err *toolmesh.Error) (Header, []byte) {
	h := id.header(&b.Request)
	setError(h, err)
	return b.Encode(h, Encode(struct {
		Type   string          `json:"type"`
		ID     json.RawMessage `json:"batch_id"`
		Status string          `json:"status"`
		Err    *toolmesh.Error `json:"error"`
	}{typeBatchResponse, b.echoID(), "error", withType(err)}))
}

// echoID is the batch's id as it came.
func (b *Batch) echoID() json.RawMessage {
	if b.rawID != nil {
		return b.rawID
	}
	return Encode(b.Request.RPCID)
}

// OneResult renders a result that is sent as its call ends, to a caller that asked for that.
func (b *Batch) OneResult(id *Identity, r *BatchResult, encoded []byte) (Header, []byte) {
	h := id.header(&b.Request)
	h.Set(HeaderRPCID, NameHeader(r.RPCID))
	return b.Encode(h, encoded)
}

// EncodeBatch renders the body of a batch. Members' Err is not looked at.
func EncodeBatch(id subjects.RPCID, members []Member, independent bool) []byte {
	type request struct {
		Index   int               `json:"index"`
		Tool    subjects.ToolID   `json:"tool_id"`
		Args    []json.RawMessage `json:"args,omitempty"`
		Kwargs  json.RawMessage   `json:"kwargs,omitempty"`
		Timeout int64             `json:"timeout_ms,omitempty"`
	}
	requests := make([]request, len(members))
	for i, m := range members {
		requests[i] = request{m.Index, m.Tool, m.Positional, m.Args, int64(m.Timeout/time.Millisecond) + min(1, int64(m.Timeout%time.Millisecond))}
	}
	return Encode(struct {
		Type     string         `json:"type"`
		ID       subjects.RPCID `json:"batch_id"`
		Parallel bool           `json:"parallel,omitempty"`
		Requests []request      `json:"requests"`
	}{typeBatch, id, independent, requests})
}

// ParseBatchResults reads the answer of a batch. The error is protocol_error.
func ParseBatchResults(body []byte) ([]BatchResult, error) {
	var answer struct {
		Type    string       `json:"type"`
		Results []wireResult `json:"results"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Type != typeBatchResponse {
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "the answer to a batch cannot be read")
	}
	results := make([]BatchResult, len(answer.Results))
	for i, r := range answer.Results {
		results[i] = BatchResult{Index: r.Index, RPCID: r.RPCID, Result: r.Result, LaneWait: toolmesh.Millis(r.LaneWait)}
		if r.Ref != "" {
			results[i].Ref = &Ref{Name: r.Ref, Digest: r.Digest}
		}
		if r.Status != "ok" {
			results[i].Err = readError(r.Err)
		}
	}
	return results, nil
}
