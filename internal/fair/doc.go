// Package fair divides the resources of a process among the sessions that use it: bytes and slots
// ([Room]), and work that waits for a store ([Queue]). It knows no sessions: an account is any
// comparable value.
package fair
