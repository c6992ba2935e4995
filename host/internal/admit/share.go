package admit

import (
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// The kinds of places on a node: of all calls, of nested calls, of calls that are passed on, and
// of calls that wait without a slot.
const (
	ofAll = iota
	ofNested
	ofPassed
	ofParked
	kinds
)

// waits is how long an account counts as waiting for a place after a refusal: its callers send
// again within that time.
const waits = time.Second

// shares divides a node's places between accounts.
//
// An account may take all free places while no other account waits. An account waits after a
// refusal while it has less than its part, which is equal for all present accounts: one of the
// next free places is kept for it, and accounts with their full part get none of those. So a
// flood shrinks as its calls end, and a place stays empty only for an account that has just asked
// for one.
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

// share returns the share of an account. It exists while the account has a place or waits; the
// last one stays somewhat longer, so that a single session costs nothing.
func (ss *shares) share(account subjects.SessionID) *share {
	s := ss.of[account]
	if s == nil {
		s = &share{account: account}
		ss.of[account] = s
	}
	return s
}

// part is the number of places that each account has a right to.
func (ss *shares) part() int { return max(ss.slots/len(ss.of), 1) }

// may reports whether an account may take one of the free places.
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

// left forgets an account without places. A call at its end may have a share that is forgotten already.
func (ss *shares) left(s *share) {
	if len(ss.of) > 1 && s.idle() && ss.of[s.account] == s {
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
