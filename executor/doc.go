// Package executor runs Python tools in warm workers.
//
// An [Executor] owns a folder with environments, which uv makes from locks and which are named
// by their content, and with the worker's own files. An [Index] is one bundle of tools being
// served: a zygote process, copied from a base with the modules that most tools import, imports
// its modules once. Workers are forked from it and take calls over pipes, in a few
// microseconds each. Plain functions run one at a time per worker, on its main thread, where a
// cancellation reaches them; coroutines share one worker's event loop.
//
// Arguments and results pass through as bytes. Output of a tool is never mistaken for its
// answer. No process outlives the agent.
//
// The packages below internal do the work. None imports this one, and types that callers need
// have a name here (call.go):
//
//	zygote   the processes that import modules and fork workers
//	pool     the workers, and the queue of calls before them
//	turns    fairness of that queue among accounts
//	program  tools that are commands
//	frame    the wire to the worker (docs/worker-protocol.md)
//	output   the output of tools, without secrets
//	failure  errors of calls
//	sandbox  how a process is started and confined
//	cgroup   control groups, which limit memory and processes
//	venv     locks and environments
//
// The package does not know NATS or nodes, does not parse results of Python tools (it checks a
// command's output against the tool's declaration), and neither reads the environment nor
// prints. A session is a name and an epoch to it.
package executor
