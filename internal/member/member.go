package member

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/awaiting"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/task"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// Options adjusts a [Member].
type Options struct {
	// Type names the options of the owner in errors: "router.Options".
	Type string
	// Session is the session of calls that name none. Defaults to "default".
	Session subjects.SessionID
	// SessionPolicy is "open" (the default) or "strict".
	SessionPolicy string
	// Store is how the mesh's streams are made.
	Store host.StoreOptions
	// View adjusts the view of the registry.
	View registry.ViewOptions
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// Member is one process of the mesh. [Member.Stuck], [Member.Figures] and [Member.Seen] may
// be called at any time, the other methods one after the other.
type Member struct {
	Bus    *bus.Bus
	Client *client.Client
	Store  *registry.Store
	// Sessions says which sessions exist.
	Sessions *registry.Sessions
	View     *registry.View // nil before Join
	Host     *host.Host     // nil before Serve
	Tasks    *task.Service  // nil before RunTasks

	opts      Options
	responder *registry.Responder
	awaiting  *awaiting.Teller
	batches   bool                          // the node runs batches
	serving   atomic.Pointer[host.Host]     // Host, once it has started
	seen      atomic.Pointer[registry.View] // View, until Close
}

// New makes a member on a connection, which it leaves open. Nothing is sent before it is
// used. End it with [Member.Leave] and [Member.Close].
func New(nc *nats.Conn, o Options) (*Member, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.View.Logger = o.Logger
	if err := store.Layout(o.Store).Validate(o.Type); err != nil {
		return nil, err
	}
	sessions, err := registry.NewSessions(o.SessionPolicy)
	if err != nil {
		return nil, err
	}
	b, err := bus.New(nc, &bus.Options{Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	c, err := client.NewOn(b, &client.Options{Session: o.Session, Logger: o.Logger})
	if err != nil {
		b.Close()
		return nil, err
	}
	records, err := registry.NewStore(b)
	if err != nil {
		return nil, err
	}
	return &Member{Bus: b, Client: c, Store: records, Sessions: sessions, opts: o}, nil
}

// Join opens the view and answers the registry's questions from it, once.
func (m *Member) Join(ctx context.Context) error {
	if m.View != nil {
		return nil
	}
	if m.Host == nil || m.Host.Unregistered() != nil { // a host that has a lease has made the streams
		if err := m.prepare(ctx); err != nil {
			return err
		}
	}
	view, err := registry.OpenView(ctx, m.Bus, &m.opts.View)
	if err != nil {
		return err
	}
	responder, err := registry.NewResponder(m.Bus, view, m.Store)
	if err != nil {
		view.Close()
		return err
	}
	m.View, m.responder = view, responder
	m.seen.Store(view)
	m.Sessions.Use(view)
	return nil
}

// prepare checks the rights of a member, and makes the mesh's streams.
func (m *Member) prepare(ctx context.Context) error {
	err := m.Bus.CheckRights(ctx, "answer for the registry: it needs the key of a node", subjects.Rights{Subscribe: []string{subjects.AllRegistry + " " + subjects.QueueGroup}})
	if err == nil {
		err = m.Bus.FreshTime(ctx) // a session's end is counted from when it was created, by the broker's time
	}
	if err != nil {
		return err
	}
	layout := store.Layout(m.opts.Store)
	return store.Of(m.Bus).Ensure(ctx, &layout)
}

// Serve makes the process a node with these options, once, and joins. Called again after an error,
// it continues. Sessions, streams and the logger are the member's.
func (m *Member) Serve(ctx context.Context, o host.Options) error {
	if m.Host == nil {
		if err := m.start(ctx, o); err != nil {
			return err
		}
	}
	if m.batches {
		return nil
	}
	if err := m.Join(ctx); err != nil {
		return err
	}
	err := m.Host.ServeBatches(ctx, m.View, m.Store, m.Client)
	m.batches = err == nil
	return err
}

func (m *Member) start(ctx context.Context, o host.Options) error {
	o.Sessions, o.StoreOptions, o.Logger = m.Sessions, m.opts.Store, m.opts.Logger
	h, err := host.NewOn(m.Bus, &o)
	if err != nil {
		return err
	}
	if err := h.Start(ctx); err != nil {
		_ = h.Stop(context.WithoutCancel(ctx)) // nothing runs
		return err
	}
	m.Host = h
	m.serving.Store(h)
	return nil
}

// RunTasks begins to run tasks, once. The member has joined.
func (m *Member) RunTasks(ctx context.Context) error {
	if m.Tasks != nil {
		return nil
	}
	tasks := task.New(m.Bus, m.Store, m.Client, &task.Options{
		Sessions: m.Sessions, Replicas: m.opts.Store.Replicas, Await: m.View.Await, Logger: m.opts.Logger,
	})
	if err := tasks.Start(ctx); err != nil {
		return err
	}
	m.Tasks = tasks
	return nil
}

// TellAwaited tells the mesh which calls of tasks wait for a node, once.
func (m *Member) TellAwaited() {
	if m.awaiting == nil {
		m.awaiting = awaiting.Tell(m.Bus, m.Tasks.Awaited)
	}
}

// Leave hands the tasks over, and stops the node as [host.Host.Stop] does. The registry's
// questions are still answered.
func (m *Member) Leave(ctx context.Context) error {
	if m.Tasks != nil {
		m.Tasks.Stop(ctx) // first: others take its tasks over
	}
	if m.awaiting != nil {
		m.awaiting.Close()
	}
	if m.Host == nil {
		return nil
	}
	return m.Host.Stop(ctx)
}

// CloseView ends the answers to the registry's questions, and the view. It may be called
// more than once.
func (m *Member) CloseView() {
	if m.View != nil {
		m.seen.Store(nil)
		m.responder.Close()
		m.View.Close()
		m.View = nil
	}
}

// Close ends everything after [Member.Leave]. It may be called more than once.
func (m *Member) Close() {
	m.CloseView()
	m.Client.Close()
	m.Bus.Close()
}

// Stuck is why the node makes no progress; see [host.Host.Stuck].
func (m *Member) Stuck() error {
	if h := m.serving.Load(); h != nil {
		return h.Stuck()
	}
	return nil
}

// Node is the node that the member is; nil while it serves nothing.
func (m *Member) Node() *host.Host { return m.serving.Load() }

// Figures are those of the node; nil before Serve.
func (m *Member) Figures() *host.Figures {
	if h := m.serving.Load(); h != nil {
		return h.Figures()
	}
	return nil
}

// Seen is the view of the registry; nil before [Member.Join] and from [Member.CloseView] on.
func (m *Member) Seen() *registry.View { return m.seen.Load() }
