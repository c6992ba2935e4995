// Package deploy makes nodes serve the installed indexes: it runs installs on the node that was
// asked, and brings every node in line with the records in MESH_INDEXES.
//
// An install fetches the source, resolves its dependencies once, builds and
// imports it here, and only then stores the bundle (source and lock) in the
// mesh and writes the record: a failure leaves nothing behind. The other nodes
// see the record change, fetch the bundle, and serve it; they need neither git
// nor the source. A new revision is built beside the old one, takes its place,
// and the old one drains.
//
// The package never runs a tool and imports no executor: the node implements [Builder] and
// [Server].
package deploy
