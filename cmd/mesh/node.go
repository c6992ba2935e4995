package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

func (a *app) nodeCommand() *cobra.Command {
	nodes := a.nodes()
	return group("node", "List, show, label, drain and invite nodes",
		nodes.ls("ls", "List the nodes"), nodes.shows(), nodes.completes(a.nodeLabel()), nodes.completes(a.nodeDrain()), a.nodeInvite())
}

func (a *app) nodes() noun[node] {
	return noun[node]{
		a: a, name: "node", one: "a node", plural: "nodes",
		id:    func(n node) string { return string(n.ID) },
		of:    func(_ *link, view *registry.View) []node { return nodesOf(view) },
		fresh: (*link).hear,
		missing: func(id string, known []string) error {
			are := "there are no nodes"
			if len(known) > 0 {
				are = "nodes are " + strings.Join(known, ", ")
			}
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "there is no node %q; %s", id, are).
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
		},
		columns: []string{"NODE", "STATE", "CALLS", "QUEUED", "WAITING", "VERSION", "SANDBOX", "LABELS", "INDEXES"},
		row: func(n node) []string {
			return []string{
				string(n.ID), n.State, fmt.Sprintf("%d/%d", n.InFlight, n.Slots), strconv.Itoa(n.Queued), strconv.Itoa(n.Waiting), cmp.Or(n.Version, "-"),
				n.level(), labelText(n.Labels), join(n.Indexes, "-"),
			}
		},
		note: func(n node) {
			for _, reason := range n.Reasons {
				fmt.Fprintf(a.err, "%s: %s\n", n.ID, reason)
			}
		},
		show: func(n node) {
			memory := "-"
			if n.memory != "" {
				memory = "limits kept by " + n.memory
			}
			a.facts(
				"node", string(n.ID), "boot", string(n.Boot), "state", n.State, "version", cmp.Or(n.Version, "-"),
				"calls", fmt.Sprintf("%d of %d slots, %d of them wait for a worker; %d wait for their turn in a lane", n.InFlight, n.Slots, n.Queued, n.Waiting),
				"since its start", fmt.Sprintf("%d calls, %d with an error, %d passed on to other nodes", n.Calls, n.Errors, n.Relayed), "labels", labelText(n.Labels),
				"indexes", join(n.Indexes, "-"), "users", n.users(), "sandbox", n.level(), "memory", memory,
				"limits", limitsText(n.Limits), "max limits", limitsText(n.MaxLimits), "reasons", join(n.Reasons, "-"))
		},
	}
}

// node is a line of `mesh nodes --json`.
type node struct {
	ID       subjects.NodeID      `json:"id"`
	Boot     subjects.BootID      `json:"boot"`
	Version  string               `json:"version"`
	State    string               `json:"state"`
	Labels   map[string]string    `json:"labels"`
	Slots    int                  `json:"slots"`
	InFlight int                  `json:"in_flight"`
	Queued   int                  `json:"queued"`
	Waiting  int                  `json:"waiting"` // for their turn in a lane, without a slot
	Calls    uint64               `json:"calls"`
	Errors   uint64               `json:"errors"`
	Relayed  uint64               `json:"relayed"`
	Indexes  []subjects.IndexName `json:"indexes"`
	Sandbox  registry.Sandbox     `json:"sandbox"`
	Reasons  []string             `json:"reasons"`
	// Who the tools of an index run as, by number.
	Users map[subjects.IndexName][]string `json:"users,omitempty"`
	// Of calls: where a tool declares none, and the most that it may declare.
	Limits    tool.Limits `json:"limits,omitzero"`
	MaxLimits tool.Limits `json:"max_limits,omitzero"`
	memory    string      // for people
}

// level is the sandbox level that the node's workers have, and the one that was
// asked for where it is another; - where it has no workers.
func (n node) level() string {
	if n.Sandbox.Effective == "" {
		return "-"
	}
	if n.Sandbox.Asked == n.Sandbox.Effective {
		return n.Sandbox.Effective
	}
	return n.Sandbox.Effective + " (asked: " + n.Sandbox.Asked + ")"
}

// users lists who the tools of each index run as, "-" if nobody says it.
func (n node) users() string {
	var parts []string
	for _, index := range slices.Sorted(maps.Keys(n.Users)) {
		parts = append(parts, string(index)+" "+strings.Join(n.Users[index], " and "))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

func (a *app) nodeLabel() *cobra.Command {
	return &cobra.Command{
		Use: "label NODE name=value|name-…", Short: "Put labels on a node, or take them off (name-)",
		Long: `Put labels on a node while it runs, or take them off (name-). When it starts again
it has those of its settings and no others: MESH_LABELS, or --labels.`,
		Args: takes(2, -1, "a node and labels, name=value or name-"),
		RunE: runE(func(ctx context.Context, args []string) error {
			labels := make(map[string]string)
			for _, arg := range args[1:] {
				name, value, ok := strings.Cut(arg, "=")
				if off, minus := strings.CutSuffix(arg, "-"); !ok && minus {
					name, value, ok = off, "", true
				} else if value == "" {
					ok = false
				}
				if !ok || name == "" {
					return usage(nil, "%q is no label: write name=value, or name- to take it off", arg)
				}
				labels[name] = value
			}
			return a.nodeAdmin(ctx, args[0], "label", map[string]any{"labels": labels}, "labelled")
		}),
	}
}

func (a *app) nodeDrain() *cobra.Command {
	return &cobra.Command{
		Use: "drain NODE", Short: "Take a node out of service; calls that run end first",
		Args: takes(1, 1, "a node"),
		RunE: runE(func(ctx context.Context, args []string) error {
			return a.nodeAdmin(ctx, args[0], "drain", map[string]any{}, "drains")
		}),
	}
}

func (a *app) nodeAdmin(ctx context.Context, id, verb string, body any, done string) error {
	return a.withView(ctx, func(ctx context.Context, l *link, view *registry.View) error {
		if _, err := a.nodes().find(nodesOf(view), id); err != nil {
			return err
		}
		answer, err := l.lines(ctx, subjects.NodeID(id), verb, body, nil, nil)
		if err != nil {
			return err
		}
		a.tell(answer, "node %s %s", id, done)
		return nil
	})
}

func labelText(labels map[string]string) string {
	return cmp.Or(settings.Labels(labels).String(), "-")
}

func nodesOf(view *registry.View) []node {
	nodes := make([]node, 0, 4)
	for _, s := range view.Nodes() {
		n := node{
			ID: s.Node, Boot: s.Boot, Version: s.Version, State: string(s.State), Labels: map[string]string{}, Slots: s.Slots,
			InFlight: s.InFlight, Queued: s.Queued, Waiting: s.Waiting, Calls: s.Calls, Errors: s.Errors, Relayed: s.Relayed, Sandbox: s.Sandbox, memory: s.Memory, Limits: s.Limits, MaxLimits: s.MaxLimits, Users: s.Users,
			Indexes: append([]subjects.IndexName{}, s.Indexes...), Reasons: append([]string{}, s.Reasons...),
		}
		maps.Copy(n.Labels, s.Labels)
		nodes = append(nodes, n)
	}
	return nodes
}

// hearing is how long the heartbeats of nodes are waited for: they beat each second.
const hearing = 1500 * time.Millisecond

// hear takes state and load of the nodes from their heartbeats, once each was heard
// or has had its time: a view believes in a node for a while before it was.
func (l *link) hear(ctx context.Context, nodes []node) ([]node, error) {
	sub, err := l.nc.SubscribeSync(subjects.AllHeartbeats)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "heartbeats cannot be subscribed: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	ctx, cancel := context.WithTimeout(ctx, hearing)
	defer cancel()
	// The subject of a heartbeat says whose it is, not its body.
	silent := make(map[string]*node, len(nodes))
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

func (a *app) nodeInvite() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "invite", Short: "Print the line that makes another machine a node of this mesh",
		Long: `Print the line that makes another machine a node of the mesh that mesh up started
here. It holds the key of the nodes: whoever has it serves tools, and sees what
callers send. Send it over a channel that nobody else reads.`,
		Args: nothing,
		RunE: runE(func(context.Context, []string) error {
			r, err := a.findUp(dir)
			if err != nil {
				return err
			}
			host, port, err := net.SplitHostPort(strings.TrimPrefix(r.URL, "nats://"))
			if err != nil {
				return toolmesh.Errorf(toolmesh.CodeInternal, "the address of the mesh: %w", err)
			}
			if loopback(r.Listen) {
				return toolmesh.Errorf(toolmesh.CodeUnavailable,
					"the mesh at %s listens on this machine alone: start it with mesh up --nats-listen 0.0.0.0:%s", r.URL, port).
					WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
			}
			if listen, _, _ := net.SplitHostPort(r.Listen); listen == "" || net.ParseIP(listen).IsUnspecified() {
				if host, err = os.Hostname(); err != nil {
					return toolmesh.Errorf(toolmesh.CodeInternal, "the name of this machine: %w", err)
				}
			}
			join := "mesh-agent --server nats://" + net.JoinHostPort(host, port)
			if !r.Keys {
				fmt.Fprintln(a.out, join)
				return nil
			}
			key, err := access.Read(access.File(r.DataDir, access.Node))
			if err != nil {
				return err
			}
			defer key.Wipe()
			seed, err := key.Seed()
			if err != nil {
				return toolmesh.Errorf(toolmesh.CodeInternal, "the key of the nodes: %w", err)
			}
			fmt.Fprintf(a.out, "(umask 077; echo %s > toolmesh-node.nk) && %s --nkey toolmesh-node.nk\n", seed, join)
			fmt.Fprintln(a.err, "mesh: it holds a secret: whoever has this line is a node of the mesh")
			return nil
		}),
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "the mesh whose files are in `DIR`")
	return cmd
}
