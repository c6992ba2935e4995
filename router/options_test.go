package router_test

import (
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

// New refuses an option that is out of range, by its name.
func TestOptionsOutOfRange(t *testing.T) {
	t.Parallel()
	_, err := router.New(meshtest.Broker(t).Connect(t), &router.Options{StoreOptions: host.StoreOptions{Replicas: 6}})
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "router.Options.Replicas is 6") {
		t.Error(err)
	}
}
