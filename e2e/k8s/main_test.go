package k8s

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(mainApart(m, printFigures)) }

// TestNothingIsLeft runs outside of the namespaces, after the cluster has ended.
func TestNothingIsLeft(t *testing.T) {
	for _, what := range leftBehind() {
		t.Error("left:", what)
	}
}
