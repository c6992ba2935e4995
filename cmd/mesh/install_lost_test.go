package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/internal/broker"
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

// An install whose agent is killed ends although another agent is well, and says
// what has become of it: nothing but that agent's heartbeat tells.
func TestInstallEndsWithItsAgent(t *testing.T) {
	t.Parallel()
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
	agents := map[string]*exec.Cmd{"one": startAgent(t, home, b.URL(), "one"), "two": startAgent(t, home, b.URL(), "two")}
	cmd := meshCommand(t, home, "install", slow, "--server="+b.URL())
	said := newWatch("")
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var begun []string
	meshtest.Until(t, "the init command runs", func() bool {
		begun, _ = filepath.Glob(filepath.Join(home, "*", "indexes", "slow", "*", "begun"))
		return len(begun) > 0
	})
	rel, err := filepath.Rel(home, begun[0])
	if err != nil {
		t.Fatal(err)
	}
	lost, _, _ := strings.Cut(rel, string(filepath.Separator))
	if err := agents[lost].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	if got := exitStatus(cmd.Wait()); got != 3 {
		t.Errorf("exit status %d, want 3", got)
	}
	if took := time.Since(killed); took > 20*time.Second {
		t.Errorf("that the agent is gone was seen after %s", took)
	}
	for _, want := range []string{"node " + lost, "was not finished", "run it again"} {
		if !strings.Contains(said.text(), want) {
			t.Errorf("stderr has no %q:\n%s", want, said.text())
		}
	}
}
