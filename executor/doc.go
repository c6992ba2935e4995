// Package executor runs Python tools in warm workers.
//
// An [Executor] owns a folder. Below it lie environments, made by uv from locks
// and named by their content, and the worker's own files. An [Index] is one
// bundle of tools being served: a zygote process, a copy of a base that holds what
// most tools import, imports its modules once, and workers are forked from it that
// take calls over pipes, in a few microseconds each. Plain functions run one at a
// time per worker, on its main thread, where a cancellation reaches them; coroutines
// share one worker's event loop.
//
// Arguments and results pass through as the bytes they came in. What a tool
// prints is never mistaken for its answer. No process outlives the agent.
//
// The packages below internal do the work. None imports this one, and what callers need
// of them has a name here (call.go):
//
//	zygote   the processes that import modules and fork workers
//	pool     the workers, and the queue of calls before them
//	turns    the order in that queue: accounts in turn
//	program  tools that are commands
//	frame    the wire to the worker (docs/worker-protocol.md)
//	output   what tools print, without secrets
//	failure  errors of calls
//	sandbox  how a process is started and confined
//	cgroup   control groups, which bound memory and processes
//	venv     locks and environments
//
// The package must never know of NATS or nodes, never parse what a Python tool
// returns (of a command's output it checks that it is what the tool declares), never
// read the environment and never print. A session is a name and an epoch to it.
package executor
