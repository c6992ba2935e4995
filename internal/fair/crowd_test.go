package fair_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh/internal/fair"
)

// Many accounts with one piece of work each: this takes a moment. If each step looked at all that
// wait it took minutes.
func TestQueueOfManyAccounts(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	const n = 1 << 16
	q := fair.NewQueue[string](16, 2*n, func(f func()) { wg.Go(f) })
	stuck := make(chan struct{})
	var mu sync.Mutex
	ran := 0
	for i := range n {
		if !q.Do(strconv.Itoa(i), func() {
			<-stuck
			mu.Lock()
			ran++
			mu.Unlock()
		}) {
			t.Fatalf("account %d is refused", i)
		}
	}
	close(stuck)
	wg.Wait()
	if ran != n {
		t.Errorf("%d ran of %d", ran, n)
	}
}
