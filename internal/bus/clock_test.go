package bus_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/meshtest"
)

// childURL makes the test binary a process that only holds a Bus, to be frozen.
const childURL = "TOOLMESH_TEST_CHILD_URL"

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		os.Exit(child(url))
	}
	meshtest.Main(m)
}

func TestTimeIsMeasured(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := open(t, top.Call(t), nil)
		if err := b.FreshTime(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		now := b.Time()
		after := time.Now()
		if !now.Measured {
			t.Fatal("the time was not measured")
		}
		// The broker runs on this machine, so its clock is ours.
		if off := now.Bound + 5*time.Millisecond; now.Now.Before(before.Add(-off)) || now.Now.After(after.Add(off)) {
			t.Fatalf("mesh time is %v between %v and %v, bound %v", now.Now, before, after, now.Bound)
		}
	})
}

func TestTimeIsMeasuredAgainAfterReconnect(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := open(t, s.Connect(t), nil)
	if err := b.FreshTime(t.Context()); err != nil {
		t.Fatal(err)
	}
	states := make(chan bus.State, 16)
	defer b.OnState(func(s bus.State) { states <- s })()
	s.Restart(t)
	for !receive(t, states, "return").Connected {
	}
	if err := b.FreshTime(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !b.Time().Measured {
		t.Fatal("no time after a reconnect")
	}
}

func TestTimeWithoutSystemAccount(t *testing.T) {
	t.Parallel()
	// No peer can be asked here; FreshTime must not wait.
	nc, err := nats.Connect(meshtest.Broker(t, meshtest.Config("system_account: SYS\naccounts { SYS {}, A { users: [{user: a, password: a, permissions: {publish: {deny: [\"$SYS.>\"]}}}] } }")).URL,
		nats.UserInfo("a", "a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b := open(t, nc, nil)
	if err := b.FreshTime(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := b.Time()
	if now.Measured {
		t.Fatal("measured without the right to ask")
	}
	// This machine's clock may be set to any time: no deadline has passed for certain.
	if at := now.Now.Add(-10 * 365 * 24 * time.Hour); at.Before(now.Now.Add(-now.Bound)) {
		t.Fatalf("%v has passed by a clock that nobody vouches for", at)
	}
}

// TestFrozenProcessIsSeen stops a real process for longer than a second and
// expects it to know, before it does anything else.
func TestFrozenProcessIsSeen(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), childURL+"="+s.URL)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	next := func() string {
		if !lines.Scan() {
			t.Fatalf("the child ended: %v", lines.Err())
		}
		return lines.Text()
	}
	if got := next(); got != "ready" {
		t.Fatalf("child says %q", got)
	}
	ask := func() string {
		if _, err := fmt.Fprintln(stdin, "?"); err != nil {
			t.Fatal(err)
		}
		return next()
	}
	if got := ask(); got != "stalled=false measured=true" {
		t.Fatalf("before the freeze: %q", got)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	select { // the freeze has to last; nothing signals that
	case <-time.After(2 * time.Second):
	case <-t.Context().Done():
	}
	if _, err := fmt.Fprintln(stdin, "?"); err != nil { // waits in the pipe meanwhile
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "stalled=true measured=true" {
		t.Fatalf("after the freeze: %q", got)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

// child answers each line on stdin with the state of its Bus.
func child(url string) int {
	signal.Ignore(syscall.SIGINT)
	nc, err := nats.Connect(url, bus.ConnectOptions(nil)...)
	if err != nil {
		return 1
	}
	defer nc.Close()
	b, err := bus.New(nc, nil)
	if err != nil {
		return 1
	}
	defer b.Close()
	start := time.Now()
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		stalled := b.StalledSince(start)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := b.FreshTime(ctx)
		cancel()
		if err != nil {
			return 1
		}
		fmt.Printf("stalled=%v measured=%v\n", stalled, b.Time().Measured)
	}
	return 0
}
