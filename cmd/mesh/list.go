package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/client"
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
				a.printTools(kept, l)
				return nil
			})
		}),
	}
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
