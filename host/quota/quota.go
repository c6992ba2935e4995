package quota

import (
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// window is how long chunks are kept, in slices that age together.
const (
	window     = 15 * time.Minute
	sliceCount = 15
)

// Quota counts the bytes of chunks that each session has stored through this
// node within the last quarter of an hour. Its methods may be called concurrently.
type Quota struct {
	limit int64
	now   func() time.Time

	mu       sync.Mutex
	sessions map[subjects.SessionID]*usage
}

type usage struct {
	slices [sliceCount]int64
	total  int64
	last   int64 // number of the newest slice
}

// New returns the quota of a node through which each session may store limit bytes. now
// is time.Now unless a test says otherwise.
func New(limit int64, now func() time.Time) *Quota {
	return &Quota{limit: limit, now: now, sessions: make(map[subjects.SessionID]*usage)}
}

// Limit is how many bytes each session may store.
func (q *Quota) Limit() int64 { return q.limit }

// Take reserves n bytes; the empty session stands for all that share what one may
// store. Where the session has no more, it reports false and
// how many it uses.
func (q *Quota) Take(session subjects.SessionID, n int64) (used int64, ok bool) {
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
	u.slices[slice%sliceCount] += n
	u.total += n
	return u.total, true
}

// Give takes back a reservation of n bytes: of the newest ones, as what is on
// its way to the store has not been so for long.
func (q *Quota) Give(session subjects.SessionID, n int64) {
	slice := q.slice()
	q.mu.Lock()
	defer q.mu.Unlock()
	u := q.sessions[session]
	if u == nil {
		return // so old that it is forgotten
	}
	u.age(slice)
	for i := slice; n > 0 && i > slice-sliceCount; i-- {
		back := min(n, u.slices[i%sliceCount])
		u.slices[i%sliceCount] -= back
		u.total -= back
		n -= back
	}
}

func (q *Quota) slice() int64 { return q.now().UnixNano() / int64(window/sliceCount) }

func (u *usage) age(slice int64) {
	for u.last < slice {
		u.last++
		if slice-u.last >= sliceCount {
			u.last = slice - sliceCount
			continue
		}
		i := u.last % sliceCount
		u.total -= u.slices[i]
		u.slices[i] = 0
	}
}

// Sweep forgets sessions that store nothing any more.
func (q *Quota) Sweep() {
	slice := q.slice()
	q.mu.Lock()
	defer q.mu.Unlock()
	for session, u := range q.sessions {
		if u.age(slice); u.total == 0 {
			delete(q.sessions, session)
		}
	}
}
