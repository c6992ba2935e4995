package mcp_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// rig is a mesh of one machine with the fixtures of the conformance suite.
type rig struct {
	tools string // the folder of other projects' programs
	nats  string // the mesh
	url   string // of its gateway
	mesh  func(args ...string) *exec.Cmd
}

// newRig starts the mesh. It skips the test where the packages of others are missing.
func newRig(t *testing.T) *rig {
	t.Helper()
	tools := os.Getenv("MESH_MCP_TOOLS")
	if tools == "" {
		t.Skip("needs packages of npm and PyPI: run make test-mcp")
	}
	if why, err := os.ReadFile(filepath.Join(tools, "unreachable")); err == nil {
		t.Skipf("the packages cannot be had: %s", why)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	env := append(os.Environ(), "HOME="+home, "XDG_DATA_HOME="+home, "XDG_STATE_HOME="+filepath.Join(home, "state"), "XDG_CONFIG_HOME="+filepath.Join(home, "config"))
	r := &rig{tools: tools, mesh: func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(root, "bin", "mesh"), args...)
		cmd.Env, cmd.Dir, cmd.WaitDelay = env, root, 20*time.Second
		return cmd
	}}
	// Level none: the tool wait writes a file of the test's.
	up := r.mesh("up", "--sandbox=none", "--nats-listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0")
	logs, err := os.Create(filepath.Join(home, "logs"))
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	up.Stderr = logs
	stdout, err := up.StdoutPipe()
	if err == nil {
		err = up.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Process.Signal(syscall.SIGTERM)
		if err := up.Wait(); err != nil || t.Failed() {
			text, _ := os.ReadFile(logs.Name())
			t.Logf("mesh up: %v\n%s", err, text)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	found := regexp.MustCompile(`nats=(nats://\S+) http=(http://\S+)`).FindStringSubmatch(line)
	if found == nil {
		text, _ := os.ReadFile(logs.Name())
		t.Fatalf("mesh up: %q, %v\n%s", line, err, text)
	}
	r.nats, r.url = found[1], found[2]
	for _, index := range []string{"./examples/conformance", "./e2e/mcp/testdata/waits"} {
		if out, err := r.mesh("install", index).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return r
}
