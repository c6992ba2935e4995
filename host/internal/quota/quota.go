package quota

import (
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// sliceCount is in how many slices, which age together, the time is cut for which things
// are kept.
const sliceCount = 15

// Quota counts the bytes that each account has stored through this node within the time
// for which they are kept. Its methods may be called concurrently.
type Quota struct {
	limit int64
	keep  time.Duration
	now   func() time.Time
	begun time.Time

	mu       sync.Mutex // no other lock is taken under it
	accounts map[subjects.SessionID]*usage
}

type usage struct {
	slices map[int64]int64 // bytes by the number of the slice
	total  int64
}

// New returns the quota of a node through which each account may store limit bytes, which
// are kept for a time. now is time.Now unless a test says otherwise.
func New(limit int64, keep time.Duration, now func() time.Time) *Quota {
	return &Quota{limit: limit, keep: keep, now: now, begun: now(), accounts: make(map[subjects.SessionID]*usage)}
}

// Limit is how many bytes each account may store.
func (q *Quota) Limit() int64 { return q.limit }

// Take reserves n bytes of an account's. Where that has no more, it reports false and
// how many it uses.
func (q *Quota) Take(account subjects.SessionID, n int64) (used int64, ok bool) {
	slice := q.slice()
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.accounts[account]
	if u == nil {
		u = &usage{slices: make(map[int64]int64)}
		q.accounts[account] = u
	}
	u.age(slice)
	if u.total+n > q.limit {
		return u.total, false
	}
	u.slices[slice] += n
	u.total += n
	return u.total, true
}

// Give takes back a reservation of n bytes, from the newest: bytes on their way to the store were
// reserved a moment ago.
func (q *Quota) Give(account subjects.SessionID, n int64) {
	slice := q.slice()
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.accounts[account]
	if u == nil {
		return // so old that it is forgotten
	}
	u.age(slice)
	for i := slice; n > 0 && i > slice-sliceCount; i-- {
		back := min(n, u.slices[i])
		u.slices[i] -= back
		u.total -= back
		n -= back
	}
}

// Forget resets an account whose stored bytes were removed.
func (q *Quota) Forget(account subjects.SessionID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.accounts, account)
}

// slice is the number of the slice of now, by the monotonic clock: a wall clock that is
// set back would have nothing grow old until it has caught up.
func (q *Quota) slice() int64 {
	return int64(q.now().Sub(q.begun) / (q.keep / sliceCount))
}

func (u *usage) age(slice int64) {
	for at, n := range u.slices {
		if at <= slice-sliceCount {
			u.total -= n
			delete(u.slices, at)
		}
	}
}

// Sweep forgets accounts without stored bytes.
func (q *Quota) Sweep() {
	slice := q.slice()
	q.mu.Lock()
	defer q.mu.Unlock()
	for account, u := range q.accounts {
		if u.age(slice); u.total == 0 {
			delete(q.accounts, account)
		}
	}
}
