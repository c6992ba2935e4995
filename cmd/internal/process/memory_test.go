package process

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

func TestPaceOfAHeap(t *testing.T) {
	for alive, want := range map[uint64]int{
		0: 400, 1: 400, 32 << 20: 400, 33 << 20: 387, 64 << 20: 200, 127 << 20: 100, 128 << 20: 100, 8 << 30: 100, 1 << 63: 100,
	} {
		if got := pace(alive); got != want {
			t.Errorf("%d bytes alive: %d, want %d", alive, got, want)
		}
	}
}

// The collector of a process in which much is alive for a while.
func TestPaceFollowsLiveNodes(t *testing.T) {
	percent := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // tests set another one, as GOGC would
	before := percent()
	stop := Pace()
	if got := percent(); got != 400 {
		t.Errorf("at first %d", got)
	}
	await := func(want uint64) {
		t.Helper()
		meshtest.Until(t, "the pace has changed", func() bool {
			return percent() == want
		})
	}
	much := make([]byte, 200<<20)
	runtime.GC()
	await(100)
	runtime.KeepAlive(much)
	much = nil
	runtime.GC()
	await(400)
	stop()
	if got := percent(); got != before {
		t.Errorf("at last %d, before it was %d", got, before)
	}
}
