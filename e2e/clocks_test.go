package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// clockEnv is the error of the clock of one of wrongBinaries. stepEnv names a file: once it exists, the clock is
// set back by an hour while the process runs.
const (
	clockEnv = "WRONG_CLOCK"
	stepEnv  = "WRONG_CLOCK_STEP"
)

// wrongClock is compiled into Go's package time.
const wrongClock = `package time

import (
	"sync/atomic"
	"syscall"
)

var wrongBy = func() int64 {
	text, _ := syscall.Getenv("` + clockEnv + `")
	by, _ := ParseDuration(text)
	return int64(by / Second)
}()

func wrong() int64 { return atomic.LoadInt64(&wrongBy) }

func init() {
	if step, ok := syscall.Getenv("` + stepEnv + `"); ok {
		go func() {
			var found syscall.Stat_t
			for syscall.Stat(step, &found) != nil {
				Sleep(10 * Millisecond)
			}
			atomic.AddInt64(&wrongBy, -3600)
		}()
	}
}
`

// wrongBinaries builds our binaries with a package time whose wall clock can be wrong, and returns their folder.
// The monotonic clock stays right.
var wrongBinaries = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	source, err := os.ReadFile(filepath.Join(folder, "time.go"))
	if err != nil {
		return "", err
	}
	const reading = "\tsec, nsec, mono := runtimeNow()\n"
	if n := strings.Count(string(source), reading); n != 1 {
		return "", fmt.Errorf("time.go of this version of Go reads the clock in %d lines like %q: this test knows one, in Now", n, reading)
	}
	dir := filepath.Join(shared, "wrong")
	put := func(name, text string) (string, error) {
		name = filepath.Join(dir, name)
		return name, os.WriteFile(name, []byte(text), 0o600)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	changed, err := put("time.go", strings.Replace(string(source), reading, reading+"\tsec += wrong()\n", 1))
	if err != nil {
		return "", err
	}
	added, err := put("wrong_clock.go", wrongClock)
	if err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(folder, "time.go"): changed, filepath.Join(folder, "wrong_clock.go"): added,
	}})
	if err != nil {
		return "", err
	}
	file, err := put("overlay.json", string(overlay))
	if err != nil {
		return "", err
	}
	binaries := filepath.Join(dir, "bin")
	return binaries, run("go", "build", "-C", root, "-buildvcs=false", "-overlay", file, "-o", binaries+string(filepath.Separator), "./cmd/mesh", "./cmd/mesh-agent", "./cmd/mesh-router")
})

// withClock is the user on a machine with a wrong clock.
func (u *user) withClock(t *testing.T, by time.Duration, env ...string) *user {
	t.Helper()
	binaries, err := wrongBinaries()
	if err != nil {
		t.Fatal(err)
	}
	return &user{home: u.home, bin: binaries, env: append(slices.Clone(u.env), append(env, clockEnv+"="+by.String())...)}
}

// set has the errors of the clocks of a mesh's machines, and names the machine that admits the keys of sessions.
// The broker's and the test's own clocks are right.
type set struct {
	a, b, router, line time.Duration
	issuer             string
	step               string // the file that sets them back, or empty
}

// clockMesh is a mesh on its own broker; its other machines have wrong clocks.
type clockMesh struct {
	*user  // the administrator, on a machine with a wrong clock, too
	set    set
	right  *user // the administrator where the clock is right
	broker *meshtest.Server
	nc     *nats.Conn     // a client without a key, with the right clock
	c      *client.Client // the same
	folder string         // where tools write
	index  string         // the folder of the index "clocks"
	keys   string
	b      *process
	asks   []string // addresses that answer /demand
}

// clocks is an index of tools that count their calls.
func clocks(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "clocks")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"tools.toml": `[index]
tools = ["t.run", "t.kept", "t.brief", "t.alone", "t.items", "t.nap", "t.mine", "t.version", "t.long"]

[tool."t.kept"]
cache_ttl = "10m"

[tool."t.brief"]
cache_ttl = "1s"

[tool."t.alone"]
parallel_safe = true
resource_key = ["file", "{name}"]
lane_scope = "session"

[tool."t.mine"]
isolation = "session"
`,
		"t.py": `import os, time

def run(folder: str, name: str) -> int:
    """Count how often it ran."""
    with open(os.path.join(folder, name), "a+") as runs:
        runs.write(".")
        return runs.tell()

kept = brief = run

def alone(folder: str, name: str) -> int:
    """Fail where another call of the same name runs."""
    os.close(os.open(os.path.join(folder, name + ".runs"), os.O_CREAT | os.O_EXCL))
    time.sleep(0.05)
    os.unlink(os.path.join(folder, name + ".runs"))
    return run(folder, name)

def items(n: int):
    for i in range(n):
        yield i
        time.sleep(0.02)

def nap(seconds: float) -> str:
    time.sleep(seconds)
    return "rested"

_calls = 0

def mine() -> int:
    """Count the calls of a session."""
    global _calls
    _calls += 1
    return _calls

def version() -> int:
    return 1

def long(folder: str, name: str, seconds: float) -> int:
    times = run(folder, name)
    time.sleep(seconds)
    return times
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func newClockMesh(t *testing.T, s set) *clockMesh {
	t.Helper()
	right := newUser(t)
	config := right.mesh(t, 0, "auth", "template", "--nats-conf").stdout
	m := &clockMesh{set: s, right: right, broker: meshtest.Broker(t, meshtest.Config(config)), folder: open(t), index: clocks(t)}
	m.keys = filepath.Join(right.home, "data", "toolmesh", "keys")
	right.env = append(right.env, "MESH_NATS_URL="+m.broker.URL, "MESH_NATS_NKEY="+filepath.Join(m.keys, "admin.nk"))
	if s.step != "" {
		right.env = append(right.env, stepEnv+"="+s.step)
	}
	m.user = right.withClock(t, s.line)
	m.nc = plain(t, m.broker.URL)
	m.c = m.client(t, m.nc, "")
	m.serve(t, "mesh-agent", "a", s.a, m.lets(s.issuer == "agent")...)
	m.b = m.serve(t, "mesh-agent", "b", s.b)
	m.serve(t, "mesh-router", "router", s.router, m.lets(s.issuer == "router")...)
	m.mesh(t, 0, "install", m.index)
	m.everywhere(t, "1")
	return m
}

// lets returns the flag by which a process admits the keys of sessions.
func (m *clockMesh) lets(in bool) []string {
	if !in {
		return nil
	}
	return []string{"--auth-issuer=" + filepath.Join(m.keys, "issuer.nk"), "--auth-renew=10s"}
}

// serve starts an agent or a router with a wrong clock and checks the clock.
func (m *clockMesh) serve(t *testing.T, program, name string, by time.Duration, args ...string) *process {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	args = append([]string{"--server=" + m.broker.URL, "--http-listen=127.0.0.1:0"}, args...)
	if program == "mesh-agent" {
		args = append(args, "--node="+name, "--data-dir="+dir)
	}
	key := "node.nk"
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--indexes") }) {
		key = "admin.nk"
	}
	p, _ := m.right.withClock(t, by, "MESH_NATS_NKEY="+filepath.Join(m.keys, key)).start(t, dir, program, args...)
	m.asks = append(m.asks, p.await(t, p.logs, `http=(\S+)`)[1])
	p.await(t, p.logs, `msg=ready`)
	at, err := time.Parse(time.RFC3339Nano, p.await(t, p.logs, `time=(\S+)`)[1])
	if err != nil || !near(at, time.Now().Add(by)) {
		t.Fatalf("%s's clock is not wrong by %v: %v %v", name, by, at, err)
	}
	return p
}

// near reports whether two times are equal, apart from delays of a busy machine.
func near(a, b time.Time) bool { return a.Sub(b).Abs() < 10*time.Minute }

func (m *clockMesh) client(t *testing.T, nc *nats.Conn, session subjects.SessionID) *client.Client {
	t.Helper()
	c := testmesh.Client(t, nc, &client.Options{Session: session})
	return c
}

// on is the subject of a tool on a node.
func on(node, tool string) string { return "mesh.node." + node + ".tools.default.clocks.t." + tool }

func (m *clockMesh) args(name string) string {
	return fmt.Sprintf(`{"folder":%q,"name":%q}`, m.folder, name)
}

// everywhere waits until both agents serve a version of the index.
func (m *clockMesh) everywhere(t *testing.T, version string) {
	t.Helper()
	for _, node := range []string{"a", "b"} {
		meshtest.Until(t, "agent "+node+" serves version "+version, func() bool {
			return string(request(t, m.nc, on(node, "version"), "{}").Data) == version
		})
	}
}

// The clocks of a mesh's machines are hours or days apart: it works as with right ones, because it compares times
// of the broker only.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	if !meshtest.Soak() {
		t.Skip("Go's library and all else is built with a clock that can be wrong, which takes minutes: make soak")
	}
	const day = 24 * time.Hour
	for name, s := range map[string]set{
		"by hours": {a: time.Hour, b: -time.Hour, router: time.Hour, line: -time.Hour, issuer: "router"},
		"by days":  {a: -3 * day, b: 3 * day, router: -2 * day, line: -5 * day, issuer: "agent"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newClockMesh(t, s)
			t.Run("calls", m.calls)
			t.Run("calls that are repeated", m.repeated)
			t.Run("results that are kept", m.kept)
			t.Run("streams", m.streams)
			t.Run("batches and lanes", m.lanes)
			t.Run("sessions and their keys", m.sessions)
			t.Run("durable tasks", m.tasks)
			t.Run("installs", m.installs)
			t.Run("a file of indexes", m.declared)
			t.Run("demand", m.demand)
			t.Run("a node is taken over", m.takeover)
		})
	}
}

// The clocks of agents, router and command line are set back by an hour while calls run: durations follow the
// monotonic clock.
func TestClocksAreSetBack(t *testing.T) {
	t.Parallel()
	if !meshtest.Soak() {
		t.Skip("Go's library and all else is built with a clock that can be wrong, which takes minutes: make soak")
	}
	step := filepath.Join(t.TempDir(), "step")
	m := newClockMesh(t, set{issuer: "router", step: step})
	long := func(name string) string { return fmt.Sprintf(`{"folder":%q,"name":%q,"seconds":8}`, m.folder, name) }
	line := make(chan result, 1)
	go func() { line <- m.do(t, "mesh", "call", "clocks.t.long", long("line"), "--timeout=1m") }()
	answers, err := m.nc.SubscribeSync(m.nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	header := nats.Header{"Mesh-Keepalive": {"1"}, "Mesh-Timeout-Ms": {"60000"}}
	if err := m.nc.PublishMsg(&nats.Msg{Subject: on("a", "long"), Reply: answers.Subject, Header: header, Data: []byte(long("plain"))}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"line", "plain"} {
		meshtest.Until(t, "the call has begun", func() bool { _, err := os.Stat(filepath.Join(m.folder, name)); return err == nil })
	}
	if err := os.WriteFile(step, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	keepalives := 0
	for {
		a, err := answers.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if a.Header.Get("Mesh-Keepalive") == "" {
			if string(a.Data) != "1" {
				t.Errorf("a plain caller: %v %s", a.Header, a.Data)
			}
			break
		}
		keepalives++
	}
	if keepalives < 4 {
		t.Errorf("%d keepalives in a call of 8 s", keepalives)
	}
	if r := <-line; strings.TrimSpace(r.stdout) != "1" {
		t.Errorf("the command line: %v", r)
	}
	r := request(t, m.nc, on("a", "nap"), `{"seconds":600}`, "Mesh-Timeout-Ms", "300")
	if r.Header.Get("Mesh-Error-Code") != "deadline_exceeded" {
		t.Errorf("a call that takes too long, after the step: %v %s", r.Header, r.Data)
	}
}

func (m *clockMesh) calls(t *testing.T) {
	in := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).UnixMilli(), 10) }
	for _, node := range []string{"a", "b"} {
		r := request(t, m.nc, on(node, "run"), m.args("call-"+node), "Mesh-Timeout-Ms", "20000", "Mesh-Deadline", in(20*time.Second))
		if string(r.Data) != "1" {
			t.Errorf("%s: a call with 20 s: %v %s", node, r.Header, r.Data)
		}
		r = request(t, m.nc, on(node, "run"), m.args("call-"+node), "Mesh-Deadline", in(-20*time.Second))
		if r.Header.Get("Mesh-Error-Code") != "deadline_exceeded" || r.Header.Get("Mesh-Started") != "false" {
			t.Errorf("%s: a call whose deadline has passed: %v %s", node, r.Header, r.Data)
		}
		r = request(t, m.nc, on(node, "nap"), `{"seconds":600}`, "Mesh-Timeout-Ms", "300")
		if r.Header.Get("Mesh-Error-Code") != "deadline_exceeded" {
			t.Errorf("%s: a call that takes too long: %v %s", node, r.Header, r.Data)
		}
	}
	var answer struct {
		RPC string `json:"rpc_id"`
	}
	m.json(t, &answer, "call", "clocks.t.version", "--json")
	// An id begins with the time at which it was made.
	if ms, err := strconv.ParseInt(fmt.Sprintf("%.12s", strings.TrimPrefix(answer.RPC, "rpc_")), 16, 64); err != nil || !near(time.UnixMilli(ms), time.Now().Add(m.set.line)) {
		t.Errorf("the command line's clock is not wrong by %v: %s %v", m.set.line, answer.RPC, err)
	}
	guest := m.withClock(t, m.set.line, "MESH_NATS_NKEY=")
	for what, u := range map[string]*user{"the administrator": m.user, "a guest": guest} {
		for n := range 4 { // each node gets some
			name := fmt.Sprintf("name=%s %d", what, n)
			if r := u.mesh(t, 0, "call", "clocks.t.run", "folder="+m.folder, name, "--timeout=20s"); strings.TrimSpace(r.stdout) != "1" {
				t.Errorf("%s calls: %v", what, r)
			}
		}
		if r := u.mesh(t, 1, "call", "clocks.t.nap", "seconds=600", "--timeout=300ms"); !strings.Contains(r.stderr, "time") {
			t.Errorf("%s calls what takes too long: %v", what, r)
		}
	}
	for n := range 20 {
		if _, err := m.c.Call(t.Context(), "clocks.t.run", json.RawMessage(m.args(fmt.Sprint("client ", n))), client.WithTimeout(20*time.Second)); err != nil {
			t.Errorf("a client: %v", err)
		}
	}
	_, err := m.c.Call(t.Context(), "clocks.t.nap", map[string]any{"seconds": 600}, client.WithTimeout(300*time.Millisecond))
	if toolmesh.CodeOf(err) != toolmesh.CodeDeadlineExceeded {
		t.Errorf("a client whose call takes too long: %v", err)
	}
}

func (m *clockMesh) repeated(t *testing.T) {
	for _, node := range []string{"a", "b"} {
		for range 2 {
			if r := request(t, m.nc, on(node, "run"), m.args("again-"+node), "Mesh-Rpc-Id", "again"); string(r.Data) != "1" {
				t.Errorf("%s: a call, or again under its name: %v %s", node, r.Header, r.Data)
			}
		}
		if r := request(t, m.nc, on(node, "run"), m.args("late-"+node), "Mesh-Rpc-Id", "late", "Mesh-Again", "1"); string(r.Data) != "1" {
			t.Errorf("%s: a call whose first request was lost: %v %s", node, r.Header, r.Data)
		}
		// No process of this test has records from three hours ago.
		r := request(t, m.nc, on(node, "run"), m.args("late-"+node), "Mesh-Rpc-Id", "earlier", "Mesh-Again", "10800000")
		if r.Header.Get("Mesh-Error-Code") != "node_lost" {
			t.Errorf("%s: a call that was sent first before the node's start: %v %s", node, r.Header, r.Data)
		}
		if r := request(t, m.nc, on(node, "run"), m.args("key"), "Mesh-Idempotency-Key", "key"); string(r.Data) != "1" {
			t.Errorf("%s: a call under a key: %v %s", node, r.Header, r.Data)
		}
	}
	if r := m.mesh(t, 0, "call", "clocks.t.run", "folder="+m.folder, "name=key", "--key=key"); strings.TrimSpace(r.stdout) != "1" {
		t.Errorf("the command line, under the key: %v", r)
	}
}

func (m *clockMesh) kept(t *testing.T) {
	for _, node := range []string{"a", "b"} {
		for range 2 {
			if r := request(t, m.nc, on(node, "kept"), m.args("kept-"+node)); string(r.Data) != "1" {
				t.Errorf("%s: a result that is kept for ten minutes: %v %s", node, r.Header, r.Data)
			}
		}
		meshtest.Until(t, node+" runs again what it has kept for a second", func() bool {
			return string(request(t, m.nc, on(node, "brief"), m.args("brief-"+node)).Data) == "2"
		})
	}
}

func (m *clockMesh) streams(t *testing.T) {
	const n = 50
	proxy := meshtest.NewProxy(t, m.broker)
	c := m.client(t, proxy.Connect(t, client.ConnectOptions()...), "")
	items := 0
	for chunk, err := range c.Stream(t.Context(), "clocks.t.items", map[string]any{"n": n}, client.WithTimeout(time.Minute)) {
		if err != nil || string(chunk.Data) != strconv.Itoa(items) {
			t.Fatalf("item %d of a stream over a cut: %s %v", items, chunk.Data, err)
		}
		if items++; items == n/2 {
			proxy.Cut(false)
		}
	}
	if items != n {
		t.Errorf("%d items of a stream over a cut", items)
	}
	for _, node := range []string{"a", "b"} {
		rpc := "stored-" + node
		if got := collect(t, m.nc, on(node, "items"), `{"n":5}`, "Mesh-Stream", "inbox", "Mesh-Rpc-Id", rpc); len(got) != 7 {
			t.Errorf("%s: a stream: %q", node, got)
		}
		if got, end := replay(t, m.nc, rpc, 3); len(got) != 3 || !end {
			t.Errorf("%s: replayed from its third item: %q %v", node, got, end)
		}
	}
	if r := m.mesh(t, 0, "stream", "clocks.t.items", "n=5", "--timeout=1m"); strings.Count(r.stdout, "\n") != 5 {
		t.Errorf("the command line: %v", r)
	}
}

func (m *clockMesh) lanes(t *testing.T) {
	calls := make([]client.BatchCall, 4)
	for i := range calls {
		calls[i] = client.BatchCall{Tool: "clocks.t.run", Args: json.RawMessage(m.args(fmt.Sprint("batch ", i))), Timeout: 20 * time.Second}
	}
	results, err := m.c.Batch(t.Context(), calls, client.WithTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil || string(r.Value) != "1" {
			t.Errorf("call %d of a batch: %s %v", i, r.Value, r.Err)
		}
	}
	const n = 10
	var wg sync.WaitGroup
	for i := range 2 * n {
		wg.Go(func() {
			msg := nats.NewMsg(on([]string{"a", "b"}[i%2], "alone"))
			msg.Data = []byte(m.args("lane"))
			msg.Header.Set("Mesh-Timeout-Ms", "60000")
			if r, err := m.nc.RequestMsgWithContext(t.Context(), msg); err != nil || r.Header.Get("Mesh-Error-Code") != "" {
				t.Errorf("a call in a lane: %+v %v", r, err)
			}
		})
	}
	wg.Wait()
	if runs, err := os.ReadFile(filepath.Join(m.folder, "lane")); err != nil || len(runs) != 2*n {
		t.Errorf("%d runs in a lane, %v", len(runs), err)
	}
}

// withKey connects with the key of a session, as long as the key is admitted.
func (m *clockMesh) withKey(t *testing.T, session string) *nats.Conn {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(filepath.Join(m.home, session+".nk"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(m.broker.URL, append(client.ConnectOptions(), key, nats.CustomInboxPrefix("_INBOX_"+session))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (m *clockMesh) sessions(t *testing.T) {
	// A key that is not admitted fails the command.
	m.mesh(t, 0, "session", "create", "brief", "--key", "--ttl=20s")
	m.mesh(t, 0, "session", "create", "mine", "--key", "--ttl=30m")
	var answer struct {
		Sessions []struct{ Created time.Time }
	}
	m.json(t, &answer, "session", "ls", "--json")
	if len(answer.Sessions) != 2 {
		t.Errorf("the sessions are %+v", answer)
	}
	for _, s := range answer.Sessions {
		if !near(s.Created, time.Now()) {
			t.Errorf("a session was created at %v", s.Created)
		}
	}
	brief, mine := m.withKey(t, "brief"), m.withKey(t, "mine")
	c := m.client(t, mine, "mine")
	// The session keeps its own worker on a node.
	calls := make(map[subjects.NodeID]int)
	call := func() {
		t.Helper()
		r, err := c.Call(t.Context(), "clocks.t.mine", nil, client.WithTimeout(20*time.Second))
		if err != nil {
			t.Fatalf("a call of a session: %v", err)
		}
		calls[r.Node]++
		if string(r.Value) != strconv.Itoa(calls[r.Node]) {
			t.Errorf("%s after %d calls of a session on node %s", r.Value, calls[r.Node], r.Node)
		}
	}
	for range 10 {
		call()
	}
	meshtest.Until(t, "the connection is renewed", func() bool { return mine.Stats().Reconnects > 0 && mine.IsConnected() })
	for range 10 {
		call()
	}
	refused := func(nc *nats.Conn) func() bool {
		return func() bool { return errors.Is(nc.LastError(), nats.ErrAuthorization) }
	}
	meshtest.Until(t, "the key of a session whose time is up is refused", refused(brief))
	m.json(t, &answer, "session", "ls", "--json")
	if len(answer.Sessions) != 1 {
		t.Errorf("the sessions are %+v", answer)
	}
	m.mesh(t, 0, "session", "end", "mine")
	meshtest.Until(t, "the key of an ended session is refused", refused(mine))
}

func (m *clockMesh) tasks(t *testing.T) {
	submit := func(id string, args ...string) *client.Task {
		t.Helper()
		m.mesh(t, 0, append([]string{"task", "submit", "clocks.t.run", "folder=" + m.folder, "name=" + id, "--id=" + id}, args...)...)
		return m.c.Task(subjects.RPCID(id))
	}
	ended := func(task *client.Task) *client.TaskInfo {
		t.Helper()
		info, err := task.Ended(t.Context())
		if err != nil || info.State != "succeeded" || string(info.Result) != "1" || !near(info.Created, time.Now()) || !near(info.Ended, time.Now()) {
			t.Errorf("task %s: %+v %v", task.ID(), info, err)
		}
		return info
	}
	ended(submit("now"))
	if info := ended(submit("soon", "--in=2s", "--ttl=10m")); info.Ended.Sub(info.Created) < time.Second {
		t.Errorf("a task of in two seconds: %+v", info)
	}
	gone := submit("gone", "--ttl=2s")
	ended(gone)
	meshtest.Until(t, "a task is gone when its time is up", func() bool {
		_, err := gone.Show(t.Context())
		return toolmesh.CodeOf(err) == toolmesh.CodeNotFound
	})
	every := submit("every", "--every=1s")
	meshtest.Until(t, "a schedule has made two tasks", func() bool {
		all, err := m.c.Tasks(t.Context(), "succeeded")
		made := 0
		for _, info := range all {
			if info.Schedule == "every" {
				made++
			}
		}
		return err == nil && made >= 2
	})
	if _, err := every.Cancel(t.Context()); err != nil {
		t.Error(err)
	}
}

func (m *clockMesh) installs(t *testing.T) {
	at := func() time.Time {
		t.Helper()
		var answer struct {
			Indexes []struct {
				Name        string
				InstalledAt time.Time `json:"installed_at"`
			}
		}
		m.json(t, &answer, "indexes", "--json")
		if len(answer.Indexes) != 1 || answer.Indexes[0].Name != "clocks" {
			t.Fatalf("the indexes are %+v", answer)
		}
		return answer.Indexes[0].InstalledAt
	}
	if first := at(); !near(first, time.Now()) {
		t.Errorf("the index was installed at %v", first)
	}
	file := filepath.Join(m.index, "t.py")
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"2", "3", "4"} { // from each agent
		if err := os.WriteFile(file, []byte(strings.Replace(string(source), "return 1\n", "return "+version+"\n", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		if version == "3" {
			m.mesh(t, 0, "uninstall", "clocks")
		}
		m.mesh(t, 0, "install", m.index)
		m.everywhere(t, version)
		if again := at(); !near(again, time.Now()) {
			t.Errorf("the index was installed again at %v", again)
		}
	}
}

func (m *clockMesh) declared(t *testing.T) {
	file := filepath.Join(t.TempDir(), "indexes.toml")
	list := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lists := func(state string) func() bool {
		return func() bool {
			r := m.mesh(t, 0, "indexes")
			return strings.Contains(r.stdout, "held") == (state != "") && strings.Contains(r.stdout, state)
		}
	}
	list(fmt.Sprintf("[[index]]\nsource = %q\nname = \"held\"\n", "file://"+held(t)))
	const leads = "this process keeps the indexes"
	first := m.serve(t, "mesh-router", "first", m.set.a, "--indexes="+file)
	first.await(t, first.logs, leads)
	second := m.serve(t, "mesh-router", "second", m.set.b, "--indexes="+file)
	meshtest.Until(t, "what the file lists is installed", lists(" installed "))
	if strings.Contains(second.logs.String(), leads) {
		t.Error("two processes keep the indexes")
	}
	first.kill(t)
	second.await(t, second.logs, leads)
	list("index = []\n")
	meshtest.Until(t, "what the file does not list is removed", lists(""))
}

func (m *clockMesh) demand(t *testing.T) {
	c := m.serve(t, "mesh-agent", "c", m.set.a, "--labels=pool=x")
	m.mesh(t, 0, "install", "--on=pool=x", "file://"+held(t))
	c.signal(t, syscall.SIGTERM)
	c.end(t)
	standsBy(t, m.nc)
	m.mesh(t, 0, "task", "submit", "held.t.fast", "n=9", "--id=waits")
	called := make(chan error, 1)
	go func() {
		_, err := m.c.Call(t.Context(), "held.t.fast", map[string]any{"n": 7}, client.WithTimeout(3*time.Minute))
		called <- err
	}()
	for _, address := range m.asks[:3] {
		meshtest.Until(t, "the demand shows what waits", func() bool {
			d := demandOf(t, address, "x")
			if d.Oldest > (10 * time.Minute).Milliseconds() {
				t.Fatalf("the oldest waits for %d ms", d.Oldest)
			}
			return d.Awaiting == 1 && d.Tasks >= 1 && d.Oldest > 0
		})
	}
	m.serve(t, "mesh-agent", "c", m.set.b, "--labels=pool=x")
	if err := <-called; err != nil {
		t.Errorf("the call that waited: %v", err)
	}
	if r := m.mesh(t, 0, "task", "wait", "waits", "--timeout=2m"); strings.TrimSpace(r.stdout) != "9" {
		t.Errorf("the task that waited: %v", r)
	}
	m.mesh(t, 0, "uninstall", "held")
}

func (m *clockMesh) takeover(t *testing.T) {
	const n = 6
	ended := make(chan error, n)
	ctx, end := context.WithCancel(t.Context())
	for range n {
		go func() {
			_, err := m.c.Call(ctx, "clocks.t.nap", map[string]any{"seconds": 600}, client.WithTimeout(11*time.Minute))
			ended <- err
		}()
	}
	meshtest.Until(t, "all calls run", func() bool {
		nodes := m.nodes(t)
		return nodes["a"].InFlight+nodes["b"].InFlight == n && nodes["b"].InFlight > 0
	})
	m.b.kill(t)
	if err := <-ended; toolmesh.CodeOf(err) != toolmesh.CodeNodeLost {
		t.Errorf("a call of a node that was killed: %v", err)
	}
	end()
	for range n - 1 {
		<-ended
	}
	m.serve(t, "mesh-agent", "b", m.set.a)
	meshtest.Until(t, "two nodes serve", func() bool {
		nodes := m.nodes(t)
		return len(nodes) == 2 && nodes["a"].State == "serving" && nodes["b"].State == "serving"
	})
	m.everywhere(t, "4")
}
