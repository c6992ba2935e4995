// Package standby is where a call waits whose index no node serves: the router answers
// for the queue group there, holds the call, and makes it on the first node that takes
// it. It runs nothing itself, and subscribes by index, never by call.
package standby
