// Package python carries the worker's Python files inside the Go binary, so
// that an agent needs nothing but an interpreter to serve tools. It must never
// hold logic: the files are data here, and the package executor writes and
// starts them.
package python
