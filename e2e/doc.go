// Package e2e has the tests that run the product as its user starts it: the
// real binaries, real git repositories, real environments, processes that are
// killed, and clients that share no code with us, in Go and in Python.
//
// It has no code of its own beside tests, and its tests use the mesh only
// through what a user has: commands, files, signals and NATS. What can be tested
// inside one process belongs to the package that does it.
package e2e
