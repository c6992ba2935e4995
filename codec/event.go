package codec

import (
	"encoding/json"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// CallEvent is the body of mesh.evt.call.<session>: a call that ended on a node, or that it refused.
type CallEvent struct {
	Time time.Time `json:"time"` // of the call's beginning, in mesh time
	// Key is the digest of the caller's public key, as the caller's inbox names it; empty
	// where it names none.
	Key     string             `json:"key"`
	Session subjects.SessionID `json:"session"`
	Tool    subjects.ToolID    `json:"tool"`
	// Revision is the index's, as the node serves it.
	Revision string          `json:"revision"`
	RPCID    subjects.RPCID  `json:"rpc_id"`
	Node     subjects.NodeID `json:"node"`
	Status   string          `json:"status"` // ok or error
	// Code is that of the error; empty without one.
	Code       toolmesh.Code `json:"code"`
	DurationMS float64       `json:"duration_ms"`
	// ArgumentsDigest is the SHA-256 of the arguments object as it came, in hexadecimal; empty
	// for a call that had none to read.
	ArgumentsDigest string `json:"arguments_digest"`
	// Arguments are the arguments object without declared secrets, where the node tells them: a text where
	// it is no JSON without them.
	Arguments json.RawMessage `json:"arguments,omitempty"`
}
