package main

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/codec"
)

// build is what `mesh version --json` prints.
type build struct {
	Version    string `json:"version"`
	Commit     string `json:"commit"`
	Proto      int    `json:"proto"`
	NATSServer string `json:"nats_server"`
}

// thisBuild is what is known of this binary: what it was linked with, else what
// the Go tool recorded.
func thisBuild() build {
	b := build{Version: version, Commit: commit, Proto: codec.Proto}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/nats-io/nats-server/v2" {
				b.NATSServer = dep.Version
			}
		}
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && b.Commit == "" {
				b.Commit = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = "dev"
	}
	if b.Commit == "" {
		b.Commit = "unknown"
	}
	return b
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version",
		Args:        nothing,
		Annotations: map[string]string{needsNothing: "yes"},
		RunE: runE(func(context.Context, []string) error {
			b := thisBuild()
			if a.json {
				a.printJSON(b)
				return nil
			}
			fmt.Fprintf(a.out, "mesh %s (commit %s, protocol %d, nats-server %s)\n", b.Version, b.Commit, b.Proto, b.NATSServer)
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
