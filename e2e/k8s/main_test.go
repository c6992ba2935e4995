package k8s

import (
	"os"
	"testing"

	"github.com/toolmesh/toolmesh/e2e/k8s/cluster"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m, printFigures)) }

// TestNothingIsLeft is the one that runs outside, once the cluster has ended.
func TestNothingIsLeft(t *testing.T) {
	for _, what := range cluster.Leftovers() {
		t.Error("left:", what)
	}
}
