package executor

import (
	"cmp"
	"log/slog"
	"path/filepath"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/program"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

// CommandSpec says which index commands belong to and how they are run.
type CommandSpec struct {
	Name     string // for messages
	Revision string // for messages
	Account  string // as in [Spec]
	// SourceDir is the index's folder, their working directory.
	SourceDir string
	Env       *Env
	// Vars are the index's declared environment variables.
	Vars map[string]string
	// SecretValues are what no error and no log line may show, whichever variable
	// of a call has it.
	SecretValues []string
	// Paths are as in [Spec].
	Paths Given
	// Concurrency bounds the programs that run at once. Defaults to the
	// executor's MaxWorkers.
	Concurrency int
}

// OpenCommands makes ready to run an index's programs; nothing is started. The
// error is unavailable or internal.
func (x *Executor) OpenCommands(spec CommandSpec) (*Commands, error) {
	if spec.Env == nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "executor: CommandSpec.Env is missing").WithOrigin(toolmesh.OriginAgent)
	}
	root, err := realPath(spec.SourceDir)
	if err != nil {
		return nil, unavailable("the index %s cannot be served: %w", spec.Name, err)
	}
	places := spec.Concurrency
	if places <= 0 {
		places = x.opts.MaxWorkers
	}
	var runner *Commands
	runner = program.New(program.Config{
		Index: spec.Name, Logger: x.log.With(slog.String("index", spec.Name), slog.String("revision", spec.Revision)),
		Launch: sandbox.Command{
			Path: spec.Env.Base, Args: []string{"-I", "-S", "-c", python.Bootstrap("command(sys.argv[2])"), x.files}, Env: []string{"LANG=C.UTF-8"}, Dir: root,
		},
		Spawner: x.spawner, Groups: x.groups,
		// What the index's tools see, and the name of the environment that they run in.
		Environ: func(own, vars map[string]string) []string {
			return x.workerEnv(filepath.Join(spec.Env.Dir, "bin"), map[string]string{"VIRTUAL_ENV": spec.Env.Dir}, own, spec.Vars, vars)
		},
		User: func(box tool.Sandbox) (sandbox.User, map[string]string, error) {
			return x.user(cmp.Or(spec.Account, spec.Name), cmp.Or(box, x.opts.Sandbox))
		},
		Given:  func(user sandbox.User) []sandbox.Path { return append(x.seen(root, spec.Env, user), spec.Paths...) },
		Redact: x.redactor(spec.SecretValues), Scratch: filepath.Join(x.dir, scratch), Sandbox: x.defaultSandbox(),
		Concurrency: places, MaxResult: x.opts.MaxResult, Grace: x.opts.Grace, Limits: x.opts.Limits, MaxLimits: x.opts.MaxLimits,
		Processes: x.processes,
		Closed:    func() { x.ended(runner) },
	})
	if err := x.opened(runner); err != nil {
		return nil, err
	}
	return runner, nil
}
