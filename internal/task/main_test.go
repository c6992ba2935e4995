package task_test

import (
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// TestMain lets more tests run at once than there are processors, because they
// mostly wait.
func TestMain(m *testing.M) {
	meshtest.Parallel(8)
	meshtest.Main(m)
}
