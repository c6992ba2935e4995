// Package natsadmin is what the commands need of NATS as administrators see it:
// the connection contexts that people save with the nats command line.
//
// It is the only importer of jsm.go, which links parts of nats-server, so only
// cmd/ imports it. It changes no context.
package natsadmin
