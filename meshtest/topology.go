package meshtest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/subjects"
)

// Topology is one arrangement of brokers and accounts, with connections for both
// sides of a call.
type Topology struct {
	// Name is single, accounts, cluster2 or cluster3, and of [Conversations] also keys,
	// session or jwt.
	Name string
	// Session is where its callers may call; empty for the default session.
	Session subjects.SessionID
	// Brokers are its servers, one or more.
	Brokers []*Server

	serve, call func(t testing.TB, i int, options []nats.Option) *nats.Conn
}

// Serve connects a serving side, to the first broker.
func (top *Topology) Serve(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return top.serve(t, 0, options)
}

// ServeOn connects a serving side to broker i, counted round.
func (top *Topology) ServeOn(t testing.TB, i int, options ...nats.Option) *nats.Conn {
	t.Helper()
	return top.serve(t, i%len(top.Brokers), options)
}

// Call connects a caller, to the last broker: in a cluster not where
// [Topology.Serve] is.
func (top *Topology) Call(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return top.call(t, len(top.Brokers)-1, options)
}

// CallOn connects a caller to broker i, counted round.
func (top *Topology) CallOn(t testing.TB, i int, options ...nats.Option) *nats.Conn {
	t.Helper()
	return top.call(t, i%len(top.Brokers), options)
}

// Known returns when the servers of a cluster know all that one connection has subscribed to so far,
// at the server of another: servers tell each other of subscriptions in their order, but later.
func (top *Topology) Known(t testing.TB, subscriber, at *nats.Conn) {
	t.Helper()
	if len(top.Brokers) == 1 {
		return
	}
	last, err := subscriber.Subscribe(nats.NewInbox(), func(m *nats.Msg) { _ = m.Respond(nil) })
	must(t, err, "subscribe")
	defer func() { _ = last.Unsubscribe() }()
	Until(t, "the servers know the subscriptions", func() bool {
		_, err := at.Request(last.Subject, nil, time.Second)
		return err == nil
	})
}

// Topologies runs a test on each topology: one broker, two accounts and a cluster of
// three, and with MESH_SOAK in the environment one of two as well. With -short it leaves
// the clusters out. The runs are one after the other, because clusters are heavy. The
// options are those of each broker.
func Topologies(t *testing.T, run func(t *testing.T, top *Topology), options ...Option) {
	t.Helper()
	t.Run("single", func(t *testing.T) { run(t, cluster("single", []*Server{Broker(t, options...)})) })
	t.Run("accounts", func(t *testing.T) { run(t, accounts(t, options...)) })
	if testing.Short() {
		return
	}
	if Soak() {
		t.Run("cluster2", func(t *testing.T) { run(t, cluster("cluster2", Cluster(t, 2, options...))) })
	}
	t.Run("cluster3", func(t *testing.T) { run(t, cluster("cluster3", Cluster(t, 3, options...))) })
}

// Single is the topology of one broker.
func Single(t testing.TB) *Topology {
	t.Helper()
	return cluster("single", []*Server{Broker(t)})
}

// accounts is the topology of a broker with an account for the mesh and one for its callers. The mesh's exports the
// subjects that callers may send and read, requests with the response type stream, and the callers' imports them.
func accounts(t testing.TB, options ...Option) *Topology {
	t.Helper()
	const one = "ONE" // any single name, until it is replaced
	anyOf := func(subject string, err error) string {
		if err != nil {
			t.Fatalf("build an exported subject: %v", err)
		}
		return strings.Replace(subject, one, "*", 1)
	}
	var exports, imports []string
	share := func(kind, how string, all ...string) {
		for _, subject := range all {
			exports = append(exports, fmt.Sprintf("{ %s: %q%s }", kind, subject, how))
			imports = append(imports, fmt.Sprintf("{ %s: { account: MESH, subject: %q } }", kind, subject))
		}
	}
	share("service", ", response_type: stream", subjects.AllTools, subjects.AllCtl, subjects.AllRegistry, subjects.AllReplay,
		subjects.AllTaskVerbs, subjects.AllPayloads, anyOf(subjects.Subject{Kind: subjects.KindBatch, Session: one}.Build()),
		anyOf(subjects.NodeTools(one)), anyOf(subjects.NodeCtls(one)), anyOf(subjects.NodeBatches(one)), anyOf(subjects.NodePayloads(one)))
	share("stream", "", subjects.LiveTransform, subjects.AllHeartbeats)
	s := Broker(t, append(options, Config(fmt.Sprintf(`accounts {
  MESH { jetstream: enabled, users: [ { user: mesh, password: mesh } ], exports: [ %s ] }
  CALLERS { users: [ { user: caller, password: caller } ], imports: [ %s ] }
}`, strings.Join(exports, ", "), strings.Join(imports, ", "))))...)
	as := func(user string) func(testing.TB, int, []nats.Option) *nats.Conn {
		return func(t testing.TB, _ int, options []nats.Option) *nats.Conn {
			t.Helper()
			return s.Connect(t, append(options, nats.UserInfo(user, user))...)
		}
	}
	return &Topology{Name: "accounts", Brokers: []*Server{s}, serve: as("mesh"), call: as("caller")}
}

// Conversations runs a test of the messages between a caller and a node on each topology and on
// brokers with users: the node with its key, and a caller without one or with that of a created
// session; and with MESH_SOAK in the environment both with JWTs.
func Conversations(t *testing.T, run func(t *testing.T, top *Topology), options ...Option) {
	t.Helper()
	for _, with := range []struct {
		name    string
		start   func(t testing.TB, options ...Option) *Keyed
		session subjects.SessionID
		call    func(k *Keyed, t testing.TB, options []nats.Option) *nats.Conn
	}{
		{"keys", WithKeys, "", func(k *Keyed, t testing.TB, o []nats.Option) *nats.Conn { t.Helper(); return k.Connect(t, o...) }},
		{"session", WithKeys, "mine", func(k *Keyed, t testing.TB, o []nats.Option) *nats.Conn {
			t.Helper()
			return k.AsSession(t, "mine", o...)
		}},
		{"jwt", WithJWTs, "", func(k *Keyed, t testing.TB, o []nats.Option) *nats.Conn {
			t.Helper()
			return k.As(t, access.Caller, o...)
		}},
	} {
		if with.name == "jwt" && !Soak() {
			continue
		}
		t.Run(with.name, func(t *testing.T) {
			k := with.start(t, options...)
			run(t, &Topology{
				Name: with.name, Brokers: []*Server{k.Server}, Session: with.session,
				serve: func(t testing.TB, _ int, o []nats.Option) *nats.Conn { t.Helper(); return k.As(t, access.Node, o...) },
				call:  func(t testing.TB, _ int, o []nats.Option) *nats.Conn { t.Helper(); return with.call(k, t, o) },
			})
		})
	}
	Topologies(t, run, options...)
}

// Soak reports whether to run long tests, and those that differ little from others: make soak
// sets MESH_SOAK.
func Soak() bool { return os.Getenv("MESH_SOAK") != "" }

func cluster(name string, servers []*Server) *Topology {
	connectTo := func(t testing.TB, i int, options []nats.Option) *nats.Conn {
		t.Helper()
		return servers[i].Connect(t, options...)
	}
	return &Topology{Name: name, Brokers: servers, serve: connectTo, call: connectTo}
}
