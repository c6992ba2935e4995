package registry_test

import (
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
)

func TestContradictoryOptionsAreRefused(t *testing.T) {
	t.Parallel()
	b := testmesh.Bus(t, meshtest.Broker(t).Connect(t), nil)
	for name, refused := range map[string]func() error{
		"sparing view of sessions": func() error {
			_, err := registry.OpenView(t.Context(), b, &registry.ViewOptions{SessionsOnly: true, Sparing: true})
			return err
		},
		"reaping view of sessions": func() error {
			_, err := registry.OpenView(t.Context(), b, &registry.ViewOptions{SessionsOnly: true, Reaps: true})
			return err
		},
		"session policy": func() error { _, err := registry.NewSessions("closed"); return err },
	} {
		if err := refused(); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("%s: %v, want invalid_request", name, err)
		}
	}
}
