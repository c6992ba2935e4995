package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// tickEvery is the step of the ticker that sees whether this process runs.
	tickEvery = 200 * time.Millisecond
	// stallAfter is how late a tick must be for the process to have been frozen.
	stallAfter = time.Second
	// timeEvery is how often the broker's clock is measured.
	timeEvery = time.Minute
	// timeRetry follows a measurement that nobody answered.
	timeRetry = 5 * time.Second
	// timeTimeout is how long one question for the time may take.
	timeTimeout = 2 * time.Second
	// timeSamples are asked in a row; the fastest answer counts.
	timeSamples = 3
	// unmeasuredBound is the error bound of the local clock, which nobody vouches for.
	unmeasuredBound = time.Hour
	// drift is how fast two machines' clocks may part, 200 ppm: 12 ms a minute.
	drift = 5000
)

// MeshTime is the broker's clock as this process knows it.
type MeshTime struct {
	// Now is the broker's time.
	Now time.Time
	// Bound is how far Now may be from it, in either direction: half a round trip
	// and the drift since, or an hour if it could not be measured.
	Bound time.Duration
	// Measured is false if Now is only the local clock.
	Measured bool
}

// Stall says that this process did not run for a while: it was stopped, its
// machine slept, or it got no CPU.
type Stall struct {
	// Seen is the local time at which it was noticed.
	Seen time.Time
	// Length is how long it lasted.
	Length time.Duration
}

// clock measures the broker's time against the local monotonic clock.
type clock struct {
	base     time.Time    // monotonic zero
	lastTick atomic.Int64 // monotonic time of the last tick
	lastWall atomic.Int64 // unix time of it: the monotonic clock stands while a machine sleeps
	lastStop atomic.Int64 // monotonic time at which the last stall was seen; 0 = never
	kick     chan struct{}

	mu       sync.Mutex
	offset   time.Duration // broker's unix time - monotonic time
	rtt      time.Duration
	at       time.Duration // monotonic time of the measurement
	slack    time.Duration // how long the process was frozen since
	measured bool
	denied   bool          // the broker does not tell this connection: ask again after a reconnect
	stale    atomic.Bool   // something happened since the last measurement; written under mu
	asked    uint64        // counts what made it stale
	changed  chan struct{} // closed and replaced after each measurement
}

func (c *clock) init() {
	c.base = time.Now()
	c.kick = make(chan struct{}, 1)
	c.changed = make(chan struct{})
	c.ticked()
	c.invalidate(true, 0)
}

func (c *clock) mono() time.Duration { return time.Since(c.base) }

func (c *clock) ticked() {
	c.lastTick.Store(int64(c.mono()))
	c.lastWall.Store(time.Now().UnixNano())
}

// invalidate asks for a new measurement before new work starts. Until then the
// bound is wider by the time that the process was frozen.
func (c *clock) invalidate(retryDenied bool, frozen time.Duration) {
	c.mu.Lock()
	c.asked++
	c.slack += frozen
	if retryDenied {
		c.denied = false
	}
	c.stale.Store(!c.denied)
	c.mu.Unlock()
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Time returns mesh time: the broker's clock, from the local monotonic clock and
// the last measurement. It costs no message. A deadline in mesh time has passed
// for certain when it is before Now minus Bound.
func (b *Bus) Time() MeshTime {
	c := &b.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.measured {
		return MeshTime{Now: time.Now().Round(0), Bound: unmeasuredBound}
	}
	mono := c.mono()
	return MeshTime{
		Now:      time.Unix(0, int64(mono+c.offset)),
		Bound:    c.rtt/2 + (mono-c.at)/drift + c.slack,
		Measured: true,
	}
}

// Offset is how far the broker's clock is ahead of the local wall clock, and the
// bound of that figure; for people to look at.
func (b *Bus) Offset() (offset, bound time.Duration) {
	t := b.Time()
	return t.Now.Sub(time.Now().Round(0)), t.Bound
}

// FreshTime returns at once while mesh time can be trusted. After the process
// was frozen or the connection was made anew it measures first, so that work
// that waited in a buffer meanwhile is measured by the right time. Serving sides
// call it before they start anything; it costs a few atomic loads. It fails if ctx
// ends first; going on with [Bus.Time] is safe then too, its bound is wider by
// what is not known. Where the broker does not tell the time it succeeds.
func (b *Bus) FreshTime(ctx context.Context) error {
	c := &b.clock
	late := c.late()
	if late == 0 && !c.stale.Load() {
		return nil
	}
	if late != 0 {
		// Thawed this instant: the ticker has not run yet.
		c.invalidate(false, late)
	}
	for {
		c.mu.Lock()
		stale, changed := c.stale.Load(), c.changed
		c.mu.Unlock()
		if !stale {
			return nil
		}
		select {
		case <-changed:
		case <-b.stop:
			return errClosed()
		case <-ctx.Done():
			return fmt.Errorf("measure mesh time: %w", ctx.Err())
		}
	}
}

// late returns by how much a tick is overdue if that means that the process has
// just been frozen, else 0.
func (c *clock) late() time.Duration {
	late := c.mono() - time.Duration(c.lastTick.Load())
	late = max(late, time.Duration(time.Now().UnixNano()-c.lastWall.Load())) - tickEvery
	if late <= stallAfter {
		return 0
	}
	return late
}

// StalledSince reports whether this process was frozen for more than a second
// at any time since t, up to this instant. Silence of a peer means nothing then.
func (b *Bus) StalledSince(t time.Time) bool {
	if b.clock.late() != 0 {
		return true
	}
	seen := b.clock.lastStop.Load()
	return seen != 0 && time.Duration(seen) >= t.Sub(b.clock.base)
}

// tick is the goroutine that sees whether the process runs.
func (b *Bus) tick() {
	c := &b.clock
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-ticker.C:
		}
		length := c.late()
		if length == 0 {
			c.ticked()
			continue
		}
		c.lastStop.Store(max(int64(c.mono()), 1))
		c.invalidate(false, length)
		// Last, so that StalledSince sees one of the two at any time.
		c.ticked()
		b.log.Warn("the process was frozen", slog.Duration("length", length))
		stall := Stall{Seen: time.Now(), Length: length}
		b.callListeners(func(l listener) {
			if l.stall != nil {
				l.stall(stall)
			}
		})
	}
}

// measureTime is the goroutine that keeps the offset.
func (b *Bus) measureTime() {
	c := &b.clock
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.wg.Go(func() {
		select {
		case <-b.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	// The spread keeps a thousand processes from asking in one instant.
	next := time.NewTimer(timeEvery/2 + rand.N(timeEvery/2))
	defer next.Stop()
	told := false
	for {
		select {
		case <-b.stop:
			return
		case <-c.kick:
		case <-next.C:
		}
		pause := timeEvery - rand.N(timeEvery/10)
		c.mu.Lock()
		asked, denied := c.asked, c.denied
		c.mu.Unlock()
		if b.Connected() && !denied {
			offset, rtt, at, err := b.askTime(ctx)
			switch code := toolmesh.CodeOf(err); {
			case ctx.Err() != nil || b.closed.Load():
				return
			case err == nil:
				c.settle(asked, func() { c.offset, c.rtt, c.at, c.measured = offset, rtt, at, true })
			case code == toolmesh.CodePermissionDenied || code == toolmesh.CodeUnavailable && b.Connected():
				// Nobody answers there or we may not ask: that stays so.
				if !told {
					told = true
					b.log.Warn("the broker does not tell this connection its time: deadlines are checked by the local clock",
						errorAttr(err))
				}
				c.settle(asked, func() { c.denied = true })
			default:
				pause = timeRetry
			}
		}
		next.Reset(pause)
	}
}

// settle records a measurement, unless something happened while it was made,
// and wakes the callers that wait for it.
func (c *clock) settle(asked uint64, record func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	record()
	if c.asked != asked {
		return // the kick that came with it is still to be served
	}
	c.slack = 0
	c.stale.Store(false)
	close(c.changed)
	c.changed = make(chan struct{})
}

// askTime asks a few times and returns the sample with the shortest round trip.
func (b *Bus) askTime(ctx context.Context) (offset, rtt, at time.Duration, err error) {
	for n := range timeSamples {
		o, r, a, e := b.askTimeOnce(ctx)
		if e != nil {
			if n > 0 {
				return offset, rtt, at, nil
			}
			return 0, 0, 0, e
		}
		if n == 0 || r < rtt {
			offset, rtt, at = o, r, a
		}
	}
	return offset, rtt, at, nil
}

func (b *Bus) askTimeOnce(ctx context.Context) (offset, rtt, at time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeTimeout)
	defer cancel()
	c := &b.clock
	type answer struct {
		reply
		at time.Duration
	}
	got := make(chan answer, 1)
	in, err := b.Open(func(m *nats.Msg, err error) {
		select {
		case got <- answer{reply{m, err}, c.mono()}:
		default:
		}
	})
	if err != nil {
		return 0, 0, 0, err
	}
	defer in.Close()
	sent := c.mono()
	if err := in.Send(nats.NewMsg(subjects.UserInfo)); err != nil {
		return 0, 0, 0, err
	}
	select {
	case a := <-got:
		if a.err != nil {
			return 0, 0, 0, a.err
		}
		if NoResponders(a.msg) {
			return 0, 0, 0, toolmesh.Errorf(toolmesh.CodeUnavailable, "the broker has no system account: %w", nats.ErrNoResponders)
		}
		var info struct {
			Server struct {
				Time time.Time `json:"time"`
			} `json:"server"`
		}
		if err := json.Unmarshal(a.msg.Data, &info); err != nil || info.Server.Time.IsZero() {
			return 0, 0, 0, toolmesh.Errorf(toolmesh.CodeProtocolError, "the broker's answer holds no time")
		}
		rtt = a.at - sent
		middle := sent + rtt/2
		return time.Duration(info.Server.Time.UnixNano()) - middle, rtt, a.at, nil
	case <-ctx.Done():
		return 0, 0, 0, fmt.Errorf("ask the broker's time: %w", ctx.Err())
	}
}
