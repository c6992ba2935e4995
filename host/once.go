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
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	keyWait  = 5 * time.Second // for one question to the store
	keyRetry = time.Second     // after what it did not take
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
// runs under it, or its record is yet to be stored. The zero value is empty.
type keys struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when it is let go
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
	key := bus.Key{Bucket: subjects.BucketIdem, Name: name}
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
	revision, other, bad := h.claimKey(ctx, key, mine, c.tool.descriptor.Annotations.Idempotent)
	if other != nil || bad != nil {
		h.keys.letGo(name)
		if bad != nil {
			return admit.Record{Err: bad}
		}
		return admit.Record{Result: other.Result, Err: other.Error}
	}
	record := admit.Record{Err: outcome(&c.ctx, errExited)} // of a handler that ends this goroutine
	defer func() { h.settleKey(c, key, revision, mine, record) }()
	record = h.bounded(c, run())
	return record
}

// stillRuns is the error of a call that waited for another one of its key.
func stillRuns(ctx context.Context) *toolmesh.Error {
	return toolmesh.AsError(context.Cause(ctx)).WithDetail("reason", "key_in_use").WithStarted(toolmesh.StartedUnknown)
}

// claimKey makes a key this call's, and returns its revision; or the record of the call
// that it names.
func (h *Host) claimKey(ctx context.Context, key bus.Key, mine *keyed, idempotent bool) (revision uint64, other *keyed, bad *toolmesh.Error) {
	value, err := tool.MarshalPlain(mine)
	if err != nil {
		return 0, nil, refusal(toolmesh.Errorf(toolmesh.CodeInternal, "the record of an idempotency key: %w", err))
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for next := firstKeyLook; ; next = min(2*next, lastKeyLook) {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return 0, nil, stillRuns(ctx)
		}
		revision, other, bad, err := h.tryKey(ctx, key, value, mine, idempotent)
		if revision > 0 || other != nil || bad != nil {
			return revision, other, bad
		}
		if err != nil {
			// What was sent may yet be stored: it is of this start of the node, and
			// whoever asks here next knows that nobody runs under it.
			return 0, nil, refusal(toolmesh.Errorf(toolmesh.CodeUnavailable, "the store of idempotency keys does not answer: %w", err))
		}
		pause.Reset(next)
	}
}

// tryKey asks once; nothing at all is returned where the call has to wait.
func (h *Host) tryKey(ctx context.Context, key bus.Key, value []byte, mine *keyed, idempotent bool) (revision uint64, other *keyed, bad *toolmesh.Error, err error) {
	ctx, cancel := context.WithTimeout(ctx, keyWait)
	defer cancel()
	revision, err = h.bus.Create(ctx, key, value, 0)
	if !errors.Is(err, bus.ErrConflict) {
		return revision, nil, nil, err
	}
	entry, err := h.bus.Latest(ctx, key)
	if errors.Is(err, bus.ErrNoKey) {
		return 0, nil, nil, nil // it has just been given free
	}
	if err != nil {
		return 0, nil, nil, err
	}
	other = new(keyed)
	if err := json.Unmarshal(entry.Value, other); err != nil {
		return 0, nil, refusal(toolmesh.Errorf(toolmesh.CodeInternal, "the record under the idempotency key cannot be read: %w", err)), nil
	}
	free := false
	switch {
	case other.Epoch != mine.Epoch:
		free = true // of a session of this name that has ended
	case other.Tool != mine.Tool || other.Digest != mine.Digest:
		return 0, nil, refusal(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the idempotency key names another call (tool and arguments must agree): use a new one")), nil
	case other.Done:
		return 0, other, nil, nil
	case other.Node == h.node && other.Boot == h.boot:
		free = true // this call holds the key on this node, so nobody runs under it
	default:
		lost, _, err := h.nodeLost(ctx, other.Node, other.Boot)
		if err != nil || !lost {
			return 0, nil, nil, err
		}
		if free = idempotent; !free {
			return 0, nil, toolmesh.Errorf(toolmesh.CodeNodeLost, "node %s, which ran the call of the idempotency key, is lost: whether the tool ran is not known", other.Node).
				WithOrigin(toolmesh.OriginAgent).WithDetail("node", string(other.Node)).WithDetail("reason", "key_unknown"), nil
		}
	}
	if !free {
		return 0, nil, nil, nil
	}
	revision, err = h.bus.Update(ctx, key, value, entry.Revision, 0)
	if errors.Is(err, bus.ErrConflict) {
		return 0, nil, nil, nil // somebody was faster
	}
	return revision, nil, nil, err
}

// nodeLost reports whether a start of a node has no lease any more, and whether that has
// expired. What it has given out itself may stand for a while where it was given back, or
// taken over.
func (h *Host) nodeLost(ctx context.Context, node subjects.NodeID, boot subjects.BootID) (lost, expired bool, err error) {
	name, err := subjects.NodeKey(node)
	if err != nil {
		return true, true, nil //nolint:nilerr // there can be no such node
	}
	entry, err := h.bus.Latest(ctx, bus.Key{Bucket: subjects.BucketNodes, Name: name})
	switch {
	case errors.Is(err, bus.ErrNoKey):
		return true, !errors.Is(err, bus.ErrDeleted), nil
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
func (h *Host) settleKey(c *inflight, key bus.Key, revision uint64, mine *keyed, record admit.Record) {
	began := record.Err == nil || record.Err.Started != toolmesh.StartedNo
	if record.Err != nil && c.tool.descriptor.Annotations.Idempotent && mayRepeat(record.Err.Code) {
		began = false // once more is as good as once
	}
	mine.Done, mine.Result, mine.Error = true, record.Result, record.Err
	if record.Err != nil {
		mine.Error = h.fitting(record.Err)
	} else if len(mine.Result) > 0 && !json.Valid(mine.Result) {
		mine.Result, mine.Error = nil, toolmesh.Errorf(toolmesh.CodeResultNotSerializable, "the tool returned what is not JSON").WithStarted(toolmesh.StartedYes)
	}
	value, err := tool.MarshalPlain(mine)
	if limit := h.bus.MaxPayload(); err != nil || record.Ref != nil || limit > 0 && int64(len(value)+answerRoom) > limit {
		mine.Result = nil
		mine.Error = toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the call has run, and its result, of %d bytes, was too large to be kept under its idempotency key", resultSize(record)).
			WithStarted(toolmesh.StartedYes).WithOrigin(toolmesh.OriginAgent)
		value, _ = tool.MarshalPlain(mine)
	}
	store := func() bool {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.base), keyWait)
		defer cancel()
		var err error
		if began {
			_, err = h.bus.Update(ctx, key, value, revision, 0)
		} else {
			err = h.bus.Delete(ctx, key, revision)
		}
		// A conflict with ourselves: an acknowledgement was lost.
		return err == nil || errors.Is(err, bus.ErrConflict)
	}
	if store() {
		h.keys.letGo(key.Name)
		return
	}
	h.log.Warn("the record of an idempotency key is stored later: the store does not answer", slog.String("rpc_id", string(c.Request.RPCID)))
	h.running.run(func() {
		for !store() {
			select {
			case <-time.After(keyRetry):
			case <-h.base.Done():
				return
			}
		}
		h.keys.letGo(key.Name)
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
