package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// builder builds and serves indexes for [deploy.Manager].
type builder struct{ a *Agent }

// Lock implements [deploy.Builder].
func (w *builder) Lock(ctx context.Context, b deploy.Build, progress deploy.Progress) ([]byte, error) {
	var lock executor.Lock
	var err error
	m := b.Manifest
	o := executor.LockOptions{Python: m.Python, Vars: valuesOf(m.Env, b.Env), NoBuild: b.NoBuild}
	if m.IsScript() {
		lock, err = w.a.executor.LockRequirements(ctx, m.Convention, m.Requirements, o, steps(progress, 20, 35))
	} else {
		lock, err = w.a.executor.Lock(ctx, b.Dir, o, steps(progress, 20, 35))
	}
	if err != nil {
		return nil, err
	}
	return encodeLock(lock), nil
}

// Plan implements [deploy.Builder]. It makes the environment to see its builds; the install uses
// that environment, and without one it is removed like any that no index needs.
func (w *builder) Plan(ctx context.Context, b deploy.Build, progress deploy.Progress) (p deploy.Plan, err error) {
	p.User, p.Sandbox = w.a.executor.RunsAs()
	p.Root = p.User == executor.UserAgent && os.Geteuid() == 0
	for _, name := range b.Manifest.Tools {
		level := p.Sandbox
		if demanded := b.Manifest.Tool(name).Sandbox; demanded != "" {
			if p.Sandboxes == nil {
				p.Sandboxes = map[subjects.ToolID]tool.Sandbox{}
			}
			level, p.Sandboxes[toolID(b.Name, name)] = demanded, demanded
		}
		p.Network = p.Network || level != tool.SandboxOffline
	}
	lock, err := decodeLock(b.Lock)
	if err != nil || len(lock.Requirements) == 0 {
		return p, err
	}
	b.NoBuild = true
	env, err := w.a.executor.Environment(ctx, b.Dir, lock, makingOf(b), steps(progress, 40, 65))
	if err == nil {
		w.a.executor.Release(env)
	} else if p.Builds = deploy.ToBuild(err); p.Builds != nil {
		err = nil
	}
	return p, err
}

// valuesOf returns the values that variables were given.
func valuesOf(vars []index.EnvVar, env map[string]string) map[string]string {
	values := map[string]string{}
	for _, v := range vars {
		if value, ok := env[v.Name]; ok {
			values[v.Name] = value
		}
	}
	return values
}

// lockFile is how a lock is kept in a bundle.
type lockFile struct {
	Python       string `json:"python"`
	Requirements string `json:"requirements"`
}

func encodeLock(lock executor.Lock) []byte {
	data, _ := json.MarshalIndent(lockFile{Python: lock.Python, Requirements: string(lock.Requirements)}, "", "  ") // two texts
	return append(data, '\n')
}

func decodeLock(data []byte) (executor.Lock, error) {
	if len(data) == 0 {
		return executor.Lock{}, nil
	}
	var f lockFile
	if err := json.Unmarshal(data, &f); err != nil {
		return executor.Lock{}, toolmesh.Errorf(toolmesh.CodeInstallFailed, "the bundle's lock cannot be read: %w", err)
	}
	return executor.Lock{Python: f.Python, Requirements: []byte(f.Requirements)}, nil
}

// steps maps the executor's progress into a part of the whole.
func steps(progress deploy.Progress, from, to int) func(executor.Step) {
	return func(s executor.Step) {
		percent := from + s.Percent*(to-from)/100
		progress(s.Name, s.State, percent)
	}
}

// Open implements [deploy.Builder].
func (w *builder) Open(ctx context.Context, b deploy.Build, progress deploy.Progress) (_ deploy.Instance, err error) {
	lock, err := decodeLock(b.Lock)
	if err != nil {
		return nil, err
	}
	if err := w.a.executor.Reserve(accountOf(b), b.Dir); err != nil {
		return nil, err
	}
	env, err := w.a.executor.Environment(ctx, b.Dir, lock, makingOf(b), steps(progress, 40, 65))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.a.executor.Release(env)
		}
	}()
	paths, notes, err := w.a.executor.Paths(accountOf(b), pathsOf(b.Paths), pathsOf(b.Manifest.Paths))
	if err != nil {
		return nil, err
	}
	if err := w.initialise(ctx, b, env, paths, progress); err != nil {
		return nil, err
	}
	progress("import", "running", 65)
	usable, missing := withEnv(b)
	vars, policies := policiesOf(b)
	functions, names := functionsOf(b.Manifest, usable)
	i := &instance{a: w.a, build: b, env: env, warnings: append(notes, w.unwritable(b)...), unavailable: missing, notices: map[string]string{}}
	i.redactor = sync.OnceValue(func() func(string) string { return w.a.executor.Redactor(secretsOf(b)) })
	spec := executor.Spec{
		Name: string(b.Name), Revision: b.Revision, Account: accountOf(b), SourceDir: b.Dir, Env: env, Tools: functions,
		Vars: vars, Policies: policies, Secrets: secretsOf(b), Paths: paths, Concurrency: b.Manifest.Concurrency, Turns: takesTurns(b), Quarantined: i.quarantined,
	}
	if err := i.openCommands(spec, usable); err != nil {
		return nil, err
	}
	if len(spec.Tools) > 0 || i.commands == nil {
		if i.index, err = w.a.executor.Open(ctx, spec); err != nil {
			_ = i.closeCommands(ctx)
			return nil, err
		}
		i.describe(names)
	}
	i.sort()
	w.a.instances.Lock()
	w.a.instances.open[i] = struct{}{}
	w.a.instances.Unlock()
	progress("import", "done", 80)
	return i, nil
}

// accountOf names the user of an index, which is another one in each session.
func accountOf(b deploy.Build) string {
	account, _ := subjects.IndexKey(b.Name, b.Session) // its folder was made by that name
	return account
}

// makingOf says how the environment of a build is made.
func makingOf(b deploy.Build) executor.Making {
	return executor.Making{Account: accountOf(b), Own: len(b.Manifest.Init) > 0, Vars: valuesOf(b.Manifest.Env, b.Env), NoBuild: b.NoBuild}
}

func pathsOf(all []index.Folder) []executor.Path {
	paths := make([]executor.Path, len(all))
	for i, p := range all {
		paths[i] = executor.Path(p)
	}
	return paths
}

// unwritable warns of folders of this node that variables name and that the tools cannot write: they
// run as other users, or in a sandbox. It does not show the values, which may be secrets.
func (w *builder) unwritable(b deploy.Build) (warnings []string) {
	user, level := w.a.executor.RunsAs()
	if user == executor.UserAgent && !level.AtLeast(tool.SandboxStrict) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(b.Env)) {
		dir := b.Env[name]
		info, err := os.Stat(dir)
		if !filepath.IsAbs(dir) || err != nil || !info.IsDir() || info.Mode()&0o002 != 0 && !level.AtLeast(tool.SandboxStrict) {
			continue
		}
		if !slices.ContainsFunc(slices.Concat(b.Paths, b.Manifest.Paths), func(p index.Folder) bool {
			rel, err := filepath.Rel(p.Path, dir)
			return err == nil && filepath.IsLocal(rel)
		}) {
			warnings = append(warnings, fmt.Sprintf("the tools cannot write the folder that the variable %s names, because it belongs to another user: give it with mesh install … --path DIR:rw, in Python paths=[\"DIR:rw\"]", name))
		}
	}
	return warnings
}

// withEnv splits the declared tools into those with all their required variables, and the others
// with the reason.
func withEnv(b deploy.Build) (usable []string, missing []host.Unavailable) {
	for _, name := range b.Manifest.Tools {
		reason := b.Manifest.Tool(name).Refused
		for _, v := range b.Manifest.EnvOf(name) {
			if _, ok := b.Env[v.Name]; v.Required && !ok && reason == "" {
				reason = "needs the variable " + v.Name + ": install again with --env " + v.Name
			}
		}
		if reason == "" {
			usable = append(usable, name)
			continue
		}
		missing = append(missing, unserved(b, name, reason))
	}
	return usable, missing
}

// policiesOf says how each tool is run, and which variables all of them see: a
// variable that is declared for some tools reaches no others.
func policiesOf(b deploy.Build) (vars map[string]string, policies map[string]executor.Policy) {
	vars = maps.Clone(b.Env)
	for _, v := range b.Manifest.Env {
		if len(v.Tools) > 0 {
			delete(vars, v.Name)
		}
	}
	policies = make(map[string]executor.Policy, len(b.Manifest.Tools))
	for _, name := range b.Manifest.Tools {
		if t := b.Manifest.Tool(name); t.Function != "" { // the executor knows tools by their functions
			policies[t.Function] = executor.Policy{Isolation: t.Isolation, Sandbox: t.Sandbox, Limits: t.Limits, Vars: varsOf(b, name)}
		}
	}
	return vars, policies
}

// takesTurns reports whether some tool has turns in lanes beyond its batch.
func takesTurns(b deploy.Build) bool {
	return slices.ContainsFunc(b.Manifest.Tools, func(name string) bool {
		scope := b.Manifest.Tool(name).LaneScope
		return scope != "" && scope != tool.LaneBatch
	})
}

// varsOf returns the values of the variables that a tool may see.
func varsOf(b deploy.Build, name string) map[string]string {
	return valuesOf(b.Manifest.EnvOf(name), b.Env)
}

// secretsOf are the values of the variables that are declared as secret.
func secretsOf(b deploy.Build) (values []string) {
	for _, v := range b.Manifest.Env {
		if v.Secret {
			values = append(values, b.Env[v.Name])
		}
	}
	return values
}

func toolID(index subjects.IndexName, name string) subjects.ToolID {
	return subjects.ToolID(string(index) + "." + name)
}

// initDone says for which making of the environment the init command has run.
const initDone = "init.done"

// initialise runs the index's init command once for a source and its environment:
// again when either had to be made anew.
func (w *builder) initialise(ctx context.Context, b deploy.Build, env *executor.Env, paths executor.Given, progress deploy.Progress) error {
	if len(b.Manifest.Init) == 0 {
		return nil
	}
	marker := filepath.Join(b.Own, initDone)
	if done, err := os.ReadFile(marker); err == nil && string(done) == env.Build { //nolint:gosec // our own folder
		return nil
	}
	progress("init", "running", 65)
	if err := w.a.executor.Command(ctx, env, accountOf(b), b.Dir, b.Manifest.Init, b.Env, secretsOf(b), paths); err != nil {
		return err
	}
	if err := os.WriteFile(marker, []byte(env.Build), 0o600); err != nil {
		return toolmesh.Errorf(toolmesh.CodeInstallFailed, "record that the init command has run: %w", err)
	}
	progress("init", "done", 65)
	return nil
}

// Publish implements [deploy.Server].
func (w *builder) Publish(ctx context.Context, d deploy.Instance) error {
	return w.a.published.publish(ctx, w.a.member.Host, d.(*instance)) //nolint:forcetypeassert // of Open
}

// PublishFailed implements [deploy.Server].
func (w *builder) PublishFailed(ctx context.Context, b deploy.Build, reason string) error {
	s := host.Service{Index: b.Name, Session: b.Session, Revision: b.Revision}
	for _, name := range b.Manifest.Tools {
		s.Unavailable = append(s.Unavailable, unserved(b, name, reason))
	}
	return w.a.published.instead(key{b.Name, b.Session}, func() error { return w.a.member.Host.Publish(ctx, s) })
}

// Withdraw implements [deploy.Server].
func (w *builder) Withdraw(ctx context.Context, name subjects.IndexName, session subjects.SessionID) error {
	return w.a.published.instead(key{name, session}, func() error { return w.a.member.Host.Withdraw(ctx, name, session) })
}
