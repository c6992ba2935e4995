// Package kubernetes says what happens to a process in a pod in Events of the cluster.
// It needs no more of the API server than to create these, and must not grow into a
// client of it.
package kubernetes
