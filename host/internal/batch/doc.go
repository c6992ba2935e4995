// Package batch runs the calls of a batch (docs/protocol, section 10): each on the node
// that has room for it, those that must not overlap one after the other.
//
//	Serve      parse; the node that owns the batch's id has it, another one passes it on
//	admit      the table of batches: new, a repetition, or refused
//	run        lane.Queue orders calls; at most atOnce run at a time
//	call       on this node without the broker, or by the client
//	answer     each result as its call ends, if asked for; then all, in order
//
// It knows its host by an interface, and never looks into arguments except for the key
// that a tool declares.
package batch
