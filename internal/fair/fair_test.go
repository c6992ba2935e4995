package fair_test

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/internal/fair"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// One account alone gets half of a room, and a second one finds its part.
func TestAnAccountLeavesRoomForAnother(t *testing.T) {
	t.Parallel()
	r := fair.NewRoom[string](120)
	fill := func(account string) (n int64) {
		for r.Take(account, 1) {
			n++
		}
		return n
	}
	if n := fill("a"); n != 60 {
		t.Errorf("one account alone has %d of 120", n)
	}
	if n := fill("b"); n != 30 {
		t.Errorf("the second account has %d of 120", n)
	}
	if n := fill("c"); n != 15 {
		t.Errorf("the third account has %d of 120", n)
	}
	r.Give("a", 1)
	if r.Take("a", 1) {
		t.Error("an account that has more than its part takes more")
	}
	for range 59 {
		r.Give("a", 1)
	}
	if n := fill("b"); n != 22 {
		t.Errorf("the second account gets %d more once the first has left", n)
	}
}

// An amount above every share of a room is admitted one at a time.
func TestOneWideTakeAtATime(t *testing.T) {
	t.Parallel()
	r := fair.NewRoom[string](100)
	if !r.Take("a", 1000) || r.Take("b", 1000) || !r.Take("b", 50) {
		t.Error("a wide take counts apart, and excludes another wide one only")
	}
	r.Give("a", 1000)
	if !r.Take("b", 1000) {
		t.Error("the next wide take has to have its turn")
	}
}

// Work of one account that does not get on holds up no other's, runs in the end, and is
// refused where too much of it waits.
func TestQueueOfOneAccountHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	q := fair.NewQueue[string](4, 100, func(f func()) { wg.Go(f) })
	stuck, ran := make(chan struct{}), make(chan struct{}, 200)
	accepted := 0
	for q.Do("a", func() { <-stuck; ran <- struct{}{} }) {
		accepted++
	}
	if accepted != 2+50 {
		t.Errorf("%d of one account were accepted", accepted)
	}
	for range 20 {
		done := make(chan struct{})
		if !q.Do("b", func() { close(done) }) {
			t.Fatal("another account is refused")
		}
		<-done
	}
	close(stuck)
	for range accepted {
		<-ran
	}
	wg.Wait()
	if !q.Do("a", func() { ran <- struct{}{} }) {
		t.Error("the account is refused when all its work has ended")
	}
	<-ran
	wg.Wait()
}
