package grants

import (
	"fmt"
	"testing"

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
