package executor

import "github.com/toolmesh/toolmesh/executor/internal/sandbox"

// SetLevels has processes be kept together in these ways only, best first.
func (o *Options) SetLevels(levels ...sandbox.Level) { o.levels = levels }
