package callout

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	// keyLook is the interval at which the sessions of connected keys are checked.
	keyLook = 250 * time.Millisecond
	// narrowedFor is the max age of a connection with a key that is narrowed to some tools: its
	// rights list the tools at its beginning.
	narrowedFor = 5 * time.Minute
	// toolsMax is how many tools the rights of a connection list.
	toolsMax = 2000
	// answersAtOnce is how many questions of servers are answered at once, and answersWait how many
	// wait; sessions share both.
	answersAtOnce = 16
	answersWait   = 1 << 14
	readTimeout   = 2 * time.Second
)

// Server is a NATS server of this process.
type Server interface {
	// Connected reports whether a client is connected, by the server's number of it.
	Connected(client uint64) bool
	// Disconnect ends a client's connection, by the server's number of it.
	Disconnect(client uint64)
}

// Options adjusts [Serve].
type Options struct {
	// Server is the one server that asks: connections end with their session.
	// Defaults to none: the servers are elsewhere.
	Server Server
	// Renew is how long a connection may last where there is no Server, in whole
	// seconds. Its client connects again, and that of an ended session is refused.
	Renew time.Duration
	// Seen returns the process's view of the mesh, nil while it has none: keys that are narrowed to
	// some tools need it.
	Seen func() *registry.View
	// Logger logs invalid questions of the server; nil discards them.
	Logger *slog.Logger
}

// SessionKeys admits the keys of sessions, for as long as the sessions go on. Of the
// processes that do so at one mesh one answers each question.
type SessionKeys struct {
	issuer *access.Issuer
	opts   Options
	bus    *bus.Bus
	view   *registry.View
	store  *registry.Store
	sub    *nats.Subscription
	wrong  rate.Sometimes
	ctx    context.Context // ends with Stop
	stop   context.CancelFunc
	wg     sync.WaitGroup
	work   sync.WaitGroup                  // answers
	queue  *fair.Queue[subjects.SessionID] // of answers, by the session of the key

	mu      sync.Mutex
	clients map[uint64]string // the public key of an admitted connection
}

// Serve begins to answer, on a connection that may, and that the server
// does not ask about: its key is among the auth_users. The error is permission_denied
// where it may not. End it with Stop.
func Serve(ctx context.Context, nc *nats.Conn, issuer *access.Issuer, o Options) (*SessionKeys, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	k := &SessionKeys{
		issuer: issuer, opts: o, clients: make(map[uint64]string),
		wrong: rate.Sometimes{Interval: time.Minute},
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.queue = fair.NewQueue[subjects.SessionID](answersAtOnce, answersWait, k.work.Go)
	var err error
	if k.bus, err = bus.New(nc, &bus.Options{Logger: o.Logger}); err != nil {
		return nil, err
	}
	if k.store, err = registry.NewStore(k.bus); err != nil {
		return nil, err
	}
	if err := k.open(ctx, nc); err != nil {
		k.bus.Close()
		return nil, err
	}
	if o.Server != nil {
		k.wg.Go(k.follow)
	}
	return k, nil
}

func (k *SessionKeys) open(ctx context.Context, nc *nats.Conn) error {
	err := k.bus.CheckRights(ctx, "answer for the keys of sessions: what mesh auth template --nats-conf prints allows the node's key to", subjects.Rights{Subscribe: []string{access.CalloutQueue}})
	if err != nil {
		return err
	}
	if k.view, err = registry.OpenView(ctx, k.bus, &registry.ViewOptions{SessionsOnly: true, Logger: k.opts.Logger}); err != nil {
		return err
	}
	k.sub, err = nc.QueueSubscribe(subjects.UserAuth, subjects.QueueGroup, k.asked)
	if err != nil {
		k.view.Close()
	}
	return err
}

// Stop ends it. Admitted connections stay until their renewal.
func (k *SessionKeys) Stop() {
	_ = k.sub.Unsubscribe()
	k.work.Wait() // a login that is refused meanwhile would be the end of its client
	k.stop()
	k.wg.Wait()
	k.view.Close()
	k.bus.Close()
}

// asked takes a question of the server. Only trusted processes can publish one. It does not wait for
// records that the view lacks, as strangers cause questions, too. A question for which a session has
// no room has no answer, and the server refuses the client.
func (k *SessionKeys) asked(m *nats.Msg) {
	q, err := k.issuer.Read(m.Data)
	if err != nil {
		k.warn(err)
		return
	}
	asks, _ := k.view.Key(q.Key)
	k.queue.Do(asks.Session, func() {
		var may *access.SessionKey
		if known, ok := k.view.Key(q.Key); ok { // it may have been revoked meanwhile
			may = k.rights(known)
		}
		answer, admitted, err := k.issuer.Answer(q, may)
		if err != nil {
			k.warn(err)
			return
		}
		if admitted && k.opts.Server != nil {
			k.mu.Lock()
			k.clients[q.Client] = q.Key
			k.mu.Unlock()
		}
		_ = m.Respond(answer)
	})
}

func (k *SessionKeys) warn(err error) {
	k.wrong.Do(func() {
		k.opts.Logger.Error("keys of sessions cannot be admitted", slog.String("error", err.Error()))
	})
}

// rights returns what a key may do; nil if that is unknown.
func (k *SessionKeys) rights(known registry.Key) *access.SessionKey {
	may := &access.SessionKey{Session: known.Session, Until: known.Until, Narrowed: known.Narrowed()}
	if k.opts.Server == nil {
		may.For = k.opts.Renew
	}
	if !may.Narrowed {
		return may
	}
	may.For = min(cmp.Or(k.opts.Renew, narrowedFor), narrowedFor)
	var err error
	if may.Exact, may.Tools, err = k.narrow(known); err != nil {
		k.opts.Logger.Warn("token is refused: its tools are unknown", slog.String("token", known.Token), slog.String("error", err.Error()))
		return nil
	}
	return may
}

// narrow returns the rights of a narrowed key: globs that are patterns of subjects, and tools.
func (k *SessionKeys) narrow(known registry.Key) (exact subjects.Globs, tools []subjects.ToolID, err error) {
	listed := known.Tools
	if !known.ReadOnly {
		if exact, listed = known.Tools.Exact(); len(listed) == 0 {
			return exact, nil, nil
		}
	}
	var view *registry.View
	if k.opts.Seen != nil {
		view = k.opts.Seen()
	}
	if view == nil {
		return nil, nil, errors.New("this process has not read the mesh's tools yet")
	}
	routes, _ := view.List(known.Session, "", 0)
	routes = slices.DeleteFunc(routes, func(r registry.Route) bool { return !listed.Match(r.ID) || r.Digest == "" })
	if known.ReadOnly {
		ctx, cancel := context.WithTimeout(k.ctx, readTimeout)
		defer cancel()
		digests := make([]string, len(routes))
		for i, r := range routes {
			digests[i] = r.Digest
		}
		described, err := k.store.Descriptors(ctx, digests)
		if err != nil {
			return nil, nil, err
		}
		routes = slices.DeleteFunc(routes, func(r registry.Route) bool {
			d := described[r.Digest]
			return d == nil || !d.Annotations.ReadOnly
		})
	}
	if len(routes) > toolsMax {
		k.opts.Logger.Warn("token names more tools than its rights can list: only the first ones can be called with it",
			slog.String("token", known.Token), slog.Int("tools", len(routes)), slog.Int("max", toolsMax))
		routes = routes[:toolsMax]
	}
	for _, r := range routes {
		tools = append(tools, r.ID)
	}
	return exact, tools, nil
}

// follow ends the connections of sessions that are over.
func (k *SessionKeys) follow() {
	for wake.After(k.ctx, keyLook) {
		k.mu.Lock() // not while they are looked at, as logins wait for it
		clients := maps.Clone(k.clients)
		k.mu.Unlock()
		maps.DeleteFunc(clients, func(client uint64, public string) bool {
			_, lives := k.view.Key(public) // read after the clients: the record that admitted them is known
			if !lives {
				k.opts.Server.Disconnect(client)
			}
			return lives && k.opts.Server.Connected(client)
		})
		k.mu.Lock()
		for client := range clients {
			delete(k.clients, client)
		}
		k.mu.Unlock()
	}
}
