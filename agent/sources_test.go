package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/meshtest"
)

// The caller of an install may be remote: an agent fetches nothing from its own disk, machine or
// network unless it was started with that option.
func TestPrivateSources(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	startIn(t, s, "one", t.TempDir(), func(o *agent.Options) { o.PrivateSources = false })
	nc := s.Connect(t)
	repo := repository(t, "tools", map[string]string{"tools.toml": working, "t.py": "def tool(): return 1\n"})
	for _, source := range []string{repo, "http://127.0.0.1:1/owner/repo", "git@127.0.0.1:repo", "ssh://root@localhost/repo"} {
		_, failure := admin(t, nc, "install", map[string]any{"source": source})
		if failure == nil || failure.Code != toolmesh.CodeInvalidRequest || failure.Started != toolmesh.StartedNo || !strings.Contains(failure.Message, "--private-sources") {
			t.Errorf("install %s: %v, want that it is refused", source, failure)
		}
	}
}

// An install that names an owner must be signed by that owner.
func TestInstallNeedsTheOwnersSignature(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"source":"/somewhere","bundle":"` + strings.Repeat("0", 64) + `"}`)
	signed, err := deploy.Sign(key, body)
	if err != nil {
		t.Fatal(err)
	}
	for want, data := range map[string]string{"not signed by the key": string(body) + " ", "is not in the mesh": string(body)} {
		in := nc.NewInbox()
		sub, err := nc.SubscribeSync(in)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishMsg(&nats.Msg{Subject: "mesh.admin.install", Reply: in, Header: nats.Header(signed), Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		for {
			m, err := sub.NextMsg(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Data) == 0 {
				break
			}
			said.Write(m.Data)
		}
		if !strings.Contains(said.String(), want) {
			t.Errorf("the answer is %s, want %q", said.String(), want)
		}
	}
}
