package codec

import (
	"strconv"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// LaneType is what a node asks of the one that owns a lane.
type LaneType string

// The types of requests on mesh.node.<node>.lane.<session>.
const (
	// LaneAsk asks for a turn, again each second until it is granted.
	LaneAsk LaneType = "ask"
	// LaneRenew says which grants are held, and asks how long they stand.
	LaneRenew LaneType = "renew"
	// LaneRelease gives grants back, or the wait for one; nobody answers it.
	LaneRelease LaneType = "release"
)

// LaneRequest is what one node asks of another one that owns lanes.
type LaneRequest struct {
	Type LaneType `json:"type"`
	// Mesh: the lanes are those of the mesh, not of the subject's session.
	Mesh bool            `json:"mesh,omitempty"`
	Node subjects.NodeID `json:"node"` // that asks
	Boot subjects.BootID `json:"boot"`
	// N numbers the requests of the node: the answer has that of the last one.
	N   uint64   `json:"n,omitempty"`
	IDs []string `json:"ids"` // of grants: of LaneAsk one
	// Of LaneAsk: what the call touches, whether it only reads it, and the grants that
	// calls above it hold.
	// Tool and Rule tell calls of one tool apart whose revisions make keys in another way.
	Tool  subjects.ToolID `json:"tool,omitempty"`
	Rule  string          `json:"rule,omitempty"`
	Place []string        `json:"place,omitempty"`
	Read  bool            `json:"read,omitempty"`
	Above []string        `json:"above,omitempty"`
}

// LaneState is what an owner says of what it was asked.
type LaneState string

// The states of a [LaneAnswer].
const (
	LaneGranted LaneState = "granted"
	LaneWaiting LaneState = "waiting"
	LaneRenewed LaneState = "renewed"
	// LaneElsewhere: the node does not own the lanes; the store says who does.
	LaneElsewhere LaneState = "elsewhere"
	LaneRefused   LaneState = "refused"
)

// LaneAnswer answers a [LaneRequest], and comes once more when a wait is over.
type LaneAnswer struct {
	State LaneState `json:"state"`
	ID    string    `json:"id,omitempty"` // of a LaneAsk
	N     uint64    `json:"n"`
	// MS is for how long the grant stands, from when the request with the number N was
	// sent.
	MS    int64  `json:"ms,omitempty"`
	Fence uint64 `json:"fence,omitempty"`
	// Gone are those of the renewed grants that the owner does not know.
	Gone  []string        `json:"gone,omitempty"`
	Error *toolmesh.Error `json:"error,omitempty"` // of LaneRefused
}

// LaneUse is what a call had to do with a lane; nil for one that had none.
type LaneUse struct {
	Wait time.Duration // for its turn
	// Fence grows with each turn that is granted in the lanes of a session, or the mesh;
	// 0 for a call that got none.
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

// laneWait reads the wait that [LaneUse.Put] wrote; 0 where there is none.
func laneWait(value string) time.Duration {
	ms, _ := strconv.ParseInt(value, 10, 64) // 0 for what is none
	return toolmesh.Millis(max(ms, 0))
}
