package codec

import (
	"strconv"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// LaneType is the type of a request to the owner of a lane.
type LaneType string

// The types of requests on mesh.node.<node>.lane.<session>.
const (
	// LaneAsk asks for the lane, again each second until it is granted.
	LaneAsk LaneType = "ask"
	// LaneRenew names the held grants, and asks how long they are valid.
	LaneRenew LaneType = "renew"
	// LaneRelease releases grants, or ends the wait for one. It has no answer.
	LaneRelease LaneType = "release"
)

// LaneRequest is a request of one node to another one that owns lanes.
type LaneRequest struct {
	Type LaneType `json:"type"`
	// Mesh: the lanes are those of the mesh, not of the subject's session.
	Mesh bool            `json:"mesh,omitempty"`
	Node subjects.NodeID `json:"node"` // that asks
	Boot subjects.BootID `json:"boot"`
	// N numbers the requests of the node: the answer has that of the last one.
	N   uint64   `json:"n,omitempty"`
	IDs []string `json:"ids"` // of grants: of LaneAsk one
	// Of LaneAsk: the key of the call, whether the call only reads, and the grants that the calls
	// above it hold. Tool and Rule distinguish revisions of a tool that make keys in different
	// ways.
	Tool  subjects.ToolID `json:"tool,omitempty"`
	Rule  string          `json:"rule,omitempty"`
	Place []string        `json:"place,omitempty"`
	Read  bool            `json:"read,omitempty"`
	Above []string        `json:"above,omitempty"`
}

// LaneState is an owner's answer to a request.
type LaneState string

// The states of a [LaneAnswer].
const (
	LaneGranted LaneState = "granted"
	LaneWaiting LaneState = "waiting"
	LaneRenewed LaneState = "renewed"
	// LaneElsewhere: the node does not own the lanes; the store names the owner.
	LaneElsewhere LaneState = "elsewhere"
	LaneRefused   LaneState = "refused"
)

// LaneAnswer answers a [LaneRequest], and comes once more when a wait is over.
type LaneAnswer struct {
	State LaneState `json:"state"`
	ID    string    `json:"id,omitempty"` // of a LaneAsk
	N     uint64    `json:"n"`
	// MS is how long the grant is valid, from when the request with the number N was sent.
	MS    int64  `json:"ms,omitempty"`
	Fence uint64 `json:"fence,omitempty"`
	// Gone are those of the renewed grants that the owner does not know.
	Gone  []string        `json:"gone,omitempty"`
	Error *toolmesh.Error `json:"error,omitempty"` // of LaneRefused
}

// LaneUse is a call's use of a lane; nil without a lane.
type LaneUse struct {
	Wait time.Duration // for the lane
	// Fence grows with each grant in the lanes of a session, or of the mesh; 0 without a grant.
	Fence uint64
}

// Put writes the headers into those of a reply, in the plain form.
func (u *LaneUse) Put(h Header) {
	if u == nil || h == nil {
		return
	}
	h.Set(HeaderLaneWait, strconv.FormatInt(u.Wait.Milliseconds(), 10))
	if u.Fence != 0 {
		h.Set(HeaderFence, strconv.FormatUint(u.Fence, 10))
	}
}

// laneWait reads the wait that [LaneUse.Put] wrote; 0 for another text.
func laneWait(value string) time.Duration {
	ms, _ := strconv.ParseInt(value, 10, 64)
	return toolmesh.Millis(max(ms, 0))
}
