package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) nodeCommand() *cobra.Command {
	return group("node", "List, show, label and drain nodes",
		a.nodeLs("ls"), a.completes(a.nodeShow(), viewNames(nodeNames)),
		a.completes(a.nodeLabel(), viewNames(nodeNames)), a.completes(a.nodeDrain(), viewNames(nodeNames)))
}

func (a *app) nodesCommand() *cobra.Command {
	cmd := a.nodeLs("nodes")
	cmd.Short = "List the nodes (short for node ls)"
	return cmd
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
	Indexes  []subjects.IndexName `json:"indexes"`
	Sandbox  registry.Sandbox     `json:"sandbox"`
	Reasons  []string             `json:"reasons"`
	memory   string               // for people
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

func (a *app) nodeLs(use string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: "List the nodes", Args: nothing,
		RunE: runE(func(ctx context.Context, _ []string) error {
			return a.withNodes(ctx, func(nodes []node) error {
				if a.json {
					a.printJSON(map[string]any{"nodes": nodes})
					return nil
				}
				rows := make([][]string, len(nodes))
				for i, n := range nodes {
					rows[i] = []string{
						string(n.ID), n.State, fmt.Sprintf("%d/%d", n.InFlight, n.Slots), cmp.Or(n.Version, "-"),
						n.level(), labelText(n.Labels), join(n.Indexes, "-"),
					}
				}
				a.table([]string{"NODE", "STATE", "CALLS", "VERSION", "SANDBOX", "LABELS", "INDEXES"}, rows)
				for _, n := range nodes {
					for _, reason := range n.Reasons {
						fmt.Fprintf(a.err, "%s: %s\n", n.ID, reason)
					}
				}
				return nil
			})
		}),
	}
}

func (a *app) nodeShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NODE", Short: "Show one node", Args: takes(1, 1, "a node"),
		RunE: runE(func(ctx context.Context, args []string) error {
			return a.withNodes(ctx, func(nodes []node) error {
				n, err := nodeOf(nodes, args[0])
				if err != nil {
					return err
				}
				if a.json {
					a.printJSON(n)
					return nil
				}
				memory := "-"
				if n.memory != "" {
					memory = "limits kept by " + n.memory
				}
				for _, f := range [][2]string{
					{"node", string(n.ID)}, {"boot", string(n.Boot)}, {"state", n.State}, {"version", cmp.Or(n.Version, "-")},
					{"calls", fmt.Sprintf("%d of %d slots", n.InFlight, n.Slots)}, {"labels", labelText(n.Labels)},
					{"indexes", join(n.Indexes, "-")}, {"sandbox", n.level()}, {"memory", memory}, {"reasons", join(n.Reasons, "-")},
				} {
					fmt.Fprintf(a.out, "%-8s %s\n", f[0], f[1])
				}
				return nil
			})
		}),
	}
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
			return a.withView(ctx, func(ctx context.Context, l *link, view *registry.View) error {
				if _, err := nodeOf(nodesOf(view), args[0]); err != nil {
					return err
				}
				return a.nodeAdmin(ctx, l, args[0], "label", map[string]any{"labels": labels}, "labelled")
			})
		}),
	}
}

func (a *app) nodeDrain() *cobra.Command {
	return &cobra.Command{
		Use: "drain NODE", Short: "Take a node out of service; calls that run end first",
		Args: takes(1, 1, "a node"),
		RunE: runE(func(ctx context.Context, args []string) error {
			return a.withView(ctx, func(ctx context.Context, l *link, view *registry.View) error {
				if _, err := nodeOf(nodesOf(view), args[0]); err != nil {
					return err
				}
				return a.nodeAdmin(ctx, l, args[0], "drain", map[string]any{}, "drains")
			})
		}),
	}
}

// nodeAdmin sends a request to one node and says that it was done.
func (a *app) nodeAdmin(ctx context.Context, l *link, id, verb string, body any, done string) error {
	subject, err := subjects.NodeAdmin(subjects.NodeID(id), verb)
	if err != nil {
		return usage(nil, "%q is no node: %s", id, err.Error())
	}
	var answer map[string]any
	if err := l.ask(ctx, subject, body, &answer); err != nil {
		return err
	}
	if a.json {
		a.printJSON(answer)
	} else {
		fmt.Fprintf(a.err, "node %s %s\n", id, done)
	}
	return nil
}

func labelText(labels map[string]string) string {
	if len(labels) == 0 {
		return "-"
	}
	return sortedPairs(labels)
}

func nodesOf(view *registry.View) []node {
	nodes := make([]node, 0, 4)
	for _, s := range view.Nodes() {
		n := node{
			ID: s.Node, Boot: s.Boot, Version: s.Version, State: string(s.State), Labels: s.Labels, Slots: s.Slots,
			InFlight: s.InFlight, Indexes: s.Indexes, Sandbox: s.Sandbox, Reasons: s.Reasons, memory: s.Memory,
		}
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		if n.Indexes == nil {
			n.Indexes = []subjects.IndexName{}
		}
		if n.Reasons == nil {
			n.Reasons = []string{}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func nodeOf(all []node, id string) (node, error) {
	known := make([]string, len(all))
	for i, n := range all {
		if string(n.ID) == id {
			return n, nil
		}
		known[i] = string(n.ID)
	}
	are := "there are no nodes"
	if len(known) > 0 {
		are = "nodes are " + strings.Join(known, ", ")
	}
	return node{}, toolmesh.Errorf(toolmesh.CodeUnavailable, "there is no node %q; %s", id, are).
		WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}

// hearing is how long the heartbeats of nodes are waited for: they beat each second.
const hearing = 1500 * time.Millisecond

// withView does what a command does with a view of the registry.
func (a *app) withView(ctx context.Context, do func(context.Context, *link, *registry.View) error) error {
	return a.withMesh(ctx, func(ctx context.Context, l *link) error {
		if none := l.noMesh(ctx); none != nil {
			return none
		}
		view, err := registry.OpenView(ctx, l.bus, &registry.ViewOptions{Logger: a.log})
		if err != nil {
			return err
		}
		defer view.Close()
		return do(ctx, l, view)
	})
}

// withNodes does what a command does with the nodes, once each of them was heard
// or has had its time: a view believes in a node for a while before it was.
func (a *app) withNodes(ctx context.Context, do func([]node) error) error {
	return a.withView(ctx, func(ctx context.Context, l *link, view *registry.View) error {
		arrived := newArrivals()
		sub, err := l.nc.Subscribe(subjects.AllHeartbeats, func(m *nats.Msg) { arrived.put(m, nil) })
		if err != nil {
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "heartbeats cannot be subscribed: %w", err)
		}
		defer func() { _ = sub.Unsubscribe() }()
		ctx, cancel := context.WithTimeout(ctx, hearing)
		defer cancel()
		beats := make(map[nodeStart]codec.Heartbeat)
		for !allHeard(view, beats) {
			m, err := arrived.next(ctx, hearing)
			if err != nil {
				break
			}
			var beat codec.Heartbeat
			if json.Unmarshal(m.Data, &beat) == nil {
				beats[nodeStart{m.Subject, subjects.BootID(beat.Boot)}] = beat
			}
		}
		nodes := nodesOf(view)
		for i := range nodes {
			n := &nodes[i]
			beat, heard := beats[startOf(n.ID, n.Boot)]
			if !heard {
				n.State = "silent"
				continue
			}
			n.State, n.InFlight = beat.State, beat.InFlight
		}
		return do(nodes)
	})
}

// nodeStart is one start of a node, by the subject of its heartbeats.
type nodeStart struct {
	subject string
	boot    subjects.BootID
}

func startOf(node subjects.NodeID, boot subjects.BootID) nodeStart {
	subject, _ := subjects.Heartbeat(node) // a node of the registry has one
	return nodeStart{subject, boot}
}

func allHeard(view *registry.View, beats map[nodeStart]codec.Heartbeat) bool {
	for _, n := range view.Nodes() {
		if _, heard := beats[startOf(n.Node, n.Boot)]; !heard {
			return false
		}
	}
	return true
}
