// Package bridge connects a program without a NATS client to the mesh: it exchanges frames with
// it over two pipes (docs/bridge.md), makes the program's calls with client, and serves the
// program's tools with host. The promises of a node are the host's; this package only passes
// values on, unchanged.
//
// It does not start programs, does not read the environment, and writes only frames to the
// program.
//
// # Goroutines
//
// One goroutine reads the program's frames, one writes frames to it, all waiting ones in one
// write. Each call of the program has a goroutine, and each call to it has that of the host.
// Requests about tools are answered in one goroutine, in order. The reader waits only for a
// stream that the program sends faster than its credit allows, and for a program that does not
// read while it writes frames that must be refused.
package bridge
