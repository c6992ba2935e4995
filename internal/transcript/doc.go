// Package transcript reads the recorded exchanges of docs/protocol/transcripts between a client and
// a host, message by message, with prose that names the rule or fault that each guards. The tests
// of codec replay them, and so does a test of host over a broker.
//
// It knows the format of the files and not the meaning of the messages. Only tests may import it.
package transcript
