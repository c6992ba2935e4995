package standby

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/awaiting"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// Defaults of [Options].
const (
	DefaultCalls   = 1000
	DefaultTimeout = 5 * time.Minute
)

const (
	// lookEvery is how often it checks which indexes no node serves, in addition to the view's
	// notifications: the view does not tell that a node is silent. lookGap is the min time between.
	lookEvery = 500 * time.Millisecond
	lookGap   = 50 * time.Millisecond
	// settle is how long a new index may lack a tool before calls of that tool end, as a node
	// publishes several records.
	settle = 3 * time.Second
	// heldBytes bounds the messages of all calls that it holds.
	heldBytes = 64 << 20
)

// Options adjusts a [Standby].
type Options struct {
	// Calls is how many calls it holds at once, including those that were passed on and have no
	// answer yet; a session has at most as many as stay free. Defaults to DefaultCalls.
	Calls int
	// Timeout is how long a call waits for a node at most. Defaults to DefaultTimeout.
	Timeout time.Duration
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// Outcomes count the standby's calls since its start.
type Outcomes struct {
	// Ended counts the calls that waited, by their end: ok for one that a node has taken, else
	// the code of the answer.
	Ended map[toolmesh.Code]uint64
	// Waited is the sum of their waits.
	Waited time.Duration
	// Indexes is the number of indexes that it holds calls for now, Waiting the number of waiting
	// calls.
	Indexes, Waiting int
}

// Standby holds calls of indexes that no node serves. Its methods may be called
// concurrently.
type Standby struct {
	bus      *bus.Bus
	view     *registry.View
	opts     Options
	log      *slog.Logger
	node     subjects.NodeID
	identity *codec.Identity // of the answers that are its own

	quit chan struct{} // closed when Stop begins: no call waits after that
	base context.Context
	end  context.CancelFunc // gives up the calls that were passed on
	wg   sync.WaitGroup     // all goroutines
	once sync.Once
	told *awaiting.Teller
	ctl  *nats.Subscription             // cancels and answers of callers
	held *fair.Room[subjects.SessionID] // bytes of messages
	// places bounds the calls: an account has at most as many as it leaves free.
	places *fair.Room[subjects.SessionID]

	mu       sync.Mutex                    // guards the fields below
	closed   bool                          // without subscriptions
	over     bool                          // and nothing is held
	subs     map[string]*nats.Subscription // by subject
	since    map[string]time.Time          // subjects of indexes that were not served, and are since
	calls    map[*call]struct{}
	sent     map[subjects.NodeID]int // calls that were passed on and have no answer yet
	changed  chan struct{}           // closed, and made anew, when a call may find another node
	outcomes Outcomes
}

// New starts a standby. conn and view must outlive it. Its errors name node. more are further
// sources of waiting calls in this process; they are published with its own.
func New(conn registry.Conn, view *registry.View, node subjects.NodeID, opts *Options, more ...func() map[string]codec.Awaited) (*Standby, error) {
	b := bus.Of(conn)
	if err := b.Check(); err != nil {
		return nil, err
	}
	if view == nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "standby needs a view of the registry: open one").
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	o := *cmp.Or(opts, &Options{})
	o.Calls, o.Timeout = cmp.Or(o.Calls, DefaultCalls), cmp.Or(o.Timeout, DefaultTimeout)
	s := &Standby{
		bus: b, view: view, opts: o, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), node: node,
		identity: codec.NewIdentity(node, subjects.BootID(uuid.NewString()), ""), quit: make(chan struct{}),
		subs: make(map[string]*nats.Subscription), since: make(map[string]time.Time), calls: make(map[*call]struct{}),
		held: fair.NewRoom[subjects.SessionID](heldBytes), places: fair.NewRoom[subjects.SessionID](int64(o.Calls)), sent: make(map[subjects.NodeID]int), changed: make(chan struct{}), outcomes: Outcomes{Ended: make(map[toolmesh.Code]uint64)},
	}
	ctl, err := b.Conn().Subscribe(subjects.AllCtl, s.control)
	if err != nil {
		return nil, unavailable("subscribe %s: %w", subjects.AllCtl, err)
	}
	s.ctl = ctl
	s.base, s.end = context.WithCancel(context.Background())
	s.told = awaiting.Tell(b, append(more, s.Awaited)...)
	news := make(chan struct{}, 1)
	forget := view.Notify(news)
	s.wg.Go(func() {
		defer forget()
		s.loop(news)
	})
	return s, nil
}

// Stop answers the waiting calls, so that they are sent again elsewhere, and waits until ctx ends
// for the answers of those that were passed on. It may be called more than once; every call
// waits.
func (s *Standby) Stop(ctx context.Context) {
	s.once.Do(func() {
		s.mu.Lock()
		s.closed = true
		subs := append(slices.Collect(maps.Values(s.subs)), s.ctl)
		clear(s.subs)
		s.mu.Unlock()
		_ = s.bus.Drain(ctx, subs...)
		s.mu.Lock()
		s.over = true
		s.mu.Unlock()
		close(s.quit)
		defer context.AfterFunc(ctx, s.end)()
		s.wg.Wait()
		s.end()
		s.told.Close()
	})
	s.wg.Wait()
}

// Outcomes returns the counts so far.
func (s *Standby) Outcomes() Outcomes {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := Outcomes{Ended: maps.Clone(s.outcomes.Ended), Waited: s.outcomes.Waited}
	for subject := range s.subs {
		if subject != subjects.AllBatches {
			f.Indexes++
		}
	}
	for c := range s.calls {
		if c.waiting {
			f.Waiting++
		}
	}
	return f
}

// Awaited returns the calls that wait here, by pool.
func (s *Standby) Awaited() map[string]codec.Awaited {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]codec.Awaited)
	for c := range s.calls {
		if !c.waiting {
			continue
		}
		for pool, calls := range c.pools {
			all[pool] = all[pool].Add(codec.Awaited{Calls: calls, OldestMS: now.Sub(c.arrived).Milliseconds()})
		}
	}
	return all
}

// loop subscribes to the tools that no node serves, and has calls look again when that changes.
func (s *Standby) loop(news <-chan struct{}) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		s.look()
		select {
		case <-s.quit:
			return
		case <-time.After(lookGap):
		}
		select {
		case <-s.quit:
			return
		case <-news:
		case <-ticker.C:
		}
	}
}

// look subscribes to the tools of indexes that no node serves, and to batches if no node runs
// them. It drains the subscriptions of tools that are served again.
func (s *Standby) look() {
	want := make(map[string]bool)
	for _, r := range s.view.Unserved() {
		if subject, err := subjects.IndexTools(r.Session, r.Name); err == nil {
			want[subject] = true
		}
	}
	if len(want) > 0 {
		if _, ok := s.view.Owner(codec.FeatureBatch, nil); !ok {
			want[subjects.AllBatches] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	now := time.Now()
	for subject, sub := range s.subs {
		if !want[subject] {
			s.bus.Retire(sub)
			delete(s.subs, subject)
			s.since[subject] = now
		}
	}
	maps.DeleteFunc(s.since, func(_ string, at time.Time) bool { return now.Sub(at) > settle })
	for subject := range want {
		delete(s.since, subject)
		if s.subs[subject] != nil {
			continue
		}
		sub, err := s.bus.Conn().QueueSubscribe(subject, subjects.QueueGroup, s.receive)
		if err != nil { // it is tried again
			s.log.Warn("calls of an index without nodes do not wait here", slog.String("subject", subject), slog.String("error", err.Error()))
			continue
		}
		s.subs[subject] = sub
	}
	s.wake()
}

// wake has all calls that wait look again; s.mu is held.
func (s *Standby) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// receive reads and admits a request; its own goroutine does the rest.
func (s *Standby) receive(m *nats.Msg) {
	subject, err := subjects.Parse(m.Subject)
	if !s.bus.MayAnswer(m, subject.Session) {
		return
	}
	c := &call{s: s, m: m, subject: subject, arrived: time.Now(), waiting: true, answers: make(chan int64, 1), cancelled: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	bad := c.parse(err)
	s.mu.Lock()
	over, place, room := s.over, false, false
	if bad == nil && !over {
		place = s.places.Take(c.account, 1)
		room = place && s.held.Take(c.account, int64(m.Size()))
	}
	if room {
		s.calls[c] = struct{}{}
		s.wg.Go(c.run)
	} else if place {
		s.places.Give(c.account, 1)
	}
	s.mu.Unlock()
	switch {
	case bad != nil:
		c.answer(bad)
	case over:
		c.answer(unavailable("router %s stops: send it again", s.node))
	case !place:
		c.answer(unavailable("router %s holds %d calls that wait for nodes, and this session has its share of them: start nodes, or send the call again later", s.node, s.opts.Calls))
	case !room:
		c.answer(toolmesh.Errorf(toolmesh.CodeBusy, "the calls that wait at router %s hold this session's share of %d bytes: send the call again later", s.node, heldBytes).
			WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo).WithDetail("limit", "held_bytes").WithDetail("max", heldBytes))
	default:
		s.told.Wake()
	}
}

// leave forgets a call that has ended.
func (s *Standby) leave(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
	s.held.Give(c.account, int64(c.m.Size()))
	s.places.Give(c.account, 1)
}

// waited counts a call that has ended its wait.
func (s *Standby) waited(c *call, code toolmesh.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes.Ended[code]++
	s.outcomes.Waited += time.Since(c.arrived)
}

// control takes cancels from callers that do not know a node, which end a waiting call, and the
// answers of callers that were asked whether their call may be passed on. The node of a call that
// was passed on subscribes to the same subject.
func (s *Standby) control(m *nats.Msg) {
	subject, err := subjects.Parse(m.Subject)
	if err != nil || m.Reply != "" && !s.bus.MayAnswer(m, subject.Session) {
		return
	}
	var read codec.Control
	header, bad := bus.RequestHeader(m)
	if bad == nil {
		read, bad = codec.ParseControl(header, m.Data)
	}
	if bad == nil && read.Type != codec.ControlCancel && read.Type != codec.ControlPass || bad != nil && m.Reply == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls {
		mine := subjects.SameName(c.rpc, subject.RPC) || read.Type == codec.ControlCancel && subjects.SameName(c.rpc.First(), subject.RPC)
		if !c.waiting || c.subject.Session != subject.Session || !mine {
			continue
		}
		if bad != nil {
			header, body := codec.ErrorReply(bad.WithOrigin(toolmesh.OriginMesh))
			_ = s.bus.Conn().PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header(header), Data: body})
			continue
		}
		if read.Type == codec.ControlPass {
			select {
			case c.answers <- read.Seq:
			default: // it is asked again
			}
			continue
		}
		wake.Up(c.cancelled)
		if m.Reply != "" {
			_ = s.bus.Conn().Publish(m.Reply, codec.Encode(codec.Cancelled{Cancelled: true}))
		}
	}
}

func unavailable(format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, format, args...).WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}
