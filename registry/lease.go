package registry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/subjects"
)

// Times of a lease. A heartbeat comes each second.
const (
	// LeaseTTL is how long a lease is valid after its last renewal: in a mesh of up to about
	// eighty nodes, and for a node that others rely on (see [Lease.Rely]).
	LeaseTTL = 10 * time.Second
	// RenewEvery is the time between two renewals there.
	RenewEvery = 3 * time.Second
	// Silence is the time without a heartbeat after which a node counts as gone.
	Silence = bus.Silence

	// HoldsFor is how long a holder may rely on its lease after a renewal. It is shorter than
	// LeaseTTL, so that the lease cannot have expired for others.
	HoldsFor = 8 * time.Second

	renewRetry   = 300 * time.Millisecond
	renewTimeout = 2 * time.Second
	// prepareTimeout leaves time for a renewal within HoldsFor.
	prepareTimeout = 3 * time.Second
	verifyEvery    = 30 * time.Second
	// conflictsMost bounds the attempts after conflicts; a replica that lags shows the old
	// revision for a moment.
	conflictsMost = 10

	// deliveriesMost is about the max number of renewals that the brokers deliver per second:
	// every view receives each one. In a mesh with more nodes than this allows, leases are
	// renewed more rarely and are valid for longer.
	deliveriesMost = 2000
	// countEvery is the min time between two questions for the number of nodes.
	countEvery = 15 * time.Second
	// reliesFor is how long a lease is kept short after it was relied on.
	reliesFor = time.Minute
	// longestEvery bounds the effect of a wrong number of nodes.
	longestEvery = 10 * time.Minute
)

// renewEvery is the time between two renewals in a mesh of so many nodes. It changes only
// when their number doubles: a lease contains it, and every view receives a change.
func renewEvery(nodes uint64) time.Duration {
	nodes = min(nodes, 1<<16)
	if nodes*nodes <= deliveriesMost*uint64(RenewEvery/time.Second) {
		return RenewEvery
	}
	up := uint64(1) << bits.Len64(nodes-1)                                    // the next power of two
	return min(time.Duration(up*up)*time.Second/deliveriesMost, longestEvery) //nolint:gosec // it is bounded
}

// Lease makes a process a node: the record MESH_NODES/<node>, renewed until [Lease.Release], and
// the records of the tools that the node serves. Without a broker it keeps trying, and afterwards
// writes every missing record again, also after the store was wiped. Only another boot under the
// same node id ends it: see [Lease.Lost]. Its methods may be called concurrently.
type Lease struct {
	bus  store.Store
	log  *slog.Logger
	key  store.Key
	node subjects.NodeID
	boot subjects.BootID
	// prepare makes the streams that are missing: a store that was wiped has none, and one in memory
	// is lost with its broker.
	prepare func(context.Context) error

	mu     sync.Mutex
	record NodeRecord
	tools  map[string]storedRecord // by key in MESH_TOOLS
	err    error
	since  time.Time     // it has been valid without a gap
	until  time.Time     // it is certainly valid
	relied time.Time     // when something last rested on it
	every  time.Duration // how often it is renewed, while nothing rests on it
	asked  time.Time     // how many nodes there are
	due    time.Time     // the next renewal

	writing    sync.Mutex  // one writer of the lease's key at a time; guards revision
	revision   uint64      // 0: nothing is stored
	serving    sync.Mutex  // one writer of its tools' records at a time; taken before mu
	unverified atomic.Bool // the tools are to be held against the store
	kick       chan struct{}
	lost       chan struct{}
	once       sync.Once
	wg         sync.WaitGroup
	end        context.CancelFunc // of the renewing goroutine
	forget     func()             // the listener on the connection
}

// ErrRunning is in the error of [Acquire] if another boot holds the lease, and is alive or may be:
// the time was over before that was known.
var ErrRunning = errors.New("is running already")

// Acquire makes this process the node of record. If another boot holds the lease, it
// listens for that boot's heartbeat for 2.5 s: if one comes the start is refused, else the
// lease is taken over by compare-and-set. The record's Boot must be new for each start. A
// goroutine renews the lease until [Lease.Release]. prepare makes what the mesh needs in the store,
// as far as it is missing: it is called first, and again after a reconnect or a failed renewal. nil
// makes nothing. A nil logger discards.
func Acquire(ctx context.Context, c Conn, record NodeRecord, prepare func(context.Context) error, log *slog.Logger) (*Lease, error) {
	b := bus.Of(c)
	if err := b.Check(); err != nil {
		return nil, err
	}
	token, err := subjects.NodeKey(record.Node)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "node %q: %w", record.Node, err)
	}
	if record.Boot == "" {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "node %q needs a boot id, new for each start", record.Node)
	}
	if prepare == nil {
		prepare = func(context.Context) error { return nil }
	}
	if err := prepare(ctx); err != nil {
		return nil, err
	}
	running, end := context.WithCancel(context.Background())
	l := &Lease{
		bus: store.Of(b), log: cmp.Or(log, slog.New(slog.DiscardHandler)), record: record, node: record.Node, boot: record.Boot, prepare: prepare,
		key:   store.Key{Bucket: subjects.BucketNodes, Name: token},
		tools: make(map[string]storedRecord), every: RenewEvery,
		kick: make(chan struct{}, 1), lost: make(chan struct{}), end: end,
	}
	l.unverified.Store(true) // an earlier boot may have left something
	if err := l.acquire(ctx); err != nil {
		end()
		return nil, err
	}
	l.forget = b.OnState(func(s bus.State) {
		if !s.Connected {
			return
		}
		l.unverified.Store(true)
		l.mu.Lock()
		waits := l.every > RenewEvery && time.Now().Before(l.due)
		l.mu.Unlock()
		if !waits { // else the next renewal sees to it: a thousand at once would be many
			wake.Up(l.kick)
		}
	})
	l.wg.Go(func() { l.renewLoop(running) })
	return l, nil
}

func (l *Lease) acquire(ctx context.Context) error {
	data := encodeRecord(l.record)
	var silent subjects.BootID // the boot that no heartbeat came from
	for range conflictsMost {
		holder, revision, err := l.stored(ctx)
		if err == nil && revision > 0 && holder.Boot != l.boot {
			lives := holder.Boot // if its lease is renewed though it is silent
			if silent == "" || lives != silent {
				if lives, err = l.heard(ctx); err != nil {
					return l.unheard(err)
				}
			}
			if lives != "" {
				return toolmesh.Errorf(toolmesh.CodeUnavailable,
					"node %q %w (boot %s): stop it, or give this one another name (--node)", l.node, ErrRunning, lives).
					WithOrigin(toolmesh.OriginMesh).WithRetryable(false).WithDetail("boot", string(lives))
			}
			silent = holder.Boot
			l.log.Info("taking over the lease of a node that is silent", slog.String("node", string(l.node)), slog.String("boot", string(silent)))
		}
		began := time.Now()
		if err == nil {
			l.revision, err = replace(ctx, l.bus, l.key, data, revision, LeaseTTL)
		}
		if err == nil {
			l.renewed(began)
			return nil
		}
		if errors.Is(err, store.ErrConflict) {
			err = pause(ctx, renewRetry)
		}
		if err != nil && silent != "" {
			return l.unheard(err)
		} else if err != nil {
			return fmt.Errorf("become node %q: %w", l.node, err)
		}
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "node %q: another process takes the lease all the time: give this one another name (--node)", l.node).
		WithOrigin(toolmesh.OriginMesh).WithRetryable(false)
}

// unheard is the error of a start that ends before it knows whether the holder of the lease is alive.
func (l *Lease) unheard(err error) error {
	return fmt.Errorf("whether node %q %w is not known: %w", l.node, ErrRunning, err)
}

// stored returns the record of the lease's key; revision 0: no record exists. A record that
// is not readable counts as another boot's.
func (l *Lease) stored(ctx context.Context) (holder NodeRecord, revision uint64, err error) {
	e, err := l.bus.Get(ctx, l.key)
	if errors.Is(err, store.ErrNoKey) {
		return holder, 0, nil
	}
	if err == nil && json.Unmarshal(e.Value, &holder) != nil {
		l.log.Warn("the stored lease is not readable", slog.String("node", string(l.node)))
	}
	return holder, e.Revision, err
}

// heard listens for a heartbeat of another boot and returns that boot, or "".
func (l *Lease) heard(ctx context.Context) (subjects.BootID, error) {
	subject, err := subjects.Heartbeat(l.node)
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "node %q: %w", l.node, err)
	}
	sub, err := l.bus.Conn().SubscribeSync(subject)
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "listen for node %q: %w", l.node, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	// The silence counts from when the broker has the subscription.
	if err := l.bus.Ping(ctx); err != nil {
		return "", err
	}
	silence, cancel := context.WithTimeout(ctx, Silence)
	defer cancel()
	for {
		m, err := sub.NextMsgWithContext(silence)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("listen for node %q: %w", l.node, err)
		}
		var beat codec.Heartbeat
		if json.Unmarshal(m.Data, &beat) == nil && beat.Boot != "" && beat.Boot != string(l.boot) {
			return subjects.BootID(beat.Boot), nil
		}
	}
}

// Lost is closed when another boot has this node's lease. The node must stop
// taking calls then: its callers count them as lost.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Err says why the lease was lost; nil while it was not.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Update changes the record, its node and boot excepted, and writes it at once.
// If the broker does not answer the change is written with the next renewal, and
// the error says why not now.
func (l *Lease) Update(ctx context.Context, change func(*NodeRecord)) error {
	l.mu.Lock()
	change(&l.record)
	l.record.Node, l.record.Boot = l.node, l.boot
	l.mu.Unlock()
	return l.renew(ctx)
}

// Publish writes the record of the node's tools of one index, or of one tool of a session, and
// keeps it written until [Lease.Withdraw] or [Lease.Release]. Node and Boot are set to the lease's.
// After an error the record is written once the broker answers. A record above a message's size is
// payload_too_large, and is dropped.
func (l *Lease) Publish(ctx context.Context, r ToolsRecord) error {
	r.Node, r.Boot = l.node, l.boot
	key, err := r.Key()
	if err != nil {
		return err
	}
	name, err := key.Build()
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "publish tools of node %q: %w", r.Node, err)
	}
	p := publication(name, r)
	l.serving.Lock()
	defer l.serving.Unlock()
	l.mu.Lock()
	l.tools[name] = p
	l.mu.Unlock()
	if err := l.putTools(ctx, p); err != nil {
		l.unverified.Store(true)
		if toolmesh.CodeOf(err) == toolmesh.CodePayloadTooLarge {
			l.mu.Lock()
			delete(l.tools, name)
			l.mu.Unlock()
		}
		return fmt.Errorf("publish the tools of node %q: %w", r.Node, err)
	}
	return nil
}

// Withdraw deletes a record of Publish. The key's Node is set to the lease's.
func (l *Lease) Withdraw(ctx context.Context, key subjects.ToolsKey) error {
	key.Node = l.node
	name, err := key.Build()
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "withdraw tools of node %q: %w", key.Node, err)
	}
	l.serving.Lock()
	defer l.serving.Unlock()
	l.mu.Lock()
	delete(l.tools, name)
	l.mu.Unlock()
	if err := l.bus.Delete(ctx, store.Key{Bucket: subjects.BucketTools, Name: name}, 0); err != nil {
		l.unverified.Store(true)
		return fmt.Errorf("withdraw the tools of node %q: %w", key.Node, err)
	}
	return nil
}

// Release ends the renewals, deletes the records of the node's tools and then the lease, if that is
// still its own. It may be called more than once; ctx bounds the deletions. A record that could not
// be deleted counts for nothing once the lease has expired.
func (l *Lease) Release(ctx context.Context) (err error) {
	l.once.Do(func() {
		l.end()
		l.wg.Wait()
		l.forget()
		err = l.release(ctx)
	})
	return err
}

func (l *Lease) release(ctx context.Context) error {
	l.mu.Lock()
	tools, lost := l.tools, l.err
	l.tools = make(map[string]storedRecord)
	l.mu.Unlock()
	if lost != nil {
		return nil // everything under this node id is another boot's
	}
	// Half of the time is for the lease, which matters most.
	before := ctx
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		before, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	var errs []error
	for _, p := range tools {
		errs = append(errs, l.bus.Delete(before, p.key, 0))
	}
	if err := errors.Join(append(errs, l.delete(ctx))...); err != nil {
		return fmt.Errorf("release node %q: %w", l.node, err)
	}
	return nil
}

// delete deletes the lease while it is this boot's, at any revision: a renewal without an
// answer may have been stored.
func (l *Lease) delete(ctx context.Context) error {
	for {
		e, err := l.bus.Latest(ctx, l.key)
		if errors.Is(err, store.ErrNoKey) {
			return nil
		}
		if err != nil {
			return err
		}
		var holder NodeRecord
		if _ = json.Unmarshal(e.Value, &holder); holder.Boot != l.boot {
			return nil
		}
		if err := l.bus.Delete(ctx, l.key, e.Revision); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

func (l *Lease) renewLoop(ctx context.Context) {
	wait := RenewEvery
	l.count(ctx)
	verified := time.Now()
	prepared := outage{log: l.log, begins: "the mesh's streams could not be checked: it is tried again", ends: "the mesh's streams are there again"}
	said := outage{log: l.log, begins: "the lease is not renewed: it is tried again", ends: "the lease is renewed again"}
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.kick:
		case <-time.After(wait):
		}
		err := l.renew(ctx)
		anew := err == nil && l.unverified.Swap(false)
		if anew || err == nil && time.Since(verified) > verifyEvery {
			if anew || prepared.failing {
				if err := l.makeMissing(ctx); ctx.Err() == nil {
					prepared.note(err)
				}
			}
			if err = l.verifyTools(ctx); err == nil {
				verified = time.Now()
			} else {
				l.unverified.Store(true)
			}
		}
		if ctx.Err() != nil || l.Err() != nil {
			return
		}
		said.note(err)
		l.count(ctx)
		every := l.interval()
		wait = every - rand.N(every/10)
		if err != nil {
			wait = max(renewRetry, every/10)
		}
		l.mu.Lock()
		l.due = time.Now().Add(wait)
		l.mu.Unlock()
	}
}

// makeMissing makes what is missing in the store.
func (l *Lease) makeMissing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	return l.prepare(ctx)
}

// interval is the time between two renewals now.
func (l *Lease) interval() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.relied) < reliesFor {
		return RenewEvery
	}
	return l.every
}

// count asks for the number of nodes, at most once per countEvery, and sets the pace of the
// renewals by it.
func (l *Lease) count(ctx context.Context) {
	l.mu.Lock()
	due := time.Since(l.asked) >= countEvery
	if due {
		l.asked = time.Now()
	}
	l.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	s, err := l.bus.JetStream().Stream(ctx, subjects.KVStream(subjects.BucketNodes))
	if err != nil {
		return // as before
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.every = renewEvery(s.CachedInfo().State.Msgs)
}

// Rely makes the lease expire within [LeaseTTL] after this process ends, for one minute: other
// nodes may take over the work of this one only then, and must not wait for the long lease of
// a large mesh. It returns once the lease is short; the error is that of the renewal.
func (l *Lease) Rely(ctx context.Context) error {
	l.mu.Lock()
	l.relied = time.Now()
	short := l.record.validFor() == LeaseTTL
	l.mu.Unlock()
	if short {
		return nil
	}
	defer wake.Up(l.kick) // the next renewal is due sooner
	return l.renew(ctx)
}

// renew writes the lease once more, again after a conflict.
func (l *Lease) renew(ctx context.Context) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	for range conflictsMost {
		again, err := l.renewOnce(ctx)
		if err == nil && again {
			err = pause(ctx, renewRetry/10)
		}
		if err != nil || !again {
			return err
		}
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "renew the lease of node %q: its key changes all the time", l.node).
		WithOrigin(toolmesh.OriginMesh)
}

// renewOnce writes the lease over the known revision. After a conflict it adopts the stored
// revision if no record exists, or if it is this boot's own with a lost acknowledgement. Another
// boot's record ends the lease.
func (l *Lease) renewOnce(ctx context.Context) (again bool, err error) {
	every := l.interval()
	l.mu.Lock()
	l.record.LeaseMS = 0
	if every > RenewEvery {
		l.record.LeaseMS = (every * (LeaseTTL / time.Second) / (RenewEvery / time.Second)).Milliseconds()
	}
	record, lost := l.record, l.err
	l.mu.Unlock()
	if lost != nil {
		return false, lost
	}
	data := encodeRecord(record)
	attempt, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	began := time.Now()
	revision, err := replace(attempt, l.bus, l.key, data, l.revision, record.validFor())
	if errors.Is(err, store.ErrConflict) {
		again = true
		var holder NodeRecord
		holder, revision, err = l.stored(attempt)
		if err == nil && revision == 0 {
			l.unverified.Store(true)
		} else if err == nil && holder.Boot != l.boot {
			return false, l.lose(holder.Boot)
		}
	}
	if err == nil {
		l.revision = revision
		if !again {
			l.renewed(began)
		}
		return again, nil
	}
	if store.IsUnavailable(err) && l.bus.Connected() {
		made := l.makeMissing(ctx) // the bucket may have been missing
		if made == nil {
			l.unverified.Store(true)
		}
		err = errors.Join(err, made)
	}
	return false, fmt.Errorf("renew the lease of node %q: %w", l.node, err)
}

// renewed notes that a renewal that was sent at a time has succeeded.
func (l *Lease) renewed(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sent.After(l.until) {
		l.since = sent
	}
	l.until = sent.Add(HoldsFor)
}

// Held returns the start and the end of the time in which the lease is certainly this boot's,
// without a gap: anything that relied on it before since is void. Both are zero once the lease is
// lost. A call counts as [Lease.Rely]: in a large mesh only calls of Held keep the time without a
// gap.
func (l *Lease) Held() (since, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return time.Time{}, time.Time{}
	}
	l.relied = time.Now()
	return l.since, l.until
}

// lose ends the lease, which another boot has, and returns why.
func (l *Lease) lose(to subjects.BootID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = toolmesh.Errorf(toolmesh.CodeUnavailable, "node %q was taken over by boot %s: this process was silent for too long, or another one has its name",
		l.node, to).WithOrigin(toolmesh.OriginMesh).WithRetryable(false)
	close(l.lost)
	l.log.Error("the lease is lost", slog.String("node", string(l.node)), slog.String("boot", string(to)))
	return l.err
}

// verifyTools compares the stored records of this node with its tools, after a reconnect and every
// verifyEvery: it writes those that are missing or differ, and deletes those of an earlier boot.
func (l *Lease) verifyTools(ctx context.Context) (err error) {
	l.serving.Lock()
	defer l.serving.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("compare the store with the tools of the node: %w", err)
		}
	}()
	l.mu.Lock()
	want := maps.Clone(l.tools)
	l.mu.Unlock()
	leftover := make(map[store.Key]uint64)
	q := store.Query{
		Stream: subjects.KVStream(subjects.BucketTools), Subject: subjects.KVSubject(subjects.BucketTools, l.key.Name+".>"),
	}
	for m, err := range values(ctx, l.bus, subjects.BucketTools, q) {
		if err != nil {
			return err
		}
		if p, ok := want[m.name]; !ok {
			leftover[store.Key{Bucket: subjects.BucketTools, Name: m.name}] = m.Seq
		} else if bytes.Equal(p.data, m.Data) {
			delete(want, m.name)
		}
	}
	for _, p := range want {
		if err := l.putTools(ctx, p); err != nil {
			return err
		}
	}
	for key, revision := range leftover {
		// The revision is compared, as a lagging replica may have shown an old record.
		if err := l.bus.Delete(ctx, key, revision); err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return nil
}
