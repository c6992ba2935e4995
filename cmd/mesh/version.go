package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version",
		Args:        nothing,
		Annotations: map[string]string{needsNothing: "yes"},
		RunE: runE(func(context.Context, []string) error {
			b := process.ThisBuild(version, commit)
			a.say(b, fmt.Sprintf("mesh %s (commit %s, protocol %d, nats-server %s)", b.Version, b.Commit, b.Proto, b.NATSServer))
			return nil
		}),
	}
}

func (a *app) completionCommand(root *cobra.Command) *cobra.Command {
	shells := map[string]func() error{
		"bash": func() error { return root.GenBashCompletionV2(a.out, true) },
		"zsh":  func() error { return root.GenZshCompletion(a.out) },
		"fish": func() error { return root.GenFishCompletion(a.out, true) },
	}
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Print a shell's completion script",
		Long: `Print the completion script of a shell.

  bash   source <(mesh completion bash)
  zsh    mesh completion zsh > "${fpath[1]}/_mesh"
  fish   mesh completion fish > ~/.config/fish/completions/mesh.fish`,
		ValidArgs:   []string{"bash", "zsh", "fish"},
		Annotations: map[string]string{needsNothing: "yes"},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || shells[args[0]] == nil {
				return usage(cmd, "mesh completion needs a shell: bash, zsh or fish")
			}
			return nil
		},
		RunE: runE(func(_ context.Context, args []string) error { return shells[args[0]]() }),
	}
}
