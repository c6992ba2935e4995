// Package connect finds a mesh and connects to it: one rule for the commands, for
// client.Connect and for host.Serve. The address is the one that was given, else that of a
// saved NATS context, else that of the mesh that `mesh up` of the user left running
// ([Record]), else NATS's port of this machine. The credentials are those that were given,
// else the key that `mesh up` made for the role of the process.
//
// It reads no environment of its own: callers hand theirs over.
package connect
