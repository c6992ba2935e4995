// Package archtest checks the architecture: which package may import which, what may
// link what, where subjects are written, and a few rules of style that a
// compiler does not check. It is tests over "go list" and the source tree, and
// nothing else; no package ever imports it.
//
// The table of floors in floors_test.go is that of the module's doc.go. A new
// package gets its line there, with its first code. The rooms of the Python
// worker are held by python/tests/test_rooms.py.
package archtest
