// Package stream serves the readers of a call, and the stream that the call may yield.
//
// A call has [Readers]: its first caller, and those that repeat the request while it
// runs. A [Reader] is a reply subject, the form in which it wants chunks, and whether
// it has its one answer. A [Stream] stores items, blocks the handler while there
// is no credit, and ends the call when it has no reader.
//
// # States of a repetition
//
//	            nothing is stored, or                        all of it is
//	Join ──────▶ it wants no items ─────────▶ [ follows ] ◀── sent ─┐
//	  │                                        │  │  │              │
//	  └─ chunks are stored ──▶ [ reads the store ] ─┼──┼──────────────┘
//	                              │ the call ends   │  └─ 64 newer ones, or one of
//	                              │ and all is sent │     its reply subject: dropped
//	                              ▼                 ▼     until Settle
//	                             over ◀── terminal, or Settle and the rest read
//
// # States of a stream
//
//	New ──▶ [ open ] ── no credit ──▶ [ waits ] ── Grant, or the reader that gave ─┐
//	          ▲ │                        │         credit is gone and others are   │
//	          └─┼────────────────────────┼──────────────────────────────────────────┘
//	            │ Finish, Leave          │ no reader for 10 s, nothing sent for
//	            ▼                        ▼ 60 s: the call is told to end
//	          over (the terminal is stored, or the readers are told in its place)
//
// A probe finds that a stream has no reader: one chunk a second has a reply subject, where the
// broker answers 503 if the chunk meets no subscription. Readers that give credit need no probe.
//
// Locks are taken in this order: Stream.sending, Readers.mu, then Stream.mu, a
// reader's settleMu or a probe's. Chunks are handed to the connection with Readers.mu
// held, which keeps them in order; [Replies.Send] must not block.
//
// The package never subscribes a request, decides whether a call runs, or imports
// the host.
package stream
