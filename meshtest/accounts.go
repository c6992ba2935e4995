package meshtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/subjects"
)

// TwoAccounts is a broker with one account for the mesh and one for its callers: the mesh's
// exports the subjects that callers may send and read, the callers' imports them.
type TwoAccounts struct{ *Server }

// Users of [TwoAccounts].
const (
	meshUser   = "mesh"
	callerUser = "caller"
)

// Accounts starts a broker with two accounts. Requests of a caller are services
// with the response type stream, chunks and heartbeats are streams.
func Accounts(t testing.TB, options ...Option) *TwoAccounts {
	t.Helper()
	services, streams := exported(t)
	var exports, imports strings.Builder
	for _, s := range services {
		fmt.Fprintf(&exports, "      { service: %q, response_type: stream }\n", s)
		fmt.Fprintf(&imports, "      { service: { account: MESH, subject: %q } }\n", s)
	}
	for _, s := range streams {
		fmt.Fprintf(&exports, "      { stream: %q }\n", s)
		fmt.Fprintf(&imports, "      { stream: { account: MESH, subject: %q } }\n", s)
	}
	config := fmt.Sprintf(`accounts {
  MESH {
    jetstream: enabled
    users: [ { user: %[1]q, password: %[1]q } ]
    exports: [
%[3]s    ]
  }
  CALLERS {
    users: [ { user: %[2]q, password: %[2]q } ]
    imports: [
%[4]s    ]
  }
}`, meshUser, callerUser, exports.String(), imports.String())
	return &TwoAccounts{Broker(t, append([]Option{Config(config)}, options...)...)}
}

// Mesh connects to the mesh's account.
func (a *TwoAccounts) Mesh(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return a.Connect(t, append(options, nats.UserInfo(meshUser, meshUser))...)
}

// Caller connects to the callers' account.
func (a *TwoAccounts) Caller(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return a.Connect(t, append(options, nats.UserInfo(callerUser, callerUser))...)
}

// exported returns the subjects that a mesh's account exports to callers of any session.
func exported(t testing.TB) (services, streams []string) {
	t.Helper()
	const one = "ONE" // any single name, until it is replaced
	anyOf := func(subject string, err error) string {
		if err != nil {
			t.Fatalf("build an exported subject: %v", err)
		}
		return strings.Replace(subject, one, "*", 1)
	}
	services = []string{
		subjects.AllTools, subjects.AllCtl, subjects.AllRegistry, subjects.AllReplay,
		anyOf(subjects.NodeTools(one)), anyOf(subjects.NodeCtls(one)), anyOf(subjects.NodeBatches(one)),
		anyOf(subjects.Subject{Kind: subjects.KindBatch, Session: one}.Build()), subjects.AllTaskVerbs, subjects.AllPayloads, anyOf(subjects.NodePayloads(one)),
	}
	return services, []string{subjects.LiveTransform, subjects.AllHeartbeats}
}
