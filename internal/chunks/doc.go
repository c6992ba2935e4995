// Package chunks keeps streams: a [Writer] stores the chunks of one call in MESH_CHUNKS, a
// [Replayer] sends stored chunks again, and an [Order] merges live and replayed chunks into one
// sequence.
//
// Mesh-Seq alone orders a stream. The store may hold repeats and disorder, and
// live delivery may miss anything, so nothing here trusts the sequence numbers
// of JetStream for more than where to begin to look. No consumer is ever made.
// The package runs no tool and knows no session policy.
package chunks
