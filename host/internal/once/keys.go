package once

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/presence"
	"github.com/toolmesh/toolmesh/host/internal/quota"
	"github.com/toolmesh/toolmesh/host/internal/reply"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	keysFor = 24 * time.Hour  // lifetime of a record
	keyWait = 5 * time.Second // for one request to the store
	// firstKeyRetry is the pause after a failed write, doubling up to the last.
	firstKeyRetry = time.Second
	lastKeyRetry  = 5 * time.Second // calls with keys may be refused for so long after a silence
	// maxPending is how many keys may wait to be freed before calls with keys are refused; half of
	// them of one account.
	maxPending = 256
	// keyParts: a call reserves one part in so many of the bucket for its outcome before it
	// begins, or less where messages are smaller.
	keyParts = 512
	// roomAgain is when a call that found no room beside running ones is to try again.
	roomAgain = 100 * time.Millisecond
	// recordExtra bounds the bytes of a stored record in addition to its subject and value.
	recordExtra = 256
	// firstKeyLook is the interval at which a call checks whether another one of its key has
	// ended, doubling up to the last.
	firstKeyLook = 20 * time.Millisecond
	lastKeyLook  = time.Second
)

// Options connect [Keys] with their node.
type Options struct {
	Node     subjects.NodeID
	Boot     subjects.BootID
	Bus      store.Store
	Presence *presence.Presence
	Base     context.Context //nolint:containedctx // ends with the node
	Log      *slog.Logger
	// Go runs f in a goroutine; the node waits for it when it stops.
	Go func(f func())
	// Replies knows the limits of messages.
	Replies *reply.Replies
	// Exited is the error of a handler that ends its goroutine.
	Exited *toolmesh.Error
}

// Request is a call under an idempotency key.
type Request struct {
	*codec.Request
	Epoch      string // of its session
	Args       json.RawMessage
	VarArgs    json.RawMessage
	Idempotent bool // declared by its tool
}

// keyed is the record of an idempotency key: its call, the runner, and the outcome.
type keyed struct {
	Tool   subjects.ToolID `json:"tool"`
	Digest string          `json:"digest"` // of the arguments
	Epoch  string          `json:"epoch,omitempty"`
	RPCID  subjects.RPCID  `json:"rpc_id"`
	Node   subjects.NodeID `json:"node"`
	Boot   subjects.BootID `json:"boot"`
	Done   bool            `json:"done,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *toolmesh.Error `json:"error,omitempty"`
}

// Keys are the idempotency keys of a node's calls. A call holds a key from its request until the
// record is stored. Its methods may be called concurrently.
type Keys struct {
	Options
	room   *chunks.Space // of the bucket
	stored *quota.Quota  // usage of each account

	mu       sync.Mutex                   // no other lock is taken under it
	held     map[string]chan struct{}     // closed on release
	pending  map[subjects.SessionID]int   // keys that wait to be freed, by account
	reserved map[subjects.SessionID]int64 // bytes of the bucket, for running calls, by account
}

// New makes the keys of a node.
func New(o Options) *Keys {
	return &Keys{
		Options: o, held: make(map[string]chan struct{}), pending: make(map[subjects.SessionID]int), reserved: make(map[subjects.SessionID]int64),
		room:   chunks.NewSpace(o.Bus.Bus, subjects.KVStream(subjects.BucketIdem)),
		stored: quota.New(math.MaxInt64, keysFor, time.Now),
	}
}

// Tick keeps the node's lease short while a key is held, and forgets usage older than a day. The
// node calls it each second.
func (k *Keys) Tick() {
	k.stored.Sweep()
	k.mu.Lock()
	held := len(k.held)
	k.mu.Unlock()
	if held > 0 {
		k.Presence.Held()
	}
}

// reserve reserves room for a call's outcome before it begins; done releases it. An account leaves
// the others as much of the bucket as it has stored and reserved.
func (k *Keys) reserve(ctx context.Context, account subjects.SessionID, limit int64) (done func(), bad *toolmesh.Error) {
	left, most := k.room.Left(ctx)
	if most == 0 {
		return func() {}, nil // no limit, or no answer: creating the key fails then
	}
	size := most / keyParts
	if limit > 0 {
		size = min(size, limit)
	}
	used, _ := k.stored.Take(account, 0)
	k.mu.Lock()
	defer k.mu.Unlock()
	free := left
	for _, bytes := range k.reserved {
		free -= bytes
	}
	switch {
	case used+k.reserved[account]+size <= free:
	case used+size <= left: // once running calls have ended
		return nil, admit.Refusal(toolmesh.Errorf(toolmesh.CodeBusy, "running calls have reserved the room of the store of idempotency keys for their results (%d bytes of it for the session's): wait until some end", k.reserved[account])).
			WithDetail("limit", "keys_max").WithDetail("max", most).WithDetail("retry_after_ms", roomAgain.Milliseconds())
	default:
		return nil, admit.Refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "the store of idempotency keys has no room left for the call's result (through this node the session has stored %d bytes in a day, and %d are reserved for its running calls): wait until these end or older keys expire, or call without a key", used, k.reserved[account])).
			WithDetail("limit", "keys_max").WithDetail("max", most)
	}
	k.reserved[account] += size
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.reserved[account] -= size; k.reserved[account] == 0 {
			delete(k.reserved, account)
		}
	}, nil
}

// take holds a key for a call; wait is nil, or closed when the present holder releases it.
func (k *Keys) take(name string) (wait <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if held := k.held[name]; held != nil {
		return held
	}
	k.held[name] = make(chan struct{})
	return nil
}

func (k *Keys) letGo(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.held[name])
	delete(k.held, name)
}

// Do runs a call that has an idempotency key, or returns the outcome of the call of that key.
// run executes the handler and returns a result that a message carries. States of a key in the store:
//
//	none ──create──▶ running ──▶ done, with the call's record, for a day
//	  ▲                 │
//	  └── never began ──┘
//
// A running key whose node is lost stays so: whether its tool ran is unknown. Only a key of an
// idempotent tool is taken over.
func (k *Keys) Do(ctx context.Context, c Request, run func() admit.Record) admit.Record {
	name, err := subjects.IdempotencyKey(c.Session, c.IdempotencyKey)
	if err != nil {
		return admit.Record{Err: admit.Refusal(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the idempotency key: %w", err))}
	}
	args := append(c.Args[:len(c.Args):len(c.Args)], c.VarArgs...)
	if canonical, err := tool.Canonical(c.Args); err == nil {
		args = append(canonical, c.VarArgs...)
	}
	digest := sha256.Sum256(args)
	key := store.Key{Bucket: subjects.BucketIdem, Name: name}
	mine := &keyed{
		Tool: c.Tool, Digest: hex.EncodeToString(digest[:]), Epoch: c.Epoch, RPCID: c.RPCID, Node: k.Node, Boot: k.Boot,
	}
	for wait := k.take(name); wait != nil; wait = k.take(name) {
		select {
		case <-wait:
		case <-ctx.Done():
			return admit.Record{Err: stillRuns(ctx)}
		}
	}
	if err := k.Presence.Rely(ctx); err != nil { // the call runs all the same
		k.Log.Debug("the node's lease could not be shortened: the end of this node would be noticed late", slog.String("error", err.Error()))
	}
	claim := claim{key: key, account: subjects.Account(c.Session, c.Epoch), mine: mine, idempotent: c.Idempotent}
	claim.room = func() (func(), *toolmesh.Error) { return k.reserve(ctx, claim.account, k.Bus.MaxPayload()) }
	other, bad := k.claim(ctx, &claim)
	if other != nil || bad != nil {
		k.letGo(name)
		claim.unreserve()
		if bad != nil {
			return admit.Record{Err: bad}
		}
		return admit.Record{Result: other.Result, Err: other.Error}
	}
	record := admit.Record{Err: k.Exited} // if the handler ends this goroutine
	defer func() { k.settle(&claim, record) }()
	if ctx.Err() != nil { // it ended while the key was created
		record = admit.Record{Err: notBegun(ctx)}
		return record
	}
	record = run()
	return record
}

// claim is a call's claim of a key.
type claim struct {
	key        store.Key
	account    subjects.SessionID
	mine       *keyed
	value      []byte // mine in its stored form
	idempotent bool
	room       func() (done func(), bad *toolmesh.Error)
	done       func() // releases the room; nil without any
	revision   uint64 // of the key, once it is the call's
}

// unreserve releases the room of a claim, if it has any.
func (c *claim) unreserve() {
	if c.done != nil {
		c.done()
		c.done = nil
	}
}

// notBegun is the error of a call that ended before it had its key.
func notBegun(ctx context.Context) *toolmesh.Error {
	return toolmesh.AsError(context.Cause(ctx)).WithStarted(toolmesh.StartedNo)
}

// stillRuns is the error of a call that waited for another one of its key.
func stillRuns(ctx context.Context) *toolmesh.Error {
	return toolmesh.AsError(context.Cause(ctx)).WithDetail("reason", "key_in_use").WithStarted(toolmesh.StartedUnknown)
}

// claim claims a key for a call, or returns the record of the call that has it.
func (k *Keys) claim(ctx context.Context, c *claim) (other *keyed, bad *toolmesh.Error) {
	var err error
	if c.value, err = tool.MarshalPlain(c.mine); err != nil {
		return nil, admit.Refusal(toolmesh.Errorf(toolmesh.CodeInternal, "the record of an idempotency key: %w", err))
	}
	if waiting := k.waiting(c.account, 0); waiting > 0 {
		return nil, admit.Refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "the store of idempotency keys does not answer: the keys of %d calls that did not begin wait to be freed there", waiting))
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for next := time.Duration(0); ; next = min(max(2*next, firstKeyLook), lastKeyLook) {
		select {
		case <-pause.C:
		case <-ctx.Done():
			if next == 0 {
				return nil, notBegun(ctx)
			}
			return nil, stillRuns(ctx)
		}
		began := time.Now()
		other, bad, err := k.try(ctx, c)
		switch {
		case c.revision > 0 || other != nil || bad != nil:
			return other, bad
		case err != nil:
			if !store.Refused(err) { // the write may still be stored
				own := *c
				own.room, own.done = nil, nil
				k.waiting(c.account, 1)
				k.Go(func() {
					defer k.waiting(c.account, -1)
					k.giveUp(&own)
				})
			}
			if ctx.Err() != nil {
				return nil, notBegun(ctx)
			}
			bad = admit.Refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "the store of idempotency keys does not answer: %w", err))
			if waited := time.Since(began); waited >= keyWait { // no other node has another store
				bad = bad.WithDetail("waited_ms", waited.Milliseconds())
			}
			return nil, bad
		}
		c.unreserve() // another call runs under the key
		pause.Reset(next)
	}
}

// waiting adds to the keys of an account that wait to be freed. It returns how many wait if a call
// of the account may add no more, else 0.
func (k *Keys) waiting(account subjects.SessionID, more int) (all int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pending[account] += more; k.pending[account] == 0 {
		delete(k.pending, account)
	}
	for _, n := range k.pending {
		all += n
	}
	if all < maxPending && k.pending[account] < maxPending/2 {
		return 0
	}
	return all
}

// giveUp frees a key that may have been stored, or may still be, for a call that does not begin.
// It takes the key and deletes it: a late write is refused from then on.
func (k *Keys) giveUp(c *claim) {
	k.untilStored(func(context.Context) error {
		for wait := k.take(c.key.Name); wait != nil; wait = k.take(c.key.Name) {
			select {
			case <-wait: // held by this call, which ends, or by another one
			case <-k.Base.Done():
				return nil
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(k.Base), keyWait)
		defer cancel()
		defer k.letGo(c.key.Name)
		_, _, err := k.try(ctx, c)
		if c.revision > 0 {
			err = k.Bus.Delete(ctx, c.key, c.revision)
		}
		return err
	})
}

// untilStored repeats a write to the store until it succeeds, at growing intervals. A conflict
// counts as success: an acknowledgement was lost, or the key has expired. It ends with the host, and
// once the record would have expired.
func (k *Keys) untilStored(tell func(context.Context) error) {
	for wait, began := firstKeyRetry, time.Now(); ; wait = min(2*wait, lastKeyRetry) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(k.Base), keyWait)
		err := tell(ctx)
		cancel()
		if err == nil || errors.Is(err, store.ErrConflict) || time.Since(began) > keysFor || !wake.After(k.Base, wait) {
			return
		}
	}
}

// try asks once; all results are empty if the call has to wait. If the call gets the key, the
// claim has its revision.
func (k *Keys) try(ctx context.Context, c *claim) (other *keyed, bad *toolmesh.Error, err error) {
	ctx, cancel := context.WithTimeout(ctx, keyWait)
	defer cancel()
	var full *toolmesh.Error // an ended call is answered even then
	if c.room != nil && c.done == nil {
		c.done, full = c.room()
	}
	if full == nil {
		if c.revision, err = k.Bus.Create(ctx, c.key, c.value, 0); !errors.Is(err, store.ErrConflict) {
			return nil, nil, err
		}
	}
	entry, err := k.Bus.Latest(ctx, c.key)
	if errors.Is(err, store.ErrNoKey) {
		return nil, full, nil // or it was freed meanwhile
	}
	if err != nil {
		return nil, nil, err
	}
	other, free, bad, err := k.heldBy(ctx, c, entry)
	switch {
	case !free:
		return other, bad, err
	case full != nil:
		return nil, full, nil
	}
	c.revision, err = k.Bus.Update(ctx, c.key, c.value, entry.Revision, 0)
	if errors.Is(err, store.ErrConflict) {
		return nil, nil, nil // another node was faster
	}
	return nil, nil, err
}

// heldBy decides by a key's record whether the key may be taken over; otherwise it returns the
// record of an ended call, an error, or nothing while a call runs.
func (k *Keys) heldBy(ctx context.Context, c *claim, entry store.Entry) (other *keyed, free bool, bad *toolmesh.Error, err error) {
	other, mine := new(keyed), c.mine
	if err := json.Unmarshal(entry.Value, other); err != nil {
		return nil, false, admit.Failure(toolmesh.Errorf(toolmesh.CodeInternal, "the record under the idempotency key cannot be read, and whether its call ran is unknown: %w", err), toolmesh.StartedUnknown), nil
	}
	switch {
	case other.Epoch != mine.Epoch:
		return nil, true, nil, nil // of an earlier session of this name
	case other.Tool != mine.Tool || other.Digest != mine.Digest:
		return nil, false, admit.Refusal(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the idempotency key names another call (tool and arguments must agree): use a new one")), nil
	case other.Done:
		return other, false, nil, nil
	case other.Node == k.Node && other.Boot == k.Boot:
		return nil, true, nil, nil // this call holds the key on this node, so no call runs under it
	}
	lost, _, err := k.Presence.NodeLost(ctx, other.Node, other.Boot)
	if err != nil || !lost || c.idempotent {
		return nil, lost && err == nil, nil, err
	}
	return nil, false, toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s, which ran the call of the idempotency key, is lost: whether the tool ran is unknown", other.Node).
		WithOrigin(toolmesh.OriginAgent).WithDetail("node", string(other.Node)).WithDetail("reason", "key_unknown"), nil
}

// settle stores the outcome of the call of a key and then releases the key; or frees it.
func (k *Keys) settle(c *claim, record admit.Record) {
	began := record.Err == nil || record.Err.Started != toolmesh.StartedNo
	if record.Err != nil && c.idempotent && mayRepeat(record.Err.Code) {
		began = false // the call may run again
	}
	mine := c.mine
	mine.Done, mine.Result, mine.Error = true, record.Result, record.Err
	if record.Err != nil {
		mine.Error = k.Replies.Fit(record.Err)
	} else if len(mine.Result) > 0 && !json.Valid(mine.Result) {
		mine.Result, mine.Error = nil, codec.NotJSON()
	}
	value, err := tool.MarshalPlain(mine)
	without := func(why string) {
		mine.Result = nil
		mine.Error = toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the call was executed, but its result of %d bytes %s its idempotency key", record.Size(), why).
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
		value, _ = tool.MarshalPlain(mine)
	}
	if err != nil || record.Ref != nil || !k.Replies.Fits(len(value)) {
		without("was too large to be kept under")
	}
	write := func(ctx context.Context) error {
		if !began {
			return k.Bus.Delete(ctx, c.key, c.revision)
		}
		_, err := k.Bus.Update(ctx, c.key, value, c.revision, 0)
		if errors.Is(err, store.ErrFull) && len(value) > codec.AnswerRoom {
			without("found no room in the store to be kept under")
			_, err = k.Bus.Update(ctx, c.key, value, c.revision, 0)
		}
		return err
	}
	stored := func() {
		if began {
			k.stored.Take(c.account, int64(len(subjects.KVSubject(c.key.Bucket, c.key.Name))+len(value))+recordExtra)
		}
		c.unreserve()
		k.letGo(c.key.Name)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.Base), keyWait)
	defer cancel()
	if err := write(ctx); err == nil || errors.Is(err, store.ErrConflict) {
		stored()
		return
	}
	k.Log.Warn("record of an idempotency key could not be stored: it is tried again", slog.String("rpc_id", string(mine.RPCID)))
	k.Go(func() {
		k.untilStored(write)
		stored()
	})
}

// mayRepeat reports whether a call of an idempotent tool with this error may run again.
func mayRepeat(code toolmesh.Code) bool {
	switch code {
	case toolmesh.CodeNodeLost, toolmesh.CodeWorkerCrashed, toolmesh.CodeCancelled, toolmesh.CodeUnavailable, toolmesh.CodeDeadlineExceeded:
		return true
	}
	return false
}
