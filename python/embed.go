package python

import "embed"

// Worker holds the files of the worker package, below src/toolmesh/_worker.
// The patterns name the files: the bare folder would leave out __init__.py.
//
//go:embed src/toolmesh/_worker/*.py src/toolmesh/_worker/*/*.py
var Worker embed.FS

// WorkerDir is the folder of the files in [Worker].
const WorkerDir = "src/toolmesh/_worker"

// WorkerPackage is the name that the files in [Worker] have as a package: one that
// no index and no environment can have.
const WorkerPackage = "_toolmesh_worker"
