package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

// completeWithin bounds the time of a completion.
const completeWithin = 2 * time.Second

// completes makes a command complete its first argument from list. Without a mesh it completes
// nothing.
func (a *app) completes(cmd *cobra.Command, list func(ctx context.Context, l *link) ([]string, error)) *cobra.Command {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
		defer cancel()
		if len(args) == 0 && a.setError == nil && a.prepare(cmd) == nil {
			if l, err := a.connect(ctx); err == nil {
				defer l.close()
				names, _ = list(ctx, l)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// toolNames returns the tools with the first line of their description.
func toolNames(ctx context.Context, l *link) ([]string, error) {
	tools, err := l.client.List(ctx)
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = string(t.ID) + "\t" + firstLine(t.Description)
	}
	return names, err
}
