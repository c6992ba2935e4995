package agent_test

import (
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Who asks for an install may be elsewhere: what is on the agent's disk, its machine or
// in its network is not for it to fetch, unless the agent was started so.
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
