// Package gateway lets HTTP and MCP clients use the tools of a mesh: it is http.Handlers over
// clients of the mesh, one per token.
//
// A gateway has no rights of its own. A request's bearer token is the seed of a key of the mesh.
// The gateway connects to NATS with it, and the broker decides what the connection may do. A
// request without a token uses a connection without a key. So the gateway has no users and no
// permissions, and what is refused on NATS is refused here with the same error. Of a token it keeps in memory only
// the key that signs for its connection. It compares and logs tokens by a digest.
//
// # Use
//
// [New] makes a [Gateway], an http.Handler for a server of your own. [Listen] serves it on an
// address, with TLS or on the loopback interface alone, and drains it at the end. [Pipe] speaks
// MCP on a pair of pipes instead, for one client on this machine. [Options.Dial] makes the
// connections to the mesh; it must add no credentials of its own.
//
//	/v1/…              the HTTP API: list, search, call, stream by SSE, batches, tasks, files
//	/mcp               Model Context Protocol, with the tools of the token's session
//	/openapi.json      an operation for each tool that is served, with its schemas
//	/healthz, /readyz  for probes
//
// # Errors, units and concurrency
//
// A refused request is answered as RFC 9457 (problem details) with the code of a
// [toolmesh.Error] in it; the status is that of the code. Times are durations, sizes bytes. All
// methods may be called concurrently. Bodies and streams have a share per token, so
// that one token cannot take the room of others.
//
// # What it never does
//
// It keeps nothing that another replica would need, except legacy MCP sessions, which clients begin
// anew elsewhere. It must never import the executor or a broker.
//
// Read on: docs/gateway.md, docs/mcp.md and docs/security.md.
package gateway
