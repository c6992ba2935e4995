package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/registry"
)

// completeWithin bounds what a person waits for behind the tab key.
const completeWithin = 2 * time.Second

// completes makes a command complete its first argument with what list finds on
// the mesh. Without a mesh it completes nothing.
func (a *app) completes(cmd *cobra.Command, list func(ctx context.Context, l *link) ([]string, error)) *cobra.Command {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 || a.setError != nil || a.prepare(cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
		defer cancel()
		l, err := a.connect(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer l.close()
		names, err := list(ctx, l)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// toolNames are the tools with the first line of their description.
func toolNames(ctx context.Context, l *link) ([]string, error) {
	tools, err := l.client.List(ctx)
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = string(t.ID) + "\t" + firstLine(t.Description)
	}
	return names, err
}

// viewNames are names that a view of the registry has.
func viewNames(of func(*registry.View) []string) func(context.Context, *link) ([]string, error) {
	return func(ctx context.Context, l *link) ([]string, error) {
		view, err := registry.OpenView(ctx, l.bus, nil)
		if err != nil {
			return nil, err
		}
		defer view.Close()
		return of(view), nil
	}
}

func indexNames(view *registry.View) (names []string) {
	for _, i := range view.Indexes() {
		names = append(names, string(i.Name))
	}
	return names
}

func nodeNames(view *registry.View) (names []string) {
	for _, n := range view.Nodes() {
		names = append(names, string(n.Node))
	}
	return names
}

func sessionNames(view *registry.View) (names []string) {
	for _, s := range view.Sessions() {
		names = append(names, string(s.ID))
	}
	return names
}
