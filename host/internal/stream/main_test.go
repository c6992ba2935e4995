package stream

import (
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

func TestMain(m *testing.M) { meshtest.Main(m) }
