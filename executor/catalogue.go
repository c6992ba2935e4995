package executor

import (
	"context"
	"encoding/json"
	"time"

	"github.com/toolmesh/toolmesh/executor/zygote"
	"github.com/toolmesh/toolmesh/python"
)

// CatalogueSpec says which tools to describe from which source.
type CatalogueSpec struct {
	Name      string // for messages
	SourceDir string
	// Env is the environment whose Python reads the source. Defaults to any
	// interpreter of this machine, best one that Python allows.
	Env *Env
	// Python is a version constraint like ">=3.11", meaningful without Env.
	Python string
	// Tools are the functions to describe, module.function.
	Tools []string
}

// catalogueTimeout bounds the reading of one index's source.
const catalogueTimeout = 30 * time.Second

// Catalogue describes tools from their source alone, for those that cannot be
// imported: no code of the index and of its dependencies runs. What reading
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
	out, err := x.venvs.Script(ctx, spec.Env, spec.Python, python.Bootstrap("static(sys.argv[2], sys.argv[3:])"), append([]string{x.files, root}, spec.Tools...)...)
	if err != nil {
		return nil, failed(err)
	}
	var answer struct {
		Tools []Tool `json:"tools"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, failed(err)
	}
	zygote.WithoutNulls(answer.Tools)
	return answer.Tools, nil
}
