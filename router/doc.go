// Package router is the member of the mesh that services embed: one connection and one view,
// from which they call and stream, serve Go functions, and create and end sessions. It answers
// the registry's questions as an agent does.
//
// # Use
//
// [New] takes a NATS connection made with client.ConnectOptions, which stays the caller's. A
// [Router] has the calls of a client: Call, Stream, Batch and Submit. [Router.Handle] serves a
// function under an index of its own; the process is a node from the first one on, and joins
// the mesh when it is first needed. [Router.Run] serves until its context ends, then drains.
//
// [Router.CreateSession] makes a [Session]: a namespace with tools, streams, workers and
// secrets of its own, all of which end with it. [Router.Session] is one that exists.
//
// An embedded router adds no hop: calls go from the service's own connection to the node that
// runs them. A service that only calls needs no router: package client holds less. A service
// that only serves needs package host.
//
// With [Options.Standby], calls of installed indexes that no node serves wait in the router for
// a node, for instance while an autoscaler starts one.
//
// # Limits
//
// It enforces nothing: permissions are the broker's, and limits are checked where a call is
// admitted. It links neither the executor nor a broker, and reads no environment.
//
// # Errors, units and concurrency
//
// Errors are [toolmesh.Error] values, those of an option that cannot be used invalid_request.
// Times are durations, sizes bytes. All methods may be called concurrently. [Router.Stop] drains
// the calls of its functions and hands tasks over; [Router.Close] stops within a bounded time.
// [Router.Condition] and [Router.Stuck] are for probes and answer at once.
//
// Read on: docs/concepts.md, and docs/operations for the binary mesh-router.
package router
