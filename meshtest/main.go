package meshtest

import (
	"context"
	"errors"
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
)

// Main runs a package's tests, four at once unless [Parallel] or -parallel set another number,
// and fails if a goroutine outlives them. Call it from TestMain. It ends the process, after it
// has called the functions of after.
func Main(m *testing.M, after ...func()) {
	Parallel(4)
	// Brokers and nodes of tests come and go: to collect less often takes a tenth off their processor time.
	if asked := debug.SetGCPercent(300); asked != 100 { // GOGC is set
		debug.SetGCPercent(asked)
	}
	goleak.VerifyTestMain(m, append(LeakOptions(), goleak.Cleanup(func(status int) {
		for _, f := range after {
			f()
		}
		os.Exit(status)
	}))...)
}

// Parallel runs at least n tests with t.Parallel at once, also on fewer processors, as tests
// mostly wait. The first number that is set counts, and -parallel before all others. Call it
// before [Main].
func Parallel(n int) {
	flag.Parse()
	const name = "test.parallel"
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	if set {
		return
	}
	if err := flag.Set(name, strconv.Itoa(max(n, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
}

// LeakOptions are the goroutines that end by themselves, or never and rightly.
func LeakOptions() []goleak.Option {
	return []goleak.Option{
		// nats.go 1.55: an object store's Put ends this goroutine by closing its channel. If Put
		// is done before the goroutine has begun, the goroutine finds no channel and waits on nil
		// for ever.
		goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"),
		// nats-server 2.15: a server that is shut down while its cluster creates the group of a
		// stream or a bucket leaves the group's files open, with the goroutine that writes their
		// state and the clock that all files share. Other goroutines of a server are still found.
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	}
}

// Stopper is a host, a router, an agent or any other part that drains before it ends.
type Stopper interface {
	Stop(ctx context.Context) error
}

// End stops s without its drain of two seconds, as a second signal does: running calls are ended.
// A test of the drain itself calls Stop.
func End(t testing.TB, s Stopper) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Stop(ctx); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("stop: %v", err)
	}
}
