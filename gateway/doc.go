// Package gateway lets HTTP and MCP clients use the tools of a mesh: it is http.Handlers over
// clients of the mesh, one per token.
//
// A gateway has no rights of its own. A request's bearer token is the seed of a key of the mesh.
// The gateway connects to NATS with it, and the broker decides what the connection may do. A
// request without a token uses a connection without a key. So the gateway has no users and no
// permissions, and what is refused on NATS is refused here with the same error. Tokens are held in
// memory only as what signs for their connection, and compared and logged by a digest.
//
// It keeps nothing that another replica would need, except legacy MCP sessions, which clients begin
// anew elsewhere. It must never import the executor or a broker.
package gateway
