// Command mesh is what a person types: it starts a mesh on this machine, installs
// indexes, lists and calls tools, and shows nodes and sessions. stdout is data,
// stderr is progress, logs and errors; the exit status says where to act.
//
// But for mesh up it never creates a stream or a bucket, and it sends calls through
// the queue group, as a plain NATS client would.
package main
