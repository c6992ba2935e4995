package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// lagging is a cluster of three behind proxies; the third server can be cut off from the others:
// its replicas answer, and lag.
func lagging(t *testing.T) (servers []*meshtest.Server, routes []*meshtest.Proxy) {
	t.Helper()
	ports := meshtest.FreePorts(t, 3)
	for _, port := range ports[:2] {
		routes = append(routes, meshtest.NewProxy(t, &meshtest.Server{URL: "nats://" + port}))
	}
	to := []string{"nats://" + ports[0], "nats://" + ports[0], routes[0].URL + ", " + routes[1].URL}
	servers = make([]*meshtest.Server, len(ports))
	var starting sync.WaitGroup
	for i := range ports {
		starting.Go(func() {
			// A server knows only the routes given to it: the advertised address leads nowhere.
			servers[i] = meshtest.Broker(t, meshtest.Config(fmt.Sprintf(`server_name: "lag-%d"
				cluster { name: lag, listen: %q, advertise: "127.0.0.1:1", pool_size: -1, routes: [%s] }`, i+1, ports[i], to[i])))
		})
	}
	starting.Wait()
	meshtest.WaitForLeader(t, servers)
	return servers, routes
}

// A reader waits for a message that a lagging replica lacks, and never reports it as removed.
func TestAReplicaLags(t *testing.T) {
	t.Parallel()
	servers, routes := lagging(t)
	near, far := open(t, servers[0].Connect(t), nil), open(t, servers[2].Connect(t, nats.IgnoreDiscoveredServers()), nil)
	ensure(t, near, nil)
	values := subjects.ObjectStream(subjects.ObjectTasks)
	id := func(name string) string { return "default." + name + ".1.x" }
	subject := func(name string) string {
		return subjects.ObjectParts(subjects.ObjectTasks) + id(name)
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 70_000)
	// The replicas of the third server answer, and have all that there is.
	if _, err := near.StoreParts(t.Context(), subjects.ObjectTasks, id("first"), data); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the third server's replicas answer", func() bool {
		value, err := far.Conn().Request("$JS.API.DIRECT.GET."+values, []byte(`{"multi_last":["`+subject("first")+`"],"batch":1}`), time.Minute)
		return err == nil && len(value.Data) > 0
	})
	for _, stream := range []string{values, subjects.ObjectStream(subjects.ObjectPayloads)} {
		meshtest.Until(t, "another server leads "+stream, func() bool { // one that is cut off does not know it at once
			s, err := near.JetStream().Stream(t.Context(), stream)
			if err != nil || s.CachedInfo().Cluster.Leader == "" {
				return false
			}
			if s.CachedInfo().Cluster.Leader != "lag-3" {
				return true
			}
			_, _ = near.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, time.Minute)
			return false
		})
	}
	for _, p := range routes {
		p.Cut(true)
	}
	meshtest.Until(t, "it is cut off", func() bool { return servers[2].Server().NumRoutes() == 0 })
	parts, name := 0, ""
	meshtest.Until(t, "the others store a value", func() (ok bool) {
		name += "x" // a subject of its own for each attempt
		var err error
		parts, err = near.StoreParts(t.Context(), subjects.ObjectTasks, id(name), data)
		return err == nil
	})
	asked, err := far.Conn().SubscribeSync("$JS.API.DIRECT.GET." + values)
	if err != nil {
		t.Fatal(err)
	}
	type loaded struct {
		data []byte
		err  error
	}
	load := func() loaded {
		var value bytes.Buffer
		_, err := far.CopyParts(t.Context(), subjects.ObjectTasks, id(name), parts, int64(len(data)), &value)
		return loaded{value.Bytes(), err}
	}
	got := make(chan loaded, 1)
	go func() { got <- load() }()
	for range 3 { // the messages that arrive are not enough
		if m, err := asked.NextMsg(time.Minute); err != nil || !strings.Contains(string(m.Data), name) {
			t.Fatalf("its reader asks again: %v", err)
		}
	}
	if _, err := far.Payload(t.Context(), "default.one"); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable || errors.Is(err, store.ErrNoKey) {
		t.Errorf("an object that only the others may know: %v", err)
	}
	for _, p := range routes {
		p.Heal()
	}
	value := <-got
	meshtest.Until(t, "the value has come", func() bool {
		if value.err != nil && toolmesh.CodeOf(value.err) != toolmesh.CodeUnavailable {
			t.Fatal(value.err)
		}
		if value.err != nil { // it took longer than a reader waits: it is to ask again
			value = load()
		}
		return value.err == nil
	})
	if !bytes.Equal(value.data, data) {
		t.Errorf("%d bytes of %d", len(value.data), len(data))
	}
}
