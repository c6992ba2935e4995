//go:build linux

package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/meshtest"
)

// peakMemory returns the max resident memory of a process, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no VmHWM in %s", status)
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// A file of 256 MB goes to a tool and back through a broker with messages of a megabyte: caller, agent and broker
// take at most 64 MB each for it.
func TestMemoryOfAFile(t *testing.T) {
	t.Parallel()
	if !meshtest.Soak() {
		t.Skip("256 MB there and back take a minute or two: make soak")
	}
	needsPackages(t)
	const size, room = 256 << 20, 64 << 20
	u := newUser(t, "MESH_PAYLOADS_MAX=4GB") // files of arguments stay for 15 minutes, and a session alone has half
	// nats-server keeps buffers until its garbage collector needs the room: put and get of the same file in an
	// object store take 140 MB. GOMEMLIMIT is the limit that its documentation recommends.
	broker, url := natsProcess(t, newUser(t, "GOMEMLIMIT=96MiB"))
	agent := u.agent(t, url, "alone")
	index, err := filepath.Abs(filepath.Join("python", "indexes", "files"))
	if err != nil {
		t.Fatal(err)
	}
	u.mesh(t, 0, "install", "--server", url, index)
	dir := t.TempDir()
	write := func(name string, size int64) string {
		t.Helper()
		path := filepath.Join(dir, name)
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		block := make([]byte, 1<<20)
		for i := range block {
			block[i] = byte(i * i >> 7)
		}
		for left := size; left > 0; left -= int64(len(block)) {
			if _, err := file.Write(block[:min(left, int64(len(block)))]); err != nil {
				t.Fatal(err)
			}
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	call := func(in, out string) (peak int64) {
		t.Helper()
		cmd := u.command(t.Context(), "mesh", "call", "--server", url, "files.files.copy", "document="+in, "--out", out, "--timeout", "5m")
		r, err := finish(cmd)
		if err != nil || r.status != 0 {
			t.Fatalf("%v %v", err, r)
		}
		usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			t.Fatal("no usage of the caller")
		}
		return usage.Maxrss << 10
	}
	small, large, back := write("small", 3<<20), write("large", size), filepath.Join(dir, "back")
	for range 3 { // until nothing is new
		call(small, back)
	}
	callerBefore := call(small, back)
	brokerBefore, agentBefore := peakMemory(t, broker.cmd.Process.Pid), peakMemory(t, agent.cmd.Process.Pid)
	callerAfter := int64(0)
	took := time.Duration(math.MaxInt64)
	for range 3 {
		began := time.Now()
		callerAfter = max(callerAfter, call(large, back))
		took = min(took, time.Since(began))
	}
	for _, one := range []struct {
		what          string
		before, after int64
	}{
		{"the caller", callerBefore, callerAfter},
		{"the broker", brokerBefore, peakMemory(t, broker.cmd.Process.Pid)},
		{"the agent", agentBefore, peakMemory(t, agent.cmd.Process.Pid)},
	} {
		t.Logf("%s: %d MB before, %d MB at most", one.what, one.before>>20, one.after>>20)
		if one.after-one.before > room {
			t.Errorf("%s took %d MB for it", one.what, (one.after-one.before)>>20)
		}
	}
	if sumOf(t, large) != sumOf(t, back) {
		t.Error("what came back is another file")
	}
	raw := objectStoreTime(t, url, large)
	t.Logf("there and back in %v, an object store's put and get of both in %v: %.2f", took.Round(time.Millisecond), raw.Round(time.Millisecond), took.Seconds()/raw.Seconds())
}

// objectStoreTime returns the best of three times for two puts and gets of a file in an object store: the argument and the
// result of a call.
func objectStoreTime(t *testing.T, url, path string) time.Duration {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	store, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "BY_HAND"})
	if err != nil {
		t.Fatal(err)
	}
	once := func(name string) {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		if _, err := store.Put(t.Context(), jetstream.ObjectMeta{Name: name}, file); err != nil {
			t.Fatal(err)
		}
		if err := store.GetFile(t.Context(), name, filepath.Join(t.TempDir(), name)); err != nil {
			t.Fatal(err)
		}
		if err := store.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	best := time.Duration(math.MaxInt64)
	for range 3 {
		began := time.Now()
		once("argument")
		once("result")
		best = min(best, time.Since(began))
	}
	return best
}

// natsProcess starts nats-server with JetStream and its own default limits.
func natsProcess(t *testing.T, u *user) (p *process, url string) {
	t.Helper()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, "nats-server"), "github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		t.Fatalf("build nats-server: %v\n%s", err, out)
	}
	dir := t.TempDir()
	p, _ = u.start(t, dir, "nats-server", "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", dir)
	return p, "nats://" + p.await(t, p.logs, `client connections on (127\.0\.0\.1:\d+)`)[1]
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it is read
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}
