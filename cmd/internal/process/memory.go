package process

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// The garbage collector's pace in a process that serves a mesh. Little is alive in
// one and much passes through: at Go's pace of 100 an agent with 10 MB alive
// collects many times a second under load. Where much is alive, most of it is
// waste that the same pace would leave lying about. Decision 016 has the figures.
const (
	gcDefault = 100
	gcPercent = 400
	// gcReserve is how many bytes a heap may grow by between two cycles, unless
	// Go's own pace allows it more.
	gcReserve = 128 << 20
	gcLook    = time.Second
)

// Pace sets the garbage collector's pace by what is alive, unless GOGC has set
// one, until stop is called.
func Pace() (stop func()) {
	if before := debug.SetGCPercent(gcPercent); before != gcDefault {
		debug.SetGCPercent(before)
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		alive := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		look := time.NewTicker(gcLook)
		defer look.Stop()
		for is := gcPercent; ; {
			select {
			case <-done:
				return
			case <-look.C:
			}
			// Setting it stops the world for a moment: small changes are not worth it.
			metrics.Read(alive)
			if want := pace(alive[0].Value.Uint64()); want < is*9/10 || want > is*11/10 || want != is && (want == gcDefault || want == gcPercent) {
				debug.SetGCPercent(want)
				is = want
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		debug.SetGCPercent(gcDefault)
	}
}

// pace is the pace for a heap of which so many bytes are alive.
func pace(alive uint64) int {
	return int(min(max(gcReserve*100/max(alive, 1), gcDefault), gcPercent))
}
