package admit

import (
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// The places of a node: of all calls, of those that tools make, of those that are passed
// on, and of those that wait without a slot.
const (
	ofAll = iota
	ofNested
	ofPassed
	ofParked
	kinds
)

// waits is for how long an account counts as one that waits for a place after it was
// refused one: its callers send again within that.
const waits = time.Second

// shares are the parts that accounts have of a node's places.
//
// An account may have all that is free while no other account waits. One that is refused a place
// while it has less than its part, which is the same for all that are there, waits: of
// the places that become free one is kept for it, of which those that have their part
// get none. So a flood gives way as its calls end, and a place is left empty only for
// an account that has just asked for one.
type shares struct {
	slots   int
	of      map[subjects.SessionID]*share
	waiting [kinds]int // how many wait
}

// share is one account's.
type share struct {
	account subjects.SessionID
	has     [kinds]int       // places
	missed  [kinds]time.Time // when it was refused one, while it waits; else zero
}

// share is that of an account. It is there as long as the account has a place or waits,
// and the last one somewhat longer, so that one session alone costs nothing.
func (ss *shares) share(account subjects.SessionID) *share {
	s := ss.of[account]
	if s == nil {
		s = &share{account: account}
		ss.of[account] = s
	}
	return s
}

// part is how many places each has a right to.
func (ss *shares) part() int { return max(ss.slots/len(ss.of), 1) }

// may reports whether one of the free places is an account's to take.
func (ss *shares) may(s *share, kind, free int) bool {
	others := ss.waiting[kind]
	if others > 0 && !s.missed[kind].IsZero() {
		others--
	}
	return free > others || free > 0 && s.has[kind] < ss.part()
}

// missed notes that an account was refused a place.
func (ss *shares) missed(s *share, kind int, now time.Time) {
	if s.has[kind] >= ss.part() {
		return
	}
	if s.missed[kind].IsZero() {
		ss.waiting[kind]++
	}
	s.missed[kind] = now
}

// left forgets an account that has given its last place back.
func (ss *shares) left(s *share) {
	if len(ss.of) > 1 && s.idle() {
		delete(ss.of, s.account)
	}
}

func (s *share) idle() bool {
	return s.has[ofAll] == 0 && s.has[ofPassed] == 0 && s.has[ofParked] == 0 && s.missed == [kinds]time.Time{}
}

// sweep forgets accounts without waiting calls.
func (ss *shares) sweep(now time.Time) {
	for account, s := range ss.of {
		for kind, at := range s.missed {
			if !at.IsZero() && now.Sub(at) >= waits {
				s.missed[kind] = time.Time{}
				ss.waiting[kind]--
			}
		}
		if s.idle() {
			delete(ss.of, account)
		}
	}
}
