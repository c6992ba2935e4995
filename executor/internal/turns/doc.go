// Package turns is the queue of calls that wait for a slot of an index: a worker, or one of a
// bounded number of programs. It alternates between accounts, however much one of them sends.
//
// It must never know the kind of the waiters or of the slots.
package turns
