// Package index is where indexes come from: it reads what a person typed after
// `mesh install` ([Parse]), brings the files ([Fetch]), reads the manifest of
// the index's convention ([Load]), and packs the files into a bundle that every
// node unpacks the same ([Pack], [Unpack]).
//
// Sources, manifests and bundles are other people's: everything read here is
// bounded, cancellable and checked, and nothing escapes the folder it is put in.
// Errors are [toolmesh.Error] with code install_failed, but for invalid_request of a
// source that [FetchPublic] must not fetch.
//
// The package must never run code of an index (git runs, its hooks do not),
// speak NATS, know of the executor, or log, store or show a credential.
package index
