package callout

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// keyLook is the interval at which the sessions of connected keys are checked.
const keyLook = 250 * time.Millisecond

// Server is a NATS server of this process.
type Server interface {
	// Connected reports whether a client is there, by the server's number of it.
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
	// Logger takes what is wrong with the server's questions; nil discards it.
	Logger *slog.Logger
}

// SessionKeys lets in the keys of sessions, for as long as the sessions go on. Of the
// processes that do so at one mesh one answers each question.
type SessionKeys struct {
	issuer *access.Issuer
	opts   Options
	bus    *bus.Bus
	view   *registry.View
	sub    *nats.Subscription
	wrong  rate.Sometimes
	quit   chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	clients map[uint64]string // the public key that a connection was let in with
}

// Serve begins to answer, on a connection that may, and that the server
// does not ask about: its key is among the auth_users. The error is permission_denied
// where it may not. End it with Stop.
func Serve(ctx context.Context, nc *nats.Conn, issuer *access.Issuer, o Options) (*SessionKeys, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	k := &SessionKeys{
		issuer: issuer, opts: o, quit: make(chan struct{}), clients: make(map[uint64]string),
		wrong: rate.Sometimes{Interval: time.Minute},
	}
	var err error
	if k.bus, err = bus.New(nc, &bus.Options{Logger: o.Logger}); err != nil {
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
	if k.sub, err = nc.QueueSubscribe(subjects.UserAuth, subjects.QueueGroup, k.asked); err != nil {
		k.view.Close()
	}
	return err
}

// Stop ends it. Connections that were let in stay, until they are to be renewed.
func (k *SessionKeys) Stop() {
	_ = k.sub.Unsubscribe()
	close(k.quit)
	k.wg.Wait()
	k.view.Close()
	k.bus.Close()
}

// asked answers a question of the server, which nobody else that is not trusted can
// publish. What the view does not say yet is not waited for: strangers ask, too.
func (k *SessionKeys) asked(m *nats.Msg) {
	answer, client, public, err := k.issuer.Answer(m.Data, k.find)
	if err != nil {
		k.wrong.Do(func() {
			k.opts.Logger.Error("keys of sessions cannot be let in", slog.String("error", err.Error()))
		})
		return
	}
	if client != 0 && k.opts.Server != nil {
		k.mu.Lock()
		k.clients[client] = public
		k.mu.Unlock()
	}
	_ = m.Respond(answer)
}

func (k *SessionKeys) find(public string) (access.SessionKey, bool) {
	for _, r := range k.view.Sessions() {
		if r.Key == public && public != "" {
			found := access.SessionKey{Session: r.ID}
			if r.TTL > 0 {
				found.Until = r.Created.Add(r.TTL)
			}
			if k.opts.Server == nil {
				found.For = k.opts.Renew
			}
			return found, true
		}
	}
	return access.SessionKey{}, false
}

// follow ends the connections of sessions that are over.
func (k *SessionKeys) follow() {
	ticker := time.NewTicker(keyLook)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-k.quit:
			return
		}
		k.mu.Lock() // not while they are looked at, as logins wait for it
		clients := maps.Clone(k.clients)
		k.mu.Unlock()
		lives := make(map[string]bool)
		for _, r := range k.view.Sessions() { // read behind the clients: what let them in is among them
			lives[r.Key] = r.Key != ""
		}
		maps.DeleteFunc(clients, func(client uint64, public string) bool {
			if !lives[public] {
				k.opts.Server.Disconnect(client)
			}
			return lives[public] && k.opts.Server.Connected(client)
		})
		k.mu.Lock()
		for client := range clients {
			delete(k.clients, client)
		}
		k.mu.Unlock()
	}
}
