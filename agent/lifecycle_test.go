package agent_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// An agent is stopped while the init command of an index runs: the caller gets an error, and nothing is left.
func TestStopInTheMiddleOfAnInstall(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	dir, marks := t.TempDir(), t.TempDir()
	one := startIn(t, s, "one", dir)
	nc := s.Connect(t)
	started := filepath.Join(marks, "started")
	url := repository(t, "idx", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.tool\"]\ninit = [\"python\", \"init.py\"]\n", "t.py": "def tool(): return 1\n",
		"init.py": "import time\nopen(" + quoted(started) + ", 'w').close()\ntime.sleep(600)\n",
	})
	type answer struct {
		failure *toolmesh.Error
		err     error
	}
	answered := make(chan answer, 1)
	go func() {
		_, failure, err := tryAdmin(t.Context(), nc, "install", map[string]any{"source": url})
		answered <- answer{failure, err}
	}()
	meshtest.Until(t, "the init command runs", func() bool {
		_, err := os.Stat(started)
		return err == nil
	})
	stop(t, one)
	a := <-answered
	if a.err != nil || a.failure == nil || a.failure.Code != toolmesh.CodeUnavailable || !strings.Contains(a.failure.Message, "install again") {
		t.Errorf("the answer is %v %v, want unavailable and to install again", a.failure, a.err)
	}
	if r := recordOf(t, nc, "idx"); r != "" {
		t.Errorf("a record is left: %s", r)
	}
	if left := halfDone(t, dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if left := processesOf(t, dir); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	// Another agent is asked, and does it.
	startIn(t, s, "two", t.TempDir())
	url = repository(t, "idx", map[string]string{"tools.toml": working, "t.py": "def tool(): return 1\n"})
	install(t, nc, map[string]any{"source": url})
}

func quoted(s string) string {
	data, _ := json.Marshal(s)
	return string(data)
}

func TestTwoInstallsOfOneName(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	start(t, s, "two")
	nc := s.Connect(t)
	var wg sync.WaitGroup
	failures := make([]*toolmesh.Error, 4)
	for i := range failures {
		url := repository(t, "r"+string(rune('a'+i)), map[string]string{"tools.toml": working, "t.py": "def tool(): return " + string(rune('0'+i)) + "\n"})
		wg.Go(func() {
			var err error
			if _, failures[i], err = tryAdmin(t.Context(), nc, "install", map[string]any{"source": url, "name": "same"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	won := -1
	for i, f := range failures {
		switch {
		case f == nil && won < 0:
			won = i
		case f == nil:
			t.Errorf("installs %d and %d of other sources both won the name", won, i)
		case f.Code != toolmesh.CodeInvalidRequest || !strings.Contains(f.Message, "--name"):
			t.Errorf("a loser hears %v", f)
		}
	}
	if won < 0 {
		t.Fatalf("nobody won: %v", failures)
	}
	c := newClient(t, nc, nil)
	meshtest.Until(t, "both agents serve the winner", func() bool { return len(servedBy(t, c, "same.t.tool")) == 2 })
	for range 20 {
		r, err := c.Call(t.Context(), "same.t.tool", nil, client.ViaQueue())
		if err != nil || string(r.Value) != string(rune('0'+won)) {
			t.Fatalf("the tool answers %v %v, want %d", r, err, won)
		}
	}
}

func TestBrokerRestartsWhileAgentsServe(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	start(t, s, "two")
	nc := s.Connect(t)
	repo := filepath.Join(t.TempDir(), "idx")
	testmesh.Commit(t, repo, revisionTools(1))
	install(t, nc, map[string]any{"source": "file://" + repo})
	c := newClient(t, nc, nil)
	meshtest.Until(t, "both agents serve", func() bool { return len(servedBy(t, c, "idx.t.fast")) == 2 })
	held := holdCall(t, c, "idx.t.held")
	s.Restart(t)
	meshtest.Until(t, "calls are served again", func() bool {
		r, err := c.Call(t.Context(), "idx.t.fast", nil)
		return err == nil && string(r.Value) == "1"
	})
	_ = held.release(t) // its caller may have lost it with the connection; the agent has not
	meshtest.Until(t, "both agents serve again", func() bool {
		tools, err := c.List(t.Context())
		return err == nil && len(tools) == 5 && len(tools[0].Nodes) == 2
	})
	testmesh.Commit(t, repo, revisionTools(2))
	install(t, nc, map[string]any{"source": "file://" + repo})
	meshtest.Until(t, "both follow the upgrade", func() bool {
		for range 8 {
			if r, err := c.Call(t.Context(), "idx.t.fast", nil, client.ViaQueue()); err != nil || string(r.Value) != "2" {
				return false
			}
		}
		return true
	})
}

// seesOne waits until a session lists one tool, and that as served: the process
// that answers hears of it a moment later.
func seesOne(t *testing.T, c *client.Client) {
	t.Helper()
	meshtest.Until(t, "its session sees the tool", func() bool {
		tools, err := c.List(t.Context())
		if err != nil || len(tools) > 1 {
			t.Fatalf("its session sees %v %v", tools, err)
		}
		return len(tools) == 1 && tools[0].State == "serving"
	})
}

func TestAnIndexThatIsPrivateToASession(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	one := repository(t, "one", map[string]string{"tools.toml": working, "t.py": "def tool(): return 's1'\n"})
	install(t, nc, map[string]any{"source": one, "name": "mine", "session": "s1"})
	c := newClient(t, nc, nil)
	if r, err := c.In("s1").Call(t.Context(), "mine.t.tool", nil); err != nil || string(r.Value) != `"s1"` {
		t.Errorf("in its session: %v %v", r, err)
	}
	for _, session := range []string{"", "s2"} {
		in := c
		if session != "" {
			in = c.In("s2")
		}
		if _, err := in.Call(t.Context(), "mine.t.tool", nil); toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound {
			t.Errorf("in session %q: %v", session, err)
		}
		if tools, err := in.List(t.Context()); err != nil || len(tools) != 0 {
			t.Errorf("session %q sees %v %v", session, tools, err)
		}
		if _, err := nc.RequestWithContext(t.Context(), "tools.default.mine.t.tool", nil); err == nil {
			t.Error("a plain request in another session was answered")
		}
	}
	seesOne(t, c.In("s1"))
	// It is for sessions now, not for the mesh.
	if _, failure := admin(t, nc, "install", map[string]any{"source": one, "name": "mine"}); failure == nil || failure.Code != toolmesh.CodeInvalidRequest {
		t.Errorf("the same name for the whole mesh: %v", failure)
	}
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "mine"}); failure == nil {
		t.Error("it was uninstalled without its session's name")
	}
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "mine", "session": "s1"}); failure != nil {
		t.Error(failure)
	}
	// The registry hears of it a moment after the node has ended it.
	meshtest.Until(t, "the tool is not found", func() bool {
		_, err := c.In("s1").Call(t.Context(), "mine.t.tool", nil)
		if err == nil {
			t.Fatal("it was called after the uninstall")
		}
		return toolmesh.CodeOf(err) == toolmesh.CodeToolNotFound
	})
}

// A created session lists its own indexes, and no install brings one of them into the next session
// of that name.
func TestAnIndexOfACreatedSession(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	r, err := router.New(s.Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	create := func() *router.Session {
		t.Helper()
		session, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "s1"})
		if err != nil {
			t.Fatal(err)
		}
		return session
	}
	session := create()
	marks := t.TempDir()
	imported, release := filepath.Join(marks, "imported"), filepath.Join(marks, "release")
	one := repository(t, "one", map[string]string{"tools.toml": working, "t.py": "def tool(): return 's1'\n"})
	install(t, nc, map[string]any{"source": one, "name": "mine", "session": "s1"})
	seesOne(t, session.Client())
	if result, err := session.Call(t.Context(), "t.tool", nil); err != nil || string(result.Value) != `"s1"` {
		t.Errorf("by its short name: %v %v", result, err)
	}
	// The session ends, and the next one begins, while a second one is imported.
	waits := repository(t, "waits", map[string]string{"tools.toml": working, "t.py": "import os, time\n" +
		"def tool(): return 's1'\n" +
		"open(" + quoted(imported) + ", 'w').close()\n" +
		"while not os.path.exists(" + quoted(release) + "): time.sleep(0.02)\n"})
	done := make(chan *toolmesh.Error, 1)
	go func() {
		_, failure, err := tryAdmin(t.Context(), nc, "install", map[string]any{"source": waits, "name": "late", "session": "s1"})
		if err != nil {
			t.Error(err)
		}
		done <- failure
	}()
	meshtest.Until(t, "its module is imported", func() bool {
		_, err := os.Stat(imported)
		return err == nil
	})
	if err := session.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	session = create()
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if failure := <-done; failure == nil || failure.Code != toolmesh.CodeSessionNotFound {
		t.Errorf("an install for a session that has ended: %v", failure)
	}
	if tools, err := session.Client().List(t.Context()); err != nil || len(tools) != 0 {
		t.Errorf("the next session sees %v %v", tools, err)
	}
	notServed := func(id subjects.ToolID) {
		t.Helper()
		meshtest.Until(t, string(id)+" is nobody's", func() bool {
			_, err := session.Call(t.Context(), id, nil)
			return toolmesh.CodeOf(err) == toolmesh.CodeToolNotFound
		})
	}
	notServed("late.t.tool")
	notServed("mine.t.tool")
	// A session that expires is just not there any more.
	install(t, nc, map[string]any{"source": one, "name": "mine", "session": "s1"})
	if _, err := session.Call(t.Context(), "mine.t.tool", nil); err != nil {
		t.Errorf("in the next session: %v", err)
	}
	b := testmesh.Bus(t, nc, nil)
	if err := testmesh.Store(t, b).DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	notServed("mine.t.tool")
	install(t, nc, map[string]any{"source": one, "name": "mine"}) // the name is free
}

// Two indexes that need two versions of one package are served by one agent.
func TestConflictingVersionsSideBySide(t *testing.T) {
	t.Parallel()
	uv := needsPackages(t)
	s := meshtest.Broker(t)
	start := func(node string) *agent.Agent {
		return startIn(t, s, subjects.NodeID("node-"+node), t.TempDir(), func(o *agent.Options) { o.UV = uv })
	}
	start("one")
	nc := s.Connect(t)
	c := newClient(t, nc, nil)
	for _, name := range []string{"versions-lenient", "versions-strict"} {
		install(t, nc, map[string]any{"source": exampleRepository(t, name)})
	}
	check := func() {
		t.Helper()
		for name, want := range map[string]string{"versions-lenient": `"20.9"`, "versions-strict": `"24.1"`} {
			r, err := c.Call(t.Context(), subjects.ToolID(name+".versions.library"), nil, client.ViaQueue())
			if err != nil || string(r.Value) != want {
				t.Errorf("%s runs with %v (%v), want %s", name, r, err, want)
			}
		}
		args := map[string]any{"candidates": []string{"1.2", "2004d"}}
		if r, err := c.Call(t.Context(), "versions-lenient.versions.newest", args); err != nil || !strings.Contains(string(r.Value), `"newest":"1.2"`) {
			t.Errorf("lenient: %v %v", r, err)
		}
		_, err := c.Call(t.Context(), "versions-strict.versions.newest", args)
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeToolError || e.Type != "InvalidVersion" {
			t.Errorf("strict: %v", err)
		}
	}
	check()
	two := start("two")
	if err := two.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "both serve both", func() bool {
		return len(servedBy(t, c, "versions-lenient.versions.newest")) == 2 && len(servedBy(t, c, "versions-strict.versions.newest")) == 2
	})
	for range 6 {
		check()
	}
}

// exampleRepository makes a git repository of one of the examples.
func exampleRepository(t *testing.T, name string) string {
	t.Helper()
	files := map[string]string{}
	folder := filepath.Join("..", "examples", "indexes", name)
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	return repository(t, name, files)
}

// An install whose caller has left goes on: the index is installed.
func TestInstallContinuesWithoutItsCaller(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	url := repository(t, "idx", map[string]string{"tools.toml": working, "t.py": "def tool(): return 1\n"})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _ = tryAdmin(gone, s.Connect(t), "install", map[string]any{"source": url})
	c := newClient(t, nc, nil)
	meshtest.Until(t, "it is served", func() bool {
		r, err := c.Call(t.Context(), "idx.t.tool", nil)
		return err == nil && string(r.Value) == "1"
	})
}

// An agent that lost its node to another process ends with an error.
func TestANodeThatIsLostIsAnError(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	proxy := meshtest.NewProxy(t, s)
	a, err := agent.New(proxy.Connect(t), t.TempDir(), &agent.Options{Node: "one", Environ: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	nc := s.Connect(t)
	beats, err := nc.SubscribeSync("mesh.hb.one")
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, a)
	t.Cleanup(func() { meshtest.End(t, a) })
	if _, err := beats.NextMsg(time.Minute); err != nil {
		t.Fatal(err)
	}
	proxy.Blackhole()
	next, err := host.New(nc, &host.Options{Node: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Start(t.Context()); err != nil { // listens for 2.5 s
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, next) })
	proxy.Heal()
	select {
	case <-a.Done():
		if a.Err() == nil {
			t.Error("it does not say why it ended")
		}
	case <-time.After(time.Minute):
		t.Fatal("the agent goes on")
	}
}

// An agent starts although its node could not make all streams in the time of one attempt, as on a slow disk. It
// takes the 5 s of that attempt.
func TestAgentStartsOnASlowStore(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	account := s.Server().GlobalAccount()
	const create = "$JS.API.STREAM.CREATE.MESH_TASKS"
	if err := account.AddMapping(create, "lost"); err != nil {
		t.Fatal(err)
	}
	nc := s.Connect(t)
	lost := make(chan *nats.Msg, 100)
	if _, err := nc.ChanSubscribe("lost", lost); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe("lost", func(*nats.Msg) { account.RemoveMapping(create) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	start(t, s, "n1")
	if len(lost) == 0 {
		t.Error("the first attempt to make the stream of tasks was not lost")
	}
}
