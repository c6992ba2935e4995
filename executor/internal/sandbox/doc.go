// Package sandbox starts processes so that none outlives the agent, however the
// agent dies. Where the system allows it, every start is PID 1 of a PID
// namespace of its own with SIGKILL as parent-death signal: whatever it starts,
// daemons with a session of their own included, dies with it. Elsewhere the
// started program must be a reaper: it watches a pipe whose other end the agent
// holds. The package must never know what the processes do.
package sandbox
