package host

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
)

const (
	// maxJoined is how many repetitions of one call are looked after while it
	// runs. Of more than that the oldest hear nothing before its end.
	maxJoined = 64
	// storeLag is how long the store may take to show what it has acknowledged:
	// another server of the cluster may answer.
	storeLag = 50 * time.Millisecond
	// storeLooks is how often the rest of a stream that has ended is looked for,
	// storeLag apart, before it counts as no longer kept.
	storeLooks = 100
)

// joiner is a repetition of a call that runs. One that wants items on its reply
// subject is sent what is stored, by a goroutine of its own, and once it has all
// of that each further item as it comes, like the first caller. It never holds
// the stream up: what it has yet to get is in the store.
type joiner struct {
	c      *inflight // the repetition
	of     *inflight // the call that it repeats, or itself when that has ended
	probe  probe
	misses int // looks in a row that found no more of a call that has ended; the reader's

	// Guarded by of.joinMu.
	next    int64         // Seq of the chunk that it gets next
	reading bool          // a goroutine reads the store for it
	dropped bool          // it is no longer among those that the call looks after
	over    bool          // it has all that it gets
	ended   *admit.Record // what the call ended with; nil while it runs
}

// wantsItems reports whether a request is sent items on its reply subject.
func wantsItems(req *codec.Request) bool {
	return req.Delivery == codec.DeliverInbox || req.Delivery == codec.DeliverEnvelope
}

// join looks after a repetition until the call has its answer.
func (c *inflight) join(other *inflight) {
	j := &joiner{c: other, of: c, next: 1}
	j.probe.bus = c.h.bus
	c.joinMu.Lock()
	if !other.joins(j) {
		c.joinMu.Unlock()
		return // the call has ended in this instant, and settle has answered
	}
	for _, old := range c.joined {
		if old.c.reply == other.reply {
			old.drop() // the same caller, who needs to hear it once
			old.over = old.over || wantsItems(old.c.req)
		}
	}
	c.joined = slices.DeleteFunc(append(c.joined, j), func(j *joiner) bool { return j.dropped })
	if len(c.joined) > maxJoined {
		c.joined[0].drop()
		c.joined = slices.Delete(c.joined, 0, 1)
	}
	s := c.stream.Load()
	j.reading = c.last() > 0 && wantsItems(other.req)
	j.over = !j.reading && j.echoes()
	reading, flowing := j.reading, c.flowing
	c.joinMu.Unlock()
	switch {
	case reading:
		c.h.running.run(j.read)
	case flowing && other.req.Delivery == codec.DeliverLive:
		other.acknowledge()
	}
	if s != nil && other.req.HasCredit {
		s.grant(other.req.Credit) // and a sign of life
	}
}

// last is the Seq up to which a call's chunks are stored; joinMu is held.
func (c *inflight) last() int64 {
	if s := c.stream.Load(); s != nil {
		return s.last
	}
	return 0
}

// echoes reports whether all that comes from now on is sent to the joiner's reply
// subject anyway, as it is that of the first caller.
func (j *joiner) echoes() bool {
	return j.c != j.of && j.c.reply == j.of.reply && wantsItems(j.c.req) && j.c.req.Delivery == j.of.req.Delivery
}

// joins makes c the repetition that j is, unless the call has ended before.
func (c *inflight) joins(j *joiner) bool {
	c.joinMu.Lock()
	defer c.joinMu.Unlock()
	if !c.settled {
		c.as = j
	}
	return !c.settled
}

// settle gives a repetition what its call ended with.
func (c *inflight) settle(record admit.Record) {
	c.joinMu.Lock()
	c.settled = true
	j := c.as
	c.joinMu.Unlock()
	if j == nil {
		c.h.repeat(c, record)
		return
	}
	j.end(record)
}

// end is settle for a joiner, once; of a call whose handler does not return the
// ticker may be first.
func (j *joiner) end(record admit.Record) {
	j.of.joinMu.Lock()
	if j.over || j.ended != nil {
		j.of.joinMu.Unlock()
		return
	}
	j.ended = &record
	j.probe.close()
	items := wantsItems(j.c.req)
	j.over = !items
	read := items && !j.reading
	j.reading = items
	j.of.joinMu.Unlock()
	switch {
	case read:
		j.of.h.running.run(j.read)
	case !items:
		j.of.h.repeat(j.c, record)
	}
}

// endJoined ends all repetitions of a call whose handler does not return.
func (c *inflight) endJoined(record admit.Record) {
	c.joinMu.Lock()
	joined := slices.Clone(c.joined)
	c.joinMu.Unlock()
	for _, j := range joined {
		j.end(record)
	}
}

// awaiting are the repetitions that have yet to get all of their answer, and do
// not share the call's own reply subject.
func (c *inflight) awaiting() []*inflight {
	c.joinMu.Lock()
	defer c.joinMu.Unlock()
	var all []*inflight
	for _, j := range c.joined {
		if !j.over && (j.c.reply != c.reply || !c.req.Keepalive) {
			all = append(all, j.c)
		}
	}
	return all
}

// drop leaves a joiner to the call's end; of.joinMu is held.
func (j *joiner) drop() {
	j.dropped = true
	j.probe.close()
}

// tails reports whether a joiner is sent the items as they come; of.joinMu is held.
func (j *joiner) tails() bool {
	return !j.reading && !j.dropped && !j.over && wantsItems(j.c.req)
}

// deliver sends the joiner its next chunk; of.joinMu is held.
func (j *joiner) deliver(c codec.Chunk) {
	j.c.deliver(c, j.of.epoch, j.probe.subject(j.c.req, &c))
	j.next = c.Seq + 1
	if c.Terminal() {
		j.over = true
		j.probe.close()
	}
}

// read sends the joiner what is stored, until it has all of it.
func (j *joiner) read() {
	for {
		from, record := j.from()
		if record != nil {
			j.fail(*record)
			return
		}
		err := j.page(from)
		switch {
		case err == nil:
		case j.running() && toolmesh.CodeOf(err) == toolmesh.CodeUnavailable:
			j.pause()
			continue
		default:
			j.fail(admit.Record{Err: refusedItem(err)})
			return
		}
		if !j.behind(from) {
			return
		}
	}
}

// running reports whether the joiner's call goes on, and with it what stores its
// items: while that waits for a store that does not answer, so does the joiner.
func (j *joiner) running() bool {
	j.of.joinMu.Lock()
	defer j.of.joinMu.Unlock()
	return j.ended == nil && j.of.h.base.Err() == nil
}

// page sends the joiner the next chunks that are stored. So many replays at once
// that no more would help hold as many pages in memory.
func (j *joiner) page(from int64) error {
	h := j.of.h
	select {
	case h.replays <- struct{}{}:
		defer func() { <-h.replays }()
	case <-h.base.Done():
		return context.Cause(h.base)
	}
	ctx, cancel := context.WithTimeout(h.base, finishWithin)
	defer cancel()
	if err := j.of.lookUp(ctx); err != nil { // one that repeats what has ended; others have
		return err
	}
	page, err := h.replayer.Read(ctx, j.c.req.Session, j.c.req.RPCID, j.of.epoch, codec.ReplayRequest{FromSeq: from, MaxBytes: codec.DefaultReplayBytes})
	if err != nil {
		return err
	}
	for _, m := range page.Chunks {
		chunk, err := codec.ParseChunk(codec.Header(m.Header), m.Data)
		if err == nil && !j.take(chunk) {
			break
		}
	}
	return nil
}

// from is the Seq from which the store is to be read, or the error that the call
// ended with when it has no more than the joiner.
func (j *joiner) from() (int64, *admit.Record) {
	j.of.joinMu.Lock()
	defer j.of.joinMu.Unlock()
	if j.ended != nil && !j.ended.Streamed && j.next > j.of.last() {
		return 0, j.ended
	}
	return j.next, nil
}

// take sends the joiner a chunk that was read, and reports whether the next one
// may follow.
func (j *joiner) take(c codec.Chunk) bool {
	j.of.joinMu.Lock()
	defer j.of.joinMu.Unlock()
	switch {
	case j.over:
		return false
	case c.Seq < j.next:
		return true
	case c.Seq > j.next && j.ended == nil:
		return false // the one between is on its way to the store once more
	}
	j.deliver(c)
	return true
}

// behind reports whether the store has to be read on for the joiner, after it was
// read from a Seq on.
func (j *joiner) behind(from int64) bool {
	j.of.joinMu.Lock()
	got, all, ended := j.next > from, j.next > j.of.last(), j.ended
	if ended == nil && (all || j.dropped) {
		j.reading = false // it tails now, or waits for the end
		j.over = j.over || all && j.echoes()
	}
	on := j.reading && !j.over
	j.of.joinMu.Unlock()
	switch {
	case !on:
		return false
	case got:
		j.misses = 0
	case ended == nil:
		j.pause()
	case !ended.Streamed:
		j.fail(*ended)
		return false
	case j.misses < storeLooks:
		j.misses++
		j.pause()
	default:
		j.fail(admit.Record{Err: toolmesh.Errorf(toolmesh.CodeStreamExpired, "the stream's chunks are no longer kept").
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)})
		return false
	}
	return true
}

// pause gives the store time.
func (j *joiner) pause() {
	select {
	case <-time.After(storeLag):
	case <-j.of.h.base.Done():
	}
}

// fail answers a joiner in place of what it has not got.
func (j *joiner) fail(record admit.Record) {
	j.of.joinMu.Lock()
	over := j.over
	j.over = true
	j.probe.close()
	j.of.joinMu.Unlock()
	if !over {
		j.of.h.answer(j.c.reply, j.c.req, j.c.tool.identity, record)
	}
}

// deserted reports whether nobody reads the stream any more, neither its caller
// nor one that has joined it: none of them gives credit, and what is sent to the
// others meets nobody. A subscriber of mesh.live does not stand in for a caller
// that gives credit.
func (s *stream) deserted(now time.Time) bool {
	credited, here := false, false
	look := func(req *codec.Request, p *probe) {
		switch {
		case req.HasCredit:
			credited = true
		case req.Delivery == codec.DeliverLive:
			here = here || !s.live.gone()
		default:
			here = here || !p.gone()
		}
	}
	s.c.joinMu.Lock()
	look(s.c.req, &s.probe)
	for _, j := range s.c.joined {
		if !j.over {
			look(j.c.req, &j.probe)
		}
	}
	s.c.joinMu.Unlock()
	if here {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !credited || now.Sub(s.creditAt) >= callerGone
}

// probeEvery is how often one chunk finds out whether a reader is there.
const probeEvery = time.Second

// probe finds out whether a reader who gives no credit is there: one chunk a
// second has a reply subject, where the broker says so if the chunk meets nobody.
// The zero value with a bus is ready; one that is never sent finds nobody gone.
type probe struct {
	bus *bus.Bus

	mu     sync.Mutex
	inbox  *bus.Inbox
	closed bool
	at     time.Time // when the last one was sent
	nobody bool      // that met no interest
	goneAt time.Time // when the first of an unbroken row of them did
	long   bool      // and that is long ago
}

// subject returns the reply subject for a chunk, empty for most.
func (p *probe) subject(req *codec.Request, c *codec.Chunk) string {
	if req.HasCredit || c.Terminal() {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.closed || p.bus == nil || now.Sub(p.at) < probeEvery {
		return ""
	}
	if !p.nobody {
		p.goneAt, p.long = time.Time{}, false
	}
	if p.inbox == nil {
		inbox, err := p.bus.Open(p.answered)
		if err != nil {
			return ""
		}
		p.inbox = inbox
	}
	p.at, p.nobody = now, false
	return p.inbox.Subject()
}

func (p *probe) answered(m *nats.Msg, err error) {
	if err != nil || !bus.NoResponders(m) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.nobody = true
	if p.goneAt.IsZero() {
		p.goneAt = now
	}
	p.long = now.Sub(p.goneAt) >= callerGone
}

// gone reports whether the reader has not been there for long.
func (p *probe) gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nobody && p.long
}

// met notes that a reader was heard of in another way.
func (p *probe) met() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nobody, p.long, p.goneAt = false, false, time.Time{}
}

func (p *probe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.inbox != nil {
		p.inbox.Close()
	}
}
