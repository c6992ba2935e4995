package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/registry"
)

func (a *app) searchCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "search WORDS", Short: "Find tools by what they should do",
		Example: "  mesh search which forecast for tomorrow\n  mesh search 'send a message to a channel' --limit 3 --json",
		Args:    takes(1, -1, "words for what the tool should do"),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 1000 {
				return usage(cmd, "--limit is %d: it is a whole number from 1 to 1000", limit)
			}
			return nil
		},
		RunE: a.onMesh(func(ctx context.Context, l *link, args []string) error {
			found, err := l.client.Search(ctx, strings.Join(args, " "), limit)
			if err != nil {
				return err
			}
			none := fmt.Sprintf("no tool that is served in session %s fits these words; mesh ls lists them all", l.session)
			printAll(a, "tools", found, none, []string{"TOOL", "SCORE", "DESCRIPTION"}, func(t registry.FoundTool) []string {
				return []string{string(t.ID), strconv.FormatFloat(t.Score, 'f', 1, 64), firstLine(t.Description)}
			})
			return nil
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 10, "max number of tools, the best first")
	return cmd
}
