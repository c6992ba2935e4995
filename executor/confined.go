package executor

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/executor/internal/venv"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

// help runs a program of an installation for an index: under strict as far as the machine has
// it, the compiler also without a network; where the agent is root, as a user of no index.
func (x *Executor) help(ctx context.Context, as venv.Role, job venv.Job) (stdout []byte, stderr string, err error) {
	box := x.strict()
	if as == venv.Compiler && box != tool.SandboxNone {
		box = x.spawner.Survey().Held(tool.SandboxOffline)
	}
	user, _, err := x.user("+"+string(as), x.opts.Sandbox) // no index has such a name
	if err != nil {
		return nil, "", err
	}
	if as == venv.Agent {
		box, user = tool.SandboxNone, sandbox.User{}
	}
	stdout, stderr, err = x.confined(ctx, box, user, job, Given{})
	return stdout, x.redactor(nil).Text(stderr), err
}

// Fetches is the parent of the folders for [Executor.Fetch].
func (x *Executor) Fetches() string { return filepath.Join(x.dir, scratch) }

// Fetch runs a program that fetches the source of an index, as apart as those of the rest of an
// installation: it sees no folder of the agent but dir, one in [Executor.Fetches], which it may
// write and has as its home. env is the rest of its environment. Its output goes to out. The error
// is install_failed if it could not run.
func (x *Executor) Fetch(ctx context.Context, dir string, argv, env []string, out io.Writer) (stderr string, err error) {
	python, err := x.venvs.Interpreter(ctx)
	if err != nil {
		return "", err
	}
	_, stderr, err = x.help(ctx, venv.Fetcher, venv.Job{
		Interpreter: python, Tmp: dir, Dir: dir, Read: []string{filepath.Dir(argv[0])}, Argv: argv, Env: append(slices.Clip(env), "HOME="+dir, "TMPDIR="+dir), Stdout: out,
	})
	var exit sandbox.Exit
	if err != nil && ctx.Err() == nil && !errors.As(err, &exit) {
		err = toolmesh.Errorf(toolmesh.CodeInstallFailed, "%s cannot run apart from the agent: %w", argv[0], err)
	}
	return stderr, err
}

// confined runs a program of an installation in a sandbox level. The folders of job.Write are its
// user's while it runs, and job.Keep for good.
func (x *Executor) confined(ctx context.Context, box tool.Sandbox, user sandbox.User, job venv.Job, given Given) (stdout []byte, stderr string, err error) {
	r := sandbox.Request{Level: box, Folder: job.Tmp, User: user, Given: slices.Clip(given.paths), Argv: job.Argv, Env: job.Env, Stdout: job.Stdout}
	x.bound(&r)
	if job.Tmp == "" {
		remove, err := r.Scratch(filepath.Join(x.dir, scratch))
		if err != nil {
			return nil, "", err
		}
		defer remove()
	} else {
		job.Write = append(job.Write, job.Tmp)
	}
	if job.Keep != "" {
		if err := user.Keep(job.Keep); err != nil {
			return nil, "", err
		}
		r.Given = append(r.Given, sandbox.Path{Path: job.Keep, Access: sandbox.AccessWrite})
	}
	if job.Dir != "" && !slices.Contains(job.Write, job.Dir) {
		job.Read = append(job.Read, job.Dir)
	}
	for _, folder := range job.Read {
		if folder, err := filepath.EvalSymlinks(folder); err == nil && !within(x.sealed, folder) {
			r.Given = append(r.Given, sandbox.Path{Path: folder, Access: sandbox.AccessSee})
		}
	}
	if user.Home != "" {
		r.Given = append(r.Given, sandbox.Path{Path: user.Home, Access: sandbox.AccessOwn})
	}
	var lent []string
	for _, folder := range job.Write {
		if folder, err = realPath(folder); err != nil {
			return nil, "", err
		}
		lent = append(lent, folder)
		r.Given = append(r.Given, sandbox.Path{Path: folder, Access: sandbox.AccessWrite})
	}
	back, err := user.Lend(lent...)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, back()) }()
	launch := x.launch(job.Interpreter, cmp.Or(job.Dir, x.dir))
	launch.Env = append(launch.Env, job.Above...)
	return x.spawner.Run(ctx, launch, r)
}

// launch starts the process above a program, startup/command.py, in a folder.
func (x *Executor) launch(interpreter, dir string) sandbox.Command {
	return sandbox.Command{
		Path: interpreter, Args: []string{"-I", "-S", "-c", python.Bootstrap("command", "main(sys.argv[2])"), x.files}, Env: []string{"LANG=C.UTF-8"}, Dir: dir,
	}
}
