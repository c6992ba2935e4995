package host

import (
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// quotaWindow is how long chunks are kept, in slices that age together.
const (
	quotaWindow = 15 * time.Minute
	quotaSlices = 15
)

// quota counts the bytes of chunks that each session has stored through this
// node within the last quarter of an hour.
type quota struct {
	limit int64
	now   func() time.Time

	mu       sync.Mutex
	sessions map[subjects.SessionID]*usage
}

type usage struct {
	slices [quotaSlices]int64
	total  int64
	last   int64 // number of the newest slice
}

func newQuota(limit int64, now func() time.Time) *quota {
	return &quota{limit: limit, now: now, sessions: make(map[subjects.SessionID]*usage)}
}

// take reserves n bytes. Where the session has no more, it reports false and
// how many it uses.
func (q *quota) take(session subjects.SessionID, n int64) (used int64, ok bool) {
	slice := q.slice()
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.sessions[session]
	if u == nil {
		u = &usage{last: slice}
		q.sessions[session] = u
	}
	u.age(slice)
	if u.total+n > q.limit {
		return u.total, false
	}
	u.slices[slice%quotaSlices] += n
	u.total += n
	return u.total, true
}

// give takes back a reservation of n bytes: of the newest ones, as what is on
// its way to the store has not been so for long.
func (q *quota) give(session subjects.SessionID, n int64) {
	slice := q.slice()
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.sessions[session]
	if u == nil {
		return // so old that it is forgotten
	}
	u.age(slice)
	for i := slice; n > 0 && i > slice-quotaSlices; i-- {
		back := min(n, u.slices[i%quotaSlices])
		u.slices[i%quotaSlices] -= back
		u.total -= back
		n -= back
	}
}

func (q *quota) slice() int64 { return q.now().UnixNano() / int64(quotaWindow/quotaSlices) }

func (u *usage) age(slice int64) {
	for u.last < slice {
		u.last++
		if slice-u.last >= quotaSlices {
			u.last = slice - quotaSlices
			continue
		}
		i := u.last % quotaSlices
		u.total -= u.slices[i]
		u.slices[i] = 0
	}
}

// sweep forgets sessions that store nothing any more.
func (q *quota) sweep() {
	slice := q.slice()
	q.mu.Lock()
	defer q.mu.Unlock()
	for session, u := range q.sessions {
		if u.age(slice); u.total == 0 {
			delete(q.sessions, session)
		}
	}
}
