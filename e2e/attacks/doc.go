// Package attacks has the tests that try to break what docs/security.md promises: what
// a tool tries against the machine that runs it, and what a client or node tries with a
// key of fewer rights. Each is a row of a table, and the page shows the table.
//
// It has no code beside tests. What can be tested inside one process belongs to the
// package that does it.
package attacks
