package agent

import (
	"context"
	"os"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Plan implements [deploy.Builder]. It makes the environment to see its builds; the install uses
// that environment, and without one it is removed like any that no index needs.
func (w *builder) Plan(ctx context.Context, b deploy.Build, progress deploy.Progress) (p deploy.Plan, err error) {
	p.User, p.Sandbox = w.a.executor.RunsAs()
	p.Root = p.User == executor.UserAgent && os.Geteuid() == 0
	for _, name := range b.Manifest.Tools {
		level := p.Sandbox
		if demanded := b.Manifest.AnnotationsOf(name).Sandbox; demanded != "" {
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
	making := makingOf(ctx, b)
	making.NoBuild = true
	env, err := w.a.executor.Environment(ctx, b.Dir, lock, making, steps(progress, 40, 65))
	if err == nil {
		w.a.executor.Release(env)
	} else if p.Builds = deploy.ToBuild(err); p.Builds != nil {
		err = nil
	}
	return p, err
}
