package python

import "embed"

// Worker holds the files of the worker package, below src/toolmesh/_worker.
// The patterns name the files: the bare folder would leave out __init__.py.
//
//go:embed src/toolmesh/_worker/*.py src/toolmesh/_worker/*/*.py src/toolmesh/_worker/site/toolmesh/*.py
var Worker embed.FS

// WorkerDir is the folder of the files in [Worker].
const WorkerDir = "src/toolmesh/_worker"

// WorkerPackage is the name that the files in [Worker] have as a package: one that
// no index and no environment can have.
const WorkerPackage = "_toolmesh_worker"

// Bootstrap is a program for "python -c" that makes the files in the folder
// sys.argv[1] a package and makes a call into a module of its startup, which
// does not return. The folder is on the path only meanwhile.
func Bootstrap(module, call string) string {
	return "import sys; sys.path.insert(0, sys.argv[1]); from " + WorkerPackage + ".startup import " + module + "; del sys.path[0]; " + module + "." + call
}
