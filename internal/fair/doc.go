// Package fair divides what a process has for all sessions among those that use it:
// bytes and places ([Room]), and work that waits for a store ([Queue]). It knows no
// sessions: an account is any comparable value.
package fair
