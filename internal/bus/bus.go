package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// Options adjusts a [Bus].
type Options struct {
	// Domain is the JetStream domain that holds the mesh's streams, for
	// connections to a leaf node. Defaults to the connection's own.
	Domain string
	// Caller is the session of a connection that only calls. Nodes tell it the time, and the
	// broker is asked if none does: it logs an error for each caller with a key that asks.
	// Defaults to none: the time is the broker's to tell.
	Caller subjects.SessionID
	// Logger receives events; nil discards them.
	Logger *slog.Logger
}

// Bus is one NATS connection as the mesh uses it. All methods may be called
// concurrently. One Bus per connection is enough; a second one works and costs
// a second inbox.
type Bus struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	api string // prefix of JetStream's API, with the final dot
	log *slog.Logger

	inbox inboxes
	clock clock
	peers peers

	mu        sync.Mutex // guards the fields below; no callback runs under it
	state     State
	listeners map[*func(State)]struct{}
	retired   []*nats.Subscription // that may still drain: see Retire

	status chan nats.Status
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	refusals rate.Sometimes // of reply subjects
}

// State is the state of a Bus's connection.
type State struct {
	// Connected says whether messages can be sent.
	Connected bool
	// Closed says that the connection has ended for good.
	Closed bool
	// Generation counts connections: 1 after the first, one more after each reconnect.
	// Messages to a subscription between two generations are lost.
	Generation uint64
	// Since is when the last connection was made. Messages to its subscriptions before that may
	// be lost, so a peer's silence until then proves nothing.
	Since time.Time
}

// Conn is a [Bus] as the public packages of this module name it: an alias of package
// registry gives it to programs, which only pass it on.
type Conn interface {
	// Conn is the NATS connection below.
	Conn() *nats.Conn
	// Close ends the Conn's own work and leaves the NATS connection open. It may be called more
	// than once.
	Close()
	shared() *Bus // only a Bus is one
}

// Of is the Bus behind a Conn, nil for nil.
func Of(c Conn) *Bus {
	if c == nil {
		return nil
	}
	return c.shared()
}

func (b *Bus) shared() *Bus { return b }

// Check refuses a bus that is none.
func (b *Bus) Check() error {
	if b == nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the bus is nil: make one with bus.New from a connection").
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	return nil
}

// New wraps a connection, which may be disconnected and need not have been made
// with [ConnectOptions]. It chains itself before the connection's error handler:
// set your own before, not after. It returns an error for a connection that is
// closed.
func New(nc *nats.Conn, options *Options) (*Bus, error) {
	o := cmp.Or(options, &Options{})
	if nc == nil || nc.IsClosed() {
		return nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "the NATS connection is closed: connect again").
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	}
	log := cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	api := subjects.JetStreamAPI(o.Domain)
	js, err := jetstream.NewWithAPIPrefix(nc, api)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "bus: Options.Domain %q: %w", o.Domain, err)
	}
	b := &Bus{
		nc: nc, js: js, api: api, log: log,
		listeners: make(map[*func(State)]struct{}),
		status:    nc.StatusChanged(),
		refusals:  rate.Sometimes{Interval: time.Second},
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.inbox.init(nc)
	b.clock.init()
	if o.Caller != "" {
		b.clock.told, _ = subjects.Registry(o.Caller, "time") // its client refuses an invalid session
	}
	b.peers.init(nc)
	listenToErrors(b)
	if nc.IsConnected() {
		b.state = State{Connected: true, Generation: 1, Since: time.Now()}
	}
	reconnects := nc.Stats().Reconnects
	b.wg.Go(func() { b.watchState(reconnects) })
	b.wg.Go(b.tick)
	b.wg.Go(b.measureTime)
	return b, nil
}

// Close ends the goroutines, removes the inbox's subscription and fails pending
// requests. It may be called more than once. The connection stays open.
func (b *Bus) Close() {
	b.cancel()
	ignoreErrors(b)
	b.nc.RemoveStatusListener(b.status)
	b.peers.close()
	b.inbox.shut(ErrClosed())
	b.wg.Wait()
	b.inbox.pump.Wait()
}

// Conn is the connection itself, for subscriptions of a serving side.
func (b *Bus) Conn() *nats.Conn { return b.nc }

// JetStream is the API of the connection's JetStream domain. Package store wraps the parts
// that the mesh needs.
func (b *Bus) JetStream() jetstream.JetStream { return b.js }

// API is the prefix of the subjects of JetStream's API, with its final dot.
func (b *Bus) API() string { return b.api }

// Logger is where the connection logs; it is never nil.
func (b *Bus) Logger() *slog.Logger { return b.log }

// Closed is closed by [Bus.Close].
func (b *Bus) Closed() <-chan struct{} { return b.ctx.Done() }

// MaxPayload is the largest message in bytes, headers included, that the broker
// takes; 0 before the first connection.
func (b *Bus) MaxPayload() int64 { return b.nc.MaxPayload() }

// Connected reports whether a message can be sent now.
func (b *Bus) Connected() bool { return b.nc.IsConnected() }

// State returns the connection's state. It may lag [Bus.Connected] by the time
// that a goroutine needs to run.
func (b *Bus) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// OnState calls fn at each change of state, in order, from one goroutine of the
// Bus, until cancel is called. fn must not block. One call may still run while cancel
// returns.
func (b *Bus) OnState(fn func(State)) (cancel func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listeners[&fn] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners, &fn)
	}
}

// watchState turns the connection's events into State. An event only signals a change: the
// state is read from the connection, whose lock a reconnect holds until its subscriptions are
// sent again.
func (b *Bus) watchState(reconnects uint64) {
	for {
		select {
		case <-b.ctx.Done():
			return
		case _, ok := <-b.status:
			if !ok {
				return
			}
		}
		now, seen := b.nc.Status(), b.nc.Stats().Reconnects
		var retired []*nats.Subscription
		b.mu.Lock()
		before := b.state
		b.state.Connected = now == nats.CONNECTED
		b.state.Closed = now == nats.CLOSED
		if b.state.Connected && (!before.Connected || seen != reconnects) {
			b.state.Generation++
			b.state.Since = time.Now()
			reconnects = seen
			retired, b.retired = b.retired, nil
		}
		after := b.state
		listeners := slices.Collect(maps.Keys(b.listeners))
		b.mu.Unlock()
		for _, sub := range retired {
			_ = sub.Unsubscribe()
		}
		if after == before {
			continue
		}
		if after.Connected {
			b.clock.invalidate(0)
		}
		if after.Closed {
			b.inbox.shut(ErrClosed())
		}
		for _, told := range listeners {
			(*told)(after)
		}
		if after.Closed {
			return
		}
	}
}

// ErrClosed is the error of operations on a closed connection.
func ErrClosed() *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeUnavailable, "the connection to the mesh was closed").
		WithOrigin(toolmesh.OriginCaller).WithRetryable(false)
}

// pingMost is how long a ping is waited for when ctx says nothing.
const pingMost = 5 * time.Second

// Ping returns nil if the broker answers a ping that is sent after this call,
// before ctx ends, or within 5 s. It tells a lost peer from a lost connection of
// one's own.
func (b *Bus) Ping(ctx context.Context) error {
	if !b.Connected() {
		return ErrDisconnected(nil)
	}
	ctx, cancel := context.WithTimeout(ctx, pingMost)
	defer cancel()
	switch err := b.nc.FlushWithContext(ctx); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("ping: %w", ctx.Err())
	default:
		return ErrDisconnected(err)
	}
}

// ErrDisconnected is the error of a request without a connection.
func ErrDisconnected(cause error) *toolmesh.Error {
	const text = "not connected to the mesh: the broker does not answer; it is tried again"
	e := toolmesh.Errorf(toolmesh.CodeUnavailable, text)
	if cause != nil {
		e = toolmesh.Errorf(toolmesh.CodeUnavailable, text+": %w", cause)
	}
	return e.WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
}

// SendError turns nats.go's error of a publish that did not leave this process into the
// mesh's error.
func SendError(err error, size int, limit int64) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload):
		return toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the message has %d bytes, the broker takes %d: send less", size, limit).
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo).
			WithDetail("limit", limit).WithDetail("size", size)
	case errors.Is(err, nats.ErrBadSubject):
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the subject cannot be sent to: %w", err).
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	default:
		return ErrDisconnected(err)
	}
}
