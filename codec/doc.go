// Package codec turns the messages of docs/protocol, sections 3 to 5 and 11,
// into structs and back: both request forms, replies, errors, chunks, keepalives,
// and versions. It knows bytes and headers, not NATS: a [Header] has the shape
// of nats.Header and converts to it for free.
//
// It never looks into arguments or results, which travel as raw JSON, and it
// does no I/O. Every function may be called concurrently.
package codec
