package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/internal/connect"
)

// app is one execution of the command: its streams and its settings.
type app struct {
	env    []string
	in     io.Reader
	out    *output
	err    io.Writer
	frames io.Writer // stdout unescaped, for output that only programs read
	term   terminal

	set      settings.Mesh
	setError error // of the environment; reported once a command needs a setting
	json     bool
	log      *slog.Logger

	serverFlag   bool // given on the command line
	sessionGiven bool // by its flag or its variable
}

// run executes the command line in the environment env and returns the exit status.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := process.Interrupts(ctx)
	defer stop()
	return execute(ctx, args, env, stdin, stdout, stderr)
}

// stdin returns a.in for a command that can be interrupted while it reads: a read ends with ctx.
func (a *app) stdin(ctx context.Context) io.Reader { return process.Interruptible(ctx, a.in) }

// byteOrderMark is written at the start of text by editors and shells of Windows.
var byteOrderMark = []byte("\ufeff")

// execute is run without the handling of signals.
func execute(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{env: env, in: stdin, frames: stdout, term: terminalOf(env, stdin, stdout, stderr)}
	// Names, descriptions and errors are text from others.
	a.out, a.err = &output{to: process.Visible(stdout)}, process.Visible(stderr)
	a.setError = settings.Load(env, &a.set)
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if !a.json {
		a.json = slices.Contains(args, "--json") || slices.Contains(args, "--json=true") // in case the flags could not be parsed
	}
	status := a.status(ctx, err)
	if a.out.lost != nil {
		fmt.Fprintf(a.err, "mesh: the result could not be written: %v\n", a.out.lost)
		if status == process.StatusOK {
			return process.StatusMesh
		}
	}
	return status
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "mesh",
		Short: "One mesh of tools for agents: install once, call from everywhere",
		Long: `mesh runs and uses a mesh of tools.

  mesh demo                                 see all of it, in half a minute
  mesh up -d                                start a mesh on this machine
  mesh install ./dir | owner/repo | URL     install an index of tools
  mesh ls                                   what can be called
  mesh call weather.forecast.today city=Oslo

Exit status: 0 ok, 1 the tool or its arguments failed, 2 wrong usage, 3 the mesh
failed or was not found, 130 interrupted.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.prepare(cmd)
		},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(cmd, "%s", err.Error())
	})
	flags := root.PersistentFlags()
	settings.Bind(flags, &a.set.Connection)
	settings.Bind(flags, &a.set.Session)
	settings.Bind(flags, &a.set.Logging)
	flags.BoolVar(&a.json, "json", false, "print JSON, errors too")
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddGroup(
		&cobra.Group{ID: "use", Title: "Use tools:"},
		&cobra.Group{ID: "run", Title: "Run a mesh:"},
		&cobra.Group{ID: "manage", Title: "Manage it:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("use", a.completes(a.callCommand(), toolNames), a.completes(a.streamCommand(), toolNames), a.cancelCommand(), a.taskCommand(), a.lsCommand(), a.searchCommand(), a.completes(a.infoCommand(), toolNames))
	add("run", a.demoCommand(), a.upCommand(), a.downCommand(), a.bridgeCommand(), a.mcpCommand(), a.versionCommand(), a.completionCommand(root))
	add("manage", a.installCommand(), a.indexes().completes(a.uninstallCommand()), a.nodeCommand(), a.indexCommand(), a.sessionCommand(), a.tokenCommand(), a.auditCommand(), a.authCommand(),
		a.nodes().ls("nodes", "List the nodes (short for node ls)"), a.indexes().ls("indexes", "List the indexes (short for index ls)"))
	root.SetHelpCommand(&cobra.Command{
		Use: "help [COMMAND]", Short: "Help about a command", Hidden: true,
		Annotations: map[string]string{needsNothing: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := root.Find(args)
			if err != nil || target == nil {
				return unknownCommand(root, strings.Join(args, " "))
			}
			if len(rest) > 0 {
				return unknownCommand(target, rest[0])
			}
			return target.Help()
		},
	})
	for all := []*cobra.Command{root}; len(all) > 0; all = all[1:] { // help lists flags in the order of the code
		all[0].Flags().SortFlags, all[0].PersistentFlags().SortFlags = false, false
		all = append(all, all[0].Commands()...)
	}
	return root
}

// prepare checks the settings before any command runs.
func (a *app) prepare(cmd *cobra.Command) error {
	if cmd.Annotations[needsNothing] != "" {
		return nil
	}
	if a.setError != nil {
		return usage(nil, "%s", a.setError.Error())
	}
	flags := cmd.Flags()
	a.serverFlag = flags.Changed("server")
	a.sessionGiven = flags.Changed("session") || connect.Lookup(a.env, "MESH_SESSION") != ""
	if err := settings.Settle(a.env, flags, &a.set.Connection); err != nil {
		return usage(cmd, "%s", err.Error())
	}
	// Warnings of a short connection are noise unless the person asks for them.
	a.log = process.Logger(a.err, a.set.Logging, slog.LevelError)
	for _, name := range settings.Unknown(a.env) {
		fmt.Fprintf(a.err, "mesh: warning: unknown variable %s\n", name)
	}
	return nil
}

// needsNothing is the annotation of commands that read no setting.
const needsNothing = "needs-nothing"

// runE adapts a command's function to cobra.
func runE(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return do(cmd.Context(), args) }
}

// takes refuses a wrong number of arguments, and an empty one: an unset shell variable names nothing.
func takes(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage(cmd, "%s needs %s", wordsOf(cmd), what)
		case most >= 0 && len(args) > most:
			return usage(cmd, "%s takes %s: %q is one argument too many", wordsOf(cmd), what, args[most])
		case slices.Contains(args, ""):
			return usage(cmd, "%s takes %s, and got an empty text", wordsOf(cmd), what)
		}
		return nil
	}
}

var nothing = takes(0, 0, "no arguments")

func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return usage(cmd, "%s needs a command: %s", wordsOf(cmd), strings.Join(names(cmd), ", "))
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(commands...)
	return cmd
}

func names(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return names
}
