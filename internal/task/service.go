package task

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// slots is how many tasks one [Service] runs at once, in addition to the first few of each
// session. The nodes of their calls have slots of their own.
const slots = 64

// Options adjusts a [Service].
type Options struct {
	// Sessions decides which sessions exist. Required.
	Sessions *registry.Sessions
	// Replicas is the number of copies of the stream of schedules. Defaults to the maximum of the
	// broker's cluster.
	Replicas int
	// Await says whether a tool's index is installed and no node serves it, and then which
	// pool has to have one: its tasks stay queued, without a call. Defaults to none.
	Await func(session subjects.SessionID, tool subjects.ToolID) (pool string, ok bool)
	// Logger receives events; nil discards them.
	Logger *slog.Logger
}

// Service answers requests about tasks and runs tasks, together with the other services of the
// mesh. Its methods may be called concurrently.
type Service struct {
	bus       store.Store
	store     *registry.Store
	client    *client.Client
	opts      Options
	log       *slog.Logger
	name      string // of this runner, in records
	schedules bool   // the broker has them

	base     context.Context // ends with Stop
	end      context.CancelCauseFunc
	open     context.Context // ends when Stop begins
	halt     context.CancelFunc
	requests sync.WaitGroup
	work     sync.WaitGroup // all goroutines
	subs     []*nats.Subscription
	once     sync.Once

	places  *fair.Room[subjects.SessionID] // requests that are answered, by account
	held    *fair.Room[subjects.SessionID] // bytes of values that were read, by account
	stores  room
	fired   int // how many tasks of one schedule are kept
	slots   int // the constant, but in tests
	queue   *store.Pulls
	lanes   []*lane       // of tasks
	timed   *lane         // of due times; nil without schedules
	asked   []*lane       // all of them
	dues    atomic.Int64  // due times that are handled
	turn    int           // counts the tasks that were taken; the loop's own
	freed   chan struct{} // of capacity 1: a task has ended
	renewed atomic.Bool   // the connection is new: pending requests are lost
	missing atomic.Bool   // a consumer did not answer: it may have been lost with its store
	unhear  func()

	mu      sync.Mutex
	running map[string]*run            // by key
	active  map[subjects.SessionID]int // runs, by account
	waiting []*waiter
	awaited map[string]awaited          // tasks that wait for a node, by key
	crowds  map[string]crowd            // by the counted subjects
	uses    map[subjects.SessionID]*use // by account
	coming  map[subjects.SessionID]room // admitted and not stored yet, by account
	counts  singleflight.Group          // listings of the stores for them
}

// New makes a service; [Service.Start] starts it. Its arguments must outlive it.
func New(b *bus.Bus, records *registry.Store, c *client.Client, opts *Options) *Service {
	o := *cmp.Or(opts, &Options{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	s := &Service{
		bus: store.Of(b), store: records, client: c, opts: o, log: o.Logger, name: uuid.NewString(),
		freed: make(chan struct{}, 1), lanes: lanes(),
		running: make(map[string]*run), active: make(map[subjects.SessionID]int), awaited: make(map[string]awaited),
		places: fair.NewRoom[subjects.SessionID](mostRequests), held: fair.NewRoom[subjects.SessionID](heldBytes),
		crowds: make(map[string]crowd), uses: make(map[subjects.SessionID]*use), coming: make(map[subjects.SessionID]room), stores: storeRoom, fired: firedMost, slots: slots,
	}
	s.base, s.end = context.WithCancelCause(context.Background())
	s.open, s.halt = context.WithCancel(context.Background())
	return s
}

// Start makes the consumers that are missing, and begins to answer and to run. The mesh's
// streams must be there. The error is unavailable.
func (s *Service) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			s.Stop(ctx)
		}
	}()
	if err := s.bus.FreshTime(ctx); err != nil { // tasks have the broker's time
		return err
	}
	if s.schedules, err = s.bus.EnsureSchedules(ctx, s.opts.Replicas); err != nil {
		return err
	}
	s.asked = s.lanes
	if s.schedules {
		s.timed = &lane{stream: subjects.StreamSchedules, consumer: consumerDue, filter: subjects.AllDue}
		s.asked = append(slices.Clip(s.lanes), s.timed)
	}
	if err := s.consumers(ctx); err != nil {
		return err
	}
	if s.queue, err = s.bus.OpenPulls(); err != nil {
		return err
	}
	s.unhear = s.bus.OnState(func(bus.State) { s.renewed.Store(true) })
	ended, err := s.bus.Conn().Subscribe(subjects.RegistryChanges(subjects.BucketSessions), s.sessionChanged)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "changes of sessions cannot be subscribed: %w", err)
	}
	s.subs = append(s.subs, ended)
	asked, err := s.bus.Conn().QueueSubscribe(subjects.AllTaskVerbs, subjects.QueueGroup, s.receive)
	if err != nil {
		return toolmesh.Errorf(toolmesh.CodeUnavailable, "%s cannot be subscribed: %w", subjects.AllTaskVerbs, err)
	}
	s.subs = append(s.subs, asked)
	if err := s.bus.Ping(ctx); err != nil && s.bus.Connected() { // requests of other connections find it from now on
		return err
	}
	s.work.Go(s.loop)
	s.work.Go(s.sweeps)
	return nil
}

// consumers makes the consumers that are missing.
func (s *Service) consumers(ctx context.Context) error {
	var making errgroup.Group
	for _, l := range s.asked {
		making.Go(func() error { return s.bus.EnsureConsumer(ctx, l.stream, consumer(l.consumer, l.filter)) })
	}
	return making.Wait() //nolint:wrapcheck // the store's own
}

// Stop accepts no more requests and tasks, and leaves its running calls to the other runners:
// the calls go on, and the next runners of the tasks join them. It may be called more than once.
func (s *Service) Stop(ctx context.Context) {
	s.once.Do(func() {
		s.halt()
		if s.unhear != nil {
			s.unhear()
		}
		_ = s.bus.Drain(ctx, s.subs...)
		s.requests.Wait()
		s.end(client.ErrLeft)
		s.work.Wait()
	})
}

func (s *Service) now() time.Time { return s.bus.Time().Now.UTC() }

// epoch is that of a session now. The error is session_not_found, or the registry's.
func (s *Service) epoch(ctx context.Context, session subjects.SessionID) (string, error) {
	epoch, err := s.opts.Sessions.Admit(session)
	if epoch != "" || err == nil && session == subjects.DefaultSession {
		return epoch, nil
	}
	// The view may not have heard yet of one that was just created.
	now, bad := s.store.Epoch(ctx, session)
	if now != "" || bad == nil && err == nil {
		return now, nil
	}
	return "", toolmesh.AsError(cmp.Or(bad, err)).WithStarted(toolmesh.StartedNo)
}

// over reports whether a task is of a session that has ended.
func (s *Service) over(ctx context.Context, t *stored) bool {
	if t.Epoch == "" && t.session == subjects.DefaultSession {
		return false
	}
	if epoch, err := s.opts.Sessions.Admit(t.session); err == nil && epoch == t.Epoch {
		return false
	}
	epoch, err := s.store.Epoch(ctx, t.session)
	// A task submitted before the session was created is not of that session.
	return err == nil && epoch != t.Epoch
}

// all yields the records of a session from a revision on, in the order of their last
// changes.
func (s *Service) all(ctx context.Context, session subjects.SessionID, from uint64) iter.Seq2[*stored, error] {
	return func(yield func(*stored, error) bool) {
		keys, err := subjects.SessionTasks(session)
		if err != nil {
			yield(nil, invalid("session: %w", err))
			return
		}
		bucket := subjects.BucketTaskState
		query := store.Query{Stream: subjects.KVStream(bucket), Subject: subjects.KVSubject(bucket, keys), From: from, First: 64}
		for m, err := range s.bus.Read(ctx, query) {
			if err != nil {
				yield(nil, err)
				return
			}
			name, _ := subjects.KVKey(bucket, m.Subject)
			if store.Gone(m.Header) {
				continue
			}
			if !yield(parse(store.Key{Bucket: bucket, Name: name}, session, m.Data, m.Seq), nil) {
				return
			}
		}
	}
}
