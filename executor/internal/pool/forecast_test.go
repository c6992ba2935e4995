package pool_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

// takes is a tool that takes a while.
func takes(d time.Duration) func(w *work) (string, error) {
	return func(w *work) (string, error) {
		select {
		case <-time.After(d):
			return "1", nil
		case <-w.cancelled:
			return "", context.Canceled
		}
	}
}

// within makes a call with a timeout in the background, and returns its outcome and duration.
func within(t *testing.T, p *pool.Pool, timeout time.Duration) func() (time.Duration, error) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	began := time.Now()
	type ended struct {
		took time.Duration
		err  error
	}
	end := make(chan ended, 1)
	go func() {
		defer cancel()
		_, _, err := p.Call(ctx, pool.Call{Tool: "t.tool"})
		end <- ended{time.Since(began), err}
	}()
	return func() (time.Duration, error) {
		e := <-end
		return e.took, e.err
	}
}

// warm has each worker make some calls, so that it is known how long they take.
func warm(t *testing.T, p *pool.Pool, workers int) {
	t.Helper()
	for range 6 {
		var all []func() (time.Duration, error)
		for range workers {
			all = append(all, within(t, p, time.Hour))
		}
		for _, one := range all {
			if _, err := one(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func wantRefused(t *testing.T, err error, least time.Duration) {
	t.Helper()
	e := wantCode(t, err, toolmesh.CodeBusy)
	if e.Started != toolmesh.StartedNo || e.Details["limit"] != toolmesh.LimitSlots || !e.Retryable || e.RetryAfter() < least {
		t.Errorf("%+v, want a hint of %v at least", e, least)
	}
}

// A call that would begin too late is refused at once, with the time of a call as the min delay of
// a retry. Others wait.
func TestACallThatWouldBeLateIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = 1, 1 }), takes(time.Second))
		warm(t, p, 1)
		var waits []func() (time.Duration, error)
		for range 5 {
			waits = append(waits, within(t, p, 10*time.Second))
			synctest.Wait()
		}
		took, err := within(t, p, 4*time.Second)()
		if wantRefused(t, err, time.Second); took != 0 {
			t.Errorf("refused after %v", took)
		}
		for _, wait := range waits {
			if _, err := wait(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A queued call is given up once it is known that it would be late, while there is time for
// another node.
func TestAQueuedCallThatGetsLateIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = 1, 1 }), takes(10*time.Second))
		first := within(t, p, time.Minute)
		synctest.Wait()
		took, err := within(t, p, 4*time.Second)()
		if wantRefused(t, err, time.Second); took > 3*time.Second {
			t.Errorf("given up after %v of 4s", took)
		}
		if _, err := first(); err != nil {
			t.Error(err)
		}
	})
}

// The first call of a worker, which may import for long, has nothing refused that comes
// with it.
func TestColdCallsAreNoForecast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var warm atomic.Bool
		p, _ := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = 1, 1 }), func(*work) (string, error) {
			if warm.CompareAndSwap(false, true) {
				time.Sleep(5 * time.Second)
			}
			return "1", nil
		})
		var all []func() (time.Duration, error)
		for range 1000 {
			all = append(all, within(t, p, 30*time.Second))
			time.Sleep(6 * time.Millisecond) // some come once the first has ended
		}
		for _, one := range all {
			if took, err := one(); err != nil {
				t.Fatalf("%v after %v", err, took)
			}
		}
	})
}

// Calls beyond the workers' capacity are refused instead of queued for most of their time: the
// same number of calls is served, soon. A burst after a pause is served completely.
func TestOverload(t *testing.T) {
	for _, times := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(times), func(t *testing.T) { overload(t, times) })
	}
}

func overload(t *testing.T, times int) {
	bubble(t, func(t *testing.T) {
		const (
			takesAll = 100 * time.Millisecond
			workers  = 4
			length   = 20 * time.Second
		)
		p, _ := open(t, config(func(c *pool.Config) { c.MaxWorkers, c.MaxCalls = workers, workers }), takes(takesAll))
		warm(t, p, workers)
		var all []func() (time.Duration, error)
		for began := time.Now(); time.Since(began) < length; time.Sleep(takesAll / workers / time.Duration(times)) {
			all = append(all, within(t, p, 2*time.Second))
		}
		var served []time.Duration
		for _, one := range all {
			took, err := one()
			if err == nil {
				served = append(served, took)
			} else {
				wantRefused(t, err, takesAll)
			}
		}
		slices.Sort(served)
		if most := workers * int(length/takesAll); len(served) < most*9/10 {
			t.Errorf("at %d times the capacity %d of %d calls were served, where %d are possible", times, len(served), len(all), most)
		}
		if p99 := served[len(served)*99/100]; times == 2 && p99 > 2*takesAll+100*time.Millisecond {
			t.Errorf("at twice the capacity 99 of 100 served calls took up to %v", p99)
		}
		time.Sleep(time.Second)
		var burst []func() (time.Duration, error)
		for range 15 * workers {
			burst = append(burst, within(t, p, 2*time.Second))
		}
		for _, one := range burst {
			if took, err := one(); err != nil {
				t.Errorf("of calls that came at once: %v after %v", err, took)
			}
		}
	})
}
