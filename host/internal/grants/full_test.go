package grants

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

// Calls under made-up session names take no more homes of a node than they leave free.
func TestHomesAreShared(t *testing.T) {
	t.Parallel()
	k := New(Options{Node: "here", Boot: "1"})
	taken := 0
	for n := range 2 * maxDomains {
		key := domainKey{session: subjects.SessionID(fmt.Sprint("made-up-", n)), index: "i"}
		k.domain(key)
		if k.full(key) {
			break
		}
		taken++
	}
	if taken < maxDomains/2-1 || taken > maxDomains/2 {
		t.Errorf("sessions that nobody created have %d of %d", taken, maxDomains)
	}
	key := domainKey{session: "created", epoch: "1", index: "i"}
	if k.domain(key); k.full(key) {
		t.Error("a session that was created has no room")
	}
}

// After an index has other workers, of another revision or of the same one built again, one
// call of each session is told, and none reaches an earlier worker, even if calls that asked for
// an earlier one come late.
func TestHomesHaveOtherWorkers(t *testing.T) {
	t.Parallel()
	since := time.Now()
	k := New(Options{Node: "here", Boot: "1", Presence: held{since: since}})
	d := k.domain(domainKey{session: "s", index: "i"})
	d.term = newTerm(since, 1, time.Time{})
	d.term.id = "a"
	ids := make(map[string]string)
	for n, want := range []struct {
		workers      string
		claim, moved bool
	}{{"1", true, false}, {"1", true, false}, {"2", true, true}, {"2", true, false}, {"1", true, false}, {"2", true, false}, {"3", false, false}, {"2", true, false}, {"3", true, true}, {"1", true, false}, {"3", true, false}} {
		home, err := k.Home(t.Context(), Of{Session: "s", Index: "i"}, want.workers, want.claim)
		if err != nil || !home.Here {
			t.Fatalf("%+v, %v", home, err)
		}
		home.Leave()
		if home.Moved != want.moved {
			t.Errorf("call %d, of workers %s: told %v, want %v", n, want.workers, home.Moved, want.moved)
		}
		if before := ids[want.workers]; before != "" && before != home.ID {
			t.Errorf("call %d: worker %s, and was %s", n, home.ID, before)
		}
		ids[want.workers] = home.ID
	}
	if len(ids) != 3 || ids["1"] == ids["2"] || ids["2"] == ids["3"] {
		t.Errorf("workers: %v", ids)
	}
}

// held is the presence of a node that has its lease for an hour.
type held struct {
	Presence
	since time.Time
}

func (h held) Held() (since, until time.Time) { return h.since, h.since.Add(time.Hour) }
