package meshtest

import (
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests and fails if a goroutine outlives them. Call it
// from TestMain.
func Main(m *testing.M) {
	goleak.VerifyTestMain(m, leakOptions()...)
}

// leakOptions are the goroutines that end by themselves, or never and rightly.
func leakOptions() []goleak.Option {
	return nil
}
