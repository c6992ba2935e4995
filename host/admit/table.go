package admit

import (
	"encoding/json"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Limits of PROTOCOL sections 2 and 7.
const (
	keepResults  = 2 * time.Minute
	maxResults   = 10_000
	maxKept      = 64 << 20
	maxOneResult = 8 << 20
	keepCancels  = 30 * time.Second
	maxCancels   = 10_000
)

// LimitSlots is what a busy error's details say as their limit when the node has no
// slot: unlike other reasons to be busy, this one passes by itself.
const LimitSlots = "slots"

// Key names a call. The RPC alone names it on a node: under one that is taken,
// another session is another call, which is refused. What is done to a call by
// its key, as a cancel, needs the session as well.
type Key struct {
	Session subjects.SessionID
	RPC     subjects.RPCID
}

// Request identifies a call well enough to tell a repetition from a collision:
// all of it must agree.
type Request struct {
	Key   Key // an empty RPC is a call that nobody can repeat or cancel
	Tool  subjects.ToolID
	Epoch string // of the session
	// Unsettled: the epoch is not known yet. Any one will do.
	Unsettled bool
	Stream    bool   // its answer is a stream, whatever the delivery
	Digest    Digest // of its body
	// Depth is how many calls are above it. A repetition need not agree in it.
	Depth int
}

// Digest tells bodies apart, within this process only: who sends them does not
// know its seeds.
type Digest [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// DigestOf returns the digest of a request's body.
func DigestOf(body []byte) Digest {
	return Digest{maphash.Bytes(seeds[0], body), maphash.Bytes(seeds[1], body)}
}

// Record is what a call ended with: a result, or an error. Streamed is set for
// a call whose chunks are in the store instead.
type Record struct {
	Result   json.RawMessage
	Err      *toolmesh.Error
	Streamed bool
}

// Verdict is what to do with a request.
type Verdict uint8

// The verdicts.
const (
	// Run: the call is new and has a slot; [Table.Finish] gives it back.
	Run Verdict = iota
	// Join: the same call runs; the waiter given to Begin gets its record.
	Join
	// Repeat: the same call has ended; its record is returned.
	Repeat
	// Refuse: the error says why.
	Refuse
)

// Call is a call in flight. Its fields are set by Begin and never change; T is
// what the host knows of it.
type Call[T any] struct {
	Request
	Value   T
	waiters []func(Record)
	depth   int
	place   int  // in the table's running; -1 when it has ended
	ordered bool // to end: its cancel came
	vacated bool // its slot is free already
	entry   *entry[T]
}

// entry is a name that is taken: by a call that runs, or by one that has ended
// and is kept.
type entry[T any] struct {
	hash    uint64
	next    *entry[T] // of the same hash
	named   bool      // names holds it
	running *Call[T]  // nil once it has ended
	request Request
	record  Record
	size    int
	dropped bool // the record was too large to keep
	ended   time.Time
}

// Table is a node's calls. The zero value is not usable; see [NewTable]. Its
// methods may be called concurrently.
type Table[T any] struct {
	slots int
	now   func() time.Time

	seed maphash.Seed

	mu      sync.Mutex
	running []*Call[T]
	vacated int                  // of running: those without a slot
	deep    map[int]int          // how many of running are nested and have a slot, by depth
	names   map[uint64]*entry[T] // by hash of the rpc id: a table of texts is slow to search and to collect
	spare   []entry[T]           // made together, as they are forgotten together
	ring    []*entry[T]          // those that have ended, in order, from head on
	head    int
	whole   int // index of the first of ring whose record may not be dropped yet
	size    int
	cancels map[Key]time.Time
}

// NewTable returns a table for a node that runs at most slots calls at once, and
// as many of each depth of nested ones: a call waits for deeper ones only, so
// that none waits for a slot that it holds itself.
// now is time.Now unless a test says otherwise.
func NewTable[T any](slots int, now func() time.Time) *Table[T] {
	return &Table[T]{
		slots: slots, now: now,
		seed: maphash.MakeSeed(), names: make(map[uint64]*entry[T]), cancels: make(map[Key]time.Time),
	}
}

// Begin decides on a request. For Run it returns the call, which holds value;
// for Repeat the record; for Refuse the error, which has started set. For Join,
// waiter is called once, when the running call ends, with its record.
func (t *Table[T]) Begin(r Request, value T, waiter func(Record)) (Verdict, *Call[T], Record, *toolmesh.Error) {
	depth := r.Depth
	r.Depth = 0
	t.mu.Lock()
	defer t.mu.Unlock()
	var hash uint64
	var old *entry[T]
	if r.Key.RPC != "" {
		hash = t.hash(r.Key.RPC)
		old = t.find(hash, r.Key.RPC)
		if verdict, c, record, err := t.repeated(old, r, waiter); verdict != Run {
			return verdict, c, record, err
		}
		if at, ok := t.cancelled(r.Key); ok && t.now().Sub(at) < keepCancels {
			return Refuse, nil, Record{}, cancelled("arrived")
		}
	}
	taken := len(t.running) - t.vacated
	if depth > 0 {
		taken = t.deep[depth]
	}
	if taken >= t.slots {
		return Refuse, nil, Record{}, toolmesh.Errorf(toolmesh.CodeBusy,
			"all %d slots of this node are taken: try again, or another node", t.slots).
			WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent).
			WithDetail("limit", LimitSlots).WithDetail("max", t.slots)
	}
	c := &Call[T]{Request: r, Value: value, depth: depth, place: len(t.running)}
	t.running = append(t.running, c)
	if depth > 0 {
		if t.deep == nil {
			t.deep = make(map[int]int)
		}
		t.deep[depth]++
	}
	if r.Key.RPC != "" {
		if old != nil {
			t.unname(old) // it is over for long
		}
		c.entry = t.name(hash, r)
		c.entry.running = c
	}
	return Run, c, Record{}, nil
}

// spares is how many entries are made at once.
const spares = 64

// name takes a name that nobody has. t.mu is held.
func (t *Table[T]) name(hash uint64, r Request) *entry[T] {
	if len(t.spare) == 0 {
		t.spare = make([]entry[T], spares)
	}
	k := &t.spare[0]
	t.spare = t.spare[1:]
	k.hash, k.request, k.named = hash, r, true
	k.next, t.names[k.hash] = t.names[k.hash], k
	return k
}

func (t *Table[T]) hash(rpc subjects.RPCID) uint64 { return maphash.String(t.seed, string(rpc)) }

// find returns the entry of a name with its hash, or nil; t.mu is held.
func (t *Table[T]) find(hash uint64, rpc subjects.RPCID) *entry[T] {
	for k := t.names[hash]; k != nil; k = k.next {
		if k.request.Key.RPC == rpc {
			return k
		}
	}
	return nil
}

// of returns the entry of a key, or nil; t.mu is held.
func (t *Table[T]) of(key Key) *entry[T] {
	if k := t.find(t.hash(key.RPC), key.RPC); k != nil && k.request.Key.Session == key.Session {
		return k
	}
	return nil
}

// unname gives a name free; t.mu is held.
func (t *Table[T]) unname(k *entry[T]) {
	if !k.named {
		return
	}
	k.named = false
	first := t.names[k.hash]
	switch {
	case first != k:
		for ; first.next != k; first = first.next {
		}
		first.next = k.next
	case k.next == nil:
		delete(t.names, k.hash)
	default:
		t.names[k.hash] = k.next
	}
	k.next = nil
}

// cancelled looks a key up in cancels, which is empty nearly always. t.mu is held.
func (t *Table[T]) cancelled(key Key) (at time.Time, ok bool) {
	if len(t.cancels) == 0 {
		return at, false
	}
	at, ok = t.cancels[key]
	return at, ok
}

// Repeated is Begin for a request that would not be run anyway: ok is false
// where it is no repetition, and then nothing has changed.
func (t *Table[T]) Repeated(r Request, waiter func(Record)) (verdict Verdict, c *Call[T], record Record, err *toolmesh.Error, ok bool) {
	if r.Key.RPC == "" {
		return Run, nil, Record{}, nil, false
	}
	r.Depth = 0
	t.mu.Lock()
	defer t.mu.Unlock()
	verdict, c, record, err = t.repeated(t.find(t.hash(r.Key.RPC), r.Key.RPC), r, waiter)
	return verdict, c, record, err, verdict != Run
}

// repeated decides on a request whose name k has, if it is not nil; Run says that
// it is a new call. t.mu is held.
func (t *Table[T]) repeated(k *entry[T], r Request, waiter func(Record)) (Verdict, *Call[T], Record, *toolmesh.Error) {
	switch {
	case k == nil || k.running == nil && t.now().Sub(k.ended) >= keepResults:
		return Run, nil, Record{}, nil
	case !k.is(r):
		return Refuse, nil, Record{}, collision(r)
	case k.running != nil:
		k.running.waiters = append(k.running.waiters, waiter)
		return Join, k.running, Record{}, nil
	case k.dropped:
		return Refuse, nil, Record{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest,
			"call %q has already run and its result was too large to keep: use a new rpc_id to run it again", r.Key.RPC).
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
	}
	return Repeat, nil, k.record, nil
}

// is reports whether a request repeats the entry's call. One that came before the
// news of its session's creation has no epoch: a repetition that has one tells it.
func (k *entry[T]) is(r Request) bool {
	known := k.request
	if known.Epoch == "" && (known.Unsettled || !known.Stream) {
		known.Epoch = r.Epoch
	}
	if r.Unsettled {
		r.Epoch = known.Epoch
	}
	r.Unsettled = known.Unsettled
	if known != r {
		return false
	}
	k.request = known
	return true
}

func collision(r Request) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInvalidRequest,
		"rpc_id %q already names another call (session, tool, kind and body must agree): use a new one", r.Key.RPC).
		WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
}

// cancelled is the error of a call whose cancel came before it arrived or began.
func cancelled(before string) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeCancelled, "the call was cancelled before it %s", before).
		WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
}

// leastVacated is how many calls may be without a slot on a node of few.
const leastVacated = 16

// Vacate frees the slot of a call whose tool has done its work, while what it said
// last is yet to be stored: who reads its end may call again at once. The call
// runs on until Finish. When that goes for as many calls as there are slots, and
// no few, the store is slow, and the others keep theirs. Calling Vacate again does
// nothing.
func (t *Table[T]) Vacate(c *Call[T]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.place < 0 || c.vacated || t.vacated >= max(t.slots, leastVacated) {
		return
	}
	c.vacated = true
	t.vacated++
	if c.depth > 0 {
		t.deep[c.depth]--
	}
}

// Finish ends a call of Begin: it frees the slot, keeps the record unless the
// tool's code never began, and hands it to those who joined. A call that was
// cancelled before it began keeps its name as well, as it may not begin later.
// Calling Finish again does nothing.
func (t *Table[T]) Finish(c *Call[T], record Record) {
	t.mu.Lock()
	if c.place < 0 {
		t.mu.Unlock()
		return
	}
	last := len(t.running) - 1
	t.running[c.place] = t.running[last]
	t.running[c.place].place = c.place
	t.running[last] = nil
	t.running = t.running[:last]
	c.place = -1
	switch {
	case c.vacated:
		t.vacated--
	case c.depth > 0:
		t.deep[c.depth]--
	}
	if k := c.entry; k != nil {
		k.running = nil
		switch {
		case record.Err == nil || record.Err.Started != toolmesh.StartedNo:
			t.keep(k, record)
		case c.ordered:
			t.keep(k, Record{Err: cancelled("began")})
		default:
			t.unname(k)
		}
	}
	waiters := c.waiters
	t.mu.Unlock()
	for _, w := range waiters {
		w(record)
	}
}

// keep holds the record of a call that has ended; t.mu is held.
func (t *Table[T]) keep(k *entry[T], record Record) {
	k.record, k.size, k.ended = record, keptSize+len(record.Result), t.now()
	if e := record.Err; e != nil {
		k.size += len(e.Message) + len(e.Stacktrace)
		if len(e.Details) > 0 {
			if details, err := json.Marshal(e.Details); err == nil {
				k.size += len(details)
			}
		}
	}
	if k.size > maxOneResult {
		k.drop()
	}
	t.ring = append(t.ring, k)
	t.size += k.size
	// The oldest results give way; their names stay, so that they do not run again.
	for t.whole = max(t.whole, t.head); t.size > maxKept && t.whole < len(t.ring); t.whole++ {
		if old := t.ring[t.whole]; !old.dropped {
			t.size -= old.size
			old.drop()
			t.size += old.size
		}
	}
	for len(t.ring)-t.head > maxResults {
		t.forgetOldest()
	}
}

// keptSize is about what a name costs without its result.
const keptSize = 256

func (k *entry[T]) drop() { k.record, k.size, k.dropped = Record{}, keptSize, true }

func (t *Table[T]) forgetOldest() {
	k := t.ring[t.head]
	t.ring[t.head] = nil
	t.head++
	t.size -= k.size
	t.unname(k)
	*k = entry[T]{} // those it was made together with keep its room
	if t.head > 1024 && t.head*2 > len(t.ring) {
		t.ring = append([]*entry[T](nil), t.ring[t.head:]...)
		t.whole = max(t.whole-t.head, 0)
		t.head = 0
	}
}

// Cancel returns the running call of a key, or remembers the cancel for a call
// that has yet to arrive. The caller stops the call.
func (t *Table[T]) Cancel(key Key) (*Call[T], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.of(key)
	if k != nil {
		if k.running != nil {
			k.running.ordered = true
		}
		return k.running, k.running != nil
	}
	if len(t.cancels) < maxCancels {
		t.cancels[key] = t.now()
	}
	return nil, false
}

// Lookup returns the running call of a key.
func (t *Table[T]) Lookup(key Key) (*Call[T], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.of(key)
	if k == nil {
		return nil, false
	}
	return k.running, k.running != nil
}

// InFlight is how many calls run.
func (t *Table[T]) InFlight() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.running)
}

// Running returns the calls in flight.
func (t *Table[T]) Running() []*Call[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.running)
}

// Sweep forgets results and cancels whose time is over. The host calls it now
// and then, so that an idle node gives its memory back.
func (t *Table[T]) Sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for t.head < len(t.ring) && now.Sub(t.ring[t.head].ended) >= keepResults {
		t.forgetOldest()
	}
	if t.head == len(t.ring) {
		t.ring, t.head, t.whole = nil, 0, 0
	}
	for key, at := range t.cancels {
		if now.Sub(at) >= keepCancels {
			delete(t.cancels, key)
		}
	}
}
