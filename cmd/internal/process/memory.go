package process

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh/internal/wake"
)

// The pace of the garbage collector in a process that serves a mesh. Such a process has a small
// live heap and much garbage: at Go's pace of 100 an agent with 10 MB alive collects many times a
// second under load. With a large live heap the same pace would waste memory. Decision 016 has the
// figures.
const (
	gcDefault = 100
	gcPercent = 400
	// gcReserve is how many bytes a heap may grow by between two cycles, unless Go's own pace
	// allows more.
	gcReserve = 128 << 20
	gcLook    = time.Second
)

// Pace sets the garbage collector's pace by the live heap until stop is called, unless GOGC is set.
func Pace() (stop func()) {
	if before := debug.SetGCPercent(gcPercent); before != gcDefault {
		debug.SetGCPercent(before)
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		alive := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		for is := gcPercent; wake.After(ctx, gcLook); {
			// Setting the pace stops the world for a moment: small changes are not worth it.
			metrics.Read(alive)
			if want := pace(alive[0].Value.Uint64()); want < is*9/10 || want > is*11/10 || want != is && (want == gcDefault || want == gcPercent) {
				debug.SetGCPercent(want)
				is = want
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		debug.SetGCPercent(gcDefault)
	}
}

// pace returns the pace for a live heap of that many bytes.
func pace(alive uint64) int {
	return int(min(max(gcReserve*100/max(alive, 1), gcDefault), gcPercent))
}
