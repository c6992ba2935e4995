package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) nodeCommand() *cobra.Command {
	nodes := a.nodes()
	return group("node", "List, show, label, drain and invite nodes",
		nodes.ls("ls", "List the nodes"), nodes.shows(), nodes.completes(a.nodeLabel()), nodes.completes(a.nodeDrain()), a.nodeInvite())
}

func (a *app) nodes() noun[inventory.Node] {
	return noun[inventory.Node]{
		a: a, name: "node", one: "a node", plural: "nodes",
		id: func(n inventory.Node) string { return string(n.ID) },
		of: func(_ *link, view *registry.View) []inventory.Node { return inventory.Nodes(view) },
		fresh: func(l *link, ctx context.Context, all []inventory.Node) ([]inventory.Node, error) {
			return inventory.Hear(ctx, l.bus, all)
		},
		missing: func(id string, known []string) error {
			are := "there are no nodes"
			if len(known) > 0 {
				are = "nodes are " + strings.Join(known, ", ")
			}
			return refused(toolmesh.OriginMesh, toolmesh.CodeNotFound, "there is no node %q; %s", id, are)
		},
		columns: []string{"NODE", "STATE", "CALLS", "QUEUED", "WAITING", "VERSION", "SANDBOX", "LABELS", "INDEXES"},
		row: func(n inventory.Node) []string {
			return []string{
				string(n.ID), n.State, fmt.Sprintf("%d/%d", n.InFlight, n.Slots), strconv.Itoa(n.Queued), strconv.Itoa(n.Waiting), cmp.Or(n.Version, "-"),
				levelOf(n), labelText(n.Labels), join(n.Indexes, "-"),
			}
		},
		note: func(n inventory.Node) {
			for _, reason := range n.Reasons {
				fmt.Fprintf(a.err, "%s: %s\n", n.ID, reason)
			}
		},
		show: func(n inventory.Node) {
			memory := "-"
			if n.Memory != "" {
				memory = "limits kept by " + n.Memory
			}
			a.facts(
				"node", string(n.ID), "boot", string(n.Boot), "state", n.State, "version", cmp.Or(n.Version, "-"),
				"calls", fmt.Sprintf("%d of %d slots, %d of them wait for a worker; %d wait for their turn in a lane", n.InFlight, n.Slots, n.Queued, n.Waiting),
				"since its start", fmt.Sprintf("%d calls, %d with an error, %d passed on to other nodes", n.Calls, n.Errors, n.Relayed), "labels", labelText(n.Labels),
				"indexes", join(n.Indexes, "-"), "users", usersOf(n), "sandbox", levelOf(n), "memory", memory,
				"limits", limitsText(n.Limits), "max limits", limitsText(n.MaxLimits), "reasons", join(n.Reasons, "-"))
		},
	}
}

// levelOf returns the sandbox level of the node's workers, with the requested one if it differs;
// "-" without workers.
func levelOf(n inventory.Node) string {
	if n.Sandbox.Effective == "" {
		return "-"
	}
	if n.Sandbox.Asked == n.Sandbox.Effective {
		return n.Sandbox.Effective
	}
	return n.Sandbox.Effective + " (asked: " + n.Sandbox.Asked + ")"
}

// usersOf lists the users that run the tools of each index, "-" if unknown.
func usersOf(n inventory.Node) string {
	var parts []string
	for _, index := range slices.Sorted(maps.Keys(n.Users)) {
		parts = append(parts, string(index)+" "+strings.Join(n.Users[index], " and "))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

func (a *app) nodeLabel() *cobra.Command {
	return &cobra.Command{
		Use: "label NODE name=value|name-…", Short: "Put labels on a node, or take them off (name-)",
		Long: `Put labels on a running node, or take them off (name-). When it starts again it has
only the labels of its settings: MESH_LABELS, or --labels.`,
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
					return usage(nil, "%q is not a label: write name=value, or name- to take it off", arg)
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
		if _, err := a.nodes().find(inventory.Nodes(view), id); err != nil {
			return err
		}
		answer, err := last(deploy.Ask(ctx, l.bus, subjects.NodeID(id), verb, body, nil), nil)
		if err != nil {
			return err
		}
		a.tell(answer, "node %s %s", id, done)
		return nil
	})
}

func labelText(labels map[string]string) string {
	return cmp.Or(registry.Labels(labels).String(), "-")
}

func (a *app) nodeInvite() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "invite", Short: "Print the line that makes another machine a node of this mesh",
		Long: `Print the line that makes another machine a node of the mesh that mesh up started
here. It holds the key of the nodes: any program with it can serve tools and see what
callers send. Send it over a private channel.`,
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
				return refused(toolmesh.OriginCaller, toolmesh.CodeUnavailable,
					"the mesh at %s listens on this machine alone: start it with mesh up --nats-listen 0.0.0.0:%s", r.URL, port)
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
			fmt.Fprintln(a.err, "mesh: the line has a secret: any program that has it can be a node of the mesh")
			return nil
		}),
	}
	wordFlag(cmd, &dir, "data-dir", "the mesh whose files are in `DIR`")
	return cmd
}
