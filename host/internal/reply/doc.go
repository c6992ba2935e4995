// Package reply sends a node's answers: results and errors in the form that the caller used, held
// while the connection is down, paced for slow readers, and by reference where they are larger
// than a message.
//
// It must never block for a caller, except in [Replies.Pace], or decide the content of an answer.
package reply
