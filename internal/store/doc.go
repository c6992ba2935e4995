// Package store keeps the mesh's data in JetStream: the layout of its streams and buckets, keys,
// objects of several messages, direct reads and pulls.
//
// [Of] makes a [Store] of a connection; it costs nothing and holds no state. A
// question that finds no leader is asked again until its context ends.
//
// The package makes consumers for the task queue alone, and knows nothing of
// tools, sessions or the form of messages.
package store

import "github.com/toolmesh/toolmesh/internal/bus"

// Store is a connection whose broker keeps the mesh's streams. All methods may be
// called concurrently.
type Store struct{ *bus.Bus }

// Of returns the store behind a connection.
func Of(b *bus.Bus) Store { return Store{b} }
