package python

import "embed"

// Worker holds the files of the worker package, below src/toolmesh/_worker.
// The patterns name the files: the bare folder would leave out __init__.py.
//
//go:embed src/toolmesh/_worker/*.py src/toolmesh/_worker/*/*.py
var Worker embed.FS

// WorkerDir is the folder of the files in [Worker].
const WorkerDir = "src/toolmesh/_worker"
