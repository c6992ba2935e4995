// Package meshtest runs a real mesh inside a test: a broker of its own for each test, clusters,
// two accounts, and a proxy that cuts, stops or delays connections. It is for the mesh's own
// tests and for authors of services on the mesh.
//
// # Use
//
// [Broker] starts a broker with JetStream; [Server.Connect] connects to it with the mesh's
// connection policy, and both end with the test. Make hosts and clients on such connections:
//
//	broker := meshtest.Broker(t)
//	h, err := host.New(broker.Connect(t), &host.Options{Index: "billing"})
//	…
//	c, err := client.New(broker.Connect(t), nil)
//
// [Main] is for TestMain: it fails a package whose tests leave goroutines behind. [Example] does
// the same as Broker for testable Examples, which have no testing.TB. [Until] waits for a
// condition. [CaptureLogs] takes what is logged and prints it if the test fails.
//
//	Cluster             several brokers with a JetStream leader
//	NewProxy            connections that are cut, stopped or delayed
//	WithKeys, WithJWTs  users with the rights of callers, nodes and administrators
//	Topologies          one test on each arrangement of brokers, and with callers in another account
//
// With MESH_TEST_LOG=1 in the environment, tests print the logs of the mesh while it runs, and a
// failing test with a broker prints the goroutines of its process.
//
// Everything listens on a free port of the loopback interface and ends with the test. Nothing is
// mocked and nothing sleeps: what has to be waited for gives a signal or is asked until a
// deadline. Failures end the test; functions that take a testing.TB return no errors. All
// functions may be called from parallel tests.
//
// It must not be imported outside tests: it links nats-server.
package meshtest
