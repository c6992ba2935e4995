package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) nodeCommand() *cobra.Command {
	return group("node", "List, show, label and drain nodes",
		a.nodeLs("ls"), a.nodeShow(), a.nodeLabel(), a.nodeDrain())
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
}

func (a *app) nodeLs(use string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: "List the nodes", Args: nothing,
		RunE: runE(func(ctx context.Context, _ []string) error {
			return a.withView(ctx, func(_ context.Context, _ *link, view *registry.View) error {
				nodes := nodesOf(view)
				if a.json {
					a.printJSON(map[string]any{"nodes": nodes})
					return nil
				}
				rows := make([][]string, len(nodes))
				for i, n := range nodes {
					rows[i] = []string{
						string(n.ID), n.State, fmt.Sprintf("%d/%d", n.InFlight, n.Slots), n.Version,
						labelText(n.Labels), join(n.Indexes, "-"),
					}
				}
				a.table([]string{"NODE", "STATE", "CALLS", "VERSION", "LABELS", "INDEXES"}, rows)
				return nil
			})
		}),
	}
}

func (a *app) nodeShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NODE", Short: "Show one node", Args: takes(1, 1, "a node"),
		RunE: runE(func(ctx context.Context, args []string) error {
			return a.withView(ctx, func(_ context.Context, _ *link, view *registry.View) error {
				n, err := nodeOf(view, args[0])
				if err != nil {
					return err
				}
				if a.json {
					a.printJSON(n)
					return nil
				}
				sandbox := n.Sandbox.Effective
				if n.Sandbox.Asked != n.Sandbox.Effective {
					sandbox += " (asked: " + n.Sandbox.Asked + ")"
				}
				for _, f := range [][2]string{
					{"node", string(n.ID)}, {"boot", string(n.Boot)}, {"state", n.State}, {"version", n.Version},
					{"calls", fmt.Sprintf("%d of %d slots", n.InFlight, n.Slots)}, {"labels", labelText(n.Labels)},
					{"indexes", join(n.Indexes, "-")}, {"sandbox", sandbox}, {"reasons", join(n.Reasons, "-")},
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
				if _, err := nodeOf(view, args[0]); err != nil {
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
				if _, err := nodeOf(view, args[0]); err != nil {
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
		state := string(s.State)
		if !s.Alive {
			state = "silent"
		}
		n := node{
			ID: s.Node, Boot: s.Boot, Version: s.Version, State: state, Labels: s.Labels, Slots: s.Slots,
			InFlight: s.InFlight, Indexes: s.Indexes, Sandbox: s.Sandbox, Reasons: s.Reasons,
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

func nodeOf(view *registry.View, id string) (node, error) {
	all := nodesOf(view)
	known := make([]string, len(all))
	for i, n := range all {
		if string(n.ID) == id {
			return n, nil
		}
		known[i] = string(n.ID)
	}
	return node{}, toolmesh.Errorf(toolmesh.CodeUnavailable, "there is no node %q; nodes are %s", id, strings.Join(known, ", ")).
		WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}

// hearing is how long the heartbeats of nodes are waited for: they beat each second.
const hearing = 1500 * time.Millisecond

// withView does what a command does with a view of the registry, once each node
// in it was heard or has had its time.
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
		heard := make(chan struct{}, 1)
		cancel := view.OnNode(func(registry.NodeEvent) {
			select {
			case heard <- struct{}{}:
			default:
			}
		})
		defer cancel()
		timer := time.NewTimer(hearing)
		defer timer.Stop()
		for waits := true; waits && !allHeard(view); {
			select {
			case <-heard:
			case <-timer.C:
				waits = false
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return do(ctx, l, view)
	})
}

func allHeard(view *registry.View) bool {
	for _, n := range view.Nodes() {
		if !n.Alive {
			return false
		}
	}
	return true
}
