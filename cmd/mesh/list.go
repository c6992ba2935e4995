package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/tool"
)

func (a *app) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls [INDEX]", Short: "List the tools that can be called",
		Args: takes(0, 1, "at most an index"),
		RunE: runE(func(ctx context.Context, args []string) error {
			return a.withMesh(ctx, func(ctx context.Context, l *link) error {
				tools, err := l.client.List(ctx)
				if err != nil {
					return err
				}
				kept := make([]client.Listed, 0, len(tools))
				for _, t := range tools {
					if len(args) == 0 || string(t.Index) == args[0] {
						kept = append(kept, t)
					}
				}
				if a.json {
					a.printJSON(map[string]any{"tools": kept})
					return nil
				}
				if len(kept) == 0 && len(args) > 0 && len(tools) > 0 {
					a.printNoTools(args[0], tools, l)
					return nil
				}
				a.printTools(kept, l)
				return nil
			})
		}),
	}
}

// printNoTools says that an index has no tools here, while others have.
func (a *app) printNoTools(index string, tools []client.Listed, l *link) {
	var names []string
	for _, t := range tools {
		if t.Index != "" && !slices.Contains(names, string(t.Index)) {
			names = append(names, string(t.Index))
		}
	}
	text := fmt.Sprintf("no tools of an index %q in session %s", index, l.session)
	if near := tool.Nearest(index, names, 1); len(near) > 0 {
		text += "; did you mean " + near[0] + "?"
	}
	fmt.Fprintln(a.err, text)
}

func (a *app) printTools(tools []client.Listed, l *link) {
	if len(tools) == 0 {
		fmt.Fprintf(a.err, "no tools in session %s; install some with mesh install ./dir or owner/repo\n", l.session)
		return
	}
	rows := make([][]string, len(tools))
	for i, t := range tools {
		kind, text := "call", firstLine(t.Description)
		if t.Streaming {
			kind = "stream"
		}
		if t.State == "unavailable" {
			kind, text = "-", "unavailable: "+firstLine(t.Reason)
		} else if t.Reason != "" {
			text = firstLine(t.Reason)
		}
		rows[i] = []string{string(t.ID), kind, strconv.Itoa(len(t.Nodes)), text}
	}
	a.table([]string{"TOOL", "KIND", "NODES", "DESCRIPTION"}, rows)
}
