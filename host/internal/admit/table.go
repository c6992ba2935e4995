package admit

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/subjects"
)

// Limits of docs/protocol, sections 2 and 7.
const (
	keepNames   = 2 * time.Minute // and results, within the next two
	maxResults  = 10_000
	maxKept     = 64 << 20
	keepCancels = 30 * time.Second
	maxCancels  = 10_000
	maxJoined   = 1 << 14 // repetitions that wait for the end of their calls
)

// MaxOneResult is the largest record of a call that is kept, in bytes.
const MaxOneResult = 8 << 20

// Key names a call: the same id in two sessions is two calls.
type Key struct {
	Session subjects.SessionID
	RPC     subjects.RPCID
}

// Request identifies a call well enough to tell a repetition from a collision: all fields must
// agree.
type Request struct {
	Key   Key // an empty RPC is a call that cannot be repeated or cancelled
	Tool  subjects.ToolID
	Epoch string // of the session
	// Unsettled: the epoch is not known yet. Any one will do.
	Unsettled bool
	Stream    bool   // its answer is a stream, with any delivery
	Digest    Digest // of its body

	// A repetition may differ in the fields below.

	// Depth is how many calls are above it.
	Depth int
	// Account is the account whose places the call takes, see [subjects.Account].
	Account subjects.SessionID
	// MayPass allows to pass the call on to another node if there is no place. The call then has
	// Full set and takes no slot, only one of as many places for calls that are passed on.
	MayPass bool
	// First is when a request was first sent that says it is sent again, by the
	// table's clock; else zero.
	First time.Time
}

// Digest tells bodies apart, within this process only: their sender does not
// know its seeds.
type Digest [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// DigestOf returns the digest of a request's body.
func DigestOf(body []byte) Digest {
	return Digest{maphash.Bytes(seeds[0], body), maphash.Bytes(seeds[1], body)}
}

// Record is the outcome of a call: a result, or an error. Streamed is set for a call whose chunks
// are in the store instead.
type Record struct {
	Result   json.RawMessage
	Err      *toolmesh.Error
	Streamed bool
	// Ref refers to a result that is larger than a message; nil for most. Result is then kept as
	// well if there is room for it.
	Ref   *codec.Ref
	Cache codec.CacheUse // of a result
	// Warning is the fault of a result, for people; empty for none.
	Warning string
	Lane    *codec.LaneUse // nil: it had to do with none
	// By is the node that ran a call that was passed on; nil for this one.
	By *codec.Identity
}

// Size is how many bytes the result has.
func (r *Record) Size() int64 {
	if r.Ref != nil {
		return r.Ref.Size
	}
	return int64(len(r.Result))
}

// Refusal makes an error say that nothing was started, unless it says otherwise.
func Refusal(err error) *toolmesh.Error { return Failure(err, toolmesh.StartedNo) }

// Full reports whether a call was refused by a node without a slot.
func Full(e *toolmesh.Error) bool {
	return e.Code == toolmesh.CodeBusy && e.Started == toolmesh.StartedNo && e.Details["limit"] == toolmesh.LimitSlots
}

// Failure makes an error say whether the tool had started, and that the node reports it, unless
// it says otherwise.
func Failure(err error, started toolmesh.Started) *toolmesh.Error {
	e := toolmesh.AsError(err)
	if e.Started == toolmesh.StartedUnknown {
		e = e.WithStarted(started)
	}
	if e.Origin == "" {
		e = e.WithOrigin(toolmesh.OriginAgent)
	}
	return e
}

// Verdict is the decision on a request.
type Verdict uint8

// The verdicts.
const (
	// Run: the call is new and has a slot; [Table.Finish] gives it back.
	Run Verdict = iota
	// Join: the same call runs. Its host gives its record to the repetition as well.
	Join
	// Repeat: the same call has ended; its record is returned.
	Repeat
	// Refuse: the error says why.
	Refuse
)

// Running is a call in flight. Its fields are set by Begin and, except for Full, never change; T
// is the host's part of it.
type Running[T any] struct {
	Request
	Value T
	// Full is why it has no slot and is to be passed on; nil for a call that has one. It is
	// for the one that runs the call.
	Full    *toolmesh.Error
	joined  int // repetitions
	share   *share
	where   where
	ordered bool // to end: its cancel came
	entry   *entry[T]
}

// where a call is: a running one is at exactly one of these.
type where uint8

const (
	slotted where = iota // it has a slot
	passed               // passed on to another node, without a slot
	parked               // it waits for something else, without a slot
	vacated              // at its end, its slot is free already
	over                 // it has ended
)

// entry is a running call, or an ended one with its record.
type entry[T any] struct {
	hash    uint64
	running *Running[T] // nil once it has ended
	request Request
	record  Record
	size    int
	ended   time.Time
}

// early is a cancel that came before its call.
type early struct {
	at      time.Time
	account subjects.SessionID
}

// Table is a node's calls. The zero value is not usable; see [NewTable]. Its
// methods may be called concurrently.
type Table[T any] struct {
	slots int
	now   func() time.Time

	mu      sync.Mutex // no lock of another package is taken under it
	running map[*Running[T]]struct{}
	at      [over + 1]int // calls by where they are
	deep    map[int]int   // nested calls with a place, by depth; 0 has none
	nested  int           // their sum
	shares  shares
	names   map[uint64]*entry[T] // by hash of the key: a table of texts is slow to search and to collect
	kept    []*entry[T]          // ended calls, in order
	size    int
	past    past
	horizon time.Time // names of calls that ended before it are forgotten
	cancels map[Key]early
	early   *fair.Room[subjects.SessionID] // cancels
	joined  *fair.Room[subjects.SessionID] // repetitions that wait
}

// NewTable returns a table for a node that runs at most slots calls at once, and next to them as
// many nested ones, and one more of each depth: a call then only waits for deeper ones, and calls
// above those cannot take their places. now is time.Now except in tests.
func NewTable[T any](slots int, now func() time.Time) *Table[T] {
	began := now()
	return &Table[T]{
		slots: slots, now: now, running: make(map[*Running[T]]struct{}),
		names: make(map[uint64]*entry[T]), cancels: make(map[Key]early), early: fair.NewRoom[subjects.SessionID](maxCancels), deep: make(map[int]int),
		shares: shares{slots: slots, of: make(map[subjects.SessionID]*share)},
		joined: fair.NewRoom[subjects.SessionID](maxJoined),
		past:   past{since: began}, horizon: began.Add(-keepNames),
	}
}

// Begin decides on a request. For Run it returns the call, which holds value;
// for Repeat the record; for Refuse the error, which has started set. For Join it returns the
// call that runs, which may end meanwhile.
func (t *Table[T]) Begin(r Request, value T) (Verdict, *Running[T], Record, *toolmesh.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var name uint64
	if r.Key.RPC != "" {
		name = hash(r.Key)
		if verdict, c, record, err := t.repeated(name, r); verdict != Run {
			return verdict, c, record, err
		}
		if at, ok := t.cancelled(r.Key); ok && t.now().Sub(at) < keepCancels {
			return Refuse, nil, Record{}, cancelled("arrived")
		}
	}
	share := t.shares.share(r.Account)
	full := t.full(share, r.Depth)
	if full != nil && !(r.MayPass && t.mayPass(share)) {
		return Refuse, nil, Record{}, full
	}
	c := &Running[T]{Request: r, Value: value, Full: full, share: share}
	if full != nil {
		c.where = passed
	}
	t.running[c] = struct{}{}
	t.count(c, 1)
	if r.Key.RPC != "" {
		c.entry = &entry[T]{hash: name, running: c, request: r.same()}
		t.names[name] = c.entry
	}
	return Run, c, Record{}, nil
}

// full returns why there is no place for a call of a depth, nil if there is one. The first call
// of each depth has its own place, the others share as many as there are slots. t.mu is held.
func (t *Table[T]) full(s *share, depth int) *toolmesh.Error {
	kind, free := ofAll, t.slots-t.at[slotted]
	if depth > 0 {
		if t.deep[depth] == 0 {
			return nil
		}
		kind, free = ofNested, t.slots-(t.nested-len(t.deep))
	}
	if t.shares.may(s, kind, free) {
		return nil
	}
	t.shares.missed(s, kind, t.now())
	what := "slots of this node"
	if depth > 0 {
		what = "places for calls that tools make on this node"
	}
	why := fmt.Sprintf("all %d %s are taken", t.slots, what)
	if free > 0 {
		who := "sessions that were not created have together"
		if s.account != "" {
			who = fmt.Sprintf("session %q has", s.account)
		}
		why = fmt.Sprintf("%s %d of the %d %s, and others wait for one", who, s.has[kind], t.slots, what)
	}
	return toolmesh.Errorf(toolmesh.CodeBusy, "%s: try again, or another node", why).
		WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent).
		WithDetail("limit", toolmesh.LimitSlots).WithDetail("max", t.slots)
}

// mayPass reports whether one more call of an account may be passed on: as many as there
// are slots, shared like these. t.mu is held.
func (t *Table[T]) mayPass(s *share) bool {
	if t.shares.may(s, ofPassed, t.slots-t.at[passed]) {
		return true
	}
	t.shares.missed(s, ofPassed, t.now())
	return false
}

func hash(key Key) uint64 {
	return maphash.String(seeds[0], string(key.Session)) ^ maphash.String(seeds[1], string(key.RPC))
}

// of returns the entry of a key, or nil; t.mu is held.
func (t *Table[T]) of(key Key) *entry[T] {
	if k := t.names[hash(key)]; k != nil && k.request.Key == key {
		return k
	}
	return nil
}

// cancelled looks a key up in cancels, which is empty nearly always. t.mu is held.
func (t *Table[T]) cancelled(key Key) (at time.Time, ok bool) {
	if len(t.cancels) == 0 {
		return at, false
	}
	c, ok := t.cancels[key]
	if !ok {
		key.RPC = key.RPC.First()
		c, ok = t.cancels[key]
	}
	return c.at, ok
}

// Repeated is Begin for a request that would not be run anyway: ok is false
// where it is no repetition, and then nothing has changed.
func (t *Table[T]) Repeated(r Request) (verdict Verdict, c *Running[T], record Record, err *toolmesh.Error, ok bool) {
	if r.Key.RPC == "" {
		return Run, nil, Record{}, nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	verdict, c, record, err = t.repeated(hash(r.Key), r)
	return verdict, c, record, err, verdict != Run
}

// repeated decides on a request by the hash of its name; Run means a new call. t.mu is held.
func (t *Table[T]) repeated(hash uint64, r Request) (Verdict, *Running[T], Record, *toolmesh.Error) {
	k := t.names[hash]
	switch {
	case k == nil && t.past.has(hash):
		return Refuse, nil, Record{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest,
			"call %q has already run and its result is no longer kept: use a new rpc_id to run it again", r.Key.RPC).
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
	case k == nil && !r.First.IsZero() && !r.First.After(t.past.since):
		return Refuse, nil, Record{}, toolmesh.Errorf(toolmesh.CodeNodeLost,
			"call %q was first sent earlier than this node remembers: whether the tool ran is unknown", r.Key.RPC).
			WithOrigin(toolmesh.OriginAgent)
	case k == nil:
		return Run, nil, Record{}, nil
	case k.running == nil && k.earlier(r) && r.First.IsZero():
		return Run, nil, Record{}, nil
	case !k.is(r):
		return Refuse, nil, Record{}, k.collision(r)
	case k.running != nil && !t.joined.Take(k.running.Account, 1):
		return Refuse, nil, Record{}, toolmesh.Errorf(toolmesh.CodeBusy, "call %q runs, and too many repetitions of the session's calls wait: send it again later", r.Key.RPC).
			WithOrigin(toolmesh.OriginAgent).WithDetail("limit", "repetitions").WithDetail("max", maxJoined)
	case k.running != nil:
		k.running.joined++
		return Join, k.running, Record{}, nil
	}
	return Repeat, nil, k.record, nil
}

// same is the part of a request that a repetition must have in common with it.
func (r Request) same() Request {
	r.Depth, r.First, r.Account, r.MayPass = 0, time.Time{}, "", false
	return r
}

// is reports whether a request repeats the entry's call. One that came before the
// news of its session's creation has no epoch: a repetition that has one tells it.
func (k *entry[T]) is(r Request) bool {
	known := k.request
	if known.Epoch == "" && (known.Unsettled || !known.Stream) {
		known.Epoch = r.Epoch
	}
	if r = r.same(); r.Unsettled {
		r.Epoch = known.Epoch
	}
	r.Unsettled = known.Unsettled
	if known != r {
		return false
	}
	k.request = known
	return true
}

// earlier reports whether a request is of a later session of the name than the entry's call.
func (k *entry[T]) earlier(r Request) bool {
	return !r.Unsettled && r.Epoch != "" && k.request.Epoch != "" && k.request.Epoch != r.Epoch
}

// collision is the error of a request under the name of another call. If only the bodies
// differ it may be the same call in another form, which has begun. If it is sent again it may have
// been sent to the session that had the name before.
func (k *entry[T]) collision(r Request) *toolmesh.Error {
	e := toolmesh.Errorf(toolmesh.CodeInvalidRequest,
		"rpc_id %q already names another call of its session (tool, kind and body must agree): use a new one", r.Key.RPC).WithOrigin(toolmesh.OriginAgent)
	if k.request.Tool == r.Tool && k.request.Stream == r.Stream && (k.request.Digest != r.Digest || !r.First.IsZero()) {
		return e
	}
	return e.WithStarted(toolmesh.StartedNo)
}

// cancelled is the error of a call whose cancel came before it arrived or began.
func cancelled(before string) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeCancelled, "the call was cancelled before it %s", before).
		WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
}

// leastVacated is how many calls may end without a slot on a node of few.
const leastVacated = 16

// Vacate frees the slot of a call whose tool has returned, while its end is stored: a caller that
// reads the end may call again at once. The call runs until Finish. At most as many calls as
// there are slots end without a slot, for a slow store. Calling Vacate again does nothing.
func (t *Table[T]) Vacate(c *Running[T]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.where < vacated && t.at[vacated] < max(t.slots, leastVacated) {
		t.move(c, vacated)
	}
}

// maxParked is how many calls may wait without a slot; the others keep theirs.
const maxParked = 1024

// Park frees the slot of a call that has to wait before its tool can run, for something
// that other calls have. It reports false where too many wait already; then the call
// keeps its slot.
func (t *Table[T]) Park(c *Running[T]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	may := c.where == slotted && t.shares.may(c.share, ofParked, maxParked-t.at[parked])
	if may {
		t.move(c, parked)
	}
	return may
}

// Unpark gives a call its slot again, beyond the max if need be: after its wait for a lane or
// another call it must not wait for a slot.
func (t *Table[T]) Unpark(c *Running[T]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.where == parked {
		t.move(c, slotted)
	}
}

// Pass takes the slot from a call that could not begin here and is to be passed on; why is its
// error on this node. It reports false if the call may not be passed on, or too many are.
func (t *Table[T]) Pass(c *Running[T], why *toolmesh.Error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	may := c.where == slotted && c.MayPass && t.mayPass(c.share)
	if may {
		c.Full = why
		t.move(c, passed)
	}
	return may
}

// move has a call take another place, and frees the one that it has; t.mu is held.
func (t *Table[T]) move(c *Running[T], to where) {
	t.count(c, -1)
	c.where = to
	t.count(c, 1)
	t.shares.left(c.share)
}

// count counts a call, or no longer (n is -1), where it is; t.mu is held.
func (t *Table[T]) count(c *Running[T], n int) {
	t.at[c.where] += n
	switch c.where {
	case slotted:
		c.share.has[ofAll] += n
		if c.Depth > 0 {
			c.share.has[ofNested] += n
			t.nested += n
			if t.deep[c.Depth] += n; t.deep[c.Depth] == 0 {
				delete(t.deep, c.Depth)
			}
		}
	case passed:
		c.share.has[ofPassed] += n
	case parked:
		c.share.has[ofParked] += n
	}
}

// Finish ends a call of Begin: it frees the slot, and keeps the record unless the tool's code
// never began. A call that was cancelled before it began keeps its name as well, as it may not
// begin later. Calling Finish again does nothing.
func (t *Table[T]) Finish(c *Running[T], record Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.where == over {
		return
	}
	delete(t.running, c)
	t.move(c, over)
	if k := c.entry; k != nil {
		k.running = nil
		switch {
		case record.Err == nil || record.Err.Started != toolmesh.StartedNo:
			t.keep(k, record)
		case c.ordered:
			t.keep(k, Record{Err: cancelled("began")})
		default:
			t.forget(k)
		}
	}
	for range c.joined {
		t.joined.Give(c.Account, 1)
	}
}

// keep holds the record of a call that has ended; t.mu is held.
func (t *Table[T]) keep(k *entry[T], record Record) {
	k.record, k.size, k.ended = record, keptSize+len(record.Result), t.now()
	if e := record.Err; e != nil {
		k.size += len(e.Message) + len(e.Stacktrace) + memoryOf(e.Details)
	}
	if k.size > MaxOneResult {
		t.drop(k) // the others need not give way to it
		return
	}
	t.kept = append(t.kept, k)
	t.size += k.size
	for len(t.kept) > maxResults || t.size > maxKept {
		t.drop(t.oldest())
	}
}

// keptSize is the approximate memory of a record without its result, in bytes.
const keptSize = 256

// memoryOf is the approximate memory of details, in bytes: of empty lists it is many times that of their JSON.
func memoryOf(value any) int {
	size := 32
	switch v := value.(type) {
	case string:
		size += len(v)
	case []any:
		for _, one := range v {
			size += memoryOf(one)
		}
	case map[string]any:
		for name, one := range v {
			size += 2*len(name) + memoryOf(one)
		}
	case float64, bool, nil:
	default:
		text, _ := json.Marshal(v) // of our own
		size += len(text)
	}
	return size
}

// drop forgets a record, and not its name: the call may not run again. t.mu is held.
func (t *Table[T]) drop(k *entry[T]) {
	t.past.add(k.hash, k.ended)
	t.forget(k)
}

// forget forgets an entry, unless a call of a later session has its name; t.mu is held.
func (t *Table[T]) forget(k *entry[T]) {
	if t.names[k.hash] == k {
		delete(t.names, k.hash)
	}
}

// oldest removes the oldest of the kept records, of which there is one; t.mu is held.
func (t *Table[T]) oldest() *entry[T] {
	k := t.kept[0]
	t.kept[0] = nil
	t.kept = t.kept[1:] // append copies the others alone
	t.size -= k.size
	return k
}

// Cancel returns the running call of a key, or remembers the cancel for a call
// that has yet to arrive, in the part of an account. The caller stops the call.
func (t *Table[T]) Cancel(key Key, account subjects.SessionID) (*Running[T], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.of(key)
	if k != nil {
		if k.running != nil {
			k.running.ordered = true
		}
		return k.running, k.running != nil
	}
	if old, again := t.cancels[key]; again {
		account = old.account
	} else if !t.early.Take(account, 1) {
		return nil, false
	}
	t.cancels[key] = early{t.now(), account}
	return nil, false
}

// Lookup returns the running call of a key.
func (t *Table[T]) Lookup(key Key) (*Running[T], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.of(key)
	if k == nil {
		return nil, false
	}
	return k.running, k.running != nil
}

// Known reports whether a call of a key runs, or has ended and is remembered.
func (t *Table[T]) Known(key Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(key) != nil
}

// InFlight is the number of running calls, without those that are passed on.
func (t *Table[T]) InFlight() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[slotted] + t.at[vacated]
}

// Running returns the calls in flight.
func (t *Table[T]) Running() []*Running[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.running))
}

// sweepStep bounds how far the horizon moves in one Sweep: a node that was frozen
// for minutes first reads the repetitions that have come meanwhile.
const sweepStep = 5 * time.Second

// Sweep forgets expired calls and cancels. The host calls it each second.
func (t *Table[T]) Sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if t.horizon = t.horizon.Add(sweepStep); t.horizon.After(now.Add(-keepNames)) {
		t.horizon = now.Add(-keepNames)
	}
	for len(t.kept) > 0 && !t.kept[0].ended.After(t.horizon) {
		k := t.oldest()
		t.past.forgotten(k.ended)
		t.forget(k)
	}
	if len(t.kept) == 0 {
		t.kept = nil
	}
	t.past.sweep(t.horizon)
	t.shares.sweep(now)
	for key, c := range t.cancels {
		if now.Sub(c.at) >= keepCancels {
			delete(t.cancels, key)
			t.early.Give(c.account, 1)
		}
	}
}
