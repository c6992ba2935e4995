// Command mesh starts a mesh on this machine, installs indexes, lists and calls tools, and shows
// nodes and sessions. stdout is data, stderr is progress, logs and errors; the exit status says
// where to act.
//
// Only mesh up creates streams and buckets. Calls go through the queue group, as those of a plain
// NATS client do.
package main
