package task_test

import (
	"flag"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// TestMain lets more tests run at once than there are processors, because they
// mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	meshtest.Main(m)
}
