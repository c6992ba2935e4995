package grants

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/lane"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// term is this node's time as the owner of a domain.
type term struct {
	since    time.Time // start of the lease that it depends on; zero for the lanes of a node
	revision uint64    // of the record
	written  time.Time
	opens    time.Time // no grants before: an earlier owner's may be valid
	queue    lane.Queue
	turns    map[string]*turn
	rules    map[rule]int // number of turns by rule
	fence    uint64       // the last one

	// Of a home.
	id       string
	workers  string   // the newest in a call
	replaced []string // the earlier ones
	moved    bool     // another node, or other workers, had it, and no call was told
}

// rule is a way to derive keys from the calls of a tool.
type rule struct {
	tool subjects.ToolID
	text string
}

// turn is a call that holds a lane or waits for it.
type turn struct {
	heldTurn
	rule    rule
	above   []string
	at      *lane.Turn
	granted bool
	until   time.Time // the holder has stopped by then
	heard   time.Time // last request of the waiting call
	n       uint64    // of that request
	answer  func(codec.LaneAnswer)
}

func newTerm(since time.Time, revision uint64, opens time.Time) *term {
	return &term{since: since, revision: revision, written: time.Now(), opens: opens, turns: make(map[string]*turn), rules: make(map[rule]int), fence: revision << 32}
}

// stands returns until when a term is valid, and whether it is; k.mu is held. A term that was
// uncertain once has ended, even if the lease is renewed later.
func (k *Lanes) stands(d *domain, now time.Time) (until time.Time, ok bool) {
	t := d.term
	if t == nil {
		return time.Time{}, false
	}
	if d.key.node {
		return now.Add(forEver), true
	}
	since, until := k.opts.Presence.Held()
	if since.Equal(t.since) && now.Before(until) && now.Round(0).Before(until.Round(0)) && now.Sub(t.written) < writtenFor {
		return until, true
	}
	return time.Time{}, false
}

// serve decides on a request; it calls answer at once or later, and once more when a wait is
// over.
func (k *Lanes) serve(key domainKey, req *codec.LaneRequest, answer func(codec.LaneAnswer)) {
	var out outbox
	now := time.Now()
	k.mu.Lock()
	d := k.domains[key]
	if d == nil {
		d = &domain{key: key}
	}
	until, ok := k.stands(d, now)
	switch {
	case !ok:
		if req.Type != codec.LaneRelease {
			elsewhere := codec.LaneAnswer{State: codec.LaneElsewhere, N: req.N, Gone: nil}
			if req.Type == codec.LaneAsk {
				elsewhere.ID = req.IDs[0]
			}
			out.add(func() { answer(elsewhere) })
		}
	case req.Type == codec.LaneAsk:
		d.used = now
		k.ask(d, req, now, until, answer, &out)
	case req.Type == codec.LaneRenew:
		d.used = now
		k.renewTurns(d.term, req, now, until, answer, &out)
	case req.Type == codec.LaneRelease:
		d.used = now
		for _, id := range req.IDs {
			if t := d.term.turns[id]; t != nil {
				k.drop(d, t, now, until, &out)
			}
		}
	}
	k.mu.Unlock()
	out.send()
}

// ask adds a waiting call; k.mu is held.
func (k *Lanes) ask(d *domain, req *codec.LaneRequest, now, until time.Time, answer func(codec.LaneAnswer), out *outbox) {
	id := req.IDs[0]
	t := d.term.turns[id]
	if t == nil {
		t = &turn{rule: rule{req.Tool, req.Rule}, above: req.Above}
		t.heldTurn = heldTurn{ID: id, By: owner{req.Node, req.Boot}, Key: lane.Key{Place: req.Place, Read: req.Read}}
		if d.term.rules[t.rule]++; d.term.declaredOtherwise(t.rule) {
			t.Key = lane.Key{}
		}
		t.at = d.term.queue.Add(t.Key, t)
		if bad := d.term.circle(t); bad != nil {
			k.end(d, t, now, until, out)
			out.add(func() { answer(codec.LaneAnswer{State: codec.LaneRefused, ID: id, N: req.N, Error: bad}) })
			return
		}
		d.term.turns[id] = t
	}
	t.heard, t.n, t.answer = now, req.N, answer
	if t.granted {
		t.until = until
		out.add(t.grant())
		return
	}
	if k.tryGrant(d, t, now, until, out); !t.granted {
		out.add(func() { answer(codec.LaneAnswer{State: codec.LaneWaiting, ID: id, N: req.N}) })
	}
}

// tryGrant grants a lane to a call if it is next; k.mu is held.
func (k *Lanes) tryGrant(d *domain, t *turn, now, until time.Time, out *outbox) {
	if t.granted || !t.at.Ready() || now.Before(d.term.opens) {
		return
	}
	d.term.fence++
	t.granted, t.Fence, t.until = true, d.term.fence, until
	out.add(t.grant())
}

// grant sends the grant. Its validity counts from when the last request was sent, which was
// before it arrived.
func (t *turn) grant() func() {
	answer := t.answer
	a := codec.LaneAnswer{State: codec.LaneGranted, ID: t.ID, N: t.n, MS: t.until.Sub(t.heard).Milliseconds(), Fence: t.Fence}
	return func() { answer(a) }
}

// declaredOtherwise reports whether calls of a tool with another rule exist.
func (t *term) declaredOtherwise(of rule) bool {
	for other := range t.rules {
		if other.tool == of.tool && other != of {
			return true
		}
	}
	return false
}

// circle returns an error if a call would never get its lane, because calls that it waits for
// wait for it. k.mu is held.
func (t *term) circle(of *turn) *toolmesh.Error {
	above := t.held(of)
	if of.at.Ready() || len(above) == 0 {
		return nil
	}
	var from []*lane.Turn
	for _, a := range above {
		if lane.Overlap(a.Key, of.Key) {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the call would wait for itself: one of its callers holds the same lane until this call ends").
				WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent).WithDetail("limit", limitLanes)
		}
		from = append(from, a.at)
	}
	holds := func(at *lane.Turn) (all []*lane.Turn) {
		if waiting, ok := at.Value.(*turn); ok {
			for _, a := range t.held(waiting) {
				all = append(all, a.at)
			}
		}
		return all
	}
	if !of.at.Circle(from, holds) {
		return nil
	}
	return toolmesh.Errorf(toolmesh.CodeBusy, "the call would wait in a circle: a call ahead of it in the lane waits for a lane that a caller of this one holds").
		WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent).WithDetail("limit", limitLanes)
}

// held are the lanes in this domain that calls above a call hold.
func (t *term) held(of *turn) (all []*turn) {
	for _, id := range of.above {
		if a := t.turns[id]; a != nil && a.granted {
			all = append(all, a)
		}
	}
	return all
}

// renewTurns extends holds, and answers with those that the term does not have; k.mu is held.
func (k *Lanes) renewTurns(t *term, req *codec.LaneRequest, now, until time.Time, answer func(codec.LaneAnswer), out *outbox) {
	a := codec.LaneAnswer{State: codec.LaneRenewed, N: req.N, MS: until.Sub(now).Milliseconds()}
	for _, id := range req.IDs {
		if turn := t.turns[id]; turn != nil && turn.granted {
			turn.until = until
		} else {
			a.Gone = append(a.Gone, id)
		}
	}
	out.add(func() { answer(a) })
}

// drop ends a hold or a wait; k.mu is held.
func (k *Lanes) drop(d *domain, t *turn, now, until time.Time, out *outbox) {
	delete(d.term.turns, t.ID)
	k.end(d, t, now, until, out)
}

func (k *Lanes) end(d *domain, t *turn, now, until time.Time, out *outbox) {
	if d.term.rules[t.rule]--; d.term.rules[t.rule] <= 0 {
		delete(d.term.rules, t.rule)
	}
	for _, next := range d.term.queue.Done(t.at) {
		if waiting, ok := next.Value.(*turn); ok {
			k.tryGrant(d, waiting, now, until, out)
		}
	}
}

// tickTerm maintains a domain that this node owns; k.mu is held.
func (k *Lanes) tickTerm(d *domain, now time.Time, out *outbox) {
	until, ok := k.stands(d, now)
	t := d.term
	if !ok {
		if d.key.index == "" {
			k.opts.Log.Warn("lanes are given up: the lease of this node was not renewed", slog.String("session", string(d.key.session)))
		}
		k.resign(d, out)
		return
	}
	for _, turn := range t.turns {
		switch {
		case d.key.node: // only this node knows of them
		case turn.granted && now.After(turn.until.Add(margin)):
			k.opts.Log.Warn("lane is taken back: its holder does not answer", slog.String("node", string(turn.By.Node)))
			k.drop(d, turn, now, until, out)
		case !turn.granted && now.Sub(turn.heard) > askedFor && now.After(k.grace):
			k.drop(d, turn, now, until, out)
		}
	}
	if !t.opens.IsZero() && !now.Before(t.opens) {
		t.opens = time.Time{}
		for _, turn := range t.turns {
			k.tryGrant(d, turn, now, until, out)
		}
	}
	keep := keepFor
	if d.key.index != "" {
		keep = homeFor
	}
	switch {
	case d.key.node || d.looking != nil:
	case len(t.turns) == 0 && d.calls == 0 && now.Sub(d.used) > keep:
		revision := t.revision
		d.term = nil
		k.look(d, func(ctx context.Context) error { return k.opts.Bus.Delete(ctx, d.key.record(), revision) })
	case now.Sub(t.written) > writeEvery:
		revision := t.revision
		k.look(d, func(ctx context.Context) error {
			next, err := k.opts.Bus.Update(ctx, d.key.record(), encodeRecord(record{owner: k.self(), ID: t.id}), revision, 0)
			if err == nil {
				k.mu.Lock()
				defer k.mu.Unlock()
				if d.term == t {
					t.revision, t.written = next, now
				}
			}
			return err
		})
	}
}

// resign ends a term: waiting calls ask the next owner. k.mu is held.
func (k *Lanes) resign(d *domain, out *outbox) {
	for _, t := range d.term.turns {
		if !t.granted && t.answer != nil {
			answer, elsewhere := t.answer, codec.LaneAnswer{State: codec.LaneElsewhere, ID: t.ID, N: t.n}
			out.add(func() { answer(elsewhere) })
		}
	}
	d.term = nil
}

// record is the owner of a domain, in MESH_LANES.
type record struct {
	owner
	// Left are the holds of a domain that its owner left in order and that has no owner. Wait tells
	// that they are unknown.
	Left []heldTurn `json:"left,omitempty"`
	Wait bool       `json:"wait,omitempty"`
	// ID is that of a home; see [Home].
	ID string `json:"id,omitempty"`
}

// heldTurn is the part of a turn that the next owner needs.
type heldTurn struct {
	ID string `json:"id"`
	By owner  `json:"by"`
	lane.Key
	Fence uint64 `json:"fence"`
}

func encodeRecord(r record) []byte {
	data, _ := tool.MarshalPlain(r) // texts and numbers
	return data
}

// record is the key of a domain's record.
func (key domainKey) record() store.Key {
	name, _ := subjects.LaneKey(key.session) // a session with calls has a valid name
	if key.index != "" {
		name, _ = subjects.HomeKey(key.session, key.epoch, key.index)
	}
	return store.Key{Bucket: subjects.BucketLanes, Name: name}
}

func (k *Lanes) self() owner { return owner{k.opts.Node, k.opts.Boot} }

// find returns the owner of a domain, and asks the store while it is unknown. A domain without an
// owner becomes this node's, unless claim is false: then the owner is empty.
func (k *Lanes) find(ctx context.Context, key domainKey, claim bool) (owner, error) {
	for asked := false; ; asked = true {
		k.mu.Lock()
		d := k.domain(key)
		d.used = time.Now()
		if _, ok := k.stands(d, d.used); ok {
			k.mu.Unlock()
			return k.self(), nil
		}
		if who := d.owner; who != (owner{}) || asked && !claim {
			k.mu.Unlock()
			return who, nil
		}
		if d.looking == nil {
			k.look(d, func(ctx context.Context) error { return k.claim(ctx, d, claim) })
		}
		looking := d.looking
		k.mu.Unlock()
		select {
		case <-looking:
		case <-ctx.Done():
			return owner{}, context.Cause(ctx)
		}
		k.mu.Lock()
		err := d.failed
		d.failed = nil
		k.mu.Unlock()
		if err != nil {
			return owner{}, err
		}
	}
}

// look makes a request to the store about a domain, one at a time; k.mu is held.
func (k *Lanes) look(d *domain, ask func(context.Context) error) {
	looking := make(chan struct{})
	d.looking, d.failed = looking, nil
	k.opts.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), storeWait)
		err := ask(ctx)
		cancel()
		k.mu.Lock()
		d.failed, d.looking = err, nil
		k.mu.Unlock()
		close(looking)
	})
}

// claim makes this node the owner of a domain, or finds the owner; without take it only finds
// it.
func (k *Lanes) claim(ctx context.Context, d *domain, take bool) error {
	key, mine := d.key.record(), record{owner: k.self()}
	k.mu.Lock()
	left, full := k.left, d.key.index != "" && k.full(d.key)
	k.mu.Unlock()
	if d.key.index != "" {
		mine.ID = newID()
	}
	var since time.Time
	if take {
		if full {
			return errHomes
		}
		if err := k.opts.Presence.Rely(ctx); err != nil {
			return err
		}
		var until time.Time
		since, until = k.opts.Presence.Held()
		if left || !time.Now().Before(until) {
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "the node has no lease, so it cannot grant lanes or keep workers of sessions: the registry is not reachable").WithStarted(toolmesh.StartedNo)
		}
		revision, err := k.opts.Bus.Create(ctx, key, encodeRecord(mine), 0)
		if !errors.Is(err, store.ErrConflict) {
			return k.own(d, newTerm(since, revision, time.Time{}), &mine, err)
		}
	}
	entry, err := k.opts.Bus.Latest(ctx, key)
	if errors.Is(err, store.ErrNoKey) {
		return nil // just deleted: find looks again
	}
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(entry.Value, &r); err != nil {
		r = record{Wait: true} // its owner is unknown
	}
	var opens time.Time
	switch now := time.Now(); {
	case r.Node == "" && !r.Wait:
	case r.Node == "", r.owner == k.self():
		opens = now.Add(standsFor) // grants of an earlier term may be valid
	default:
		lost, expired, err := k.opts.Presence.NodeLost(ctx, r.Node, r.Boot)
		if err != nil {
			return err
		}
		if !lost {
			k.mu.Lock()
			d.owner = r.owner
			k.mu.Unlock()
			return nil
		}
		if !expired {
			opens = now.Add(standsFor)
		}
	}
	if !take {
		return nil
	}
	if r.owner == mine.owner {
		mine.ID = r.ID // no other node had it since
	}
	revision, err := k.opts.Bus.Update(ctx, key, encodeRecord(mine), entry.Revision, 0)
	if errors.Is(err, store.ErrConflict) {
		return nil // another node was faster
	}
	t := newTerm(since, revision, opens)
	t.moved = r.owner != mine.owner
	mine.Left = r.Left
	return k.own(d, t, &mine, err)
}

// own begins a term with the record that was written.
func (k *Lanes) own(d *domain, t *term, r *record, err error) error {
	if err != nil {
		return err
	}
	held := r.Left
	t.id = r.ID
	k.mu.Lock()
	defer k.mu.Unlock()
	until := time.Now().Add(standsFor)
	slices.SortFunc(held, func(a, b heldTurn) int { return cmp.Compare(a.Fence, b.Fence) })
	for _, h := range held {
		turn := &turn{heldTurn: h, granted: true, until: until}
		turn.at = t.queue.Add(h.Key, turn)
		t.turns[h.ID] = turn
	}
	d.term, d.owner, d.used = t, owner{}, time.Now()
	k.opts.Log.Debug("this node owns lanes now", slog.String("session", string(d.key.session)),
		slog.Int("held", len(held)), slog.Duration("wait", max(time.Until(t.opens), 0)))
	return nil
}

// disown forgets the owner of a domain, so that the store is asked again.
func (k *Lanes) disown(key domainKey, who owner) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.domains[key]; d != nil && d.owner == who {
		d.owner = owner{}
	}
}

// Leave hands over all domains of this node, which stops and runs no call. ctx bounds its
// writes.
func (k *Lanes) Leave(ctx context.Context) {
	k.mu.Lock()
	k.left = true
	k.mu.Unlock()
	k.handOver(ctx, func(key domainKey) bool { return !key.node })
	k.mu.Lock()
	inbox := k.inbox
	k.mu.Unlock()
	if inbox != nil {
		inbox.Close()
	}
}

// handOver gives up domains that this node owns, and writes their holds to the records.
func (k *Lanes) handOver(ctx context.Context, meant func(domainKey) bool) {
	type leaving struct {
		home     bool
		key      store.Key
		revision uint64
		record   record
	}
	var all []leaving
	var out outbox
	now := time.Now()
	k.mu.Lock()
	for _, d := range k.domains {
		if _, ok := k.stands(d, now); !ok || !meant(d.key) {
			continue
		}
		l := leaving{home: d.key.index != "", key: d.key.record(), revision: d.term.revision}
		for _, t := range d.term.turns {
			if t.granted {
				l.record.Left = append(l.record.Left, t.heldTurn)
			}
		}
		all = append(all, l)
		k.resign(d, &out)
	}
	k.mu.Unlock()
	for _, l := range all {
		var err error
		data := encodeRecord(l.record)
		switch {
		case l.home: // a call must be told that it existed
			_, err = k.opts.Bus.Update(ctx, l.key, data, l.revision, homeFor)
		case len(l.record.Left) == 0:
			err = k.opts.Bus.Delete(ctx, l.key, l.revision)
		default:
			if _, err = k.opts.Bus.Update(ctx, l.key, data, l.revision, 0); err != nil && toolmesh.CodeOf(err) == toolmesh.CodePayloadTooLarge {
				_, err = k.opts.Bus.Update(ctx, l.key, encodeRecord(record{Wait: true}), l.revision, 0)
			}
		}
		if err != nil {
			k.opts.Log.Warn("lanes, or a session's worker, could not be handed over: the next owner waits for the end of this node's lease", slog.String("key", l.key.Name), slog.String("error", err.Error()))
		}
		if ctx.Err() != nil {
			break
		}
	}
	out.send()
}
