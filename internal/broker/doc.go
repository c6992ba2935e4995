// Package broker runs a nats-server with JetStream inside this process: the one
// of `mesh up` and those of tests. Only cmd/mesh and meshtest import it, because
// it links the server.
//
// It knows nothing of the mesh: no subject, no stream and no tool. It never reads
// the environment, installs no signal handler and never ends the process, also
// not where nats-server would.
package broker
