// Package process is the common part of the three binaries: logs to stderr, end on signals,
// connection to NATS, exit statuses, and the commands that run an agent or a router until they are
// stopped.
//
// It knows no command of mesh, and prints only the usage of Agent and Router.
package process
