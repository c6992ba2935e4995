package agent_test

import (
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// New refuses an option that is out of range, by its name.
func TestOptionsOutOfRange(t *testing.T) {
	t.Parallel()
	_, err := agent.New(meshtest.Broker(t).Connect(t), t.TempDir(), &agent.Options{StoreOptions: host.StoreOptions{Replicas: 6}})
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "agent.Options.Replicas is 6") {
		t.Error(err)
	}
}
