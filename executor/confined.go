package executor

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/toolmesh/toolmesh/executor/sandbox"
	"github.com/toolmesh/toolmesh/executor/venv"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

// builders names the user that builds packages, as no index is named.
const builders = "+builds"

// build runs what may build a package, and so run the code of an index: in strict, as
// far as the machine has it, for strangers write what is being built and nothing else.
func (x *Executor) build(ctx context.Context, job venv.Job) (stdout []byte, stderr string, err error) {
	box := tool.SandboxNone
	if x.defaultSandbox() != tool.SandboxNone {
		box = x.spawner.Survey().Held(tool.SandboxStrict)
	}
	user, _, err := x.user(builders, x.opts.Sandbox)
	if err != nil {
		return nil, "", err
	}
	return x.confined(ctx, box, user, job, nil)
}

// confined runs a program of an installation in a level. What it may write is its
// user's while it runs.
func (x *Executor) confined(ctx context.Context, box tool.Sandbox, user sandbox.User, job venv.Job, given Given) (stdout []byte, stderr string, err error) {
	r := sandbox.Request{Level: box, Folder: job.Tmp, User: user, Given: slices.Clip(given), Argv: job.Argv, Env: job.Env}
	x.bound(&r)
	if r.Folder == "" {
		if r.Folder, err = sandbox.OwnFolder(filepath.Join(x.dir, scratch), box, user); err != nil {
			return nil, "", err
		}
		if r.Folder != "" {
			defer os.RemoveAll(r.Folder) //nolint:errcheck // nothing is left that uses it
			r.Env = append(r.Env, "TMPDIR="+r.Folder)
		}
	} else {
		job.Write = append(job.Write, job.Tmp)
	}
	for _, folder := range job.Read {
		if folder, err := filepath.EvalSymlinks(folder); err == nil && !within(folder, x.sealed) && !within(x.sealed, folder) {
			r.Given = append(r.Given, sandbox.Path{Path: folder, Access: sandbox.AccessSee})
		}
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
	return x.spawner.Run(ctx, sandbox.Command{
		Path: job.Interpreter, Args: []string{"-I", "-S", "-c", python.Bootstrap("command(sys.argv[2])"), x.files}, Env: []string{"LANG=C.UTF-8"},
		Dir: cmp.Or(job.Dir, x.dir),
	}, r)
}
