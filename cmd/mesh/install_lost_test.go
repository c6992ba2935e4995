package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/broker"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/meshtest"
)

// startAgent runs mesh-agent with files below home/name until it is killed, at
// the end of the test at the latest.
func startAgent(t *testing.T, home, url, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "mesh-agent", "--server="+url, "--node="+name, "--data-dir="+filepath.Join(home, name))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}
	ready := newWatch("msg=ready")
	cmd.Stderr = ready
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	select {
	case <-ready.seen:
	case <-time.After(time.Minute):
		t.Fatalf("agent %s does not start:\n%s", name, ready.text())
	}
	return cmd
}

// slowInstall is an install that one of two agents works on until the test ends.
type slowInstall struct {
	url    string
	agents map[string]*exec.Cmd
	on     string // the agent that works on it
	ended  chan error
	said   *watch // stderr of the command
}

func startSlowInstall(t *testing.T) *slowInstall {
	t.Helper()
	home := t.TempDir()
	b, err := broker.Start(t.Context(), broker.Options{StoreDir: filepath.Join(home, "broker")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	slow := filepath.Join(home, "slow")
	if err := os.Mkdir(slow, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"tools.toml": "[index]\ntools = [\"t.tool\"]\ninit = [\"python3\", \"-c\", \"import time; open('begun', 'w'); time.sleep(600)\"]\n",
		"t.py":       "def tool(): pass\n",
	} {
		if err := os.WriteFile(filepath.Join(slow, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	i := &slowInstall{url: b.URL(), ended: make(chan error, 1), said: newWatch("")}
	i.agents = map[string]*exec.Cmd{"one": startAgent(t, home, b.URL(), "one"), "two": startAgent(t, home, b.URL(), "two")}
	cmd := meshCommand(t, home, "install", slow, "--server="+b.URL())
	cmd.Stderr = i.said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { i.ended <- cmd.Wait() }()
	var begun []string
	meshtest.Until(t, "the init command runs", func() bool {
		begun, _ = filepath.Glob(filepath.Join(home, "*", "indexes", "slow", "*", "begun"))
		return len(begun) > 0
	})
	rel, err := filepath.Rel(home, begun[0])
	if err != nil {
		t.Fatal(err)
	}
	i.on, _, _ = strings.Cut(rel, string(filepath.Separator))
	return i
}

// isLost waits for the end of the command, which has to say that the node is lost.
func (i *slowInstall) isLost(t *testing.T) {
	t.Helper()
	if got := exitStatus(<-i.ended); got != 3 {
		t.Errorf("exit status %d, want 3", got)
	}
	for _, want := range []string{"node " + i.on, "was not finished", "run it again"} {
		if !strings.Contains(i.said.text(), want) {
			t.Errorf("stderr has no %q:\n%s", want, i.said.text())
		}
	}
}

// An install ends if its agent is killed, although another agent is alive, and reports the loss: the only signal is
// that agent's missing heartbeat.
func TestInstallEndsWithItsAgent(t *testing.T) {
	t.Parallel()
	i := startSlowInstall(t)
	if err := i.agents[i.on].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	i.isLost(t)
	if took := time.Since(killed); took > 20*time.Second {
		t.Errorf("that the agent is gone was seen after %s", took)
	}
}

// forge has the heartbeats of a subject's node be those of another name.
func forge(t *testing.T, nc *nats.Conn, subject, node, boot string) {
	t.Helper()
	beat := fmt.Sprintf(`{"node":%q,"boot":%q,"state":"serving","slots":8}`, node, boot)
	if err := nc.Publish("mesh.hb."+subject, []byte(beat)); err != nil {
		t.Fatal(err)
	}
}

// The subject of a heartbeat says whose it is: an install goes on while another
// node says in the name of its agent that it has started anew, and ends when its
// agent's own subject says so, in whatever name.
func TestInstallBelievesTheSubjectOfAHeartbeat(t *testing.T) {
	t.Parallel()
	i := startSlowInstall(t)
	other := map[string]string{"one": "two", "two": "one"}[i.on]
	nc, err := nats.Connect(i.url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for range 30 { // several looks
		forge(t, nc, other, i.on, "another")
		select {
		case err := <-i.ended:
			t.Fatalf("the install has ended: %v\n%s", err, i.said.text())
		case <-time.After(100 * time.Millisecond):
		}
	}
	ended := make(chan struct{})
	go func() { defer close(ended); i.isLost(t) }()
	for {
		forge(t, nc, i.on, other, "another")
		select {
		case <-ended:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A node that is not heard is silent in the list, whatever another says in its name.
func TestNodesBelieveTheSubjectOfAHeartbeat(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b, err := broker.Start(t.Context(), broker.Options{StoreDir: filepath.Join(home, "broker")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	silent := startAgent(t, home, b.URL(), "one")
	startAgent(t, home, b.URL(), "two")
	list := func() map[string]inventory.Node {
		out, err := meshCommand(t, home, "nodes", "--json", "--server="+b.URL()).Output()
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Nodes []inventory.Node }
		if err := json.Unmarshal(out, &answer); err != nil {
			t.Fatal(err)
		}
		nodes := make(map[string]inventory.Node)
		for _, n := range answer.Nodes {
			nodes[string(n.ID)] = n
		}
		return nodes
	}
	boot := string(list()["one"].Boot)
	if err := silent.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	end := make(chan struct{})
	var forger sync.WaitGroup
	forger.Go(func() {
		for {
			forge(t, nc, "two", "one", boot)
			select {
			case <-end:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	nodes := list()
	close(end)
	forger.Wait()
	if one, two := nodes["one"].State, nodes["two"].State; one != "silent" || two != "serving" {
		t.Errorf("node one is %q and node two is %q, want silent and serving", one, two)
	}
}

// A frozen agent takes no labels, and no command waits for it.
func TestNodeLabelOfAFrozenAgent(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b, err := broker.Start(t.Context(), broker.Options{StoreDir: filepath.Join(home, "broker")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	frozen := startAgent(t, home, b.URL(), "one")
	startAgent(t, home, b.URL(), "two")
	if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	cmd := meshCommand(t, home, "node", "label", "one", "a=b", "--server="+b.URL())
	said := newWatch("")
	cmd.Stderr = said
	if got := exitStatus(cmd.Run()); got != 3 || !strings.Contains(said.text(), "whether it went through is not known") {
		t.Errorf("exit status %d:\n%s", got, said.text())
	}
}
