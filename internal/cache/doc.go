// Package cache keeps results of calls for a while, and has calls that ask the same
// at the same time share one run.
//
// A [Cache] is one node's memory, bounded in bytes and entries: the least recently used entry is
// evicted. A [Tool] is one tool as it is offered now; its results end with it, so that a new
// revision, another schema, or a tool that was withdrawn and offered again begins empty. All state
// is changed under one lock; the tool itself runs outside it.
//
// It knows nothing of arguments, messages or slots: a [Key] identifies equal calls, and a function
// runs the tool.
package cache
