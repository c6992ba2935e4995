package awaiting_test

import (
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/awaiting"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// The sum is published while calls wait, and once more when none waits.
func TestWaitingSumsArePublished(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	beats, err := s.Connect(t).SubscribeSync(subjects.AllHeartbeats)
	if err != nil {
		t.Fatal(err)
	}
	if err := beats.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	next := func() (beat codec.Heartbeat) {
		t.Helper()
		m, err := beats.NextMsg(time.Minute)
		if err == nil {
			err = json.Unmarshal(m.Data, &beat)
		}
		if err != nil {
			t.Fatal(err)
		}
		return beat
	}
	var calls atomic.Int64
	waits := func() map[string]codec.Awaited {
		if n := calls.Load(); n > 0 {
			return map[string]codec.Awaited{"gpu": {Calls: int(n)}}
		}
		return nil
	}
	teller := awaiting.Tell(testmesh.Bus(t, s.Connect(t), nil), waits, waits)
	calls.Store(2)
	teller.Wake()
	if got := next(); got.Awaited["gpu"].Calls != 4 {
		t.Errorf("two parts of 2 are told as %+v", got.Awaited)
	}
	teller.Close()
	last := next()
	for len(last.Awaited) > 0 {
		last = next()
	}
}
