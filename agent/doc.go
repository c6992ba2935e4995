// Package agent is one machine of the mesh: a host whose handlers are Python tools and
// programs, the executor that runs them, and the installs that decide which. It answers the
// registry's questions and the administrative requests.
//
// # Use
//
// [New] takes a NATS connection with the key of a node, and a folder that belongs to this agent
// alone: bundles, environments and homes of tools. [Agent.Start] joins the mesh and returns
// before the installed indexes are built; [Agent.Ready] waits for these. [Agent.Stop] drains the
// calls, ends every process and hands over the tasks. The agent ends by itself when another
// process has taken its node id: [Agent.Done] and [Agent.Err] say so.
//
// Most programs run the binary mesh-agent, which is this package with settings. Embed it to run
// an agent in a program of your own.
//
// # Parts
//
//	builder.go      an installed index becomes an instance: environment, descriptors, commands
//	instance.go     one revision of an index, as handlers of a host
//	published.go    which instance is served where, with the notices of its tools
//	admin.go        the administrative requests, each answered in lines with progress
//	sessions.go     workers that are bound to sessions end with these
//	condition.go    readiness and figures for probes and metrics
//
// It is the only package that knows the host, the executor and the installs, and it adds no
// logic of its own to a call.
//
// # Errors, units and concurrency
//
// Errors are [toolmesh.Error] values. A build that fails leaves the agent running, and mesh ls shows
// the reason. Times are durations, sizes bytes. All methods may be called concurrently. It never
// reads the environment: Options.Environ is the only one that tools and installers see.
//
// Read on: docs/indexes.md for installs, docs/security.md for the confinement of tools.
package agent
