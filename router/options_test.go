package router_test

import (
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/router/standby"
)

// New refuses an option that is out of range, by its name: it would fail at its first use, or
// have no effect.
func TestOptionsOutOfRange(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	for option, o := range map[string]router.Options{
		"router.Options.Replicas":        {StoreOptions: host.StoreOptions{Replicas: 6}},
		"router.Options.Node":            {Node: "\xff"},
		"router.Options.Service":         {Service: "my service"},
		"router.Options.Slots":           {Slots: -1},
		"router.Options.PayloadMax":      {PayloadMax: -1},
		"router.Options.Standby.Calls":   {Standby: &standby.Options{Calls: -1}},
		"router.Options.Standby.Timeout": {Standby: &standby.Options{Timeout: -1}},
		"Options.Session":                {Session: "\xff"},
		"policy":                         {SessionPolicy: "some"},
	} {
		r, err := router.New(nc, &o)
		if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), option) {
			t.Errorf("%s: %v", option, err)
		}
		if err == nil {
			_ = r.Close()
		}
	}
}
