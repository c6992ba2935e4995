// Package once has calls with an idempotency key run once in the mesh
// (docs/protocol, section 7). The key's record in the store says which call has it and what
// that ended with.
//
// It must never look into results, or decide whether a call without a key runs.
package once
