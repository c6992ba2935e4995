// Package index reads indexes: it parses the source that a person typed after
// `mesh install` ([Parse]), fetches the files ([Fetch]), reads the manifest of
// the index's convention ([Load]), and packs the files into a bundle that every
// node unpacks equally ([Pack], [Place]).
//
// Sources, manifests and bundles are other people's: everything read here is
// bounded, cancellable and checked, and nothing escapes the folder it is put in.
// Errors are [toolmesh.Error] with code install_failed, except invalid_request for a
// source that [Fetch] must not fetch for others.
//
// The package does not run code of an index (git runs, its hooks do not), does not know NATS or
// the executor, and never logs, stores or shows a credential.
package index
