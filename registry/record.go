package registry

import (
	"encoding/json"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// NodeState is a node's state in its lease and heartbeat.
type NodeState string

// The states of a node.
const (
	StateServing  NodeState = "serving"
	StateDraining NodeState = "draining"
)

// NodeRecord is a node's lease, MESH_NODES/<node>. Readers ignore fields that
// they do not know.
type NodeRecord struct {
	Node    subjects.NodeID   `json:"node"`
	Boot    subjects.BootID   `json:"boot"`
	Version string            `json:"version,omitempty"`
	State   NodeState         `json:"state"`
	Slots   int               `json:"slots"`
	Labels  map[string]string `json:"labels,omitempty"`
	// Proto is the lowest and the highest version of the wire that it speaks.
	Proto    [2]int       `json:"proto"`
	Features []string     `json:"features,omitempty"`
	Sandbox  SandboxState `json:"sandbox,omitzero"`
	// Memory names the mechanism that enforces the memory limits of tools: "cgroup v2", "cgroup
	// v1", or "watchdog". Empty if no tools are limited.
	Memory string `json:"memory,omitempty"`
	// Limits are those of calls of tools that declare none, MaxLimits the most that
	// tools are granted. Zero where no tools are limited.
	Limits    tool.Limits `json:"limits,omitzero"`
	MaxLimits tool.Limits `json:"max_limits,omitzero"`
	// Reasons say why the node offers less than it was asked for.
	Reasons []string  `json:"reasons,omitempty"`
	Started time.Time `json:"started"`
	// LeaseMS is how long the lease is valid after each renewal, in milliseconds. Absent:
	// [LeaseTTL].
	LeaseMS int64 `json:"lease_ms,omitempty"`
}

// validFor is how long the lease is valid after a renewal.
func (r NodeRecord) validFor() time.Duration {
	return max(toolmesh.Millis(r.LeaseMS), LeaseTTL)
}

// SandboxState is a sandbox level as it was asked for and as the machine allows it.
type SandboxState struct {
	Asked     string `json:"asked"`
	Effective string `json:"effective"`
}

// ToolState says whether a node can run a tool that it knows.
type ToolState string

// The states of a tool.
const (
	ToolServing     ToolState = "serving"
	ToolUnavailable ToolState = "unavailable"
)

// ToolRoute has the fields of one tool that callers need. The rest is in the descriptor of Digest.
type ToolRoute struct {
	ID     subjects.ToolID `json:"id"`
	Digest string          `json:"digest"`
	// State is ToolServing when empty.
	State ToolState `json:"state,omitempty"`
	// Reason says why the tool is unavailable.
	Reason string `json:"reason,omitempty"`
	// Notice tells callers of the served tool about a temporary restriction.
	Notice string `json:"notice,omitempty"`
	// Warning is a fault of the tool that was found since it is served, for people.
	Warning string `json:"warning,omitempty"`
	// User is the user that the tool runs as on the node, by number. Empty: unknown.
	User         string `json:"user,omitempty"`
	Streaming    bool   `json:"streaming,omitempty"`
	Idempotent   bool   `json:"idempotent,omitempty"`
	ParallelSafe bool   `json:"parallel_safe,omitempty"`
}

// ToolsRecord lists the tools that a node serves of one index, or a part of them, or one tool of a
// session. A reader takes the parts that exist.
type ToolsRecord struct {
	Node subjects.NodeID `json:"node"`
	// Boot is the boot that serves them: records of another one than the lease's
	// are not believed.
	Boot subjects.BootID `json:"boot"`
	// Session is set for a session's own tool and for an index that is private
	// to a session.
	Session subjects.SessionID `json:"session,omitempty"`
	// Epoch is the session's, if it was created.
	Epoch string `json:"epoch,omitempty"`
	// Index is empty for a session's own tool.
	Index    subjects.IndexName `json:"index,omitempty"`
	Revision string             `json:"revision,omitempty"`
	Tools    []ToolRoute        `json:"tools"`
	// Part is the number of the part; only the key says it.
	Part int `json:"-"`
	// Alike says that other nodes have the same list of tools: a large list is stored once.
	Alike bool `json:"-"`
}

// Key is where the record is kept.
func (r *ToolsRecord) Key() (subjects.ToolsKey, error) {
	k := subjects.ToolsKey{Node: r.Node, Session: r.Session, Index: r.Index, Part: r.Part}
	if r.Index == "" {
		if len(r.Tools) != 1 {
			return k, toolmesh.Errorf(toolmesh.CodeInvalidRequest,
				"a record of session %q holds %d tools: a session's own tools have a record each", r.Session, len(r.Tools))
		}
		k.Tool = r.Tools[0].ID
	}
	return k, nil
}

// IndexState is the state of an index.
type IndexState string

// IndexInstalled is the state of every index that has a record.
const IndexInstalled IndexState = "installed"

// ServiceSource begins the Source of a name that a service claims for the
// functions that it registers; the service's name follows.
const ServiceSource = "service:"

// IndexRecord is an index that is installed, or a name that a service claims,
// MESH_INDEXES/<name> or MESH_INDEXES/<name>.<session>.
type IndexRecord struct {
	Name subjects.IndexName `json:"name"`
	// Source is where it comes from, without credentials; for functions that a
	// service registers, the service's name. It owns the name.
	Source string `json:"source"`
	// Owner is the public key of the installer, if the source is a folder, whose name any
	// installer may give: the source belongs to that key. Empty for sources that the mesh has
	// fetched itself, and without an owner.
	Owner    string `json:"owner,omitempty"`
	Revision string `json:"revision,omitempty"`
	// Bundle is the digest of its bundle in MESH_BUNDLES.
	Bundle      string    `json:"bundle,omitempty"`
	InstalledAt time.Time `json:"installed_at,omitzero"`
	// Env names the environment variables that it was given values for.
	Env []string `json:"env,omitempty"`
	// Session is the session that it is private to; empty: mesh-wide.
	Session subjects.SessionID `json:"session,omitempty"`
	// Epoch is that session's, if it was created: the index ends with it.
	Epoch string     `json:"epoch,omitempty"`
	State IndexState `json:"state,omitempty"`
	// On are the labels that a node must have to serve it, all of them. Empty: every node.
	On Labels `json:"on,omitempty"`
	// Managed is the digest of the entry of a file of indexes that it was installed for.
	// Empty: it was installed manually.
	Managed string `json:"managed,omitempty"`
	// Tools are the tools of the revision, for the time in which no node serves it. Empty if they
	// are too many for a record, and in records of earlier versions.
	Tools []ToolRoute `json:"tools,omitempty"`
	// Settings are the installer's own, passed through.
	Settings json.RawMessage `json:"settings,omitempty"`
}

// Yields reports whether a record may be replaced by another of its name: by one of its
// own source, and of its owner if it has one.
func (r IndexRecord) Yields(to IndexRecord) bool {
	return r.Source == to.Source && (r.Owner == "" || r.Owner == to.Owner)
}

// SessionRecord is a session that was created, MESH_SESSIONS/<session>.
type SessionRecord struct {
	ID subjects.SessionID `json:"id"`
	// Epoch tells this session from an earlier one of its name.
	Epoch   string    `json:"epoch"`
	Created time.Time `json:"created"`
	// TTL is how long it lives after Created; 0: until it is ended.
	TTL time.Duration `json:"ttl,omitempty"`
	// Pins name the revision of an index that the session is meant for. Nothing
	// holds calls to them yet.
	Pins map[subjects.IndexName]string `json:"pins,omitempty"`
	// Key is the public half of the session's own NATS key, if it has one.
	Key string `json:"key,omitempty"`
}

func encodeRecord(v any) []byte {
	data, _ := json.Marshal(v) // of texts, numbers and settings, which are JSON
	return data
}
