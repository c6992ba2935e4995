// Package examples holds the example indexes, for `mesh demo` to install from a
// binary alone. It is files and nothing else: it imports no other package.
package examples
