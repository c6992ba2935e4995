package stream

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/wake"
)

const (
	// storeLag is how long the store may take to show an acknowledged message, as another server
	// of the cluster may answer.
	storeLag = 50 * time.Millisecond
	// storeLooks is the number of looks, storeLag apart, for the rest of an ended stream before
	// it counts as expired.
	storeLooks = 100

	// progressEvery is the min time between two keepalives that carry the progress of a call at once.
	progressEvery = 50 * time.Millisecond
	// mostAtOnce is how many repetitions of a call get these.
	mostAtOnce = 64
	// callerGone is for how long no keepalive may meet the caller of a unary call: one that
	// has no connection for 2.5 s gives its call up.
	callerGone = 5 * time.Second
)

// Readers are the readers of one call: its first caller, and those that repeat the request while
// it runs. A unary call has them as well. Its methods may be called concurrently.
type Readers struct {
	node   *Node
	call   Execution
	first  *Reader
	stream atomic.Pointer[Stream] // nil for a unary call, and before the handler runs
	// Relayed means that another node runs the unary call. That node ends the call once all its
	// callers are gone: others may have joined it there.
	Relayed atomic.Bool

	progress atomic.Pointer[codec.Progress] // nil until the tool says how far it is
	next     atomic.Int64                   // when progress may be sent at once again, as [bus.Mono]
	due      atomic.Bool                    // progress is about to be sent
	wanted   atomic.Bool                    // a caller asked for progress at once
	later    atomic.Pointer[time.Timer]     // sends progress that came too early
	closed   atomic.Bool                    // the call is over

	mu      sync.Mutex    // guards the fields below and those that Reader marks; see doc.go for the order of locks
	joined  []*Reader     // repetitions that wait for the call's end, the newest last
	final   *admit.Record // the call's outcome; nil while it runs
	flowing bool          // it has been acknowledged
	last    int64         // Seq that is stored and delivered
	epoch   string        // of the session, from the stream's beginning
	more    chan struct{} // closed once something is stored, or the call has ended; nil: nothing waits
}

// Init makes a call's readers, of which first is the only one.
func (r *Readers) Init(node *Node, call Execution, first *Reader) {
	r.node, r.call, r.first = node, call, first
	r.wanted.Store(first.wantsProgress())
}

// Stream is the call's stream, or nil.
func (r *Readers) Stream() *Stream { return r.stream.Load() }

// Reader is a caller that reads a call: the first one, or a repetition. A repetition that wants
// items on its reply subject gets the stored ones from a goroutine of its own. It never slows the
// stream down: its missing items are in the store.
type Reader struct {
	// Set before the call is admitted, and then read by anyone.
	Request  *codec.Request
	Reply    string
	Identity *codec.Identity // of the answers to it
	Start    time.Time       // when it arrived
	// Form sends the answer in a form of its own, which has no items; nil for most.
	Form func(admit.Record)
	// Local: no message has brought the call, and Form takes its answer.
	Local bool

	answered atomic.Bool  // its one answer was sent, or is being sent
	sent     atomic.Int64 // when the last keepalive was sent, as [bus.Mono]
	probe    bus.Probe

	of *Readers // of the call that it repeats, set before it reads; nil for a first caller

	// Guarded by of.mu, for a repetition.
	until int64         // Seq of the last chunk that is sent for it
	over  bool          // it gets no further messages
	ended *admit.Record // the call's outcome; nil while it runs
}

// Claim reports whether the caller has no answer yet: the one that asks has to send
// it. It does so once.
func (j *Reader) Claim() bool { return j.answered.CompareAndSwap(false, true) }

// items reports whether a reader is sent items on its reply subject.
func (j *Reader) items() bool {
	return j.Form == nil && (j.Request.Delivery == codec.DeliverInbox || j.Request.Delivery == codec.DeliverEnvelope)
}

// wantsProgress reports whether a reader asked for progress at once.
func (j *Reader) wantsProgress() bool {
	return !j.Local && j.Request.Keepalive && j.Request.WantProgress
}

// send sends a chunk to a reader's reply subject; of.mu is held.
func (r *Readers) send(j *Reader, chunk codec.Chunk) {
	msg := &nats.Msg{Subject: j.Reply}
	if !j.Request.HasCredit && !chunk.Terminal() {
		msg.Reply = j.probe.Next(r.node.Store)
	}
	if j.Request.Delivery == codec.DeliverEnvelope {
		h, body := j.Request.Encode(nil, chunk.Envelope(j.Request))
		msg.Header, msg.Data = nats.Header(h), body
	} else {
		h, body := j.Request.Encode(chunk.Encode(j.Request.RPCID, r.epoch))
		msg.Header, msg.Data = nats.Header(h), body
	}
	r.node.Replies.Send(msg)
	if chunk.Terminal() && j.Request.Delivery == codec.DeliverInbox {
		r.node.Replies.Send(&nats.Msg{Subject: j.Reply})
	}
}

// acknowledge tells the caller of a live stream, once, that its chunks are in the store.
func (n *Node) acknowledge(j *Reader) {
	if j.Request.Delivery == codec.DeliverLive && j.Claim() {
		n.Replies.Acknowledge(j)
	}
}

// flows acknowledges a live stream, and its repetitions.
func (r *Readers) flows() {
	r.mu.Lock()
	joined := slices.Clone(r.joined)
	r.flowing = true
	r.mu.Unlock()
	for _, j := range joined {
		r.node.acknowledge(j)
	}
	r.node.acknowledge(r.first)
}

// Repeat answers a repetition of a call that has ended.
func (r *Readers) Repeat(record admit.Record) {
	j := r.first
	switch {
	case !record.Streamed:
		r.node.Replies.Answer(j, record)
	case j.Request.Delivery == codec.DeliverLive:
		r.node.acknowledge(j) // the chunks are in the store: the caller asks for them
	default:
		j.of, j.until, j.ended = r, math.MaxInt64, &record
		r.node.Go(j.read)
	}
}

// Join adds a repetition, the first of its own readers. It gets the call's answer at the end,
// at once if the call has ended in this instant.
func (r *Readers) Join(own *Readers) {
	j := own.first
	r.mu.Lock()
	if final := r.final; final != nil {
		r.mu.Unlock()
		own.Repeat(*final)
		return
	}
	j.of = r
	if j.until = math.MaxInt64; j.echoes() {
		j.until, j.over = r.last, r.last == 0
	}
	r.joined = slices.DeleteFunc(r.joined, func(old *Reader) bool {
		if j.Local || old.Reply != j.Reply {
			return false
		}
		old.probe.Close() // the same caller, which needs one answer only
		old.over = true
		return true
	})
	r.joined = append(r.joined, j)
	if j.wantsProgress() {
		r.wanted.Store(true)
	}
	s := r.stream.Load()
	items, flowing := !j.over && j.items(), r.flowing
	r.mu.Unlock()
	switch {
	case items:
		r.node.Go(j.read)
	case flowing:
		r.node.acknowledge(j)
	}
	if s != nil && j.Request.HasCredit {
		s.Grant(j.Request.Credit) // also a keepalive
	}
}

// echoes reports whether all further messages reach the reader's reply subject anyway, as it is
// that of the first caller.
func (j *Reader) echoes() bool {
	first := j.of.first
	return j != first && j.Reply == first.Reply && j.items() && j.Request.Delivery == first.Request.Delivery
}

// end gives a repetition the record.
func (j *Reader) end(record admit.Record) {
	r, items := j.of, j.items()
	r.mu.Lock()
	over := j.over
	j.ended, j.over = &record, over || !items
	j.probe.Close()
	r.wake()
	r.mu.Unlock()
	switch {
	case over || items: // it has all, or the store is read for it
	case record.Streamed:
		r.node.acknowledge(j)
	default:
		r.node.Replies.Answer(j, record)
	}
}

// End gives the call's outcome to all repetitions, present and later: the record of the first
// End, as the ticker may end a call whose handler does not return.
func (r *Readers) End(record admit.Record) {
	r.mu.Lock()
	joined := r.joined
	r.joined = nil
	if r.final == nil {
		r.final = &record
	}
	r.mu.Unlock()
	for _, j := range joined {
		j.end(record)
	}
}

// Report notes the call's progress, and tells the callers that asked to get it at once.
func (r *Readers) Report(p *codec.Progress) {
	r.progress.Store(p)
	if !r.wanted.Load() || !r.due.CompareAndSwap(false, true) {
		return
	}
	wait := time.Duration(r.next.Load() - bus.Mono(time.Now()))
	if wait <= 0 {
		r.tellProgress()
		return
	}
	r.later.Store(time.AfterFunc(wait, r.tellProgress))
}

// tellProgress sends the latest progress to the callers that asked to get it at once.
func (r *Readers) tellProgress() {
	if r.closed.Load() {
		return
	}
	r.next.Store(bus.Mono(time.Now()) + int64(progressEvery))
	r.due.Store(false) // later reports are sent later
	all, high := r.waiting()
	for i, j := range all { // the first caller and the latest others: the rest get it once a second
		if (i == 0 || i >= len(all)-mostAtOnce) && j.wantsProgress() {
			r.keepalive(j, high, "")
		}
	}
}

// KeepAlive sends keepalives with the progress, once a second, to the callers that asked for them
// and still wait for some of their answer.
func (r *Readers) KeepAlive(now time.Time) {
	unary := r.stream.Load() == nil
	all, high := r.waiting()
	if unary && len(all) > 0 && !r.Relayed.Load() && deserted(all, func(p *bus.Probe) bool { return p.Gone(callerGone) }) {
		r.call.End(errGone)
	}
	for _, j := range all {
		last := j.sent.Load()
		if j.Local || !j.Request.Keepalive || now.Sub(j.Start) < bus.KeepaliveEvery || last != 0 && bus.Mono(now)-last < int64(bus.KeepaliveEvery*7/8) {
			continue
		}
		j.sent.Store(bus.Mono(now))
		probe := ""
		if unary {
			probe = j.probe.Next(r.node.Store)
		}
		r.keepalive(j, high, probe)
	}
}

// keepalive tells a caller that the call runs, how many items are stored, and how far it is.
func (r *Readers) keepalive(j *Reader, high int64, probe string) {
	r.node.Replies.Send(&nats.Msg{Subject: j.Reply, Reply: probe, Header: nats.Header(j.Request.KeepaliveHeader(j.Identity, high, r.progress.Load()))})
}

// waiting returns the callers that have yet to get some of their answer, and the last stored
// item of a stream, -1 for a unary call.
func (r *Readers) waiting() (all []*Reader, high int64) {
	s, high := r.stream.Load(), int64(-1)
	if s != nil {
		high = s.writer.High()
	}
	if s != nil || !r.first.answered.Load() {
		all = append(all, r.first)
	}
	return r.others(all), high
}

// others appends the repetitions that need their own keepalives: their reply subject is not the
// first caller's.
func (r *Readers) others(all []*Reader) []*Reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.joined {
		if !j.over && (j.Reply != r.first.Reply || !r.first.Request.Keepalive) {
			all = append(all, j)
		}
	}
	return all
}

// Deserted reports whether the last keepalive to each caller met no subscription. A call that has
// waited must not begin then.
func (r *Readers) Deserted() bool {
	return deserted(r.others([]*Reader{r.first}), (*bus.Probe).NoSubscriber)
}

// deserted reports whether all callers of a unary call are gone. A caller that asked for no
// keepalives counts as present; calls with an idempotency key and those of durable tasks are
// asked for again later.
func deserted(all []*Reader, gone func(*bus.Probe) bool) bool {
	return !slices.ContainsFunc(all, func(j *Reader) bool {
		q := j.Request
		return j.Local || !q.Keepalive || q.Outlive || q.IdempotencyKey != "" || !gone(&j.probe)
	})
}

// Close ends the looking after a call that is over.
func (r *Readers) Close() {
	r.first.probe.Close()
	r.closed.Store(true)
	if later := r.later.Load(); later != nil {
		later.Stop()
	}
}

// wake has repetitions look for more; r.mu is held.
func (r *Readers) wake() {
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
}

// read sends the stored items to the reader, until it has all of them.
func (j *Reader) read() {
	r, next, misses := j.of, int64(1), 0
	for {
		r.mu.Lock()
		if j.over = j.over || next > j.until; j.over {
			r.mu.Unlock()
			return
		}
		if r.more == nil {
			r.more = make(chan struct{})
		}
		ended, more, stored := j.ended, r.more, next <= r.last
		r.mu.Unlock()
		switch {
		case stored || ended != nil && ended.Streamed:
		case ended != nil:
			j.fail(*ended)
			return
		default:
			select {
			case <-more:
			case <-r.node.Base.Done():
				return
			}
			continue
		}
		got, err := j.page(next)
		switch {
		case got > next:
			next, misses = got, 0
			continue
		case err != nil && (ended != nil || r.node.Base.Err() != nil || toolmesh.CodeOf(err) != toolmesh.CodeUnavailable && toolmesh.CodeOf(err) != toolmesh.CodeBusy):
			j.fail(admit.Record{Err: admit.Failure(err, toolmesh.StartedYes)})
			return
		case ended == nil: // the store lags, or does not answer the stream's writer either, or others read
		case !ended.Streamed:
			j.fail(*ended)
			return
		case misses == storeLooks:
			j.fail(admit.Record{Err: toolmesh.Errorf(toolmesh.CodeStreamExpired, "the stream's chunks are no longer kept").
				WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)})
			return
		default:
			misses++
		}
		wake.After(r.node.Base, storeLag)
	}
}

// page sends the reader the next chunks that are stored, and returns which one is next
// then. So many replays at once that no more would help hold as many pages in memory.
func (j *Reader) page(next int64) (got int64, err error) {
	n, read := j.of.node, make(chan func(), 1)
	if !n.Replays.Do(n.Account(j.Request.Session), func() {
		at, bad := j.readPage(next)
		read <- func() { got, err = at, bad }
	}) {
		return next, toolmesh.Errorf(toolmesh.CodeBusy, "too many replays of session %q wait at node %s: send it again later", j.Request.Session, n.ID).WithDetail("limit", "replays")
	}
	select {
	case set := <-read:
		set()
		return got, err
	case <-n.Base.Done():
		return next, context.Cause(n.Base)
	}
}

func (j *Reader) readPage(next int64) (int64, error) {
	r, n := j.of, j.of.node
	ctx, cancel := context.WithTimeout(n.Base, finishWithin)
	defer cancel()
	epoch, err := r.call.Epoch(ctx) // a repetition of an ended call has to look it up
	if err != nil {
		return next, err
	}
	r.mu.Lock()
	r.epoch = epoch
	r.mu.Unlock()
	page, err := n.Store.Read(ctx, j.Request.Session, j.Request.RPCID, epoch, codec.ReplayRequest{FromSeq: next, MaxBytes: codec.DefaultReplayBytes})
	if err != nil {
		return next, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range page.Chunks {
		c, err := codec.ParseChunk(codec.Header(m.Header), m.Data)
		switch {
		case err != nil || c.Seq < next:
			continue
		case j.over || c.Seq > j.until || c.Seq > next && j.ended == nil: // the one between is on its way to the store once more
			return next, nil
		}
		r.send(j, c)
		if next = c.Seq + 1; c.Terminal() {
			j.over = true
			j.probe.Close()
		}
	}
	return next, nil
}

// fail answers a reader instead of its missing items.
func (j *Reader) fail(record admit.Record) {
	j.of.mu.Lock()
	over := j.over
	j.over = true
	j.probe.Close()
	j.of.mu.Unlock()
	if !over {
		j.of.node.Replies.Answer(j, record)
	}
}
