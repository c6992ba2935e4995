package codec

import (
	"bytes"
	"cmp"
	"math"
	"strconv"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// ControlType is the type of a control message.
type ControlType string

// The types of control message.
const (
	ControlCancel ControlType = "cancel"
	ControlCredit ControlType = "credit"
	// ControlWhere asks which node has a call, running or with its result.
	ControlWhere ControlType = "where"
	// ControlPass lets a router pass a call on: it answers its keepalive with [AwaitsAnswer],
	// with that keepalive's number as Seq.
	ControlPass ControlType = "pass"
	// ControlRead says that the caller has read an answer that asked for that.
	ControlRead ControlType = "read"
)

// Control is a message on a ctl subject, which names the call.
type Control struct {
	Type ControlType `json:"type"`
	// Seq is the item up to which a stream may send, for credit: absolute. For pass it is
	// the number of the question.
	Seq int64 `json:"seq,omitempty"`
}

// ParseControl reads a control message; an empty one is a cancel.
func ParseControl(h Header, body []byte) (Control, *toolmesh.Error) {
	var wire struct {
		Type ControlType `json:"type"`
		Seq  wholeNumber `json:"seq"`
	}
	err := ParseBody(h, body, &wire)
	c := Control{Type: wire.Type}
	if err != nil {
		return c, refused(err)
	}
	if c.Type == ControlCredit || c.Type == ControlPass {
		c.Seq = wire.Seq.n
	}
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		c.Type = ControlCancel
	case c.Type == ControlCancel, c.Type == ControlWhere, c.Type == ControlRead:
	case (c.Type == ControlCredit || c.Type == ControlPass) && c.Seq >= 0:
	default:
		return c, refused(invalid("control type %q is not known: cancel, where, read, or credit with a seq", c.Type))
	}
	return c, nil
}

// Cancelled is the answer to a cancel that was sent as a request.
type Cancelled struct {
	Cancelled bool `json:"cancelled"`
}

// Where is the answer to the question which node has a call, from that one.
type Where struct {
	Node subjects.NodeID `json:"node"`
	Boot subjects.BootID `json:"boot"`
	// Tool that the call runs there now; empty for a call that has ended.
	Tool subjects.ToolID `json:"tool,omitempty"`
}

// ReasonStateGone is details.reason of an error by which a caller hears, once, that its
// session's worker is gone.
const ReasonStateGone = "session_worker_unavailable"

// StateGone reports whether an error has that reason. The next call gets a new worker, so only
// the caller may send this one again.
func StateGone(e *toolmesh.Error) bool { return e.Details["reason"] == ReasonStateGone }

// NodeBusy reports whether an error comes from the one node that can execute the call and has no
// room: other nodes need not be asked.
func NodeBusy(e *toolmesh.Error) bool {
	return e.Code == toolmesh.CodeBusy && e.Details["node"] != nil
}

// DefaultReplayBytes is how much one replay sends when it does not say.
const DefaultReplayBytes = 1 << 20

// ReplayRequest asks for stored chunks from FromSeq on. MaxBytes is passed by
// at most one chunk.
type ReplayRequest struct {
	FromSeq  int64 `json:"from_seq"`
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// ParseReplay reads a replay request; from_seq must be 1 or more.
func ParseReplay(h Header, body []byte) (ReplayRequest, *toolmesh.Error) {
	var wire struct {
		FromSeq  wholeNumber `json:"from_seq"`
		MaxBytes wholeNumber `json:"max_bytes"`
	}
	switch err := ParseBody(h, body, &wire); {
	case err != nil:
		return ReplayRequest{}, refused(err)
	case wire.FromSeq.n < 1:
		return ReplayRequest{}, refused(invalid("from_seq is %s: it is a whole number from 1 on", wire.FromSeq))
	case wire.MaxBytes.n < 0:
		return ReplayRequest{}, refused(invalid("max_bytes is %s: it is a whole number of bytes", wire.MaxBytes))
	}
	return ReplayRequest{FromSeq: wire.FromSeq.n, MaxBytes: cmp.Or(wire.MaxBytes.n, DefaultReplayBytes)}, nil
}

// wholeNumber is a number of a request: -1 for another value, such as a text of digits, 0 for an
// absent one and for null.
type wholeNumber struct {
	n    int64
	text string
}

// UnmarshalJSON never fails, so that the message can name the field.
func (w *wholeNumber) UnmarshalJSON(data []byte) error {
	w.text = string(data)
	if w.text == "null" {
		return nil
	}
	var err error
	if w.n, err = strconv.ParseInt(w.text, 10, 64); err == nil {
		return nil
	}
	// To JSON 2.0 and 1e3 are whole numbers; there are libraries that write them so.
	if f, err := strconv.ParseFloat(w.text, 64); err == nil && f == math.Trunc(f) && math.Abs(f) <= 1<<53 {
		w.n = int64(f)
		return nil
	}
	w.n = -1
	return nil
}

// String returns the number as it came.
func (w wholeNumber) String() string {
	if w.text == "" {
		return "absent"
	}
	return w.text
}

// ReplayEnd renders the empty message that ends the answer to a replay.
func ReplayEnd(high High) Header { return Header{HeaderHigh: {high.String()}} }

// Heartbeat is the message of a node that it sends each second.
type Heartbeat struct {
	Node     string `json:"node"`
	Boot     string `json:"boot"`
	State    string `json:"state"` // serving or draining
	Slots    int    `json:"slots"`
	InFlight int    `json:"in_flight"`
	Queued   int    `json:"queued"`
	Waiting  int    `json:"waiting,omitempty"` // for their turn in a lane
	// Since the node's start: calls that have ended, those of them with an error, and
	// those that another node ran, as there was no slot.
	Calls   uint64 `json:"calls,omitempty"`
	Errors  uint64 `json:"errors,omitempty"`
	Relayed uint64 `json:"relayed,omitempty"`
	// Busy is how often a caller was answered busy for want of a slot since the node's
	// start, BusyMS how long these had to wait together, in ms: each for its
	// retry_after_ms. The growth of BusyMS in a period, divided by the period, is the
	// number of callers that wait.
	Busy   uint64 `json:"busy,omitempty"`
	BusyMS uint64 `json:"busy_ms,omitempty"`
	// NowMS is the node's estimate of the broker's time, in unix ms, and BoundMS its max error. A
	// heartbeat describes the time of its sending, or earlier.
	NowMS   int64 `json:"now_ms,omitempty"`
	BoundMS int64 `json:"bound_ms,omitempty"`
	// Awaited is the work that waits in this process for a node, by pool. A process that is not a
	// node may report it, too: its id has no lease.
	Awaited map[string]Awaited `json:"awaited,omitempty"`
	// Paces are those of the tools of indexes that most calls were made of lately, by id.
	Paces map[subjects.ToolID]ToolPace `json:"paces,omitempty"`
}

// Awaited is the work that waits for a node of a pool.
type Awaited struct {
	// Calls wait at a router, Tasks are queued again by a runner.
	Calls int `json:"calls,omitempty"`
	Tasks int `json:"tasks,omitempty"`
	// OldestMS is for how long the oldest of them has waited.
	OldestMS int64 `json:"oldest_ms,omitempty"`
}

// Add returns both together.
func (a Awaited) Add(other Awaited) Awaited {
	return Awaited{a.Calls + other.Calls, a.Tasks + other.Tasks, max(a.OldestMS, other.OldestMS)}
}
