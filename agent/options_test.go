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
	nc := meshtest.Broker(t).Connect(t)
	for want, o := range map[string]agent.Options{
		"agent.Options.Replicas is 6":  {StoreOptions: host.StoreOptions{Replicas: 6}},
		"agent.Options.Node":           {Node: "\xff"},
		"agent.Options.Slots":          {Slots: -1},
		"agent.Options.MaxTimeout":     {MaxTimeout: -1},
		"agent.Options.PayloadMax":     {PayloadMax: -1},
		"agent.Options.StreamQuota":    {StreamQuota: -1},
		"agent.Options.CacheBytes":     {CacheBytes: -1},
		"agent.Options.CacheEntries":   {CacheEntries: -1},
		"agent.Options.EnvironmentAge": {EnvironmentAge: -1},
		"agent.Options.Sandbox":        {Sandbox: "jail"},
	} {
		if _, err := agent.New(nc, t.TempDir(), &o); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
