package meshtest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// Cluster starts a cluster of n brokers, and returns when JetStream has a leader that knows all
// of them. Use 2 to test routes between servers, 3 for three copies of a stream.
func Cluster(t testing.TB, n int, options ...Option) []*Server {
	t.Helper()
	routes := FreePorts(t, n)
	servers := make([]*Server, n)
	for i := range servers {
		s := newServer(t, append(options, Config(fmt.Sprintf("cluster { name: test, listen: %q, routes: [nats://%s] }",
			routes[i], strings.Join(routes, ", nats://")))))
		s.options.Name = "test-" + strconv.Itoa(i+1)
		servers[i] = s
	}
	var group errgroup.Group
	for _, s := range servers {
		group.Go(func() error { return s.start(t.Context()) })
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("start a cluster of %d: %v", n, err)
	}
	WaitForLeader(t, servers)
	return servers
}

// WaitForLeader returns when the JetStream of a cluster has a leader, all of these servers are
// part of it, and each is up to date.
func WaitForLeader(t testing.TB, servers []*Server) {
	t.Helper()
	Until(t, "the cluster has a leader", func() bool {
		led := false
		for _, s := range servers {
			srv := s.Server()
			if srv == nil || !srv.JetStreamIsCurrent() {
				return false
			}
			if srv.JetStreamIsLeader() {
				led = len(srv.JetStreamClusterPeers()) >= len(servers)
			}
		}
		return led
	})
}
