// Package client is the caller's side of the mesh: calls, streams, batches, durable tasks,
// files, cancels, and questions to the registry.
//
// # Use
//
// [Connect] finds a mesh and connects to it; [New] takes a NATS connection of your own, made
// with [ConnectOptions], and [NewOn] one that a host or a view shares. One [Client] serves a
// whole process; [Client.In] is the same client in another session.
//
//	Call              one result
//	Stream            items, in order, as the tool yields them
//	Batch             the calls of a model's round, results in the order of the calls
//	Submit            a durable task, which survives this process
//	PutFile, GetFile  a file as an argument, and one of a result
//	Search, List      tools by any words, and all of the session
//
// A [CallOption] changes one call. Arguments are any value that encoding/json renders as an
// object; a result is JSON, which [Result.Decode] and [Chunk.Decode] read into a value.
//
// # Which node
//
// A tool's first call goes to the queue group. From then on the client asks the registry, at
// the same time as calls and never before them, which nodes serve the tool, and sends each call
// to the better of two of them. It subscribes to the heartbeats of the few nodes that it uses,
// and to nothing else. It holds no registry, and links no executor and no broker.
//
// # Errors
//
// Every error of the mesh is a [toolmesh.Error]; [toolmesh.CodeOf] returns its code. A sent
// request runs at most once: the client sends again only what provably did not start, or is
// declared idempotent, and Started of the error says whether you may. A caller learns within 3 s
// that the node of its call is gone (node_lost). A stream has no gap and no repeat, and ends
// exactly once. When the caller's context ends, the call is cancelled.
//
// # Units and concurrency
//
// Times are durations; [WithTimeout] and the context's deadline both bound a call, and the
// earlier one counts. Sizes are bytes. All methods may be called concurrently. [Client.Close]
// fails the calls in flight, and closes the connection only if [Connect] made it.
//
// Read on: docs/quickstart.md, docs/bulk.md for many calls and large values, and
// docs/guarantees.md for each promise with its tests.
package client
