package executor

import (
	"cmp"
	"log/slog"
	"path/filepath"

	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/tool"
)

// OpenCommands makes a runner of an index's programs, at most Spec.Concurrency at once,
// MaxWorkers if that is 0. It starts nothing. Tools, Policies and Quarantined of the Spec are for
// functions only. The error is unavailable or internal.
func (x *Executor) OpenCommands(spec Spec) (*Commands, error) {
	root, err := spec.root()
	if err != nil {
		return nil, err
	}
	places := spec.Concurrency
	if places <= 0 {
		places = x.opts.MaxWorkers
	}
	bin := filepath.Join(spec.Env.Dir, "bin")
	var runner *Commands
	runner = program.New(program.Config{
		Index: spec.Name, Logger: x.log.With(slog.String("index", spec.Name), slog.String("revision", spec.Revision)),
		Launch: x.launch(spec.Env.Base, root), Spawner: x.spawner, Groups: x.groups,
		// The environment of the index's tools, and the name of their Python environment.
		Request: func(box tool.Sandbox, vars map[string]string, pids int) (sandbox.Request, error) {
			user, own, err := x.user(cmp.Or(spec.Account, spec.Name), cmp.Or(box, x.opts.Sandbox))
			return sandbox.Request{
				User: user, Given: append(x.seen(root, spec.Env, user), spec.Paths.paths...), Processes: x.processes(user, pids),
				Env: x.workerEnv(bin, map[string]string{"VIRTUAL_ENV": spec.Env.Dir}, own, spec.Vars, vars),
			}, err
		},
		Path:   filepath.SplitList(variable(x.workerEnv(bin, spec.Vars), "PATH")),
		Redact: x.redactor(spec.Secrets), Scratch: filepath.Join(x.dir, scratch), Sandbox: x.defaultSandbox(),
		Concurrency: places, MaxResult: x.opts.MaxResult, Grace: x.opts.Grace, Limits: x.opts.Limits, MaxLimits: x.opts.MaxLimits,
		Closed: func() { x.ended(runner) },
	})
	if err := x.opened(runner); err != nil {
		return nil, err
	}
	return runner, nil
}
