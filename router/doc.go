// Package router is the member of the mesh that services embed: one connection
// and one view, from which they call and stream, serve Go functions, and create
// and end sessions. It answers the registry's questions like an agent does.
//
// An embedded router adds no hop: calls go from the service's own connection to
// the node that runs them. It enforces nothing (permissions are the broker's,
// limits are checked where a call is admitted) and never links the executor or
// a broker.
package router
