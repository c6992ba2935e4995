package deploy_test

import (
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestUninstallOfAMissingIndex(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, _ := source(t, "idx")
	n.mustInstall(t, deploy.Request{Source: url})
	for _, name := range []subjects.IndexName{"", "a.b", "a\xff"} {
		if err := n.Uninstall(t.Context(), name, ""); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("uninstall of %q: %v", name, err)
		}
	}
	err := n.Uninstall(t.Context(), "idxs", "")
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInstallFailed || !strings.Contains(e.Message, "idx") {
		t.Errorf("uninstall: %v", err)
	}
}
