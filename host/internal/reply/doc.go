// Package reply sends what a node answers: results and errors in the form that the caller
// used, held while the connection is down, paced where a caller is slow to read, and by
// reference where no message carries them.
//
// It must never block for a caller, but for [Replies.Pace], or decide what an answer is.
package reply
