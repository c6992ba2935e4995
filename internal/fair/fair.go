package fair

import (
	"runtime"
	"sync"
)

// Room is a number of bytes or places that accounts share. An account may have as much as
// stays free: one alone gets half, of two each gets a third, and a new one always finds
// some. Its methods may be called concurrently.
type Room[K comparable] struct {
	limit int64

	mu   sync.Mutex
	used int64
	of   map[K]int64
	wide bool // one take is larger than half of the room, and counts apart
}

// NewRoom returns a room of a size.
func NewRoom[K comparable](limit int64) *Room[K] {
	return &Room[K]{limit: limit, of: make(map[K]int64)}
}

// Limit is the size of the room.
func (r *Room[K]) Limit() int64 { return r.limit }

// Take reserves n for an account and reports whether it was admitted. An amount above the share of
// any account is admitted one at a time.
func (r *Room[K]) Take(account K, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case n > r.limit/2:
		if r.wide {
			return false
		}
		r.wide = true
	case r.of[account]+n > r.limit-r.used-n:
		return false
	default:
		r.used += n
		r.of[account] += n
	}
	return true
}

// Give returns the n of one Take.
func (r *Room[K]) Give(account K, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.limit/2 {
		r.wide = false
		return
	}
	r.used -= n
	if r.of[account] -= n; r.of[account] <= 0 {
		delete(r.of, account)
	}
}

// has reports whether an account has any of it.
func (r *Room[K]) has(account K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[account] > 0
}

// Queue runs work, a bounded part of it at once, and alternates between accounts. Its methods may
// be called concurrently, and none waits.
type Queue[K comparable] struct {
	run             func(func())
	places, waiting *Room[K]

	mu    sync.Mutex
	queue map[K][]func()
	order []K // of the accounts that wait: the first is next
}

// NewQueue returns a queue that does so much at once, while so many wait. run starts a
// goroutine.
func NewQueue[K comparable](atOnce, waiting int64, run func(func())) *Queue[K] {
	return &Queue[K]{run: run, places: NewRoom[K](atOnce), waiting: NewRoom[K](waiting), queue: make(map[K][]func())}
}

// Do has f run, now or when its turn comes. It reports false where too much of the
// account's waits.
func (q *Queue[K]) Do(account K, f func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.waiting.Take(account, 1) {
		return false
	}
	if len(q.queue[account]) == 0 {
		q.order = append(q.order, account)
	}
	q.queue[account] = append(q.queue[account], f)
	q.next()
	return true
}

// next starts all that may run; q.mu is held. It looks only at the accounts before the first one
// without a place: where that gets none, the others get none either.
func (q *Queue[K]) next() {
	for i := 0; i < len(q.order); {
		account := q.order[i]
		if !q.places.Take(account, 1) {
			if !q.places.has(account) {
				return
			}
			i++
			continue
		}
		f := q.queue[account][0]
		q.waiting.Give(account, 1)
		copy(q.order[1:], q.order[:i]) // at the front: all that wait would be moved otherwise
		q.order = q.order[1:]
		if q.queue[account] = q.queue[account][1:]; len(q.queue[account]) > 0 {
			q.order = append(q.order, account)
		} else {
			delete(q.queue, account)
		}
		q.run(func() {
			defer func() {
				q.mu.Lock()
				defer q.mu.Unlock()
				q.places.Give(account, 1)
				q.next()
			}()
			f()
		})
	}
}

var heavy = make(chan struct{}, runtime.GOMAXPROCS(0))

// Heavy runs f, which must not wait for anything: as many at once as there are
// processors. It is for work that needs much memory for a moment.
func Heavy(f func()) {
	heavy <- struct{}{}
	defer func() { <-heavy }()
	f()
}
