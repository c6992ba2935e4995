// Package subjects owns every name that the mesh uses on NATS: the typed ids,
// the encoding of a name as a subject token, and the building, parsing and
// matching of every subject, stream, bucket, key and queue group of
// docs/protocol, sections 1 and 2. No other package holds a subject literal.
//
// It also decides which reply subjects a serving side may answer
// ([ReplyAllowed]). It imports only the standard library and does no I/O; every
// function may be called concurrently.
package subjects
