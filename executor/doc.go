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
// Sub-packages, of which none imports this one: zygote owns the processes that
// import and fork, pool the workers and the queue before them, program runs tools
// that are commands, output captures what tools print and removes secrets, frame is
// the wire (docs/worker-protocol.md), failure makes errors, sandbox starts processes,
// cgroup bounds their memory, venv makes environments.
//
// The package must never know of NATS or nodes, never parse what a Python tool
// returns (of a command's output it checks that it is what the tool declares), never
// read the environment and never print. A session is a name and an epoch to it.
package executor
