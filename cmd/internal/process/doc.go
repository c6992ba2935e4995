// Package process is what the three binaries have in common as processes: they
// log to stderr, end on signals, connect to NATS, map failures to exit statuses,
// and run an agent or a router until they are told to stop.
//
// It knows no command of mesh, and prints nothing but what Agent and Router say
// of their own usage.
package process
