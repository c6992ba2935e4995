// Package e2e tests the product as its users start it: the real binaries, real git repositories, real environments,
// killed processes, and clients in Go and Python that share no code with us.
//
// It contains only tests. They use the mesh through commands, files, signals and NATS. A test that needs one
// process only belongs to the package under test.
package e2e
