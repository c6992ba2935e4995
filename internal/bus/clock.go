package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// tickEvery is the step of the ticker that sees whether this process runs.
	tickEvery = 200 * time.Millisecond
	// stallAfter is how late a tick must be for the process to have been frozen.
	stallAfter = time.Second
	// timeEvery is how often the broker's clock is measured.
	timeEvery = time.Minute
	// timeRetry is the pause after a measurement without an answer.
	timeRetry = 5 * time.Second
	// timeTimeout is how long one question for the time may take.
	timeTimeout = 2 * time.Second
	// unmeasuredBound is the error bound of the local clock before any measurement: by it no
	// deadline has certainly passed.
	unmeasuredBound = 100 * 365 * 24 * time.Hour
	// drift is how fast two machines' clocks may part, 200 ppm: 12 ms a minute.
	drift = 5000
)

// began is the zero of [Mono], a moment ago so that no later time is 0.
var began = time.Now().Add(-time.Hour)

// Mono is a time that this process has read, in nanoseconds of the monotonic clock: differences
// are right even if the machine's date changes. It is above 0.
func Mono(t time.Time) int64 { return int64(t.Sub(began)) }

// MonoTime is the time of a [Mono].
func MonoTime(ns int64) time.Time { return began.Add(time.Duration(ns)) }

// MeshTime is the broker's clock as this process knows it.
type MeshTime struct {
	// Now is the broker's time.
	Now time.Time
	// Bound is how far Now may be from it, in either direction: half a round trip
	// and the drift since, or a century if it could not be measured.
	Bound time.Duration
	// Measured is false if Now is only the local clock.
	Measured bool
}

// Millis is the time as it is told to others: unix ms, and a bound for the whole of them.
func (t MeshTime) Millis() (now, bound int64) {
	return t.Now.UnixMilli(), (t.Bound + 2*time.Millisecond - 1).Milliseconds()
}

// clock measures the broker's time against the local monotonic clock.
type clock struct {
	lastTick atomic.Int64 // the last tick, as [Mono]
	lastWall atomic.Int64 // unix time of it: the monotonic clock stops while a machine sleeps
	lastStop atomic.Int64 // when the last stall was seen, as [Mono]; 0 = never
	kick     chan struct{}
	told     string       // the subject at which nodes tell it, see [Options.Caller]
	denied   time.Time    // of the connection that may not ask the broker; measureTime only
	wanted   atomic.Int64 // when [Bus.WantTime] last asked, as [Mono]

	mu       sync.Mutex
	asked    uint64        // counts events that require a measurement
	answered uint64        // asked, when the last measurement began
	offset   time.Duration // broker's unix time - monotonic time
	rtt      time.Duration
	at       time.Duration // monotonic time of the measurement
	slack    time.Duration // how long the process was frozen since
	measured bool
	changed  chan struct{} // closed and replaced after each measurement
}

func (c *clock) init() {
	c.kick = make(chan struct{}, 1)
	c.changed = make(chan struct{})
	c.ticked()
	c.invalidate(0)
}

func (c *clock) mono() time.Duration { return time.Duration(Mono(time.Now())) }

func (c *clock) ticked() {
	c.lastTick.Store(int64(c.mono()))
	c.lastWall.Store(time.Now().UnixNano())
}

// invalidate asks for a new measurement before new work starts. Until then the
// bound is wider by the time that the process was frozen.
func (c *clock) invalidate(frozen time.Duration) {
	c.mu.Lock()
	c.asked++
	c.slack += frozen
	c.mu.Unlock()
	wake.Up(c.kick)
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

// WantTime requests a measurement of a time that is unknown or older than a minute, in the
// background, at most every 5 s.
func (b *Bus) WantTime() {
	c := &b.clock
	now := Mono(time.Now())
	last := c.wanted.Load()
	if c.told == "" || last != 0 && now-last < int64(timeRetry) || !c.wanted.CompareAndSwap(last, now) {
		return
	}
	c.mu.Lock()
	known := c.measured && c.mono()-c.at < timeEvery
	c.mu.Unlock()
	if known {
		return
	}
	wake.Up(c.kick)
}

// FreshTime returns at once while mesh time can be trusted. After the process was frozen or
// the connection was made again it measures first, so that deadlines of work that waited in a
// buffer are compared with the right time. Serving sides call it before they start anything; it
// usually costs no message. It fails if ctx ends first; going on with [Bus.Time] is safe
// then, too, as its bound includes the uncertainty. Where the broker does not tell the time
// it succeeds.
func (b *Bus) FreshTime(ctx context.Context) error {
	c := &b.clock
	if late := c.late(); late != 0 {
		c.invalidate(late) // thawed this instant: the ticker has not run yet
	}
	for {
		c.mu.Lock()
		fresh, changed := c.answered == c.asked, c.changed
		c.mu.Unlock()
		if fresh {
			return nil
		}
		select {
		case <-changed:
		case <-b.ctx.Done():
			return ErrClosed()
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
	return seen != 0 && seen >= Mono(t)
}

// tick is the goroutine that sees whether the process runs.
func (b *Bus) tick() {
	c := &b.clock
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-ticker.C:
		}
		length := c.late()
		if length == 0 {
			c.ticked()
			continue
		}
		c.lastStop.Store(int64(c.mono()))
		c.invalidate(length)
		// Last, so that StalledSince sees one of the two at any time.
		c.ticked()
		b.log.Warn("this process was frozen", slog.Duration("length", length))
	}
}

// measureTime is the goroutine that keeps the offset.
func (b *Bus) measureTime() {
	c := &b.clock
	// The spread keeps a thousand processes from asking in one instant.
	next := time.NewTimer(timeEvery/2 + rand.N(timeEvery/2))
	defer next.Stop()
	refused := false
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-c.kick:
		case <-next.C:
			if refused {
				continue // until the next connection
			}
		}
		pause := timeEvery - rand.N(timeEvery/10)
		if b.Connected() {
			err := b.measure()
			was := refused
			refused = refusesTime(err)
			switch {
			case b.ctx.Err() != nil:
				return
			case refused && !was:
				b.log.Warn("the broker does not tell this connection its time: deadlines are neither sent nor checked, and this machine's clock is used for the mesh's", errorAttr(err))
			case err != nil && !refused && !b.State().Since.Equal(c.denied): // otherwise WantTime must request it
				pause = timeRetry
			}
		}
		next.Reset(pause)
	}
}

// refusesTime reports whether no peer tells the time, or this connection may not ask: that stays
// so until the next connection, or until [Bus.WantTime].
func refusesTime(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || toolmesh.CodeOf(err) == toolmesh.CodePermissionDenied
}

// measure asks nodes for the time if this is a caller's connection, else the broker, which is also asked if no node
// tells it. Any answer but silence ends the wait of [Bus.FreshTime].
func (b *Bus) measure() error {
	c := &b.clock
	c.mu.Lock()
	asked := c.asked
	c.mu.Unlock()
	var now time.Time
	var bound time.Duration
	var err error
	sent, made := c.mono(), b.State().Since
	if c.told != "" {
		now, bound, err = b.askTime(c.told)
	}
	if (c.told == "" || err != nil) && !made.Equal(c.denied) {
		sent = c.mono()
		if now, bound, err = b.askTime(subjects.UserInfo); refusesTime(err) {
			c.denied = made
		}
	}
	at := c.mono()
	if err != nil && !refusesTime(err) && !made.Equal(c.denied) { // where the broker does not tell it, others may not know it yet
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.rtt, c.at, c.measured = at-sent+2*bound, at, true
		c.offset = time.Duration(now.UnixNano()) - (sent + (at-sent)/2)
	}
	c.answered = asked
	if asked == c.asked && err == nil {
		c.slack = 0
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return err
}

// lastMilli is a unix time in ms, of the year 2248, beyond which nanoseconds soon overflow.
const lastMilli = 1 << 43

// askTime is the time by the answer of a node or, at [subjects.UserInfo], of the NATS server. A frozen
// node gives none, and takes nothing of the time that the server has to answer.
func (b *Bus) askTime(subject string) (now time.Time, bound time.Duration, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, timeTimeout)
	defer cancel()
	m, err := b.Request(ctx, nats.NewMsg(subject))
	if err != nil {
		return now, 0, err
	}
	var told struct {
		Now    int64 `json:"now_ms"`
		Bound  int64 `json:"bound_ms"`
		Server struct {
			Time time.Time `json:"time"`
		} `json:"server"`
	}
	err = json.Unmarshal(m.Data, &told)
	switch {
	case err == nil && !told.Server.Time.IsZero():
		return told.Server.Time, 0, nil
	case err == nil && told.Now > 0 && told.Now < lastMilli && told.Bound >= 0:
		return time.UnixMilli(told.Now), toolmesh.Millis(told.Bound), nil
	}
	return now, 0, toolmesh.Errorf(toolmesh.CodeUnavailable, "the answer to the question for the broker's time holds none")
}
