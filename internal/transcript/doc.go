// Package transcript reads the recorded exchanges of docs/protocol/transcripts:
// what a client and a host say to each other, message by message, with prose
// that says which rule or fault each guards. The tests of codec replay them, and
// so does a test of host over a broker.
//
// It knows the format of the files and nothing of what the messages mean. Only
// tests may import it.
package transcript
