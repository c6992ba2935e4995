// Package bridge lets a program that has no NATS client be of the mesh: it speaks
// frames with it over two pipes (docs/bridge.md), makes the program's calls with
// client, and serves the program's tools with host. What a node promises is the
// host's; this package only hands on, and keeps values as they are written.
//
// It must never start a program, read the environment, or write anything but frames
// to the program.
//
// # What runs where
//
// One goroutine reads the program's frames, one writes to it what has been put into
// the pipe, all that waits in one write. Each call of the program has a goroutine,
// and each call to it is that of the host. What the program asks of its tools is done
// in one goroutine, in order. The reader waits for nobody but a stream that the
// program sends faster than its credit allows, and a program that reads nothing while
// it writes what has to be refused.
package bridge
