package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nkeys"
	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

type installFlags struct {
	name, rev string
	env       []string
	paths     []string
	on        []string
	replace   bool
	detach    bool
	dryRun    bool
	yes       bool
}

// installRequest is a request to an agent, and the expected name of the index if it is known here.
type installRequest struct {
	deploy.Request
	called subjects.IndexName
	owner  nkeys.KeyPair // signs the request; nil: unsigned
}

func (a *app) installCommand() *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use: "install SOURCE", Short: "Install an index of tools on the whole mesh",
		Long: `Install an index of tools on the whole mesh. SOURCE is

  ./dir  /dir            a folder, taken as it is on disk without the files that git ignores
  ./tool.py              a single file with a PEP 723 block for its dependencies
  owner/repo[@rev]       a repository on GitHub
  https://…  ssh://…  file://…  git@host:path      any git repository, with @rev
  -                      {"source":"…","env":{"K":"V"}} on stdin, for a token in a URL or a secret
                         variable: all users of the machine can read a command line

Packages without a wheel are built from source, and an index may have an init command: both run
other people's code during the install. On a terminal you are asked before that; --dry-run lists
this code and its user.

Installing an unchanged index again is a success. An install keeps the earlier --env, --path and
--on unless it has new ones. With --on only nodes with these labels serve the index (those of
mesh-agent --labels and mesh node label), with --on all every node again. With --session the
index is private to that session.`,
		Example: `  mesh install ./examples/indexes/weather
  mesh install owner/repo@v1.2 --name tools
  mesh install https://example.com/tools.git --rev main --env API_KEY
  mesh install ./documents --path /srv/documents:rw
  mesh install ./model --on gpu=true,zone=b
  mesh install owner/repo --dry-run`,
		Args: takes(1, 1, "a source"),
		RunE: runE(func(ctx context.Context, args []string) error { return a.install(ctx, args[0], f) }),
	}
	flags := cmd.Flags()
	wordFlag(cmd, &f.name, "name", "`NAME` of the index (default the name in its manifest, else the last part of SOURCE)")
	wordFlag(cmd, &f.rev, "rev", "revision: a branch, a tag or a commit `REV`; needs git")
	flags.StringArrayVar(&f.env, "env", nil, "give the tools a variable, declared or not: `K` reads it from your environment, K=V sets it (never for secrets); may be repeated")
	flags.StringArrayVar(&f.paths, "path", nil, "give the tools the folder `DIR[:rw]` of their nodes, to read or also to write; may be repeated")
	flags.StringArrayVar(&f.on, "on", nil, "install it on the nodes with these labels, `K=V,…`, all of them; may be repeated (default as before, else every node; all: every node)")
	flags.BoolVar(&f.replace, "replace", false, "take the name over from an index of another source or another user")
	flags.BoolVar(&f.dryRun, "dry-run", false, "install nothing: print the tools, their user, and what would be built and run")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask before packages are built or an init command is run")
	flags.BoolVar(&f.detach, "detach", false, "return once an agent has taken the job")
	return cmd
}

func (a *app) install(ctx context.Context, text string, f installFlags) error {
	if f.dryRun && f.detach {
		return usage(nil, "--dry-run waits for the answer: leave --detach out")
	}
	var given map[string]string
	if text == "-" {
		var err error
		if text, given, err = a.installInput(ctx); err != nil {
			return err
		}
	}
	src, err := index.Parse(text)
	if err != nil {
		return usage(nil, "%s", toolmesh.AsError(err).Message)
	}
	if src.Rev != "" && f.rev != "" && src.Rev != f.rev {
		return usage(nil, "%s and --rev %s name two revisions: give one of them", src, f.rev)
	}
	if token, err := subjects.EncodeToken(f.name); f.name != "" && (err != nil || token != f.name) {
		return usage(nil, "--name %q cannot be an index's name: 1 to 64 of A-Z a-z 0-9 _ -", f.name)
	}
	r := installRequest{Request: deploy.Request{Source: text, Name: subjects.IndexName(f.name), Rev: f.rev, Replace: f.replace, DryRun: f.dryRun}, called: subjects.IndexName(f.name)}
	if r.Env, r.Literal, err = a.variables(given, f.env); err != nil {
		return err
	}
	for _, text := range f.paths {
		p, err := index.ParseFolder(text)
		if err != nil {
			return usage(nil, "--path %s", err.Error())
		}
		r.Paths = append(r.Paths, p)
	}
	if r.On, err = labelsOf(f.on); err != nil {
		return err
	}
	if a.sessionGiven {
		r.Session = subjects.SessionID(a.set.Session.Session)
	}
	return a.withMesh(ctx, func(ctx context.Context, l *link) error {
		if none := l.noMesh(ctx); none != nil {
			return none
		}
		if err := inventory.MayAsk(ctx, l.bus, l.domain); err != nil {
			return err
		}
		p := a.steps()
		defer func() { p.wipe() }()
		if !src.Local() {
			return a.askInstall(ctx, l, r, f, p)
		}
		return a.installFolder(ctx, l, src, r, f, p)
	})
}

// installFolder installs a folder of this machine. The folder goes through the mesh's object store
// and is deleted there once the agent is done. The index is then owned by this user.
func (a *app) installFolder(ctx context.Context, l *link, src index.Source, r installRequest, f installFlags, p *steps) error {
	owner, err := connect.StateOf(a.env).OwnerKey()
	if err != nil {
		return err
	}
	defer owner.Wipe()
	r.owner = owner
	for again := false; ; again = true {
		asked := r
		ours, err := l.putFolder(ctx, src, &asked, p)
		if err != nil {
			return err
		}
		err = a.askInstall(ctx, l, asked, f, p)
		if ours && !f.detach && ctx.Err() == nil {
			if err := store.Of(l.bus).DeleteBundle(ctx, asked.Bundle); err != nil {
				p.warn("the upload " + short(asked.Bundle) + " is still in the mesh: " + toolmesh.AsError(err).Message)
			}
		}
		// A concurrent install of the same folder may have deleted it.
		if e := toolmesh.AsError(err); again || e == nil || e.Code != toolmesh.CodeInstallFailed || e.Details["reason"] != "bundle" {
			return err
		}
	}
}

// maxInput is the max bytes that install reads from stdin.
const maxInput = 4 << 20

// installInput reads the source and the variables from stdin. Its errors contain none of them: they
// may be secret.
func (a *app) installInput(ctx context.Context) (source string, env map[string]string, err error) {
	data, err := io.ReadAll(io.LimitReader(a.stdin(ctx), maxInput+1))
	if err != nil {
		return "", nil, usage(nil, "stdin cannot be read: %v", err)
	}
	var input struct {
		Source string            `json:"source"`
		Env    map[string]string `json:"env"`
	}
	data = bytes.TrimPrefix(data, byteOrderMark)
	if len(data) > maxInput || !utf8.Valid(data) || decodeStrictly(data, &input) != nil || input.Source == "" || input.Source == "-" {
		return "", nil, usage(nil, `stdin is not {"source":"…","env":{"K":"V"}} in JSON, of %d bytes at most, with a source`, maxInput)
	}
	return input.Source, input.Env, nil
}

// decodeStrictly decodes one JSON object without unknown members.
func decodeStrictly(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if _, end := dec.Token(); err == nil && !errors.Is(end, io.EOF) {
		err = errors.New("text follows the object")
	}
	return err
}

// variables adds the values of --env to env. It lists the values typed on the command line, so that
// the agent can refuse them for secrets.
func (a *app) variables(env map[string]string, given []string) (_ map[string]string, literal []string, err error) {
	for _, text := range given {
		name, value, typed := strings.Cut(text, "=")
		if name == "" {
			return nil, nil, usage(nil, "--env %s: write K to read it from your environment, or K=V", text)
		}
		if _, twice := env[name]; twice {
			return nil, nil, usage(nil, "%s is given twice", name)
		}
		if typed {
			literal = append(literal, name)
		} else if value, typed = connect.LookupEnv(a.env, name); !typed {
			return nil, nil, usage(nil, "--env %s: your environment has no such variable", name)
		}
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return nil, nil, usage(nil, "--env %s: the variable is not UTF-8", strings.ToValidUTF8(name, "�"))
		}
		if env == nil {
			env = make(map[string]string)
		}
		env[name] = value
	}
	return env, literal, nil
}

// everywhere is the value of --on for every node.
const everywhere = "all"

// labelsOf parses --on: nil if it was not given, no labels for every node.
func labelsOf(given []string) (registry.Labels, error) {
	if len(given) == 0 {
		return nil, nil
	}
	text := strings.Join(given, ",")
	if text == everywhere {
		return registry.Labels{}, nil
	}
	labels, err := settings.ParseLabels(text)
	if err != nil {
		return nil, usage(nil, "--on %s: %s, or all for every node", text, err.Error())
	}
	if len(labels) == 0 {
		return nil, usage(nil, "--on %q names no label: want k=v,k=v, or all for every node", text)
	}
	return labels, nil
}

// putFolder packs a folder of this machine, or a revision of it, and stores it in the mesh for the
// agent. ours says that it was not stored before.
func (l *link) putFolder(ctx context.Context, src index.Source, r *installRequest, p *steps) (ours bool, err error) {
	work, err := os.MkdirTemp("", "mesh-install-")
	if err != nil {
		return false, toolmesh.Errorf(toolmesh.CodeInternal, "no folder to work in: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	if _, err := os.Stat(src.Location); err == nil {
		p.step("pack", "running", 0)
	}
	tree, err := index.Fetch(ctx, src, filepath.Join(work, "tree"), r.Rev, index.FetchOptions{})
	if err != nil {
		return false, err
	}
	manifest, err := index.Load(tree.Dir)
	if err != nil {
		return false, err
	}
	for _, v := range manifest.Env {
		if v.Secret && slices.Contains(r.Literal, v.Name) {
			return false, usage(nil, "%s is a secret and must not stand on a command line: set it in your environment and give --env %s", v.Name, v.Name)
		}
	}
	for _, w := range tree.Warnings {
		p.warn(w)
	}
	info, _ := json.Marshal(index.Info{Source: src.String(), Revision: tree.Revision, Upload: true}) // texts
	bundle, err := os.Create(filepath.Join(work, "bundle"))
	if err != nil {
		return false, toolmesh.Errorf(toolmesh.CodeInternal, "write the bundle: %w", err)
	}
	defer func() { _ = bundle.Close() }()
	digest, err := index.Pack(ctx, bundle, tree.Dir, tree.Files, map[string][]byte{index.InfoFile: info})
	if err != nil {
		return false, err
	}
	r.called = cmp.Or(r.Name, manifest.Name, src.Name)
	p.step("pack", "done", 0)
	p.step("upload", "running", 0)
	if _, err := bundle.Seek(0, 0); err != nil {
		return false, toolmesh.Errorf(toolmesh.CodeInternal, "read the bundle back: %w", err)
	}
	stored, err := store.Of(l.bus).PutBundle(ctx, digest, bundle)
	if err != nil {
		return false, err
	}
	p.step("upload", "done", 0)
	r.Source, r.Bundle, r.Rev = src.Location, digest, ""
	return stored, nil
}

// runInstall has an agent run an install and shows its progress.
func (a *app) runInstall(ctx context.Context, l *link, r installRequest, f installFlags, p *steps) error {
	job, detach := "", f.detach
	var done deploy.Line
	take := func(raw json.RawMessage) bool {
		var line deploy.Line
		if json.Unmarshal(raw, &line) != nil {
			return true
		}
		if line.Step == "" && len(p.warned) > 0 {
			line.Warnings, p.warned = append(p.warned, line.Warnings...), nil
			raw = json.RawMessage(compact(line))
		}
		if a.json && !detach && !f.dryRun {
			a.printJSON(raw)
		}
		if line.Step != "" {
			job = line.Job
			if what := runs[line.Step]; what != "" && line.State == "running" && !f.yes {
				p.warn(what)
			}
			p.step(line.Step, line.State, *cmp.Or(line.Percent, new(int)))
		} else {
			// Many tools need several lines.
			line.Tools = append(done.Tools, line.Tools...)
			line.Unavailable = append(done.Unavailable, line.Unavailable...)
			line.Warnings = append(done.Warnings, line.Warnings...)
			done = line
		}
		return !detach
	}
	_, err := last(deploy.Install(ctx, l.bus, r.Request, r.owner), take)
	p.wipe()
	if err != nil {
		if ctx.Err() != nil && job != "" && !a.json {
			in := ""
			if r.Session != "" {
				in = " --session " + shellQuote(string(r.Session))
			}
			fmt.Fprintf(a.err, "mesh: the agent goes on with the install (%s): mesh uninstall %s%s ends it or removes the index\n",
				job, cmp.Or(r.called, "INDEX"), in)
		}
		if err = unfinished(err); len(p.warned) > 0 {
			err = toolmesh.AsError(err).WithDetail("warnings", p.warned)
		}
		return err
	}
	if detach {
		a.say(map[string]any{"job": job}, job)
		return nil
	}
	if !a.json {
		for _, w := range done.Warnings {
			fmt.Fprintf(a.err, "mesh: warning: %s\n", w)
		}
	}
	switch {
	case f.dryRun && done.Plan != nil && a.json:
		a.printJSON(struct {
			*deploy.Plan
			Warnings []string `json:"warnings,omitempty"`
		}{done.Plan, done.Warnings})
		return nil
	case f.dryRun && done.Plan != nil:
		a.facts(planFacts(done.Plan)...)
		return nil
	case done.Index == "":
		return toolmesh.Errorf(toolmesh.CodeProtocolError, "the agent's answer does not say what is installed")
	}
	c := l.client
	if r.Session != "" {
		c = c.In(r.Session)
	}
	inventory.Listed(ctx, c, done.Tools)
	if a.json {
		return nil
	}
	for _, u := range done.Unavailable {
		fmt.Fprintf(a.err, "mesh: %s is not served: %s\n", u.ID, u.Reason)
	}
	fmt.Fprintf(a.out, "%s @ %s\n", done.Index, short(done.Revision))
	for _, t := range done.Tools {
		fmt.Fprintf(a.out, "  %s\n", t)
	}
	return nil
}

// unfinished says what the loss of a node means for an install: the record is written last, and the
// node removes the rest at its next start.
func unfinished(err error) error {
	e := toolmesh.AsError(err)
	node, named := e.Details["node"]
	if e.Code != toolmesh.CodeNodeLost || !named {
		return err
	}
	return toolmesh.Errorf(toolmesh.CodeNodeLost, "the install was not finished, because its node %v is lost: run it again", node).
		WithOrigin(toolmesh.OriginCaller).WithDetail("node", node)
}

// endInstall asks each node to uninstall an index that is not installed: only the node that is
// installing it knows it. unknown is the error if none does.
func (a *app) endInstall(ctx context.Context, l *link, body any, unknown error) (json.RawMessage, error) {
	view, err := registry.OpenView(ctx, l.bus, &registry.ViewOptions{Logger: a.log})
	if err != nil {
		return nil, unknown
	}
	defer view.Close()
	for _, n := range view.Nodes() {
		if line, err := last(deploy.Ask(ctx, l.bus, n.Node, "uninstall", body, nil), nil); err == nil {
			return line, nil
		}
	}
	return nil, unknown
}

func (a *app) uninstallCommand() *cobra.Command {
	return &cobra.Command{
		Use: "uninstall INDEX", Short: "Remove an index from the mesh",
		Long: "Remove an index from the mesh; with --session one that is private to that session.",
		Args: takes(1, 1, "an index"),
		RunE: runE(func(ctx context.Context, args []string) error {
			if _, err := subjects.IndexKey(subjects.IndexName(args[0]), ""); err != nil {
				return usage(nil, "%q cannot be an index's name: %s", args[0], err.Error())
			}
			return a.withMesh(ctx, func(ctx context.Context, l *link) error {
				body := map[string]any{"name": args[0]}
				if a.sessionGiven {
					body["session"] = subjects.SessionID(a.set.Session.Session)
				}
				line, err := last(deploy.Ask(ctx, l.bus, "", "uninstall", body, nil), nil)
				if toolmesh.CodeOf(err) == toolmesh.CodeNotFound {
					line, err = a.endInstall(ctx, l, body, err)
				}
				if err != nil {
					return err
				}
				a.tell(line, "uninstalled %s", args[0])
				return nil
			})
		}),
	}
}
