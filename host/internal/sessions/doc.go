// Package sessions is what a node knows of the sessions of its calls: which ones exist,
// their epochs, and for which session of its name a session's own tools are served.
//
// The view of the registry answers without waiting and may be behind; what depends on the
// answer is asked of the registry's leader, once for all that wait.
//
// It must never end a call or withdraw a tool: it answers those that do.
package sessions
