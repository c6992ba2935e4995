package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/admit"
	"github.com/toolmesh/toolmesh/host/quota"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	keyWait = 5 * time.Second // for one question to the store
	// After what the store did not take: at first, doubling up to the last.
	firstKeyRetry = time.Second
	lastKeyRetry  = time.Minute
	// keyParts is what of the bucket a call has for what it ends with before it begins: one
	// part in so many, or less where messages are smaller.
	keyParts = 512
	// How often a call looks whether another one of its key has ended: at first, and
	// doubling up to the last.
	firstKeyLook = 20 * time.Millisecond
	lastKeyLook  = time.Second
)

// keyed is what is stored under an idempotency key: which call it names, who runs it,
// and what it ended with.
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

// keys are the idempotency keys that a call of this node has in hand: it asks for one,
// runs under it, or its record is yet to be stored.
type keys struct {
	room   *chunks.Room // of the bucket
	stored *quota.Quota // what each account has put into it

	mu       sync.Mutex
	held     map[string]chan struct{} // closed when it is let go
	reserved int64                    // of the bucket, for what runs
}

// reserve takes room for what a call ends with, before it begins; give it back by done.
// An account that has filled the bucket leaves the others as much as it has itself.
func (k *keys) reserve(ctx context.Context, account subjects.SessionID, limit int64) (done func(), bad *toolmesh.Error) {
	left, most := k.room.Left(ctx)
	if most == 0 {
		return func() {}, nil // no bound, or no answer: who creates the key will see
	}
	size := most / keyParts
	if limit > 0 {
		size = min(size, limit)
	}
	used, _ := k.stored.Take(account, 0)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reserved+size > left || used+size > left {
		return nil, refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "the store of idempotency keys has no room left for the call's result (the session has stored %d bytes in a day through this node): wait until older keys expire, or call without a key", used)).
			WithDetail("limit", "keys_max").WithDetail("max", most)
	}
	k.reserved += size
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.reserved -= size
	}, nil
}

// take has a call hold a key; wait is nil, or closed when whoever holds it lets go.
func (k *keys) take(name string) (wait <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if held := k.held[name]; held != nil {
		return held
	}
	if k.held == nil {
		k.held = make(map[string]chan struct{})
	}
	k.held[name] = make(chan struct{})
	return nil
}

// inUse reports whether any is held.
func (k *keys) inUse() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.held) > 0
}

func (k *keys) letGo(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.held[name])
	delete(k.held, name)
}

// once runs a call that has an idempotency key, or returns what the call of that key
// ended with: run has the handler run. In the store a key goes this way:
//
//	none ──create──▶ running ──▶ done, with the call's record, for a day
//	  ▲                 │
//	  └── never began ──┘
//
// A running one whose node is lost stays so: whether its tool ran is not known. Only that
// of a tool that is declared idempotent is taken over.
func (h *Host) once(ctx context.Context, c *inflight, run func() admit.Record) admit.Record {
	name, err := subjects.IdempotencyKey(c.Request.Session, c.Request.IdempotencyKey)
	if err != nil {
		return admit.Record{Err: refusal(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the idempotency key: %w", err))}
	}
	args := append(c.call.Args[:len(c.call.Args):len(c.call.Args)], c.call.VarArgs...)
	if canonical, err := tool.Canonical(c.call.Args); err == nil {
		args = append(canonical, c.call.VarArgs...)
	}
	digest := sha256.Sum256(args)
	key := store.Key{Bucket: subjects.BucketIdem, Name: name}
	mine := &keyed{
		Tool: c.Request.Tool, Digest: hex.EncodeToString(digest[:]), Epoch: c.epoch, RPCID: c.Request.RPCID, Node: h.node, Boot: h.boot,
	}
	for wait := h.keys.take(name); wait != nil; wait = h.keys.take(name) {
		select {
		case <-wait:
		case <-ctx.Done():
			return admit.Record{Err: stillRuns(ctx)}
		}
	}
	if err := h.rely(ctx); err != nil { // the call runs all the same
		h.log.Debug("if this node dies, it is known late", slog.String("error", err.Error()))
	}
	account := subjects.Account(c.Request.Session, c.epoch)
	claim := claim{key: key, mine: mine, idempotent: c.tool.descriptor.Annotations.Idempotent}
	claim.room = func() (func(), *toolmesh.Error) { return h.keys.reserve(ctx, account, h.bus.MaxPayload()) }
	other, bad := h.claimKey(ctx, &claim)
	if other != nil || bad != nil {
		h.keys.letGo(name)
		claim.unreserve()
		if bad != nil {
			return admit.Record{Err: bad}
		}
		return admit.Record{Result: other.Result, Err: other.Error}
	}
	record := admit.Record{Err: outcome(&c.ctx, errExited)} // of a handler that ends this goroutine
	defer func() { h.settleKey(c, &claim, account, record) }()
	if ctx.Err() != nil { // while the key was created
		record = admit.Record{Err: notBegun(ctx)}
		return record
	}
	record = h.bounded(c, run())
	return record
}

// claim is a key that a call is to have, or has.
type claim struct {
	key        store.Key
	mine       *keyed
	value      []byte // mine, as it is stored
	idempotent bool
	room       func() (done func(), bad *toolmesh.Error)
	done       func() // gives back the room; nil: there is none yet
	revision   uint64 // of the key, once it is the call's
}

// unreserve gives back the room of a claim, if it has any.
func (k *claim) unreserve() {
	if k.done != nil {
		k.done()
		k.done = nil
	}
}

// notBegun is the error of a call that is over before its key was its own.
func notBegun(ctx context.Context) *toolmesh.Error {
	return toolmesh.AsError(context.Cause(ctx)).WithStarted(toolmesh.StartedNo)
}

// stillRuns is the error of a call that waited for another one of its key.
func stillRuns(ctx context.Context) *toolmesh.Error {
	return toolmesh.AsError(context.Cause(ctx)).WithDetail("reason", "key_in_use").WithStarted(toolmesh.StartedUnknown)
}

// claimKey makes a key this call's, or returns the record of the call that it names.
func (h *Host) claimKey(ctx context.Context, k *claim) (other *keyed, bad *toolmesh.Error) {
	var err error
	if k.value, err = tool.MarshalPlain(k.mine); err != nil {
		return nil, refusal(toolmesh.Errorf(toolmesh.CodeInternal, "the record of an idempotency key: %w", err))
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
		other, bad, err := h.tryKey(ctx, k)
		switch {
		case k.revision > 0 || other != nil || bad != nil:
			return other, bad
		case err != nil:
			if !store.Refused(err) { // what was sent may yet be stored
				own := *k
				own.room, own.done = nil, nil
				h.running.run(func() { h.giveUpKey(&own) })
			}
			if ctx.Err() != nil {
				return nil, notBegun(ctx)
			}
			return nil, refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "the store of idempotency keys does not answer: %w", err))
		}
		k.unreserve() // another call runs under the key
		pause.Reset(next)
	}
}

// giveUpKey gives a key free that may have been stored, or will be, for a call that does
// not begin. It takes the key and deletes it, until the store has answered or this node
// has ended: what is on its way is refused from then on.
func (h *Host) giveUpKey(k *claim) {
	h.untilStored(func(context.Context) error {
		for wait := h.keys.take(k.key.Name); wait != nil; wait = h.keys.take(k.key.Name) {
			select {
			case <-wait: // this call, which ends, or another one
			case <-h.base.Done():
				return nil
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.base), keyWait)
		defer cancel()
		defer h.keys.letGo(k.key.Name)
		_, _, err := h.tryKey(ctx, k)
		if k.revision > 0 {
			err = store.Of(h.bus).Delete(ctx, k.key, k.revision)
		}
		return err
	})
}

// untilStored has the store told something until it has taken it, at growing intervals. A
// conflict is as good: an acknowledgement was lost, or the key has expired, as it does in a
// day. It ends with the host.
func (h *Host) untilStored(tell func(context.Context) error) {
	for wait := firstKeyRetry; ; wait = min(2*wait, lastKeyRetry) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.base), keyWait)
		err := tell(ctx)
		cancel()
		if err == nil || errors.Is(err, store.ErrConflict) {
			return
		}
		select {
		case <-time.After(wait):
		case <-h.base.Done():
			return
		}
	}
}

// tryKey asks once; nothing at all is returned where the call has to wait. Where the key
// is the call's, the claim has its revision.
func (h *Host) tryKey(ctx context.Context, k *claim) (other *keyed, bad *toolmesh.Error, err error) {
	ctx, cancel := context.WithTimeout(ctx, keyWait)
	defer cancel()
	var full *toolmesh.Error // a call that has ended is answered all the same
	if k.room != nil && k.done == nil {
		k.done, full = k.room()
	}
	if full == nil {
		if k.revision, err = store.Of(h.bus).Create(ctx, k.key, k.value, 0); !errors.Is(err, store.ErrConflict) {
			return nil, nil, err
		}
	}
	entry, err := store.Of(h.bus).Latest(ctx, k.key)
	if errors.Is(err, store.ErrNoKey) {
		return nil, full, nil // or it has just been given free
	}
	if err != nil {
		return nil, nil, err
	}
	other, free, bad, err := h.heldBy(ctx, k, entry)
	switch {
	case !free:
		return other, bad, err
	case full != nil:
		return nil, full, nil
	}
	k.revision, err = store.Of(h.bus).Update(ctx, k.key, k.value, entry.Revision, 0)
	if errors.Is(err, store.ErrConflict) {
		return nil, nil, nil // somebody was faster
	}
	return nil, nil, err
}

// heldBy says of what is stored under a key whether it may be taken over; else it is the
// record of the call that has ended, an error, or nothing where a call runs.
func (h *Host) heldBy(ctx context.Context, k *claim, entry store.Entry) (other *keyed, free bool, bad *toolmesh.Error, err error) {
	other, mine := new(keyed), k.mine
	if err := json.Unmarshal(entry.Value, other); err != nil {
		return nil, false, refusal(toolmesh.Errorf(toolmesh.CodeInternal, "the record under the idempotency key cannot be read: %w", err)), nil
	}
	switch {
	case other.Epoch != mine.Epoch:
		return nil, true, nil, nil // of a session of this name that has ended
	case other.Tool != mine.Tool || other.Digest != mine.Digest:
		return nil, false, refusal(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the idempotency key names another call (tool and arguments must agree): use a new one")), nil
	case other.Done:
		return other, false, nil, nil
	case other.Node == h.node && other.Boot == h.boot:
		return nil, true, nil, nil // this call holds the key on this node, so nobody runs under it
	}
	lost, _, err := h.nodeLost(ctx, other.Node, other.Boot)
	if err != nil || !lost || k.idempotent {
		return nil, lost && err == nil, nil, err
	}
	return nil, false, toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s, which ran the call of the idempotency key, is lost: whether the tool ran is not known", other.Node).
		WithOrigin(toolmesh.OriginAgent).WithDetail("node", string(other.Node)).WithDetail("reason", "key_unknown"), nil
}

// nodeLost reports whether a start of a node has no lease any more, and whether that has
// expired. What it has given out itself may stand for a while where it was given back, or
// taken over.
func (h *Host) nodeLost(ctx context.Context, node subjects.NodeID, boot subjects.BootID) (lost, expired bool, err error) {
	name, err := subjects.NodeKey(node)
	if err != nil {
		return true, true, nil //nolint:nilerr // there can be no such node
	}
	entry, err := store.Of(h.bus).Latest(ctx, store.Key{Bucket: subjects.BucketNodes, Name: name})
	switch {
	case errors.Is(err, store.ErrNoKey):
		return true, !errors.Is(err, store.ErrDeleted), nil
	case err != nil:
		return false, false, err
	}
	var lease struct {
		Boot subjects.BootID `json:"boot"`
	}
	return json.Unmarshal(entry.Value, &lease) != nil || lease.Boot != boot, false, nil
}

// settleKey stores what the call of a key ended with, and lets go of the key when it is
// stored; or gives it free.
func (h *Host) settleKey(c *inflight, k *claim, account subjects.SessionID, record admit.Record) {
	began := record.Err == nil || record.Err.Started != toolmesh.StartedNo
	if record.Err != nil && k.idempotent && mayRepeat(record.Err.Code) {
		began = false // once more is as good as once
	}
	mine := k.mine
	mine.Done, mine.Result, mine.Error = true, record.Result, record.Err
	if record.Err != nil {
		mine.Error = h.fitting(record.Err)
	} else if len(mine.Result) > 0 && !json.Valid(mine.Result) {
		mine.Result, mine.Error = nil, toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "the tool returned what is not JSON").WithStarted(toolmesh.StartedYes)
	}
	value, err := tool.MarshalPlain(mine)
	without := func(why string) {
		mine.Result = nil
		mine.Error = toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the call has run, and its result, of %d bytes, %s its idempotency key", resultSize(record), why).
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
		value, _ = tool.MarshalPlain(mine)
	}
	if limit := h.bus.MaxPayload(); err != nil || record.Ref != nil || limit > 0 && int64(len(value)+answerRoom) > limit {
		without("was too large to be kept under")
	}
	write := func(ctx context.Context) error {
		if !began {
			return store.Of(h.bus).Delete(ctx, k.key, k.revision)
		}
		_, err := store.Of(h.bus).Update(ctx, k.key, value, k.revision, 0)
		if errors.Is(err, store.ErrFull) && len(value) > answerRoom {
			without("found no room in the store to be kept under")
			_, err = store.Of(h.bus).Update(ctx, k.key, value, k.revision, 0)
		}
		return err
	}
	stored := func() {
		if began {
			h.keys.stored.Take(account, int64(len(value)))
		}
		k.unreserve()
		h.keys.letGo(k.key.Name)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.base), keyWait)
	defer cancel()
	if err := write(ctx); err == nil || errors.Is(err, store.ErrConflict) {
		stored()
		return
	}
	h.log.Warn("the record of an idempotency key is stored later: the store does not take it", slog.String("rpc_id", string(c.Request.RPCID)))
	h.running.run(func() {
		h.untilStored(write)
		stored()
	})
}

// mayRepeat reports whether a call of an idempotent tool that ended so may run again.
func mayRepeat(code toolmesh.Code) bool {
	switch code {
	case toolmesh.CodeNodeLost, toolmesh.CodeWorkerCrashed, toolmesh.CodeCancelled, toolmesh.CodeUnavailable, toolmesh.CodeDeadlineExceeded:
		return true
	}
	return false
}

// checkKey says why a request with an idempotency key must not be started.
func (h *Host) checkKey(req *codec.Request) *toolmesh.Error {
	switch {
	case req.Delivery != codec.DeliverNone:
		return refusal(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "header %s: a stream cannot have an idempotency key, only a call with one result", codec.HeaderIdempotencyKey))
	case !h.presence.Joined():
		return refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "node %s has not found the store of idempotency keys: without JetStream there are none", h.node))
	}
	return nil
}
