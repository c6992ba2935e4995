package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/examples"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) demoCommand() *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use: "demo", Short: "Show a mesh at work: one of its own, removed at the end",
		Long: `Start a mesh of its own on free ports of this machine, install indexes from git,
call, stream, fail, time out, serve a Go function, and clean up. It changes none of your
files. It needs git and python3, and the package index for two small packages.`,
		Args: nothing,
		RunE: runE(func(ctx context.Context, _ []string) error { return a.demo(ctx, keep) }),
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the mesh running and say how to use and stop it")
	return cmd
}

// demo is one run of the demo: its folder, its mesh, and the story so far.
type demo struct {
	a       *app
	look    terminal // of stdout
	dir     string   // of all its files
	data    string   // the mesh's data folder
	env     []string
	url     string // of the mesh, once it is ready
	http    string // of the gateway
	act     int
	started time.Time
}

func (a *app) demo(ctx context.Context, keep bool) error {
	dir, err := os.MkdirTemp("", "mesh-demo-")
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInternal, "no folder for the demo: %w", err)
	}
	d := &demo{a: a, look: a.term, dir: dir, data: filepath.Join(dir, "data"), started: time.Now()}
	d.look.err = a.term.out
	// The record of the mesh and the owner's key are removed with the folder.
	d.env = append(ownEnvironment(a.env), "XDG_STATE_HOME="+filepath.Join(dir, "state"))
	err = d.play(ctx, keep)
	if err == nil && keep {
		d.leave()
		return nil
	}
	if err == nil {
		d.say("\nThat was it. The mesh stops and its files go.")
	}
	return errors.Join(err, d.cleanUp(context.WithoutCancel(ctx)))
}

// ownEnvironment removes the settings of the person's own meshes.
func ownEnvironment(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		return strings.HasPrefix(e, "MESH_") || strings.HasPrefix(e, "NATS_")
	})
}

// act is a part of the story: a title and its commands. Each command runs as if it were typed and
// must end as the story says.
type act struct {
	title    string
	commands []command
}

// command is one command of the story and its expected end.
type command struct {
	args   []string
	status int
	want   string // a part of its output
}

const candidates = `candidates:=["1.2","2004d","1.10"]`

// story is shown once the indexes are installed.
var story = []act{
	{"Call them: the same function side by side with two versions of one package", []command{
		{args: []string{"call", "versions-lenient.versions.library"}, want: `"20.9"`},
		{args: []string{"call", "versions-strict.versions.library"}, want: `"24.1"`},
		{args: []string{"call", "versions-lenient.versions.newest", candidates}, want: "packaging 20.9"},
		{args: []string{"call", "versions-strict.versions.newest", candidates}, status: process.StatusFailed, want: "InvalidVersion"},
		{args: []string{"call", "weather.forecast.today", "city=Oslo"}, want: "Oslo"},
	}},
	{"Stream: items as the tool yields them, kept for a caller that loses the connection", []command{
		{args: []string{"stream", "lab.streams.words", "text=one tool many callers"}, want: "callers"},
	}},
	{"Fail well: a failing tool differs from a failing mesh, and nothing hangs", []command{
		{args: []string{"call", "lab.bank.withdraw", "account=bob", "amount=20"}, status: process.StatusFailed, want: "InsufficientFunds"},
		{args: []string{"call", "lab.bank.withdraw", "account=bob", "amount=much"}, status: process.StatusUsage, want: "integer"},
		{args: []string{"call", "lab.timing.slow", "seconds=60", "--timeout=500ms"}, status: process.StatusFailed, want: "time"},
		{args: []string{"call", "wether.forecast.today"}, status: process.StatusMesh, want: "weather.forecast.today"},
	}},
}

func (d *demo) play(ctx context.Context, keep bool) error {
	d.say("A mesh of tools on this machine. After each $ is a command that you could type;\n$DEMO is a folder that is removed at the end.")
	d.title("Start a mesh: a NATS server and an agent, in one process")
	up := []string{"up", "--detach", "--data-dir=" + d.data, "--nats-listen=127.0.0.1:0"}
	if !keep {
		up = append(up, "--idle=1m") // in case this process is killed
	}
	ready, err := d.run(ctx, command{args: up, want: readyLine})
	if err != nil {
		return err
	}
	d.url, d.http, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(ready), readyLine), " http=")
	install := act{title: "Install indexes of tools, each from a git repository, each with its own environment;\n   two of them cannot live in one: they need packaging 20 and packaging 24"}
	for _, name := range []string{"versions-lenient", "versions-strict", "weather", "lab"} {
		repository, err := d.repository(ctx, name)
		if err != nil {
			return err
		}
		install.commands = append(install.commands, command{args: []string{"install", "file://" + repository}})
	}
	install.commands = append(install.commands, command{args: []string{"ls"}})
	for _, act := range slices.Insert(slices.Clone(story), 0, install) {
		d.title(act.title)
		for _, c := range act.commands {
			if _, err := d.run(ctx, c); err != nil {
				return err
			}
		}
	}
	d.title("Call over HTTP: curl, OpenAPI clients and MCP clients need no code of ours")
	if err := d.curl(ctx, "weather.forecast.today", `{"city":"Oslo"}`, "Oslo"); err != nil {
		return err
	}
	d.title("Serve a Go function next to the Python tools: this process is now a node, too")
	return d.goFunction(ctx)
}

func (d *demo) repository(ctx context.Context, name string) (string, error) {
	dir := filepath.Join(d.dir, "git", name)
	if err := examples.Write(name, dir); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"}, {"add", "--all"},
		{"-c", "user.name=mesh demo", "-c", "user.email=demo@example.com", "-c", "commit.gpgsign=false", "commit", "--quiet", "--message=An example index"},
	} {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = dir
		cmd.Env = append(d.env, "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "git %s: %w %s", args[0], err, strings.TrimSpace(string(out)))
		}
	}
	return dir, nil
}

// curl makes the request of a curl command line and shows both.
func (d *demo) curl(ctx context.Context, tool, body, want string) error {
	url := d.http + "/v1/tools/" + tool
	_, _ = io.WriteString(d.a.out, "\n  $ curl -s "+url+" -d "+shellQuote(body)+"\n")
	begun := time.Now()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInternal, "make the request: %w", err)
	}
	q.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(q)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "ask the gateway: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "read the gateway's answer: %w", err)
	}
	d.output(strings.TrimRight(string(text), "\n"), time.Since(begun))
	if answer.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
		return toolmesh.Errorf(toolmesh.CodeInternal, "the gateway answers %s", answer.Status)
	}
	return nil
}

func hello(_ context.Context, in struct {
	Name string `json:"name" jsonschema:"the name to greet"`
}) (string, error) {
	return "Hello " + in.Name + ", from Go.", nil
}

func (d *demo) goFunction(ctx context.Context) (err error) {
	d.say(d.look.dim(`  host.Serve(ctx, url, &host.Options{Index: "greeter"},`))
	d.say(d.look.dim(`      host.Named("hello", host.Func(hello)))   // schemas from the Go types`))
	const id = "greeter.hello"
	serving, stop := context.WithCancel(ctx)
	var node errgroup.Group
	node.Go(func() error {
		return host.Serve(serving, d.url, &host.Options{Index: "greeter", Env: d.env}, host.Named("hello", host.Func(hello), host.Description("Greet somebody.")))
	})
	defer func() {
		stop()
		err = errors.Join(err, node.Wait())
	}()
	c, err := client.Connect(ctx, d.url, &client.Options{Env: d.env})
	if err != nil {
		return err
	}
	defer c.Close()
	inventory.Listed(ctx, c, []subjects.ToolID{id})
	for _, c := range []command{
		{args: []string{"call", id, "name=you"}, want: "Hello you, from Go."},
		{args: []string{"nodes"}, want: "greeter"},
	} {
		if _, err := d.run(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command of the story in this process as if it were typed. It shows the command, the
// output and the time taken, and returns the output.
func (d *demo) run(ctx context.Context, c command) (string, error) {
	d.prompt(c.args)
	var stdout, stderr bytes.Buffer
	shown := d.a.running("it runs", "")
	begun := time.Now()
	status := execute(ctx, c.args, d.env, strings.NewReader(""), &stdout, &stderr)
	shown()
	took := time.Since(begun)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	text := stdout.String()
	asExpected := status == c.status && strings.Contains(text+stderr.String(), c.want)
	if status != process.StatusOK || !asExpected { // otherwise stderr has only progress
		text += stderr.String()
	}
	d.output(strings.TrimRight(text, "\n"), took)
	if !asExpected {
		return "", toolmesh.Errorf(toolmesh.CodeInternal, "the demo expected exit status %d and %q, and got %d", c.status, c.want, status)
	}
	return text, nil
}

// leave says how to use the mesh, which keeps running, in commands that can be pasted.
func (d *demo) leave() {
	mesh := shellQuote(os.Args[0])
	d.say("\nThe mesh still runs, without the Go function. These commands work as pasted:\n")
	for _, line := range []string{
		"ls", "info weather.forecast.daily", "call weather.forecast.daily city=Lima days=2",
		"stream lab.streams.countdown start=5",
		"install " + shellQuote("file://"+filepath.Join(d.dir, "git", "weather")) + " --name weather-again",
	} {
		verb, rest, _ := strings.Cut(line, " ")
		fmt.Fprintf(d.a.out, "  %s\n", strings.TrimRight(strings.Join([]string{mesh, verb, "--server", d.url, "--nkey", shellQuote(access.File(d.data, access.Admin)), rest}, " "), " "))
	}
	d.say("\nThis stops it and removes its files:")
	fmt.Fprintf(d.a.out, "  %s down --data-dir %s && rm -r %s\n", mesh, shellQuote(d.data), shellQuote(d.dir))
}

// cleanUp stops the mesh and removes every file of the demo.
func (d *demo) cleanUp(ctx context.Context) (err error) {
	if r, alive, _ := connect.ReadRecord(filepath.Join(d.data, upFile)); alive {
		err = d.a.stopProcess(ctx, r)
	}
	err = errors.Join(err, os.RemoveAll(d.dir))
	if d.url != "" && err == nil {
		d.say(fmt.Sprintf("\nClean again after %.1f s.", time.Since(d.started).Seconds()))
	}
	return err
}

// The typography of the story: acts, commands, output.

func (d *demo) title(text string) {
	d.act++
	fmt.Fprintf(d.a.out, "\n%s\n", d.look.strong(fmt.Sprintf("%d  %s", d.act, text)))
}

func (d *demo) say(text string) { fmt.Fprintln(d.a.out, text) }

func (d *demo) prompt(args []string) {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = strings.ReplaceAll(shellQuote(arg), d.dir, "$DEMO")
	}
	_, _ = io.WriteString(d.a.out, "\n  $ mesh "+strings.Join(quoted, " ")+"\n")
}

// shellQuote quotes a word for a shell.
func shellQuote(word string) string {
	const special = " \t\n\"'`\\$!*?[]{}()<>|&;#~"
	if word != "" && !strings.ContainsAny(word, special) {
		return word
	}
	if name, value, ok := strings.Cut(word, "="); ok && !strings.ContainsAny(name, special) {
		return name + "='" + strings.ReplaceAll(value, "'", `'\''`) + "'"
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func (d *demo) output(text string, took time.Duration) {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if d.a.term.width > 4 {
			line = cut(line, 4*d.a.term.width)
		}
		line = "  " + strings.ReplaceAll(line, d.dir, "$DEMO")
		if i == 0 && len(lines) == 1 {
			line += d.look.dim("   " + inBrief(took))
		}
		fmt.Fprintln(d.a.out, line)
	}
	if len(lines) > 1 {
		fmt.Fprintln(d.a.out, d.look.dim("  "+inBrief(took)))
	}
}

// inBrief formats a duration with its significant digits.
func inBrief(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("(%.1f ms)", d.Seconds()*1e3)
	}
	return fmt.Sprintf("(%.1f s)", d.Seconds())
}
