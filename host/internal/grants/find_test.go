package grants

import (
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh/subjects"
)

// With the race detector: the owner of a domain is read while it changes.
func TestOwnersChangeWhileTheyAreRead(t *testing.T) {
	t.Parallel()
	k := New(Options{Node: "here", Boot: "1"})
	key := domainKey{session: "s"}
	k.domain(key).owner = owner{"a", "1"}
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 1000 {
				if who, err := k.find(t.Context(), key, true); err != nil || who.Boot != "1" {
					t.Errorf("got %v, %v", who, err)
				}
			}
		})
	}
	read := make(chan struct{})
	go func() { readers.Wait(); close(read) }()
	for n := 0; ; n++ {
		select {
		case <-read:
			return
		default:
		}
		k.mu.Lock()
		k.domains[key].owner = owner{[]subjects.NodeID{"a", "b"}[n%2], "1"}
		k.mu.Unlock()
	}
}
