package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
)

func (a *app) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls [INDEX]", Short: "List the tools that can be called",
		Args: takes(0, 1, "at most an index"),
		RunE: a.onMesh(func(ctx context.Context, l *link, args []string) error {
			tools, err := l.client.List(ctx)
			if err != nil {
				return err
			}
			kept := slices.DeleteFunc(append([]registry.ListedTool{}, tools...), func(t registry.ListedTool) bool {
				return len(args) > 0 && string(t.Index) != args[0]
			})
			var unserved []inventory.Index
			if !slices.ContainsFunc(kept, func(t registry.ListedTool) bool { return len(t.Nodes) > 0 }) {
				known := a.known(ctx, l)
				for _, x := range known {
					if len(args) == 0 || string(x.Name) == args[0] {
						unserved = append(unserved, x)
					}
				}
				if len(args) > 0 && len(unserved) == 0 {
					return noIndex(args[0], a.indexes().names(known))
				}
			}
			if a.json {
				unserved = nil
			}
			if len(kept) > 0 || len(unserved) == 0 {
				a.printTools(kept, l)
			}
			for _, x := range unserved {
				fmt.Fprintf(a.err, "index %s is installed, but %s\n", x.Name, cmp.Or(x.Reason, "no node serves it"))
			}
			return nil
		}),
	}
}

// known returns the indexes of this session, including those without a listed tool: only the nodes
// that serve an index of many tools, or of an earlier version, know it. Without access to the
// registry it returns the indexes of the tools.
func (a *app) known(ctx context.Context, l *link) []inventory.Index {
	if inventory.MayAsk(ctx, l.bus, l.domain) == nil {
		view, err := registry.OpenView(ctx, l.bus, &registry.ViewOptions{Logger: a.log})
		if err == nil {
			defer view.Close()
			return inventory.Indexes(view, l.session)
		}
	}
	all, _ := inventory.Visible(ctx, l.client)
	return all
}

func (a *app) printTools(tools []registry.ListedTool, l *link) {
	none := fmt.Sprintf("no tools in session %s; install some with mesh install ./dir or owner/repo", l.session)
	printAll(a, "tools", tools, none, []string{"TOOL", "KIND", "NODES", "DESCRIPTION"}, func(t registry.ListedTool) []string {
		kind, text := "call", firstLine(t.Description)
		if t.Streaming {
			kind = "stream"
		}
		if t.State == "unavailable" {
			kind, text = "-", "unavailable: "+firstLine(t.Reason)
		} else if t.Reason != "" {
			text = firstLine(t.Reason)
		}
		return []string{string(t.ID), kind, strconv.Itoa(len(t.Nodes)), text}
	})
}
