package stream

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
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

	keepaliveEvery = time.Second
	// callerGone is for how long no keepalive may meet the caller of a unary call: one that
	// has no connection for 2.5 s gives its call up.
	callerGone = 5 * time.Second
)

// Readers are all that read one call: its first caller, and those that repeat the
// request while it runs. A unary call has them as well. Its methods may be called
// concurrently.
type Readers struct {
	node   *Node
	call   Call
	first  *Reader
	stream atomic.Pointer[Stream] // nil for a unary call, and before the handler runs

	progress atomic.Pointer[codec.Progress] // nil until the tool says how far it is

	mu      sync.Mutex // guards what follows, and what its readers say it does
	joined  []*Reader  // repetitions, the newest last
	flowing bool       // it has been acknowledged
	last    int64      // Seq that is stored and delivered
	epoch   string     // of the session, from the stream's beginning
}

// Init makes a call's readers, of which first is the only one.
func (r *Readers) Init(node *Node, call Call, first *Reader) {
	r.node, r.call, r.first = node, call, first
}

// Stream is the call's stream, or nil.
func (r *Readers) Stream() *Stream { return r.stream.Load() }

// Reader is one that reads a call: its first caller, or a repetition. A repetition
// that wants items on its reply subject is sent what is stored, by a goroutine of its
// own, and once it has all of that each further item as it comes, like the first
// caller. It never holds the stream up: what it has yet to get is in the store.
type Reader struct {
	// Set before the call is admitted, and then read by anyone.
	Request  *codec.Request
	Reply    string
	Identity *codec.Identity // of the answers to it
	Start    time.Time       // when it arrived
	// Local takes the answer of a call that no message has brought; nil for all others.
	Local func(admit.Record)

	answered  atomic.Bool  // it has its one answer, or it is being sent
	keepalive atomic.Int64 // when the last one was sent, as [bus.Mono]
	probe     probe
	misses    int // looks in a row that found no more of a call that has ended

	settleMu sync.Mutex
	settled  bool     // what it repeats has ended
	of       *Readers // of the call that it repeats; nil for a first caller

	// Guarded by of.mu, for a repetition.
	next    int64         // Seq of the chunk that it gets next
	reading bool          // a goroutine reads the store for it
	dropped bool          // it is no longer among those that the call looks after
	over    bool          // it has all that it gets
	ended   *admit.Record // what the call ended with; nil while it runs
}

// Claim reports whether the caller has no answer yet: the one that asks has to send
// it. It does so once.
func (j *Reader) Claim() bool { return j.answered.CompareAndSwap(false, true) }

// items reports whether a reader is sent items on its reply subject.
func (j *Reader) items() bool {
	return j.Request.Delivery == codec.DeliverInbox || j.Request.Delivery == codec.DeliverEnvelope
}

// send sends a chunk to a reader's reply subject; of.mu is held.
func (r *Readers) send(j *Reader, chunk codec.Chunk) {
	msg := &nats.Msg{Subject: j.Reply, Reply: j.probe.subject(r.node.Store, j.Request, &chunk)}
	if j.Request.Delivery == codec.DeliverEnvelope {
		h, body := j.Request.Encode(nil, chunk.Envelope(j.Request))
		msg.Header, msg.Data = nats.Header(h), body
	} else {
		h, body := j.Request.Encode(chunk.Encode(j.Request.RPCID, r.epoch))
		msg.Header, msg.Data = nats.Header(h), body
	}
	r.node.Host.Send(msg)
	if chunk.Terminal() && j.Request.Delivery == codec.DeliverInbox {
		r.node.Host.Send(&nats.Msg{Subject: j.Reply})
	}
}

// acknowledge tells the caller of a live stream, once, that its chunks are in the store.
func (n *Node) acknowledge(j *Reader) {
	if j.Request.Delivery == codec.DeliverLive && j.Claim() {
		n.Host.Acknowledge(j)
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
		r.node.Host.Answer(j, record)
	case j.Request.Delivery == codec.DeliverLive:
		r.node.acknowledge(j) // the chunks are in the store: the caller asks for them
	default:
		j.of, j.next, j.reading, j.ended = r, 1, true, &record
		r.node.Host.Go(j.read)
	}
}

// Join looks after a repetition, the first of its own readers, until the call has its
// answer.
func (r *Readers) Join(own *Readers) {
	j := own.first
	r.mu.Lock()
	j.settleMu.Lock()
	settled := j.settled
	if !settled {
		j.of, j.next = r, 1
	}
	j.settleMu.Unlock()
	if settled {
		r.mu.Unlock()
		return // the call has ended in this instant, and Settle has answered
	}
	for _, old := range r.joined {
		if old.Reply == j.Reply {
			old.drop() // the same caller, which needs to hear it once
			old.over = old.over || old.items()
		}
	}
	r.joined = slices.DeleteFunc(append(r.joined, j), func(j *Reader) bool { return j.dropped })
	if len(r.joined) > maxJoined {
		r.joined[0].drop()
		r.joined = slices.Delete(r.joined, 0, 1)
	}
	s := r.stream.Load()
	j.reading = r.last > 0 && j.items()
	j.over = !j.reading && j.echoes()
	reading, flowing := j.reading, r.flowing
	r.mu.Unlock()
	switch {
	case reading:
		r.node.Host.Go(j.read)
	case flowing:
		r.node.acknowledge(j)
	}
	if s != nil && j.Request.HasCredit {
		s.Grant(j.Request.Credit) // and a sign of life
	}
}

// echoes reports whether all that comes from now on is sent to the reader's reply
// subject anyway, as it is that of the first caller.
func (j *Reader) echoes() bool {
	first := j.of.first
	return j != first && j.Reply == first.Reply && j.items() && j.Request.Delivery == first.Request.Delivery
}

// Settle gives a repetition what its call ended with; r are its own readers.
func (r *Readers) Settle(record admit.Record) {
	j := r.first
	j.settleMu.Lock()
	j.settled = true
	joined := j.of != nil
	j.settleMu.Unlock()
	if joined {
		j.end(record)
	} else {
		r.Repeat(record)
	}
}

// end gives a repetition the record, once; of a call whose handler does not return
// the ticker may be first.
func (j *Reader) end(record admit.Record) {
	r := j.of
	r.mu.Lock()
	if j.over || j.ended != nil {
		r.mu.Unlock()
		return
	}
	j.ended = &record
	j.probe.close()
	items := j.items()
	j.over = !items
	read := items && !j.reading
	j.reading = items
	r.mu.Unlock()
	switch {
	case read:
		r.node.Host.Go(j.read)
	case items: // it is being read for
	case record.Streamed:
		r.node.acknowledge(j)
	default:
		r.node.Host.Answer(j, record)
	}
}

// End ends all repetitions of a call whose handler does not return.
func (r *Readers) End(record admit.Record) {
	r.mu.Lock()
	joined := slices.Clone(r.joined)
	r.mu.Unlock()
	for _, j := range joined {
		j.end(record)
	}
}

// Report notes how far the call says that it is.
func (r *Readers) Report(p *codec.Progress) { r.progress.Store(p) }

// KeepAlive tells the callers that asked for it, once a second, that the call runs, and
// how far it is: all that have yet to get some of their answer.
func (r *Readers) KeepAlive(now time.Time) {
	s, high := r.stream.Load(), int64(-1)
	if s != nil {
		high = s.writer.High()
	}
	var all []*Reader
	if s != nil || !r.first.answered.Load() {
		all = append(all, r.first)
	}
	r.mu.Lock()
	for _, j := range r.joined {
		if !j.over && (j.Reply != r.first.Reply || !r.first.Request.Keepalive) {
			all = append(all, j)
		}
	}
	r.mu.Unlock()
	progress := r.progress.Load()
	if s == nil && len(all) > 0 && deserted(all, callerGone) {
		r.call.End(errGone)
	}
	for _, j := range all {
		last := j.keepalive.Load()
		if j.Local != nil || !j.Request.Keepalive || now.Sub(j.Start) < keepaliveEvery || last != 0 && bus.Mono(now)-last < int64(keepaliveEvery*7/8) {
			continue
		}
		j.keepalive.Store(bus.Mono(now))
		probe := ""
		if s == nil {
			probe = j.probe.next(r.node.Store)
		}
		r.node.Host.Send(&nats.Msg{Subject: j.Reply, Reply: probe, Header: nats.Header(j.Request.KeepaliveHeader(j.Identity, high, progress))})
	}
}

// Deserted reports whether the last keepalive to each caller met nobody. A call that has
// waited is not to begin then.
func (r *Readers) Deserted() bool {
	r.mu.Lock()
	all := slices.DeleteFunc(append(slices.Clone(r.joined), r.first), func(j *Reader) bool { return j.over })
	r.mu.Unlock()
	return deserted(all, 0)
}

// deserted reports whether no caller of a unary call has been there for a time. One that
// asked for no keepalives may be there, and for one with an idempotency key, or of a
// durable task, somebody else will ask.
func deserted(all []*Reader, since time.Duration) bool {
	return !slices.ContainsFunc(all, func(j *Reader) bool {
		q := j.Request
		return j.Local != nil || !q.Keepalive || q.Outlive || q.IdempotencyKey != "" || !j.probe.gone(since)
	})
}

// Close ends the looking after a call that is over.
func (r *Readers) Close() { r.first.probe.close() }

// drop leaves a reader to the call's end; of.mu is held.
func (j *Reader) drop() {
	j.dropped = true
	j.probe.close()
}

// tails reports whether a reader is sent the items as they come; of.mu is held.
func (j *Reader) tails() bool {
	return !j.reading && !j.dropped && !j.over && j.items()
}

// deliver sends the reader its next chunk; of.mu is held.
func (j *Reader) deliver(c codec.Chunk) {
	j.of.send(j, c)
	j.next = c.Seq + 1
	if c.Terminal() {
		j.over = true
		j.probe.close()
	}
}

// read sends the reader what is stored, until it has all of it.
func (j *Reader) read() {
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

// running reports whether the reader's call goes on, and with it what stores its
// items: while that waits for a store that does not answer, so does the reader.
func (j *Reader) running() bool {
	j.of.mu.Lock()
	defer j.of.mu.Unlock()
	return j.ended == nil && j.of.node.Base.Err() == nil
}

// page sends the reader the next chunks that are stored. So many replays at once
// that no more would help hold as many pages in memory.
func (j *Reader) page(from int64) error {
	n, read := j.of.node, make(chan error, 1)
	if !n.Replays.Do(n.Account(j.Request.Session), func() { read <- j.readPage(from) }) {
		return toolmesh.Errorf(toolmesh.CodeBusy, "too many replays of session %q wait at node %s: send it again later", j.Request.Session, n.ID).WithDetail("limit", "replays")
	}
	select {
	case err := <-read:
		return err
	case <-n.Base.Done():
		return context.Cause(n.Base)
	}
}

func (j *Reader) readPage(from int64) error {
	n := j.of.node
	ctx, cancel := context.WithTimeout(n.Base, finishWithin)
	defer cancel()
	epoch, err := j.of.call.Epoch(ctx) // is asked for by one that repeats what has ended
	if err != nil {
		return err
	}
	j.of.mu.Lock()
	j.of.epoch = epoch
	j.of.mu.Unlock()
	page, err := n.Store.Read(ctx, j.Request.Session, j.Request.RPCID, epoch, codec.ReplayRequest{FromSeq: from, MaxBytes: codec.DefaultReplayBytes})
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
// ended with when it has no more than the reader.
func (j *Reader) from() (int64, *admit.Record) {
	j.of.mu.Lock()
	defer j.of.mu.Unlock()
	if j.ended != nil && !j.ended.Streamed && j.next > j.of.last {
		return 0, j.ended
	}
	return j.next, nil
}

// take sends the reader a chunk that was read, and reports whether the next one
// may follow.
func (j *Reader) take(c codec.Chunk) bool {
	j.of.mu.Lock()
	defer j.of.mu.Unlock()
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

// behind reports whether the store has to be read on for the reader, after it was
// read from a Seq on.
func (j *Reader) behind(from int64) bool {
	j.of.mu.Lock()
	got, all, ended := j.next > from, j.next > j.of.last, j.ended
	if ended == nil && (all || j.dropped) {
		j.reading = false // it tails now, or waits for the end
		j.over = j.over || all && j.echoes()
	}
	on := j.reading && !j.over
	j.of.mu.Unlock()
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
func (j *Reader) pause() {
	select {
	case <-time.After(storeLag):
	case <-j.of.node.Base.Done():
	}
}

// fail answers a reader in place of what it has not got.
func (j *Reader) fail(record admit.Record) {
	j.of.mu.Lock()
	over := j.over
	j.over = true
	j.probe.close()
	j.of.mu.Unlock()
	if !over {
		j.of.node.Host.Answer(j, record)
	}
}
