package lanes_test

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

const root = "../.."

// The tools append a line when they begin, while they run and when they end. All agents are on one machine, so the
// system orders their lines.
const tools = `
import os, time

_fd = None

def _say(what, mode, key, call):
    global _fd
    if _fd is None:
        _fd = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(_fd, f"{what} {mode} {key} {call} {time.monotonic_ns() // 1000}\n".encode())

def _run(mode, key, call, seconds):
    _say("B", mode, key, call)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
        _say("T", mode, key, call)
    _say("E", mode, key, call)
    return call

def write(key: str, call: str, seconds: float = 0):
    return _run("w", key, call, seconds)

def read(key: str, call: str, seconds: float = 0):
    return _run("r", key, call, seconds)

def alone(call: str, seconds: float = 0):
    return _run("w", "", call, seconds)
`

const manifest = `
[index]
tools = ["t.write", "t.read", "t.alone"]
lane_scope = "session"
parallel_safe = true
resource_key = ["file", "{key}"]

[[index.env]]
name = "LOG"

[tool."t.read"]
read_only = true

[tool."t.alone"]
parallel_safe = false
resource_key = "global"
`

// overlaps finds calls that wrote a line after the beginning of another call that must not overlap with them.
func overlaps(lines *bufio.Scanner) (found []string, calls int) {
	type call struct {
		mode, key, id string
		last          int // time of its last line, in microseconds
	}
	running := map[string]call{}
	ousted := map[string]call{} // by call, the one that began while it ran
	at := map[string]int{}      // of found, by call
	for lines.Scan() {
		f := strings.Split(lines.Text(), " ")
		if len(f) != 5 {
			found = append(found, "a line that is none: "+lines.Text())
			continue
		}
		now, _ := strconv.Atoi(f[4])
		c := call{f[1], f[2], f[3], now}
		if by, ok := ousted[c.id]; ok {
			said := fmt.Sprintf("%s of %s on %q, %d ms after %s began", f[0], c.id, c.key, (now-by.last)/1000, by.id)
			if i, again := at[c.id]; again {
				found[i] = said // the last line counts
			} else {
				at[c.id] = len(found)
				found = append(found, said)
			}
			continue
		}
		switch f[0] {
		case "B":
			calls++
			for _, other := range running {
				if (c.key == other.key || c.key == "" || other.key == "") && (c.mode == "w" || other.mode == "w") {
					ousted[other.id] = c
					delete(running, other.id)
				}
			}
			running[c.id] = c
		case "E":
			delete(running, c.id)
		}
	}
	return found, calls
}

// The checker finds overlaps.
func TestTheCheckerFindsOverlaps(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"B w a 1\nE w a 1\nB w a 2\nT w a 2\nE w a 2\n":                   0,
		"B w a 1\nB w b 2\nE w b 2\nE w a 1\n":                            0, // other keys
		"B r a 1\nB r a 2\nE r a 1\nE r a 2\n":                            0, // readers
		"B w a 1\nT w a 1\nB w a 2\nE w a 2\n":                            0, // the first was killed
		"B w a 1\nB w a 2\nT w a 1\nE w a 2\n":                            1,
		"B r a 1\nB w a 2\nE r a 1\nE w a 2\n":                            1,
		"B w a 1\nB w  2\nE w a 1\nE w  2\n":                              1, // alone
		"B w  1\nB r a 2\nB r b 3\nT w  1\nE r a 2\nE w  1\nE r b 3\n":    1,
		"B w a 1\nB w a 2\nB w a 3\nE w a 1\nE w a 2\nE w a 3\nB w a 4\n": 2,
	} {
		text = strings.ReplaceAll(text, "\n", " 0\n")
		if found, _ := overlaps(bufio.NewScanner(strings.NewReader(text))); len(found) != want {
			t.Errorf("%q: %v", text, found)
		}
	}
}

// environ is this process's environment without variables that agents must not have.
func environ(home string) []string {
	return append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MESH_") }), "HOME="+home)
}

type agent struct {
	t     *testing.T
	bin   string
	node  string
	dir   string
	proxy *meshtest.Proxy
	cmd   *exec.Cmd
	logs  *os.File
}

func (a *agent) start() {
	a.t.Helper()
	a.cmd = exec.CommandContext(context.WithoutCancel(a.t.Context()), filepath.Join(a.bin, "mesh-agent"), "--server="+a.proxy.URL, "--node="+a.node, "--data-dir="+filepath.Join(a.dir, a.node), "--slots=16")
	a.cmd.Env = environ(a.dir)
	a.cmd.Stdout, a.cmd.Stderr = a.logs, a.logs
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agent) signal(s syscall.Signal) {
	if err := a.cmd.Process.Signal(s); err != nil {
		a.t.Errorf("signal %v: %v", s, err)
	}
}

func (a *agent) stop() {
	a.signal(syscall.SIGCONT)
	a.signal(syscall.SIGTERM)
	_ = a.cmd.Wait()
}

// frozenFor is longer than a node's lease.
const frozenFor = 14 * time.Second

// longFor is the duration of a long call in seconds: it begins before a fault and ends after it.
const longFor = 20

// Calls of a lane never overlap while agents are killed, frozen and cut off.
func TestNothingOverlaps(t *testing.T) {
	t.Parallel()
	goal := 2000
	if text := os.Getenv("MESH_LANES_CALLS"); text != "" {
		var err error
		if goal, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	tags := os.Getenv("MESH_LANES_TAGS")
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // users of indexes need access
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin")
	if tags == "" {
		if err := meshtest.Programs(bin, "mesh", "mesh-agent"); err != nil {
			t.Fatal(err)
		}
	} else {
		build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-tags", tags, "-o", bin+"/", "./cmd/mesh", "./cmd/mesh-agent")
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	broker := meshtest.Broker(t)
	logs, err := os.Create(filepath.Join(dir, "agents.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close() //nolint:errcheck // for people
	agents := make([]*agent, 3)
	for i := range agents {
		agents[i] = &agent{t: t, bin: bin, node: fmt.Sprintf("n%d", i), dir: dir, proxy: meshtest.NewProxy(t, broker), logs: logs}
		agents[i].start()
		defer agents[i].stop()
	}
	index, written := filepath.Join(dir, "lanes"), filepath.Join(dir, "written")
	for path, text := range map[string]string{"tools.toml": manifest, "t.py": tools} {
		if err := os.MkdirAll(index, 0o755); err != nil { //nolint:gosec // it is read by the agents
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(index, path), []byte(text), 0o644); err != nil { //nolint:gosec // likewise
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(written, 0o777); err != nil { //nolint:gosec // the tools write there
		t.Fatal(err)
	}
	if err := os.Chmod(written, 0o777); err != nil { //nolint:gosec // likewise, whatever the umask
		t.Fatal(err)
	}
	log := filepath.Join(written, "log")
	url := "nats://" + broker.Address()
	meshtest.Until(t, "the agents are there", func() bool {
		out, _ := exec.CommandContext(t.Context(), filepath.Join(bin, "mesh"), "--server="+url, "nodes", "--json").Output()
		return strings.Count(string(out), `"state":"serving"`) == 3
	})
	install := exec.CommandContext(t.Context(), filepath.Join(bin, "mesh"), "--server="+url, "install", index, "--path", written+":rw", "--env", "LOG="+log)
	install.Env = environ(dir)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	c := testmesh.Client(t, broker.Connect(t), nil)
	served := func(node string) func() bool {
		return func() bool {
			nodes, _ := c.Describe(t.Context(), "lanes.t.write")
			return strings.Contains(string(nodes), `"`+node+`"`)
		}
	}
	for _, a := range agents {
		meshtest.Until(t, a.node+" serves the index", served(a.node))
	}

	var succeeded, asked atomic.Int64
	codes := map[toolmesh.Code]int{}
	var mu sync.Mutex
	call := func(ctx context.Context, tool subjects.ToolID, key string, seconds float64) {
		id := fmt.Sprint(asked.Add(1))
		args := map[string]any{"call": id, "seconds": seconds}
		if key != "" {
			args["key"] = key
		}
		if _, err := c.Call(ctx, tool, args, client.WithTimeout(40*time.Second)); err != nil {
			mu.Lock()
			codes[toolmesh.CodeOf(err)]++
			mu.Unlock()
			return
		}
		succeeded.Add(1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	faults := make(chan struct{})
	over := func() bool {
		select {
		case <-faults:
			return succeeded.Load() >= int64(goal)
		default:
			return false
		}
	}
	for range 24 {
		callers.Go(func() {
			for !over() && ctx.Err() == nil {
				if succeeded.Load() > int64(goal) {
					time.Sleep(100 * time.Millisecond) // there are enough for the faults to meet some
				}
				key := strconv.Itoa(rand.IntN(6)) //nolint:gosec // a test's
				if rand.IntN(5) == 0 {            //nolint:gosec // likewise
					call(ctx, "lanes.t.read", key, 0.01)
				} else {
					call(ctx, "lanes.t.write", key, 0)
				}
			}
		})
	}
	long, end := context.WithCancel(ctx)
	defer end()
	var longCallers sync.WaitGroup
	nc := broker.Connect(t)
	for i := range 9 {
		// When a fault meets an agent, a long call of each key runs on some agent, and another waits elsewhere.
		key := fmt.Sprint("long", i)
		longCallers.Go(func() {
			for long.Err() == nil {
				call(long, "lanes.t.write", key, longFor)
			}
		})
		longCallers.Go(func() {
			subject := "mesh.node." + agents[i%len(agents)].node + ".tools.default.lanes.t.write"
			for long.Err() == nil {
				once, cancel := context.WithTimeout(long, 40*time.Second)
				body := fmt.Sprintf(`{"key":%q,"call":"%d","seconds":%d}`, key, asked.Add(1), longFor)
				_, err := nc.RequestMsgWithContext(once, &nats.Msg{Subject: subject, Header: nats.Header{"Mesh-Timeout-Ms": {"40000"}}, Data: []byte(body)})
				cancel()
				if err != nil {
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
	meshtest.Until(t, "calls run", func() bool { return succeeded.Load() > 500 })
	// Faults of the agents, until enough calls have succeeded.
	rounds := max(1, goal/8000)
	for range rounds {
		order := rand.Perm(len(agents)) //nolint:gosec // a test's
		frozen, cut, killed := agents[order[0]], agents[order[1]], agents[order[2]]
		frozen.signal(syscall.SIGSTOP)
		cut.proxy.Blackhole()
		time.Sleep(frozenFor)
		frozen.signal(syscall.SIGCONT)
		cut.proxy.Heal()
		meshtest.Until(t, frozen.node+" serves again", served(frozen.node))
		meshtest.Until(t, cut.node+" serves again", served(cut.node))
		time.Sleep(time.Second)
		killed.signal(syscall.SIGKILL)
		_ = killed.cmd.Wait()
		killed.start()
		meshtest.Until(t, killed.node+" serves again", served(killed.node))
		time.Sleep(time.Second)
	}
	end()
	longCallers.Wait()
	callers.Go(func() { call(ctx, "lanes.t.alone", "", 0.1) }) // holds up all others until those that run have ended
	close(faults)
	callers.Wait()
	cancel()
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it is read
	found, begun := overlaps(bufio.NewScanner(f))
	var failed []string
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		failed = append(failed, fmt.Sprintf("%d %s", codes[code], code))
	}
	t.Logf("%d calls succeeded, %d began, %d rounds of faults; failed: %s", succeeded.Load(), begun, rounds, strings.Join(failed, ", "))
	if without := strings.Contains(tags, "lanes_without_fence"); without != (len(found) > 0) {
		t.Errorf("without the fence: %v; overlaps: %d, the first %v", without, len(found), found[:min(len(found), 10)])
	}
	if t.Failed() || meshtest.ShowLogs() {
		data, _ := os.ReadFile(logs.Name())
		t.Logf("%s", data)
	}
}
