package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/broker"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/registry"
)

// keyLook is how often it is looked whether the session of a key goes on.
const keyLook = 250 * time.Millisecond

// sessionKeys lets in the keys of sessions at the broker of this process, and ends
// their connections with the session.
type sessionKeys struct {
	issuer *access.Issuer
	server *broker.Broker
	log    *slog.Logger
	bus    *bus.Bus
	view   *registry.View
	sub    *nats.Subscription
	quit   chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	clients map[uint64]string // the public key that a connection was let in with
}

// startSessionKeys begins to answer, on a connection of an administrator. End it
// with stop.
func startSessionKeys(ctx context.Context, nc *nats.Conn, server *broker.Broker, issuer *access.Issuer, log *slog.Logger) (*sessionKeys, error) {
	k := &sessionKeys{issuer: issuer, server: server, log: log, quit: make(chan struct{}), clients: make(map[uint64]string)}
	var err error
	if k.bus, err = bus.New(nc, &bus.Options{Logger: log}); err != nil {
		return nil, err
	}
	if k.view, err = registry.OpenView(ctx, k.bus, &registry.ViewOptions{SessionsOnly: true, Logger: log}); err != nil {
		k.bus.Close()
		return nil, err
	}
	k.sub, err = nc.Subscribe(access.CalloutSubject, k.asked)
	if err != nil {
		k.view.Close()
		k.bus.Close()
		return nil, err
	}
	k.wg.Go(k.follow)
	return k, nil
}

func (k *sessionKeys) stop() {
	_ = k.sub.Unsubscribe()
	close(k.quit)
	k.wg.Wait()
	k.view.Close()
	k.bus.Close()
}

// asked answers a question of the server, which nobody else that is not trusted can
// publish. What the view does not say yet is not waited for: strangers ask, too.
func (k *sessionKeys) asked(m *nats.Msg) {
	answer, client, public, err := k.issuer.Answer(m.Data, k.find)
	if err != nil {
		k.log.Warn("a question of the NATS server cannot be read", slog.String("error", err.Error()))
		return
	}
	if client != 0 {
		k.mu.Lock()
		k.clients[client] = public
		k.mu.Unlock()
	}
	_ = m.Respond(answer)
}

func (k *sessionKeys) find(public string) (access.SessionKey, bool) {
	for _, r := range k.view.Sessions() {
		if r.Key == public && public != "" {
			found := access.SessionKey{Session: r.ID}
			if r.TTL > 0 {
				found.Until = r.Created.Add(r.TTL)
			}
			return found, true
		}
	}
	return access.SessionKey{}, false
}

// follow ends the connections of sessions that are over.
func (k *sessionKeys) follow() {
	ticker := time.NewTicker(keyLook)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-k.quit:
			return
		}
		k.mu.Lock()
		for client, public := range k.clients {
			_, lives := k.find(public)
			if !lives {
				k.server.Disconnect(client)
			}
			if !lives || !k.server.Connected(client) {
				delete(k.clients, client)
			}
		}
		k.mu.Unlock()
	}
}
