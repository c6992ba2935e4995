// Package conversation reads the recorded conversations of
// docs/protocol/conversations: what a client and a host say to each other,
// message by message, with prose that says which rule or fault each guards. The
// codec's tests replay them; tests of a host over a broker can, too.
//
// It knows the format of the files and nothing of what the messages mean, and it
// must never be imported by anything but tests.
package conversation
