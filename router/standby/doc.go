// Package standby is where a call waits whose index no node serves: the router answers
// for the queue group there, holds the call, and makes it on the first node that takes
// it. It runs nothing itself, and subscribes by index, never by call.
//
// A router makes it from router.Options.Standby; [Options] bound how many calls wait and for how
// long; the bytes of their arguments are shared between sessions. Callers get keepalives
// meanwhile, and an error with the reason once the time is up. [Outcomes] count how the calls ended.
package standby
