// Package standby holds calls of indexes that no node serves: the router answers for the queue
// group, holds the call, and makes it on the first node that takes it. It runs nothing itself,
// and subscribes by index, never by call.
//
// A router makes it from router.Options.Standby; [Options] bound how many calls wait and for how
// long; sessions share the room for arguments. Callers get keepalives meanwhile, and an error
// with the reason at the end of the wait. [Outcomes] count how the calls ended.
package standby
