// Package tool describes a tool without running it: its descriptor (names, schemas,
// annotations), the check of arguments against the input schema, schemas of Go types, and the
// binding of positional arguments.
//
// A [Descriptor] is plain data with one canonical encoding and a digest, so that a node
// publishes it once and others fetch it by digest. A [Validator] is compiled from a schema once
// and used for every call.
//
// # Use
//
// [For] derives the schema of a Go type. [Compile] makes the Validator of a schema;
// [Validator.Validate] checks arguments, and [Problems] returns each wrong field of its error, in
// words that a model can act on. [Validator.CheckResult] checks a result. [Bind] makes an object of
// positional arguments. [ProviderName] and [FromProviderName] translate ids to names that model
// providers take, and back. Schemas are JSON Schema (2020-12).
//
// [Annotations] are an author's declarations: timeouts, limits, lanes, sandboxes, caching. Values
// with names, such as [Sandbox], have a Parse function.
//
// # Errors, units and concurrency
//
// Arguments that do not fit are invalid_arguments with details.errors. Sizes are bytes, as
// [ParseSize] reads them. Treat a Descriptor that was published as immutable; a Validator is.
// Every function may be called concurrently.
//
// The package must never run a tool, open a file, read the environment, speak
// on a network, or follow a schema reference that leaves the schema itself.
//
// Read on: docs/tools.md for every annotation, package render for how models see a tool.
package tool
