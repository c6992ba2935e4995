// Package sandbox starts processes so that none outlives the agent, however the
// agent dies. Where the system allows it, every start is PID 1 of its own PID
// namespace with SIGKILL as parent-death signal: all processes below it die with it,
// including daemons with a session of their own. Elsewhere the started program must be
// a reaper: it watches a pipe whose other end the agent holds. The package does not
// know the purpose of the processes.
package sandbox
