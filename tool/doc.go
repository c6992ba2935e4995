// Package tool describes a tool without running it: its descriptor (names, schemas,
// annotations), the check of arguments against the input schema, schemas of Go types, and the
// binding of positional arguments.
//
// A [Descriptor] is plain data with one canonical encoding and a digest, so that a node
// publishes it once and others fetch it by digest. A [Validator] is compiled from a schema once
// and used for every call.
//
// The package does not run tools, open files, read the environment or use a network, and
// follows no schema reference out of the schema.
package tool
