// Package natsadmin is what the commands need of NATS as administrators see it:
// the connection contexts that people save with the nats command line, and the
// check of the mesh's streams and buckets.
//
// It is the only importer of jsm.go, which links parts of nats-server, so only
// cmd/ imports it. It changes nothing: not a context, not a stream.
package natsadmin
