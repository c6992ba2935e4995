package subjects_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/toolmesh/toolmesh/subjects"
)

// Owners do not depend on the order of nodes; a node that leaves changes only its own, and each has
// its share.
func TestOwner(t *testing.T) {
	t.Parallel()
	nodes := []subjects.NodeID{"a", "b", "c", "d"}
	parts := map[subjects.NodeID]int{}
	for i := range 4000 {
		id := fmt.Sprint("batch_", i)
		owner := subjects.Owner(nodes, "s", id)
		parts[owner]++
		turned := slices.Concat(nodes[2:], nodes[:2])
		if got := subjects.Owner(turned, "s", id); got != owner {
			t.Fatalf("%s is %q's, and in another order %q's", id, owner, got)
		}
		if got := subjects.Owner(nodes[1:], "s", id); owner != "a" && got != owner {
			t.Fatalf("%s was %q's, and without a it is %q's", id, owner, got)
		}
	}
	for _, id := range nodes {
		if n := parts[id]; n < 800 || n > 1200 {
			t.Errorf("%q has %d of 4000", id, n)
		}
	}
	if got := subjects.Owner(nil, "x"); got != "" {
		t.Errorf("of nobody it is %q's", got)
	}
}
