// Package cache keeps results of calls for a while, and has calls that ask the same
// at the same time share one run.
//
// A [Cache] is one node's memory, bounded in bytes and entries: what was not used for
// longest gives way. A [Tool] is one tool as it is offered now; what is kept of it ends
// with it, so that a new revision, another schema and a tool that was taken back and
// offered again never see what was kept before. All state is changed under one lock;
// the tool itself runs outside it.
//
// It knows nothing of arguments, messages or slots: a [Key] says what is the same, and
// a function runs the tool.
package cache
