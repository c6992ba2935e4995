package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// ownFigures returns those of this process and of a connection, if it has one.
func ownFigures(nc *nats.Conn) figures {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // of oneself it does not fail
	f := figures{CPU: time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}
	runtime.GC()
	runtime.GC() // memory that finalizers have released
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.Heap = m.HeapAlloc
	if nc != nil {
		s := nc.Stats()
		f.InMsgs, f.InBytes, f.OutMsgs, f.Subscriptions = s.InMsgs, s.InBytes, s.OutMsgs, uint64(nc.NumSubscriptions()) //nolint:gosec // a count
	}
	return f
}

func indexName(i int) string    { return fmt.Sprintf("idx%04d", i) }
func indexTool(i, n int) string { return fmt.Sprintf("%s.tools.tool_%03d", indexName(i), n) }
func connect(urls string) (*nats.Conn, error) {
	return nats.Connect(urls, client.ConnectOptions()...)
}

// simulated has the nodes of one process: each has a connection, a real host and an agent's further
// subscriptions.
type simulated struct {
	scale
	urls string

	mu       sync.Mutex
	conns    []*nats.Conn
	hosts    []*host.Host
	services map[int]host.Service // by index
}

// startNodes makes a process of simulated nodes. args: the brokers, the scale.
func startNodes(_ context.Context, args []string) (role, error) {
	s := &simulated{urls: args[0], services: make(map[int]host.Service)}
	if err := json.Unmarshal([]byte(args[1]), &s.scale); err != nil {
		return role{}, err
	}
	return role{do: s.do, stop: s.stop}, nil
}

func (s *simulated) do(ctx context.Context, r request) (answer, error) {
	switch r.Do {
	case "nodes":
		var group errgroup.Group
		group.SetLimit(3) // the brokers have this machine's cores, too
		for i := r.Callers; i < r.N; i++ {
			group.Go(func() error { return s.node(ctx, i) })
		}
		return answer{}, group.Wait()
	case "sessions":
		return answer{}, s.create(ctx, r.N)
	case "reconnect":
		for _, nc := range s.conns {
			if err := nc.ForceReconnect(); err != nil {
				return answer{}, err
			}
		}
		return answer{}, nil
	case "figures":
		return answer{Figures: ownFigures(nil)}, nil
	}
	return answer{}, errUnknown(r)
}

// node starts one.
func (s *simulated) node(ctx context.Context, i int) error {
	nc, err := connect(s.urls)
	if err != nil {
		return err
	}
	sessions, err := registry.NewSessions("")
	if err != nil {
		return err
	}
	h, err := host.New(nc, &host.Options{
		Node: subjects.NodeID(fmt.Sprintf("sim-%04d", i)), Version: "simulated", Sessions: sessions, Service: "mesh-agent",
		Sandbox: registry.SandboxState{Asked: "guard", Effective: "guard"},
	})
	if err != nil {
		return err
	}
	if err := h.Start(ctx); err != nil {
		return err
	}
	// The subscriptions of a view, without its data.
	unread := func(*nats.Msg) {}
	for _, bucket := range []string{subjects.BucketNodes, subjects.BucketTools, subjects.BucketIndexes, subjects.BucketSessions} {
		if _, err := nc.Subscribe(subjects.RegistryChanges(bucket), unread); err != nil {
			return err
		}
	}
	if s.Nodes <= registry.SparingMax { // an agent hears all heartbeats
		if _, err := nc.Subscribe(subjects.AllHeartbeats, unread); err != nil {
			return err
		}
	}
	for k := range s.indexes() {
		// The copies of an index are on consecutive nodes, those of the first, which is called, on the first three alone.
		copies := min(s.Copies, s.Nodes)
		if k == 0 {
			copies = scaleSmall
		}
		if (i-k*s.Nodes/s.indexes()+s.Nodes)%s.Nodes >= copies {
			continue
		}
		if err := retried(ctx, func() error { return h.Publish(ctx, s.service(k)) }); err != nil { // a thousand nodes begin at once
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns, s.hosts = append(s.conns, nc), append(s.hosts, h)
	return nil
}

// service is what each node says and does of an index. Descriptors are shared.
func (s *simulated) service(k int) host.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one, ok := s.services[k]; ok {
		return one
	}
	one := host.Service{Index: subjects.IndexName(indexName(k)), Revision: fmt.Sprintf("%040d", k)}
	handler := host.Func(refund)
	for n := range s.PerIndex {
		id := indexTool(k, n)
		one.Tools = append(one.Tools, host.Tool{Handler: handler, Descriptor: &tool.Descriptor{
			ID: subjects.ToolID(id), Name: strings.TrimPrefix(id, indexName(k)+"."), Description: "Refunds an order, as one of many tools.",
			InputSchema:  json.RawMessage(`{"type":"object","properties":{"order":{"type":"string"},"amount":{"type":"integer"}},"required":["order","amount"],"additionalProperties":false}`),
			OutputSchema: json.RawMessage(`{"type":"object"}`), Metadata: json.RawMessage(`{}`),
		}})
	}
	s.services[k] = one
	return one
}

// create creates sessions.
func (s *simulated) create(ctx context.Context, n int) error {
	nc, err := connect(s.urls)
	if err != nil {
		return err
	}
	defer nc.Close()
	b, err := bus.New(nc, nil)
	if err != nil {
		return err
	}
	defer b.Close()
	records, err := registry.NewStore(b)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(64)
	for i := range n {
		group.Go(func() error {
			record := registry.SessionRecord{ID: subjects.SessionID(fmt.Sprintf("session-%05d", i)), Epoch: fmt.Sprintf("%016d", i), Created: time.Now().UTC()}
			return retried(ctx, func() error { // a new bucket has no leader for a while
				err := records.CreateSession(ctx, record)
				if errors.Is(err, store.ErrConflict) { // it is there, its acknowledgement was lost
					return nil
				}
				return err
			})
		})
	}
	return group.Wait()
}

func (s *simulated) stop() {
	for _, nc := range s.conns { // none is drained: that takes long, and the brokers end too
		nc.Close()
	}
}

// startRouter is a router. args: the brokers.
func startRouter(ctx context.Context, args []string) (role, error) {
	debug.SetGCPercent(gcPercent)
	nc, err := connect(args[0])
	if err != nil {
		return role{}, err
	}
	r, err := router.New(nc, &router.Options{Logger: warnings()})
	if err == nil {
		err = r.Start(ctx)
	}
	if err != nil {
		return role{}, err
	}
	return role{do: around(nc, nil), stop: func() { r.Close(); nc.Close() }}, nil
}
