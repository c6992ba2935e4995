// Package codec turns the messages of docs/protocol (requests, replies, streams, batches, tasks
// and lanes) into structs and back: both request forms, replies, errors, chunks, keepalives and
// versions. It knows bytes and headers, not NATS: a [Header] has the shape of nats.Header and
// converts to it for free.
//
// # Use
//
// Programs that call or serve tools need packages client and host, which use this one. It is
// public for programs that speak the protocol themselves: proxies, recorders, other clients.
//
//	Call                       a request as a caller writes it
//	ReadRequest, Request       a request as a node reads it, and its answers in the name of an Identity
//	ParseReply                 an answer as a caller reads it
//	ParseChunk, Chunk          one item of a stream, or its end
//	ParseBatch, EncodeBatch    a batch and its members
//	ParseControl, ParseBody    messages about calls, and requests that are no calls
//	Pack, Unpack               msgpack in place of JSON, and compression with zstd
//
// A parser returns the readable parts with its error, so that a node can answer a malformed request
// in the caller's own form.
//
// # Errors, units and concurrency
//
// A fault of a peer's message is invalid_request or protocol_error, in the protocol's words and with
// started:false. Headers and fields that end in MS are milliseconds, sizes bytes. A reader ignores
// headers and fields that it does not know, unless Mesh-Require names them. Every function may be
// called concurrently; a struct belongs to one goroutine at a time.
//
// It never looks into arguments or results, which travel as raw JSON, and does no I/O. Tests
// replay docs/protocol/vectors.json in Go and in Python.
package codec
