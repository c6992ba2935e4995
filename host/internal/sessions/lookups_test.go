package sessions

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/subjects"
)

// One look-up of a session answers all questions that came before it was sent, and the number of
// look-ups in parallel is bounded; later questions get a later answer.
func TestLookupsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked, release := map[subjects.SessionID]int{}, make(chan struct{})
		at, most := 0, 0
		s := New(Options{Go: func(f func()) { go f() }})
		s.Ask = func(of subjects.SessionID) (string, error) {
			mu.Lock()
			asked[of]++
			n := asked[of]
			at++
			most = max(most, at)
			mu.Unlock()
			<-release
			mu.Lock()
			at--
			mu.Unlock()
			return fmt.Sprint(n), nil
		}
		answers := make(chan string, 1000)
		find := func(of subjects.SessionID, n int) {
			for range n {
				go func() {
					epoch, err := s.find(t.Context(), of)
					if err != nil {
						t.Error(err)
					}
					answers <- epoch
				}()
			}
			synctest.Wait()
		}
		find("one", 1)
		for i := range 100 {
			find(subjects.SessionID(fmt.Sprint("other-", i)), 1)
		}
		find("one", 100) // all wait for one that is not sent yet
		if len(asked) > maxLookups || asked["one"] != 1 {
			t.Errorf("%d sessions are asked for, want %d at most", len(asked), maxLookups)
		}
		close(release)
		got := map[string]int{}
		for range 201 {
			got[<-answers]++
		}
		if diff := cmp.Diff(map[string]int{"1": 101, "2": 100}, got); diff != "" {
			t.Errorf("answers by number of question (-want +got):\n%s", diff)
		}
		if most > maxLookups || most < maxLookups/2 {
			t.Errorf("%d questions at once, want about %d", most, maxLookups)
		}
		synctest.Wait()
		if len(s.next) != 0 {
			t.Errorf("left behind: %v", s.next)
		}
	})
}
