package sessions

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/subjects"
)

// One look-up of a session answers all questions that came before it was sent. A session has one
// at a time, and the number of look-ups in parallel is bounded; later questions get a later
// answer.
func TestLookupsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked, release := map[subjects.SessionID]int{}, make(chan struct{})
		at, most := 0, 0
		ls := newLookups(func(s subjects.SessionID) (string, error) {
			mu.Lock()
			asked[s]++
			n := asked[s]
			at++
			most = max(most, at)
			mu.Unlock()
			<-release
			mu.Lock()
			at--
			mu.Unlock()
			return fmt.Sprint(n), nil
		}, func(f func()) { go f() })
		answers := make(chan string, 1000)
		find := func(s subjects.SessionID, n int) {
			for range n {
				go func() {
					epoch, err := ls.find(t.Context(), s)
					if err != nil {
						t.Error(err)
					}
					answers <- epoch
				}()
			}
			synctest.Wait()
		}
		find("one", 1)
		find("one", 100)
		for i := range 100 {
			find(subjects.SessionID(fmt.Sprint("other-", i)), 1)
		}
		if len(asked) != maxLookups || asked["one"] != 1 {
			t.Errorf("%d sessions are asked for, want %d", len(asked), maxLookups)
		}
		close(release)
		got := map[string]int{}
		for range 201 {
			got[<-answers]++
		}
		if diff := cmp.Diff(map[string]int{"1": 101, "2": 100}, got); diff != "" {
			t.Errorf("answers by number of question (-want +got):\n%s", diff)
		}
		if most != maxLookups {
			t.Errorf("%d questions at once, want %d", most, maxLookups)
		}
		synctest.Wait()
		if len(ls.next)+len(ls.busy) != 0 {
			t.Errorf("left behind: %v %v", ls.next, ls.busy)
		}
	})
}
