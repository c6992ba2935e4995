// Package tool is what the mesh knows about a tool without running it: its
// descriptor (names, schemas, annotations), the check of arguments against the
// input schema, schemas of Go types, and the binding of positional arguments.
//
// A [Descriptor] is plain data with one canonical encoding and a digest, so
// that nodes can publish it once and everybody else can fetch it by digest. A
// [Validator] is compiled from a schema once and used on every call.
//
// The package must never run a tool, open a file, read the environment, speak
// on a network, or follow a schema reference that leaves the schema itself.
package tool
