package main

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/gateway"
)

// mcpSwitches are the flags that select tools for a client of mesh mcp, with their words in the
// query of the gateway's /mcp.
var mcpSwitches = []struct{ flag, key, value, help string }{
	{"read-only", "read_only", "1", "only the tools that declare read_only"},
	{"no-prefix", "prefix", "off", "name tools by their functions; two tools with one function name keep their full names"},
	{"search", "search", "1", "find_tools and call_tool in place of the tools: for meshes of many tools"},
}

func bindMCPView(flags *pflag.FlagSet) {
	flags.String("tools", "", "only tools whose ids match one of `GLOB,...`: * stands for any text without a dot, ** for any")
	for _, s := range mcpSwitches {
		flags.Bool(s.flag, false, s.help)
	}
}

// mcpView returns the given flags as arguments of a client, and as a query.
func mcpView(flags *pflag.FlagSet) (args []string, query url.Values) {
	tools, _ := flags.GetString("tools")
	args, query = []string{"mcp"}, url.Values{"tools": {tools}}
	if tools != "" {
		args = append(args, "--tools="+tools)
	}
	for _, s := range mcpSwitches {
		if on, _ := flags.GetBool(s.flag); on {
			args = append(args, "--"+s.flag)
			query.Set(s.key, s.value)
		}
	}
	return args, query
}

func (a *app) mcpCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use: "mcp", Short: "Serve the tools to one MCP client, on stdin and stdout",
		Long: `Serve the tools of the mesh to the MCP client that started it, on stdin and stdout,
with your own key. It ends with its stdin. The mesh must run: mesh up -d.

mesh mcp config CLIENT prints the client's settings for it.`,
		Args: nothing,
		RunE: runE(func(ctx context.Context, _ []string) error { return a.mcp(ctx, cmd.Flags()) }),
	}
	bindMCPView(cmd.Flags())
	cmd.AddCommand(a.mcpConfigCommand())
	return cmd
}

// mcp is the command. Only the protocol may go to stdout.
func (a *app) mcp(ctx context.Context, flags *pflag.FlagSet) error {
	process.OutliveReaders() // a client that closes its pipe has ended
	a.log = process.Logger(a.err, a.set.Logging, slog.LevelWarn)
	return a.withMesh(ctx, func(ctx context.Context, l *link) error {
		o := &gateway.Options{Version: process.ThisBuild(version, commit).Version, Logger: a.log, MCPResultMax: a.set.MCPResultMax}
		_, query := mcpView(flags)
		return gateway.Pipe(ctx, l.client, query, o, a.stdin(ctx), a.frames)
	})
}

func (a *app) mcpConfigCommand() *cobra.Command {
	var write, yes bool
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use: "config claude|cursor|vscode|codex|zed", Short: "Print an MCP client's settings for this mesh, or write them",
		Long: `Print the settings by which a client starts mesh mcp, and the file to put them into.
With --write the command writes them: it shows the change and asks, keeps the rest of the
file with its comments, and saves the previous file as FILE.bak.`,
		Args: takes(1, 1, "a client: claude, cursor, vscode, codex or zed"),
		RunE: runE(func(ctx context.Context, args []string) error {
			program, err := os.Executable()
			if err == nil {
				program, err = filepath.EvalSymlinks(program)
			}
			if err != nil {
				return usage(nil, "the path of this program is unknown: %s", err.Error())
			}
			given, _ := mcpView(cmd.Flags())
			if a.serverFlag {
				given = append(given, "--server="+a.set.URL)
			}
			if a.sessionGiven {
				given = append(given, "--session="+a.set.Session.Session)
			}
			entry, err := a.mcpEntry(args[0], program, given)
			if err != nil {
				return err
			}
			if !write {
				return a.printEntry(entry)
			}
			return a.writeEntry(ctx, entry, yes)
		}),
	}
	bindMCPView(cmd.Flags())
	cmd.Flags().BoolVar(&write, "write", false, "write it into the client's settings")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
