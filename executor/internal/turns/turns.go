package turns

import "slices"

// Turn is when a waiter's turn is. Waiters embed it; one waits in one queue at a
// time. The zero value is ready to use.
type Turn struct {
	account string
	round   uint64
}

func (t *Turn) at() *Turn { return t }

// Waiter is an element of a queue: a pointer to a struct that embeds [Turn].
type Waiter interface {
	comparable
	at() *Turn
}

// Queue holds waiters in the order in which they are served. Its methods must not be called
// concurrently. The zero value is an empty queue.
type Queue[W Waiter] struct {
	// Waiting are the waiters, the next first. It is for reading.
	Waiting []W
	round   uint64 // of the first that waited when a waiter was last served
}

// Add puts a waiter of an account into the queue. In each round each account has
// one turn, and its own waiters are served as they came: one that comes with many
// waits behind itself alone.
func (q *Queue[W]) Add(w W, account string) {
	own := w.at()
	own.account, own.round = account, q.round
	for _, other := range slices.Backward(q.Waiting) {
		if t := other.at(); t.account == account {
			own.round = max(own.round, t.round+1)
			break
		}
	}
	at := len(q.Waiting)
	for at > 0 && q.Waiting[at-1].at().round > own.round {
		at--
	}
	q.Waiting = slices.Insert(q.Waiting, at, w)
}

// Serve takes the waiter at place i, the next to be served, off the queue.
func (q *Queue[W]) Serve(i int) W {
	q.round = q.Waiting[0].at().round
	w := q.Waiting[i]
	q.Waiting = slices.Delete(q.Waiting, i, i+1)
	return w
}

// Remove takes a waiter off the queue that gives up; false when it is not there any
// more.
func (q *Queue[W]) Remove(w W) bool {
	i := slices.Index(q.Waiting, w)
	if i >= 0 {
		q.Waiting = slices.Delete(q.Waiting, i, i+1)
	}
	return i >= 0
}
