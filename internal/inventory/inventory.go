package inventory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// MayAsk returns permission_denied for a connection that may not ask JetStream: the broker does not
// answer such a request, and readers of streams would repeat it for long. A JetStream that is silent
// for 2 s is no error. domain is that of JetStream, empty for the connection's own.
func MayAsk(ctx context.Context, b *bus.Bus, domain string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := b.Request(ctx, &nats.Msg{Subject: subjects.JetStreamAPI(domain) + "INFO"})
	if toolmesh.CodeOf(err) == toolmesh.CodePermissionDenied {
		return err
	}
	return nil
}

// Session is a session that was created.
type Session struct {
	ID      subjects.SessionID            `json:"id"`
	Epoch   string                        `json:"epoch"`
	Created time.Time                     `json:"created"`
	TTL     string                        `json:"ttl,omitempty"`
	Pins    map[subjects.IndexName]string `json:"pins"`
	State   string                        `json:"state"`
	// Token is the session's key, only in the answer to its creation.
	Token string `json:"token,omitempty"`
}

// SessionOf returns the form of a session's record.
func SessionOf(r registry.SessionRecord) Session {
	s := Session{ID: r.ID, Epoch: r.Epoch, Created: r.Created, Pins: r.Pins, State: "open"}
	if r.TTL > 0 {
		s.TTL = r.TTL.String()
	}
	if s.Pins == nil {
		s.Pins = map[subjects.IndexName]string{}
	}
	return s
}

// Sessions lists the sessions that were created.
func Sessions(view *registry.View) []Session {
	all := make([]Session, 0, 8)
	for _, r := range view.Sessions() {
		all = append(all, SessionOf(r))
	}
	return all
}

// Node is a node of the mesh.
type Node struct {
	ID       subjects.NodeID       `json:"id"`
	Boot     subjects.BootID       `json:"boot"`
	Version  string                `json:"version"`
	State    string                `json:"state"`
	Labels   map[string]string     `json:"labels"`
	Slots    int                   `json:"slots"`
	InFlight int                   `json:"in_flight"`
	Queued   int                   `json:"queued"`
	Waiting  int                   `json:"waiting"` // for a lane, without a slot
	Calls    uint64                `json:"calls"`
	Errors   uint64                `json:"errors"`
	Relayed  uint64                `json:"relayed"`
	Indexes  []subjects.IndexName  `json:"indexes"`
	Sandbox  registry.SandboxState `json:"sandbox"`
	Reasons  []string              `json:"reasons"`
	// Users are the users that the tools of an index run as, by number.
	Users map[subjects.IndexName][]string `json:"users,omitempty"`
	// Limits apply to calls of tools that declare none; MaxLimits bound what a tool may declare.
	Limits    tool.Limits `json:"limits,omitzero"`
	MaxLimits tool.Limits `json:"max_limits,omitzero"`
	Memory    string      `json:"-"` // the mechanism that enforces memory limits
}

// Nodes lists the nodes as a view knows them.
func Nodes(view *registry.View) []Node {
	nodes := make([]Node, 0, 4)
	for _, s := range view.Nodes() {
		n := Node{
			ID: s.Node, Boot: s.Boot, Version: s.Version, State: string(s.State), Labels: map[string]string{}, Slots: s.Slots,
			InFlight: s.InFlight, Queued: s.Queued, Waiting: s.Waiting, Calls: s.Calls, Errors: s.Errors, Relayed: s.Relayed, Sandbox: s.Sandbox, Memory: s.Memory, Limits: s.Limits, MaxLimits: s.MaxLimits, Users: s.Users,
			Indexes: append([]subjects.IndexName{}, s.Indexes...), Reasons: append([]string{}, s.Reasons...),
		}
		maps.Copy(n.Labels, s.Labels)
		nodes = append(nodes, n)
	}
	return nodes
}

// hearing is how long [Hear] waits for heartbeats; nodes send one each second.
const hearing = 1500 * time.Millisecond

// Hear updates the state and the load of nodes from their heartbeats, and returns when each node was
// heard or 1.5 s are over. A view that was just opened trusts a node for a while before it is heard.
func Hear(ctx context.Context, b *bus.Bus, nodes []Node) ([]Node, error) {
	sub, err := b.Conn().SubscribeSync(subjects.AllHeartbeats)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "heartbeats cannot be subscribed: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	ctx, cancel := context.WithTimeout(ctx, hearing)
	defer cancel()
	// The subject of a heartbeat names its node; its body is not trusted for that.
	silent := make(map[string]*Node, len(nodes))
	for i := range nodes {
		subject, _ := subjects.Heartbeat(nodes[i].ID) // a node of the registry has one
		silent[subject] = &nodes[i]
	}
	for len(silent) > 0 {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			break
		}
		var beat codec.Heartbeat
		if n := silent[m.Subject]; n != nil && json.Unmarshal(m.Data, &beat) == nil && beat.Boot == string(n.Boot) {
			n.State, n.InFlight, n.Queued, n.Waiting = beat.State, beat.InFlight, beat.Queued, beat.Waiting
			n.Calls, n.Errors, n.Relayed = beat.Calls, beat.Errors, beat.Relayed
			delete(silent, m.Subject)
		}
	}
	for _, n := range silent {
		n.State = "silent"
	}
	return nodes, nil
}

// Index is an index that is installed, or that a file which a router keeps lists.
type Index struct {
	Name        subjects.IndexName `json:"name"`
	Source      string             `json:"source"`
	Owner       string             `json:"owner,omitempty"`
	Revision    string             `json:"revision"`
	Session     subjects.SessionID `json:"session"`
	InstalledAt time.Time          `json:"installed_at,omitzero"`
	Env         []string           `json:"env"`
	// On are the labels of the nodes that serve it; none: every node.
	On registry.Labels `json:"on,omitempty"`
	// State is "installed", or the state of its entry in the file that a router keeps:
	// installing, removing, failed.
	State string `json:"state"`
	// Managed reports whether it is installed for that file.
	Managed bool `json:"managed,omitempty"`
	// Code and Reason describe the failure. Reason also says that no node has the labels.
	Code   toolmesh.Code     `json:"code,omitempty"`
	Reason string            `json:"reason,omitempty"`
	Nodes  []subjects.NodeID `json:"nodes"`
	Tools  []IndexTool       `json:"tools"`
}

// IndexTool is one tool of an index.
type IndexTool struct {
	ID     subjects.ToolID `json:"id"`
	State  string          `json:"state"`
	Reason string          `json:"reason"`
}

// Indexes lists by name the indexes that a session can use.
func Indexes(view *registry.View, session subjects.SessionID) []Index {
	all := make([]Index, 0, 8)
	tools, _ := view.List(session, "", 0)
	nodes := view.Loads()
	for _, r := range view.Indexes() {
		if r.Session != "" && r.Session != session {
			continue
		}
		i := Index{
			Name: r.Name, Source: r.Source, Owner: r.Owner, Revision: r.Revision, Session: r.Session, InstalledAt: r.InstalledAt,
			Env: append([]string{}, r.Env...), On: r.On, State: registry.DeclaredInstalled, Managed: r.Managed != "", Nodes: []subjects.NodeID{}, Tools: []IndexTool{},
		}
		placed := func(n registry.NodeStatus) bool { return n.Installs() && r.Placed(n.Labels) }
		if len(r.On) > 0 && !slices.ContainsFunc(nodes, placed) {
			i.Reason = "no node has the labels " + r.On.String()
		}
		for _, t := range tools {
			if t.Index != r.Name {
				continue
			}
			one := IndexTool{ID: t.ID, State: string(registry.ToolServing), Reason: t.Reason}
			if len(t.Nodes) == 0 {
				one.State = string(registry.ToolUnavailable)
			}
			i.Tools = append(i.Tools, one)
			for _, n := range t.Nodes {
				if !slices.Contains(i.Nodes, n.Node) {
					i.Nodes = append(i.Nodes, n.Node)
				}
			}
		}
		slices.Sort(i.Nodes)
		all = append(all, i)
	}
	slices.SortFunc(all, byName)
	return all
}

func byName(x, y Index) int {
	return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Session, y.Session))
}

// Declared adds the states of the entries of the file that a router keeps, if one does: of
// indexes of the list, and of entries that are not installed.
func Declared(ctx context.Context, b *bus.Bus, all []Index) ([]Index, error) {
	records, err := registry.NewStore(b)
	if err != nil {
		return nil, err
	}
	file, _, err := records.Declared(ctx)
	if errors.Is(err, store.ErrNoKey) || toolmesh.CodeOf(err) == toolmesh.CodePermissionDenied {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range file.Entries {
		if e.State == registry.DeclaredInstalled {
			continue
		}
		at := slices.IndexFunc(all, func(x Index) bool { return x.Name == e.Name && x.Session == "" })
		if at < 0 || e.Name == "" {
			at, all = len(all), append(all, Index{Name: e.Name, Source: e.Source, Env: []string{}, Nodes: []subjects.NodeID{}, Tools: []IndexTool{}})
		}
		x := &all[at]
		x.State, x.Code, x.Reason = e.State, e.Code, cmp.Or(e.Reason, x.Reason)
	}
	return all, nil
}

// Visible lists the indexes of the tools that a client may list, for one that may not read the
// registry itself: without their sources, and with the revision of one of their tools.
func Visible(ctx context.Context, c *client.Client) ([]Index, error) {
	tools, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	all := []Index{}
	for _, t := range tools {
		if t.Index == "" {
			continue
		}
		at := slices.IndexFunc(all, func(x Index) bool { return x.Name == t.Index && x.Session == t.Session })
		if at < 0 {
			at, all = len(all), append(all, Index{
				Name: t.Index, Session: t.Session, Env: []string{}, State: registry.DeclaredInstalled, Nodes: []subjects.NodeID{}, Tools: []IndexTool{},
			})
		}
		x := &all[at]
		x.Tools = append(x.Tools, IndexTool{ID: t.ID, State: string(t.State), Reason: t.Reason})
		for _, node := range t.Nodes {
			if !slices.Contains(x.Nodes, node) {
				x.Nodes = append(x.Nodes, node)
			}
		}
		if x.Revision != "" || t.State != registry.ToolServing {
			continue
		}
		if raw, err := c.Describe(ctx, t.ID); err == nil {
			var about struct{ Index struct{ Revision string } }
			_ = json.Unmarshal(raw, &about)
			x.Revision = about.Index.Revision
		}
	}
	for i := range all {
		slices.Sort(all[i].Nodes)
	}
	slices.SortFunc(all, byName)
	return all, nil
}

// listedFor is how long [Listed] waits, and listedEvery how often it asks.
const (
	listedFor   = 2 * time.Second
	listedEvery = 20 * time.Millisecond
)

// Listed waits until the registry lists the installed tools, so that the next request finds them:
// registries lag behind nodes. After 2 s it returns anyway: the tools are served.
func Listed(ctx context.Context, c *client.Client, tools []subjects.ToolID) {
	ctx, cancel := context.WithTimeout(ctx, listedFor)
	defer cancel()
	for {
		all, err := c.List(ctx)
		missing := err != nil || slices.ContainsFunc(tools, func(id subjects.ToolID) bool {
			return !slices.ContainsFunc(all, func(t registry.ListedTool) bool { return t.ID == id && t.State == registry.ToolServing })
		})
		if !missing || !wake.After(ctx, listedEvery) {
			return
		}
	}
}
