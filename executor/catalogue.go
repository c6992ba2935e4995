package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh/executor/venv"
	"github.com/toolmesh/toolmesh/executor/zygote"
	"github.com/toolmesh/toolmesh/python"
)

// CatalogueSpec says which tools to describe from which source.
type CatalogueSpec struct {
	Name      string // for messages
	Account   string // as in [Spec]
	SourceDir string
	// Env is the environment behind which is the interpreter that reads the source.
	// Defaults to any of this machine, best one that Python allows.
	Env *Env
	// Python is a version constraint like ">=3.11", meaningful without Env.
	Python string
	// Tools are the functions to describe, module.function.
	Tools []string
}

// catalogueTimeout bounds the reading of one index's source.
const catalogueTimeout = 30 * time.Second

// Catalogue describes tools from their source alone, for those that cannot be
// imported: no code of the index and of its dependencies runs. It is read in strict, as
// far as the machine has it, by the index's user, who sees nothing else of the agent's. What reading
// cannot know is open in the schemas, with a warning. Tools that the source does
// not show are left out. An error, which is unavailable, says that nothing could
// be read.
func (x *Executor) Catalogue(ctx context.Context, spec CatalogueSpec) ([]Tool, error) {
	if len(spec.Tools) == 0 {
		return nil, nil
	}
	failed := func(err error) error {
		return unavailable("the source of index %s cannot be read: %w", spec.Name, err)
	}
	root, err := realPath(spec.SourceDir)
	if err != nil {
		return nil, failed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, catalogueTimeout)
	defer cancel()
	// As many as may import at once: these are interpreters too.
	leave, err := x.zygotes.Place(ctx)
	if err != nil {
		return nil, failed(err)
	}
	defer leave()
	job := venv.Job{Dir: "/", Read: []string{root}, Env: []string{"LANG=C.UTF-8"}}
	if spec.Env != nil {
		job.Interpreter = spec.Env.Base
	} else if job.Interpreter, err = x.venvs.Interpreter(ctx, spec.Python); err != nil {
		return nil, failed(err)
	}
	job.Argv = append([]string{job.Interpreter, "-I", "-S", "-X", "utf8", "-c", python.Bootstrap("static(sys.argv[2], sys.argv[3:])"), x.files, root}, spec.Tools...)
	user, _, err := x.user(cmp.Or(spec.Account, spec.Name), x.opts.Sandbox)
	if err != nil {
		return nil, failed(err)
	}
	out, said, err := x.confined(ctx, x.strict(), user, job, nil)
	if err != nil {
		return nil, failed(fmt.Errorf("%w: %s", err, said[max(0, len(said)-4<<10):]))
	}
	var answer struct {
		Tools []Tool `json:"tools"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, failed(err)
	}
	asked := map[string]bool{}
	for _, name := range spec.Tools {
		asked[name] = true
	}
	for _, t := range answer.Tools { // what has read strange files may say anything
		if !asked[t.Name] || !slices.Contains(zygote.Kinds, t.Kind) || len(t.InputSchema) == 0 {
			return nil, failed(fmt.Errorf("%q is not described as it must be", t.Name))
		}
	}
	zygote.WithoutNulls(answer.Tools)
	return answer.Tools, nil
}
