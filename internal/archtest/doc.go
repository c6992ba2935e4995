// Package archtest holds the house: which package may import which, what may
// link what, where subjects are written, and a few rules of style that a
// compiler does not check. It is tests over "go list" and the source tree, and
// nothing else; no package ever imports it.
//
// The table of floors in floors_test.go mirrors section 2 of the design. A new
// package gets its line there, with its first code. The rooms of the Python
// worker are held by python/tests/test_rooms.py.
package archtest
