package program

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/cgroup"
	"github.com/toolmesh/toolmesh/executor/internal/failure"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
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

	proc   *sandbox.Process
	group  *cgroup.Group                  // nil without a group of its own
	breach atomic.Pointer[toolmesh.Error] // the exceeded limit

	tail  *output.Tail
	quiet chan struct{} // closed when stderr has ended
	last  json.RawMessage
	list  bytes.Buffer // the items so far with a comma behind each; a list of them would take many times their size
}

// tooLong is the failure of a program whose result or item is larger than it may be.
func (r *run) tooLong() error {
	return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "%s wrote more than %d bytes as one %s", r.program(), r.most, map[bool]string{false: "result", true: "item"}[r.call.Lines]).
		WithOrigin(toolmesh.OriginTool).WithStarted(toolmesh.StartedYes).
		WithDetail("limit", "output").WithDetail("max", r.most)
}

func (r *run) do(ctx context.Context) (json.RawMessage, error) {
	cfg, limits := &r.runner.cfg, r.call.Limits
	if why := cfg.Spawner.Survey().Lacks(r.asked); why != "" {
		return nil, failure.Unavailable("%s is not served: %s", r.call.Tool, why).WithRetryable(false)
	}
	notStarted := func(err error) error {
		return failure.Unavailable("the command of %s could not be started: %s", r.call.Tool, err)
	}
	request, err := cfg.Request(r.asked, r.call.Vars, limits.Pids)
	if err != nil {
		return nil, notStarted(err)
	}
	request.Level, request.OpenFiles, request.Argv = r.call.Sandbox, limits.OpenFiles, r.call.Argv
	if r.declared.Memory > 0 { // far more than the limit, which the watchdog enforces with its own error
		request.Memory = sandbox.Backstop(int64(min(r.declared.Memory, limits.Memory)))
	}
	remove, err := request.Scratch(cfg.Scratch)
	if err != nil {
		return nil, notStarted(err)
	}
	defer remove()
	r.folder = request.Folder
	launch := cfg.Launch
	launch.Sandbox = r.call.Sandbox
	proc, err := cfg.Spawner.Start(launch)
	if err != nil {
		return nil, notStarted(err)
	}
	r.proc = proc
	// It starts no process before it has read the request.
	r.group = sandbox.EncloseProgram(cfg.Logger, cfg.Groups, proc.Pid(), int64(limits.Memory), limits.Pids)
	defer r.group.Close()
	defer proc.Kill()
	defer context.AfterFunc(r.runner.life, proc.Kill)()
	read := context.AfterFunc(ctx, proc.Kill) // it may be frozen, and read nothing
	_, err = proc.Control.Write(append(request.Encode(), r.until()...))
	read()
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, failure.Ended(ctx, toolmesh.StartedNo)
	case err != nil:
		return nil, notStarted(err)
	}
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer proc.Kill() // before the helpers are waited for
	helpers.Go(r.stderr)
	defer context.AfterFunc(ctx, r.terminate)()
	if r.call.Lane != nil {
		r.call.Lane.Follow(func(end time.Time) { _, _ = proc.Control.Write(until(end)) })
	}
	if every := sandbox.Pace(r.declared, limits); every > 0 {
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
	if refused := failure.ByKernel(r.call.Tool, limits, r.group, 0, 0); refused != nil {
		return nil, refused
	}
	switch {
	case ctx.Err() != nil:
		return nil, failure.Ended(ctx, toolmesh.StartedYes)
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

// terminate asks the program to end, and kills it after the grace.
func (r *run) terminate() {
	_, _ = r.proc.Control.Write([]byte("T"))
	time.AfterFunc(r.runner.cfg.Grace, r.proc.Kill)
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
