package host_test

import (
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// New refuses an option that is out of range, by its name.
func TestOptionsOutOfRange(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	for option, o := range map[string]host.Options{
		"Slots":         {Slots: -1},
		"MaxTimeout":    {MaxTimeout: -1},
		"MaxDepth":      {MaxDepth: -1},
		"StreamQuota":   {StreamQuota: -1},
		"PayloadMax":    {PayloadMax: -1},
		"CacheBytes":    {CacheBytes: -1},
		"CacheEntries":  {CacheEntries: -1},
		"Replicas":      {StoreOptions: host.StoreOptions{Replicas: 6}},
		"ChunksStorage": {StoreOptions: host.StoreOptions{ChunksStorage: "tape"}},
		"ChunksMax":     {StoreOptions: host.StoreOptions{ChunksMax: -1}},
		"PayloadsMax":   {StoreOptions: host.StoreOptions{PayloadsMax: -1}},
		"Node":          {Node: "\xff"},
	} {
		_, err := host.New(nc, &o)
		if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "host.Options."+option) {
			t.Errorf("%s: %v", option, err)
		}
	}
}
