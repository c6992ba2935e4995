package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/meshtest"
)

// twoAgents is a mesh of two mesh-agent processes that know only the broker's address.
type twoAgents struct {
	*user
	url  string
	a, b *process
}

func newTwoAgents(t *testing.T, env ...string) *twoAgents {
	t.Helper()
	s := meshtest.Broker(t)
	m := &twoAgents{user: newUser(t, append(env, "MESH_NATS_URL="+s.URL)...), url: s.URL}
	m.a = m.agent(t, s.URL, "a")
	m.mesh(t, 0, "install", "file://"+held(t))
	m.b = m.agent(t, s.URL, "b")
	meshtest.Until(t, "both agents serve", func() bool { return len(m.nodesOf(t, "held.t.fast")) == 2 })
	return m
}

// nodesOf lists the nodes that serve a tool.
func (u *user) nodesOf(t *testing.T, id string) []string {
	t.Helper()
	var answer struct {
		Tools []struct {
			ID    string
			Nodes []string
		}
	}
	u.json(t, &answer, "ls", "--json")
	for _, tool := range answer.Tools {
		if tool.ID == id {
			return tool.Nodes
		}
	}
	return nil
}

// json runs a command that succeeds and decodes its output.
func (u *user) json(t *testing.T, into any, args ...string) {
	t.Helper()
	r := u.mesh(t, 0, args...)
	if err := json.Unmarshal([]byte(r.stdout), into); err != nil {
		t.Fatalf("mesh %v prints no JSON: %v\n%v", args, err, r)
	}
}

// node is a line of mesh nodes.
type node struct {
	ID       string
	State    string
	InFlight int `json:"in_flight"`
	Indexes  []string
}

func (u *user) nodes(t *testing.T) map[string]node {
	t.Helper()
	var answer struct{ Nodes []node }
	u.json(t, &answer, "nodes", "--json")
	nodes := make(map[string]node)
	for _, n := range answer.Nodes {
		nodes[n.ID] = n
	}
	return nodes
}

// heldCalls are commands that call held.t.wait and run until they are released.
type heldCalls struct {
	folder string
	done   chan callEnd
}

type callEnd struct {
	result
	took time.Duration
}

// hold starts n calls and returns when the code of all of them runs.
func (u *user) hold(t *testing.T, n int, args ...string) *heldCalls {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "toolmesh-e2e-") // other users cannot pass t.TempDir
	if err == nil {
		err = os.Chmod(folder, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	h := &heldCalls{folder: folder, done: make(chan callEnd, n)}
	for i := range n {
		go func() {
			begun := time.Now()
			r, err := finish(u.command(t.Context(), "mesh", append([]string{"call", "held.t.wait", "folder=" + h.folder, fmt.Sprintf("name=c%d", i), "--json"}, args...)...))
			if err != nil {
				r = result{stderr: err.Error(), status: -1}
			}
			h.done <- callEnd{r, time.Since(begun)}
		}()
	}
	meshtest.Until(t, "all calls run", func() bool {
		files, err := filepath.Glob(filepath.Join(h.folder, "c*"))
		return err == nil && len(files) == n
	})
	return h
}

func (h *heldCalls) release(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.folder, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// code is the error code that mesh call --json printed; "" for a success.
func (e callEnd) code(t *testing.T) string {
	t.Helper()
	var answer struct {
		Status string
		Error  struct{ Code string }
	}
	if err := json.Unmarshal([]byte(e.stdout), &answer); err != nil {
		t.Fatalf("mesh call --json: %v\n%v", err, e.result)
	}
	return answer.Error.Code
}

// An agent is killed: its workers end with it, its callers get node_lost long before their deadline, and the
// other agent goes on serving.
func TestAnAgentIsKilled(t *testing.T) {
	t.Parallel()
	m := newTwoAgents(t)
	const calls, timeout = 8, 2 * time.Minute
	h := m.hold(t, calls, "--timeout="+timeout.String())
	// Heartbeats, which mesh nodes shows, lag behind by up to a second.
	inFlight := map[string]int{}
	meshtest.Until(t, "the heartbeats tell of all calls", func() bool {
		sum := 0
		for id, n := range m.nodes(t) {
			inFlight[id] = n.InFlight
			sum += n.InFlight
		}
		return sum == calls
	})
	dead, alive := m.a, "b"
	if inFlight["b"] > inFlight["a"] {
		dead, alive = m.b, "a"
	}
	lost := max(inFlight["a"], inFlight["b"])
	workers := dead.processes(t)
	if len(workers) < lost {
		t.Fatalf("%d calls run in %d processes: %v", lost, len(workers), workers)
	}
	begun := time.Now()
	dead.kill(t)
	meshtest.Until(t, "no worker outlives its agent", func() bool { return len(dead.processes(t)) == 0 })
	t.Logf("%d processes were gone %v after the kill", len(workers), time.Since(begun).Round(time.Millisecond))
	for range lost {
		end := <-h.done
		if code := end.code(t); code != "node_lost" || end.status != 3 {
			t.Errorf("a call on the killed agent: %v", end.result)
		}
	}
	took := time.Since(begun)
	t.Logf("%d callers heard of it after %v", lost, took.Round(time.Millisecond))
	if took > timeout/4 {
		t.Errorf("the callers heard of it after %v", took)
	}
	select {
	case end := <-h.done:
		t.Errorf("a call on the other agent ended: %v", end.result)
	default:
	}
	// The other agent goes on serving, and gets all calls.
	for range 10 {
		var answer struct {
			Result int
			Node   string
		}
		m.json(t, &answer, "call", "held.t.fast", "n=7", "--json")
		if answer.Result != 7 || answer.Node != alive {
			t.Errorf("after the kill: %+v", answer)
		}
	}
	h.release(t)
	for range calls - lost {
		if end := <-h.done; end.status != 0 {
			t.Errorf("a call on the other agent: %v", end.result)
		}
	}
	meshtest.Until(t, "the dead node is off the list", func() bool { return len(m.nodesOf(t, "held.t.fast")) == 1 })
}

// An agent starts on the folder of one that was killed a moment before.
func TestAnAgentIsKilledAndStartsAgain(t *testing.T) {
	t.Parallel()
	m := newTwoAgents(t)
	m.a.kill(t)
	p, _ := m.start(t, m.a.dir, "mesh-agent", "--server="+m.url, "--node=a", "--data-dir="+m.a.dir)
	p.await(t, p.logs, `msg=ready`)
	meshtest.Until(t, "both serve again", func() bool { return len(m.nodesOf(t, "held.t.fast")) == 2 })
	m.b.signal(t, syscall.SIGTERM)
	if status := m.b.end(t); status != 0 {
		t.Errorf("SIGTERM: status %d\n%s", status, m.b.logs)
	}
	if r := m.mesh(t, 0, "call", "held.t.fast", "n=3"); strings.TrimSpace(r.stdout) != "3" {
		t.Errorf("on the agent that was started again: %v", r)
	}
}

// One of two agents is stopped while plain clients, which never send a request again, call without a pause.
func TestSIGTERMLosesNothing(t *testing.T) {
	t.Parallel()
	m := newTwoAgents(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var calls, streams atomic.Int64
	byNode := map[string]int{}
	var mu sync.Mutex
	failures := make(chan error, 100)
	fail := func(err error) {
		if ctx.Err() == nil {
			select {
			case failures <- err:
			default:
			}
		}
	}
	for range 4 {
		nc := plain(t, m.url)
		wg.Go(func() {
			for ctx.Err() == nil {
				r, err := nc.RequestWithContext(ctx, "tools.default.held.t.fast", []byte(`{"n":1}`))
				if err != nil {
					fail(fmt.Errorf("request: %w", err))
					continue
				}
				if string(r.Data) != "1" {
					fail(fmt.Errorf("reply: %v %s", r.Header, r.Data))
				}
				mu.Lock()
				byNode[r.Header.Get("Mesh-Node")]++
				mu.Unlock()
				calls.Add(1)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := streamItems(ctx, nc, 40); err != nil {
					fail(err)
				}
				streams.Add(1)
			}
		})
	}
	h := m.hold(t, 6)
	meshtest.Until(t, "both agents have work", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return byNode["a"] > 50 && byNode["b"] > 50
	})
	m.a.signal(t, syscall.SIGTERM)
	m.a.await(t, m.a.logs, `msg="?stopping`)
	// Calls that run end first.
	meshtest.Until(t, "it is off the list of nodes that serve", func() bool { return len(m.nodesOf(t, "held.t.fast")) == 1 })
	h.release(t)
	for range 6 {
		if end := <-h.done; end.status != 0 {
			t.Errorf("a call that ran: %v", end.result)
		}
	}
	if status := m.a.end(t); status != 0 {
		t.Errorf("it ended with status %d:\n%s", status, m.a.logs)
	}
	if left := m.a.processes(t); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	cancel()
	wg.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	t.Logf("%d calls and %d streams, by node %v", calls.Load(), streams.Load(), byNode)
}

// streamItems reads a stream of plain messages and checks them.
func streamItems(ctx context.Context, nc *nats.Conn, n int) error {
	m := nats.NewMsg("tools.default.held.t.items")
	m.Reply = nc.NewInbox()
	m.Data = fmt.Appendf(nil, `{"n":%d,"pause":0.005}`, n)
	m.Header.Set("Mesh-Stream", "inbox")
	sub, err := nc.SubscribeSync(m.Reply)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishMsg(m); err != nil {
		return err
	}
	for i := 1; ; i++ {
		chunk, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("stream, item %d: %w", i, err)
		}
		if len(chunk.Data) == 0 && chunk.Header.Get("Mesh-Chunk") == "" {
			return fmt.Errorf("the stream ended without a terminal after %d items", i-1)
		}
		if chunk.Header.Get("Mesh-Seq") != fmt.Sprint(i) {
			return fmt.Errorf("item %d of the stream has %v %s", i, chunk.Header, chunk.Data)
		}
		if chunk.Header.Get("Mesh-Chunk") == "complete" {
			if i != n+1 {
				return fmt.Errorf("the stream was complete after %d items", i-1)
			}
			return nil
		}
	}
}

// plain is a connection of nats.go without options of ours.
func plain(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// After mesh node drain the process ends by itself with status 0.
func TestDrainANode(t *testing.T) {
	t.Parallel()
	m := newTwoAgents(t)
	m.mesh(t, 0, "node", "drain", "a")
	if status := m.a.end(t); status != 0 {
		t.Errorf("it ended with status %d:\n%s", status, m.a.logs)
	}
	if r := m.mesh(t, 0, "call", "held.t.fast", "n=3"); strings.TrimSpace(r.stdout) != "3" {
		t.Errorf("on the other one: %v", r)
	}
	if nodes := m.nodes(t); len(nodes) != 1 {
		t.Errorf("nodes: %v", nodes)
	}
}

// mesh up is killed and started again: it serves the installed indexes, and earlier streams can be replayed.
func TestTheMeshIsKilled(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	dir := filepath.Join(u.home, "the-mesh")
	m := u.up(t, dir)
	repo := held(t)
	u.mesh(t, 0, "install", "file://"+repo)
	u.mesh(t, 0, "install", filepath.Join(repo, "."), "--name=folder")
	nc := plain(t, m.url)
	const rpc = "e2e_before_the_kill"
	ask := nats.NewMsg("tools.default.held.t.items")
	ask.Data = []byte(`{"n":50}`)
	ask.Header.Set("Mesh-Stream", "1")
	ask.Header.Set("Mesh-Rpc-Id", rpc)
	if _, err := nc.RequestMsgWithContext(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the stream is stored to its end", func() bool {
		_, terminal := replay(t, nc, rpc, 1)
		return terminal
	})
	h := u.hold(t, 1)
	m.kill(t)
	meshtest.Until(t, "no worker outlives the mesh", func() bool { return len(m.processes(t)) == 0 })
	if end := <-h.done; end.status == 0 {
		t.Errorf("the call that ran when the mesh was killed: %v", end.result)
	}
	if c, err := net.Dial("tcp", "127.0.0.1:4222"); err == nil {
		_ = c.Close()
		t.Log("something listens where a mesh is looked for last: what is said without one is not looked at")
	} else if r := u.mesh(t, 3, "ls"); !strings.Contains(r.stderr, "mesh up") {
		t.Errorf("without a mesh: %v", r)
	}
	if err := os.RemoveAll(repo); err != nil {
		t.Fatal(err)
	}
	m = u.up(t, dir)
	for _, id := range []string{"held.t.fast", "folder.t.fast"} {
		if r := u.mesh(t, 0, "call", id, "n=5"); strings.TrimSpace(r.stdout) != "5" {
			t.Errorf("%s after the restart: %v", id, r)
		}
	}
	nc = plain(t, m.url)
	for _, from := range []int{1, 26, 51} {
		items, terminal := replay(t, nc, rpc, from)
		if !terminal || len(items) != 51-from || from <= 50 && items[0] != fmt.Sprintf(`{"n":%d}`, from-1) {
			t.Errorf("replay from %d: %d items %v, terminal %v", from, len(items), items, terminal)
		}
	}
	m.signal(t, syscall.SIGTERM)
	if status := m.end(t); status != 0 {
		t.Errorf("SIGTERM: status %d\n%s", status, m.logs)
	}
}

// replay asks for the stored chunks of a stream from one on.
func replay(t *testing.T, nc *nats.Conn, rpc string, from int) (items []string, terminal bool) {
	t.Helper()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest("mesh.replay.default."+rpc, inbox, fmt.Appendf(nil, `{"from_seq":%d}`, from)); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := sub.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case m.Header.Get("Mesh-Chunk") == "data":
			items = append(items, string(m.Data))
		case m.Header.Get("Mesh-Chunk") == "complete":
			terminal = true
		default:
			if high := m.Header.Get("Mesh-High"); high == "" {
				t.Fatalf("the end of a replay has no Mesh-High: %v %s", m.Header, m.Data)
			}
			return items, terminal
		}
	}
}

// Programs that must not start say why.
func TestRefusedStarts(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	u := newUser(t)
	dir := filepath.Join(u.home, "the-mesh")
	m := u.up(t, dir)
	js, err := jetstream.New(s.Connect(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVERYTHING", Subjects: []string{"tools.>"}}); err != nil {
		t.Fatal(err)
	}
	empty := meshtest.Broker(t)
	free := func() string { return "--data-dir=" + filepath.Join(t.TempDir(), "data") }
	for name, tc := range map[string]struct {
		command []string
		env     string
		status  int
		says    []string
	}{
		"a foreign stream":      {[]string{"mesh-agent", "--server=" + s.URL, free()}, "", 3, []string{"EVERYTHING", "tools.>"}},
		"a taken port":          {[]string{"mesh", "up", "--nats-listen=" + strings.TrimPrefix(m.url, "nats://"), free()}, "", 3, []string{"--nats-listen", "taken"}},
		"a taken folder":        {[]string{"mesh", "up", "--nats-listen=127.0.0.1:0", "--data-dir=" + dir}, "", 3, []string{dir, "mesh down", "--data-dir"}},
		"the agent's too":       {[]string{"mesh-agent", "--server=" + m.url, "--data-dir=" + dir}, "", 3, []string{dir}},
		"an unknown variable":   {[]string{"mesh-agent", "--server=" + m.url, free()}, "MESH_SLOTZ=3", 2, []string{"MESH_SLOTZ"}},
		"a router's too":        {[]string{"mesh-router", "--server=" + m.url}, "MESH_SLOTZ=3", 2, []string{"MESH_SLOTZ"}},
		"a setting that is not": {[]string{"mesh-agent", "--server=" + m.url, free()}, "MESH_SLOTS=many", 2, []string{"MESH_SLOTS", "many"}},
		"a duration":            {[]string{"mesh-agent", "--server=" + m.url, free(), "--max-timeout=5"}, "", 2, []string{"max-timeout", "5"}},
		"an unknown flag":       {[]string{"mesh-agent", "--sever=" + m.url}, "", 2, []string{"--sever"}},
		"no NATS, but a URL":    {[]string{"mesh-agent", "--server=no url at all", free()}, "", 2, []string{"no url at all", "nats://host:port"}},
		"a broker without mesh": {[]string{"mesh", "ls", "--server=" + empty.URL}, "", 3, []string{"no mesh", empty.URL, "mesh up"}},
		"nobody there":          {[]string{"mesh", "ls", "--server=nats://127.0.0.1:1"}, "", 3, []string{"127.0.0.1:1"}},
		"the node's id":         {[]string{"mesh-agent", "--server=" + m.url, free(), "--node=" + oneNode(t, u)}, "", 3, []string{oneNode(t, u)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := *u
			if tc.env != "" {
				own.env = append(append([]string{}, u.env...), tc.env)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r, err := finish(own.command(ctx, tc.command[0], tc.command[1:]...))
			if err != nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Fatalf("%v %v", err, r)
			}
			if r.status != tc.status {
				t.Errorf("want status %d, got %v", tc.status, r)
			}
			for _, text := range tc.says {
				if !strings.Contains(r.stderr, text) {
					t.Errorf("it does not say %q: %v", text, r)
				}
			}
			t.Logf("%s", strings.TrimSpace(r.stderr))
		})
	}
}

func oneNode(t *testing.T, u *user) string {
	t.Helper()
	for id := range u.nodes(t) {
		return id
	}
	t.Fatal("no node")
	return ""
}

// mesh-router as a process of its own answers for the registry and for replays, and is a service of its own
// name.
func TestARouterBesideAnAgent(t *testing.T) {
	t.Parallel()
	m := newTwoAgents(t)
	router, _ := m.start(t, filepath.Join(m.home, "no-folder"), "mesh-router", "--server="+m.url)
	router.await(t, router.logs, `msg=ready`)
	nc := plain(t, m.url)
	names := map[string]int{}
	inbox, sub := subscribed(t, nc, "")
	if err := nc.PublishRequest("$SRV.PING", inbox, nil); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		var s struct{ Name string }
		if err := json.Unmarshal(next(t, sub).Data, &s); err != nil {
			t.Fatal(err)
		}
		names[s.Name]++
	}
	if names["mesh-agent"] != 2 || names["mesh-router"] != 1 {
		t.Errorf("services %v", names)
	}
	// Each of the three gives the same answer.
	for range 20 {
		equalJSON(t, "resolve", request(t, nc, "mesh.registry.default.resolve", `{"name":"t.fast"}`).Data, `{"id":"held.t.fast"}`)
	}
	router.signal(t, syscall.SIGTERM)
	if status := router.end(t); status != 0 {
		t.Errorf("SIGTERM: status %d\n%s", status, router.logs)
	}
}
