// Package once runs calls with an idempotency key once in the mesh (docs/protocol,
// section 7). The key's record in the store names its call and that call's outcome.
//
// The package does not look into results, and does not decide about calls without a key.
package once
