// Package meshtest runs a real mesh inside a test: a broker of its own for each
// test, clusters, two accounts, and a proxy that cuts, stops or delays
// connections. It is for the mesh's own tests and for writers of services
// on the mesh.
//
// Everything listens on a free port of the loopback interface and is gone at the
// end of the test. Nothing is mocked and nothing sleeps: what has to be waited
// for gives a signal or is asked until a deadline.
//
// It must not be imported outside tests: it links nats-server.
package meshtest
