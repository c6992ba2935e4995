// Package sessions knows the sessions of a node's calls: which ones exist, their epochs, and
// which session of its name a session's own tools serve.
//
// The view of the registry answers at once and may be behind; where that could be wrong, the
// registry's leader is asked, once for all waiting calls.
//
// It must never end a call or withdraw a tool: its callers do.
package sessions
