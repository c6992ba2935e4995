// Package attacks tries to break the promises of docs/security.md: attempts of a tool against its machine, and of a
// client or node with a key of fewer rights. Each attempt is a row of a table, and the page shows the table.
//
// It contains only tests. A test that needs one process only belongs to the package under test.
package attacks
