package program

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/internal/deep"
	"github.com/toolmesh/toolmesh/tool"
)

// run is one execution of a program.
type run struct {
	runner   *Runner
	call     Call
	asked    tool.Sandbox // of the call, before the default
	declared tool.Limits  // of the call, before defaults
	sink     output.Sink

	most   int    // maximum of a result or an item, in bytes
	folder string // of its temporary files

	proc     *sandbox.Process
	group    *cgroup.Group                  // nil without a group of its own
	breach   atomic.Pointer[toolmesh.Error] // the exceeded limit
	exceeded chan struct{}                  // closed when it must end for that

	tail  *output.Tail
	quiet chan struct{} // closed when stderr has ended
	last  json.RawMessage
	list  []json.RawMessage
	size  int // of list
}

// errTooLong says that a result or an item is larger than it may be.
var errTooLong = errors.New("too long")

func (r *run) do(ctx context.Context) (json.RawMessage, error) {
	if why := r.runner.cfg.Spawner.Survey().Lacks(r.asked); why != "" {
		return nil, failure.Unavailable("%s is not served: %s", r.call.Tool, why).WithRetryable(false)
	}
	vars := r.call.Vars
	user, own, err := r.runner.cfg.User(r.asked)
	if err == nil {
		r.folder, err = sandbox.OwnFolder(r.runner.cfg.Scratch, r.call.Sandbox, user)
	}
	if err != nil {
		return nil, failure.Unavailable("the command of %s could not be started: %s", r.call.Tool, err)
	}
	if r.folder != "" {
		defer deep.RemoveAll(r.folder) //nolint:errcheck // nothing is left that uses it
		vars = maps.Clone(vars)
		if vars == nil {
			vars = map[string]string{}
		}
		vars["TMPDIR"] = r.folder
	}
	launch := r.runner.cfg.Launch
	launch.Sandbox = r.call.Sandbox
	proc, err := r.runner.cfg.Spawner.Start(launch)
	if err != nil {
		return nil, failure.Unavailable("the command of %s could not be started: %s", r.call.Tool, err)
	}
	r.proc = proc
	// It starts no process before it has read the request.
	r.group = sandbox.EncloseProgram(r.runner.cfg.Logger, r.runner.cfg.Groups, proc.Pid(), int64(r.call.Limits.Memory), r.call.Limits.Pids)
	defer r.group.Close()
	defer proc.Kill()
	if _, err := proc.Control.Write(append(r.request(user, r.runner.cfg.Environ(own, vars)).Encode(), r.until()...)); err != nil {
		return nil, failure.Unavailable("the command of %s could not be started: %s", r.call.Tool, err)
	}
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer proc.Kill() // before the helpers are waited for
	helpers.Go(r.stderr)
	finished := make(chan struct{})
	defer close(finished)
	helpers.Go(func() { r.watch(ctx, finished) })
	if r.call.Lane != nil {
		r.call.Lane.Follow(func(end time.Time) { _, _ = proc.Control.Write(until(end)) })
	}
	if every := sandbox.Pace(r.declared, r.call.Limits); every > 0 {
		helpers.Go(func() { r.patrol(every) })
	}

	out, err := r.stdout(ctx)
	if err != nil {
		proc.Kill()
	}
	ending := proc.Ending()
	if exceeded := r.breach.Load(); exceeded != nil {
		return nil, exceeded
	}
	if refused := r.refused(); refused != nil {
		return nil, refused
	}
	switch {
	case ctx.Err() != nil:
		return nil, failure.Ended(ctx, toolmesh.StartedYes)
	case errors.Is(err, errTooLong):
		return nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "%s wrote more than %d bytes as one %s", r.program(), r.most, map[bool]string{false: "result", true: "item"}[r.call.Lines]).
			WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes).
			WithDetail("limit", "output").WithDetail("max", r.most)
	case err != nil:
		return nil, err
	}
	if failed := r.failed(ending); failed != nil {
		return nil, failed
	}
	return r.result(ctx, out)
}

// until is sent after the request: when the call's hold of a lane ends.
func (r *run) until() []byte {
	if r.call.Lane == nil {
		return nil
	}
	var end atomic.Pointer[time.Time]
	r.call.Lane.Follow(func(at time.Time) { end.Store(&at) })
	if at := end.Load(); at != nil {
		return until(*at)
	}
	return nil
}

func until(end time.Time) []byte {
	return binary.LittleEndian.AppendUint64([]byte("U"), sandbox.Boottime(end))
}

// request describes the program for the process above it.
func (r *run) request(user sandbox.User, env []string) sandbox.Request {
	given := r.runner.cfg.Given(user)
	if r.folder != "" {
		given = append(given, sandbox.Path{Path: r.folder, Access: sandbox.AccessOwn})
	}
	return sandbox.Request{
		Level: r.call.Sandbox, Folder: r.folder, User: user, Given: given,
		OpenFiles: r.call.Limits.OpenFiles, Memory: r.backstop(),
		Processes: r.runner.cfg.Processes(user, r.call.Limits.Pids), Argv: r.call.Argv, Env: env,
	}
}

// watch ends the program early: after the grace when ctx ends, at once when the index is
// closed.
func (r *run) watch(ctx context.Context, finished <-chan struct{}) {
	select {
	case <-finished:
		return
	case <-r.runner.stop:
		r.proc.Kill()
		return
	case <-r.exceeded:
	case <-ctx.Done():
	}
	_, _ = r.proc.Control.Write([]byte("T"))
	select {
	case <-finished:
	case <-r.runner.stop:
	case <-time.After(r.runner.cfg.Grace):
	}
	r.proc.Kill()
}

// stderr keeps the end of the program's stderr and passes it on as log lines.
func (r *run) stderr() {
	defer close(r.quiet)
	output.Drain(r.proc.Stderr, r.tail, func(text string) {
		if r.sink != nil {
			r.sink.Log(output.Record{Time: time.Now(), Stream: output.StreamStderr, Message: text})
		}
	})
}
