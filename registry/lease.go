package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// Times of a lease. A heartbeat comes each second.
const (
	// LeaseTTL is how long a lease stands without being renewed.
	LeaseTTL = 10 * time.Second
	// RenewEvery is how often it is renewed.
	RenewEvery = 3 * time.Second
	// Silence is how long a node must not be heard to count as gone.
	Silence = 2500 * time.Millisecond

	renewRetry   = 300 * time.Millisecond
	renewTimeout = 2 * time.Second
	verifyEvery  = 30 * time.Second
	// conflictsMost is how often a conflict is looked into at once; a replica that
	// lags shows the old revision for a moment.
	conflictsMost = 10
)

// LeaseOptions adjusts a [Lease].
type LeaseOptions struct {
	// Logger takes what happens; nil discards it.
	Logger *slog.Logger
}

// Lease is what makes a process a node: the record MESH_NODES/<node>, renewed
// until [Lease.Release], and what the node says it serves beside it. While the
// broker is away it keeps trying; what is gone when it comes back, also because
// somebody wiped the store, is written again. Only another boot under the same
// node id ends it: see [Lease.Lost]. Its methods may be called concurrently.
type Lease struct {
	bus *bus.Bus
	log *slog.Logger
	key bus.Key

	mu       sync.Mutex
	record   NodeRecord
	revision uint64
	tools    map[subjects.ToolsKey]*published
	err      error
	verify   bool // the tools are to be held against the store

	writing sync.Mutex // one writer of the lease's key at a time
	serving sync.Mutex // one writer of what it serves at a time; taken before mu
	kick    chan struct{}
	lost    chan struct{}
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
	cancel  func() // of the state listener
}

// published is one record that the node wants to be in the store.
type published struct {
	key  bus.Key
	data []byte
}

// Acquire makes this process the node of record. If another boot holds the lease
// it listens for its heartbeat for 2.5 s: heard, the start is refused; silent,
// the lease is taken over by compare-and-set. The record's Boot must be new for
// each start. A goroutine renews the lease until [Lease.Release].
func Acquire(ctx context.Context, b *bus.Bus, record NodeRecord, options *LeaseOptions) (*Lease, error) {
	var o LeaseOptions
	if options != nil {
		o = *options
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	token, err := subjects.NodeKey(record.Node)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "node %q: %w", record.Node, err)
	}
	if record.Boot == "" {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "node %q needs a boot id, new for each start", record.Node)
	}
	l := &Lease{
		bus: b, log: o.Logger, record: record,
		key:   bus.Key{Bucket: subjects.BucketNodes, Name: token},
		tools: make(map[subjects.ToolsKey]*published),
		kick:  make(chan struct{}, 1), lost: make(chan struct{}), stop: make(chan struct{}),
	}
	l.verify = true // an earlier boot may have left something
	if err := l.acquire(ctx); err != nil {
		return nil, err
	}
	l.cancel = b.OnState(func(s bus.State) {
		if s.Connected {
			l.mu.Lock()
			l.verify = true
			l.mu.Unlock()
			l.wake()
		}
	})
	l.wg.Go(l.renewLoop)
	return l, nil
}

func (l *Lease) acquire(ctx context.Context) error {
	data, err := encodeRecord(l.record)
	if err != nil {
		return err
	}
	refuse := func(boot subjects.BootID) error {
		return toolmesh.Errorf(toolmesh.CodeUnavailable,
			"node %q is running already (boot %s): stop it, or give this one another name (--node)", l.record.Node, boot).
			WithOrigin(toolmesh.OriginMesh).WithRetryable(false).WithDetail("boot", string(boot))
	}
	// The boot that no heartbeat came from: if its lease is renewed meanwhile, it lives.
	var silent subjects.BootID
	for range conflictsMost {
		e, err := l.bus.Get(ctx, l.key)
		switch {
		case errors.Is(err, bus.ErrNoKey):
			l.revision, err = l.bus.Create(ctx, l.key, data, LeaseTTL)
		case err != nil:
		default:
			var holder NodeRecord
			if err := json.Unmarshal(e.Value, &holder); err != nil {
				l.log.Warn("the lease in the way is not readable", slog.String("error", err.Error()))
			}
			if holder.Boot != l.record.Boot {
				if silent != "" && holder.Boot == silent {
					return refuse(silent)
				}
				beat, err := l.heard(ctx)
				if err != nil {
					return err
				}
				if beat != "" {
					return refuse(beat)
				}
				silent = holder.Boot
				l.log.Info("taking over the lease of a node that is silent", slog.String("node", string(l.record.Node)), slog.String("boot", string(holder.Boot)))
			}
			l.revision, err = l.bus.Update(ctx, l.key, data, e.Revision, LeaseTTL)
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, bus.ErrConflict):
			return fmt.Errorf("become node %q: %w", l.record.Node, err)
		}
		if err := pause(ctx, renewRetry); err != nil {
			return fmt.Errorf("become node %q: %w", l.record.Node, err)
		}
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "node %q: another process takes the lease all the time: give this one another name (--node)", l.record.Node).
		WithOrigin(toolmesh.OriginMesh).WithRetryable(false)
}

// heard listens for a heartbeat of another boot and returns that boot, or "".
func (l *Lease) heard(ctx context.Context) (subjects.BootID, error) {
	subject, err := subjects.Heartbeat(l.record.Node)
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeInvalidRequest, "node %q: %w", l.record.Node, err)
	}
	beats := make(chan subjects.BootID, 8)
	sub, err := l.bus.Conn().Subscribe(subject, func(m *nats.Msg) {
		var beat codec.Heartbeat
		if json.Unmarshal(m.Data, &beat) == nil {
			select {
			case beats <- subjects.BootID(beat.Boot):
			default:
			}
		}
	})
	if err != nil {
		return "", toolmesh.Errorf(toolmesh.CodeUnavailable, "listen for node %q: %w", l.record.Node, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	// The silence counts from when the broker has the subscription.
	if err := l.bus.Ping(ctx); err != nil {
		return "", err
	}
	silence := time.NewTimer(Silence)
	defer silence.Stop()
	for {
		select {
		case boot := <-beats:
			if boot != l.record.Boot {
				return boot, nil
			}
		case <-silence.C:
			return "", nil
		case <-ctx.Done():
			return "", fmt.Errorf("listen for node %q: %w", l.record.Node, ctx.Err())
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
	node, boot := l.record.Node, l.record.Boot
	change(&l.record)
	l.record.Node, l.record.Boot = node, boot
	l.mu.Unlock()
	return l.renew(ctx)
}

// Publish writes what the node serves of one index, or one tool of a session,
// and keeps it written until [Lease.Withdraw] or [Lease.Release]. Node and Boot
// are set to the lease's. After an error it is still kept: it is written when the
// broker answers. What the broker takes no message for is payload_too_large, and is
// not kept.
func (l *Lease) Publish(ctx context.Context, r ToolsRecord) error {
	r.Node, r.Boot = l.self()
	key, err := r.Key()
	if err != nil {
		return err
	}
	name, err := key.Build()
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "publish tools of node %q: %w", r.Node, err)
	}
	data, err := encodeRecord(r)
	if err != nil {
		return err
	}
	p := &published{key: bus.Key{Bucket: subjects.BucketTools, Name: name}, data: data}
	l.serving.Lock()
	defer l.serving.Unlock()
	l.mu.Lock()
	l.tools[key] = p
	l.mu.Unlock()
	if _, err := l.bus.Put(ctx, p.key, p.data, 0); err != nil {
		l.mu.Lock()
		l.verify = true
		if toolmesh.CodeOf(err) == toolmesh.CodePayloadTooLarge {
			delete(l.tools, key)
		}
		l.mu.Unlock()
		return fmt.Errorf("publish what node %q serves: %w", r.Node, err)
	}
	return nil
}

// Withdraw takes back what Publish wrote. The key's Node is set to the lease's.
func (l *Lease) Withdraw(ctx context.Context, key subjects.ToolsKey) error {
	key.Node, _ = l.self()
	name, err := key.Build()
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "withdraw tools of node %q: %w", key.Node, err)
	}
	l.serving.Lock()
	defer l.serving.Unlock()
	l.mu.Lock()
	delete(l.tools, key)
	l.mu.Unlock()
	if err := l.bus.Delete(ctx, bus.Key{Bucket: subjects.BucketTools, Name: name}, 0); err != nil {
		l.mu.Lock()
		l.verify = true
		l.mu.Unlock()
		return fmt.Errorf("withdraw what node %q serves: %w", key.Node, err)
	}
	return nil
}

func (l *Lease) self() (subjects.NodeID, subjects.BootID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record.Node, l.record.Boot
}

// Release stops renewing, deletes what the node serves and then the lease, if it
// is still its own. It may be called more than once; ctx bounds what it writes.
// What could not be deleted is not believed any more once the lease has expired.
func (l *Lease) Release(ctx context.Context) error {
	first := false
	l.once.Do(func() { first = true; close(l.stop) })
	l.wg.Wait()
	if !first {
		return nil
	}
	l.cancel()
	l.mu.Lock()
	tools := l.tools
	l.tools = make(map[subjects.ToolsKey]*published)
	lost, revision := l.err, l.revision
	l.mu.Unlock()
	if lost != nil {
		return nil // everything under this node id is another boot's
	}
	// The lease is what counts: it has half of the time for itself.
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
	errs = append(errs, l.delete(ctx, revision))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release node %q: %w", l.key.Name, err)
	}
	return nil
}

// delete deletes the lease while it is this boot's, which it may be at a later
// revision than is known: a renewal that was cut short may have been stored.
func (l *Lease) delete(ctx context.Context, revision uint64) error {
	_, boot := l.self()
	for {
		if revision > 0 {
			if err := l.bus.Delete(ctx, l.key, revision); !errors.Is(err, bus.ErrConflict) {
				return err
			}
		}
		e, err := l.bus.Latest(ctx, l.key)
		if errors.Is(err, bus.ErrNoKey) {
			return nil
		}
		if err != nil {
			return err
		}
		var holder NodeRecord
		if _ = json.Unmarshal(e.Value, &holder); holder.Boot != boot {
			return nil
		}
		revision = e.Revision
	}
}

func (l *Lease) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

func (l *Lease) renewLoop() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l.wg.Go(func() {
		select {
		case <-l.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	next := time.NewTimer(RenewEvery)
	defer next.Stop()
	verified := time.Now()
	said := outage{log: l.log, begins: "the lease is not renewed: it is tried again", ends: "the lease is renewed again"}
	for {
		select {
		case <-l.stop:
			return
		case <-l.kick:
		case <-next.C:
		}
		err := l.renew(ctx)
		if err == nil {
			err = l.verifyTools(ctx, &verified)
		}
		if ctx.Err() != nil || l.Err() != nil {
			return
		}
		said.note(err)
		if err != nil {
			next.Reset(renewRetry)
		} else {
			next.Reset(RenewEvery - rand.N(RenewEvery/10))
		}
	}
}

// renew writes the lease once more, and finds out why if it cannot.
func (l *Lease) renew(ctx context.Context) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	for range conflictsMost {
		l.mu.Lock()
		record, revision, lost := l.record, l.revision, l.err
		l.mu.Unlock()
		if lost != nil {
			return lost
		}
		data, err := encodeRecord(record)
		if err != nil {
			return err
		}
		attempt, cancel := context.WithTimeout(ctx, renewTimeout)
		if revision == 0 {
			revision, err = l.bus.Create(attempt, l.key, data, LeaseTTL)
		} else {
			revision, err = l.bus.Update(attempt, l.key, data, revision, LeaseTTL)
		}
		if err == nil {
			cancel()
			l.mu.Lock()
			l.revision = revision
			l.mu.Unlock()
			return nil
		}
		if errors.Is(err, bus.ErrConflict) {
			err = l.lookAgain(attempt)
			cancel()
			if err != nil {
				return err
			}
			if err := pause(ctx, renewRetry/10); err != nil {
				return err
			}
			continue
		}
		cancel()
		if bus.IsUnavailable(err) && l.bus.Connected() {
			// The bucket may be gone: somebody wiped the store.
			again, cancel := context.WithTimeout(ctx, renewTimeout)
			ensureErr := l.bus.EnsureBucket(again, subjects.BucketNodes)
			cancel()
			if ensureErr == nil {
				l.mu.Lock()
				l.verify = true
				l.mu.Unlock()
			}
		}
		return fmt.Errorf("renew the lease of node %q: %w", record.Node, err)
	}
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "renew the lease of node %q: its key changes all the time", l.key.Name).
		WithOrigin(toolmesh.OriginMesh)
}

// lookAgain adopts what is stored after a conflict: nothing, or this boot's own
// renewal whose acknowledgement was lost. Another boot's record ends the lease.
func (l *Lease) lookAgain(ctx context.Context) error {
	e, err := l.bus.Get(ctx, l.key)
	if errors.Is(err, bus.ErrNoKey) {
		l.mu.Lock()
		l.revision = 0
		l.verify = true
		l.mu.Unlock()
		return nil
	}
	if err != nil {
		return err
	}
	var holder NodeRecord
	_ = json.Unmarshal(e.Value, &holder) // unreadable = another boot's
	l.mu.Lock()
	defer l.mu.Unlock()
	if holder.Boot == l.record.Boot {
		l.revision = e.Revision
		return nil
	}
	l.err = toolmesh.Errorf(toolmesh.CodeUnavailable, "node %q was taken over by boot %s: this process was silent for too long, or another one has its name",
		l.record.Node, holder.Boot).WithOrigin(toolmesh.OriginMesh).WithRetryable(false)
	close(l.lost)
	l.log.Error("the lease is lost", slog.String("node", string(l.record.Node)), slog.String("boot", string(holder.Boot)))
	return l.err
}

// verifyTools holds what is stored below this node against what it serves, after
// a reconnect and now and then: writes what is missing or differs, deletes what
// an earlier boot left.
func (l *Lease) verifyTools(ctx context.Context, verified *time.Time) error {
	l.serving.Lock()
	defer l.serving.Unlock()
	l.mu.Lock()
	due := l.verify || time.Since(*verified) > verifyEvery
	l.verify = false
	want := make(map[string]*published, len(l.tools))
	for _, p := range l.tools {
		want[p.key.Name] = p
	}
	l.mu.Unlock()
	if !due {
		return nil
	}
	failed := func(err error) error {
		l.mu.Lock()
		l.verify = true
		l.mu.Unlock()
		return fmt.Errorf("hold the store against what the node serves: %w", err)
	}
	leftover := make(map[bus.Key]uint64)
	q := bus.Query{
		Stream: subjects.KVStream(subjects.BucketTools), Subject: subjects.KVSubject(subjects.BucketTools, l.key.Name+".>"),
	}
	for m, err := range l.bus.Read(ctx, q) {
		if err != nil {
			if bus.IsUnavailable(err) && l.bus.Connected() {
				if err := l.bus.EnsureBucket(ctx, subjects.BucketTools); err != nil {
					return failed(err)
				}
				break // it is made anew and empty
			}
			return failed(err)
		}
		name, ok := subjects.KVKey(subjects.BucketTools, m.Subject)
		if !ok || bus.Gone(m.Header) {
			continue
		}
		p := want[name]
		switch {
		case p == nil:
			leftover[bus.Key{Bucket: subjects.BucketTools, Name: name}] = m.Seq
		case bytes.Equal(p.data, m.Data):
			delete(want, name)
		}
	}
	for _, p := range want {
		if _, err := l.bus.Put(ctx, p.key, p.data, 0); err != nil {
			return failed(err)
		}
	}
	for key, revision := range leftover {
		// The revision is compared: what a lagging replica showed may be old.
		if err := l.bus.Delete(ctx, key, revision); err != nil && !errors.Is(err, bus.ErrConflict) {
			return failed(err)
		}
	}
	*verified = time.Now()
	return nil
}
