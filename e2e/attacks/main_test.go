package attacks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/meshtest"
)

// nobody is the user of agents that must not be root, in tests that run as root.
const nobody = 65534

// shared is the folder of all files of the tests; all users can reach it. program is mesh, agentProgram mesh-agent.
var shared, program, agentProgram string

func TestMain(m *testing.M) {
	var err error
	if shared, err = os.MkdirTemp("", "mesh-attacks-"); err == nil {
		program, agentProgram = filepath.Join(shared, "mesh"), filepath.Join(shared, "mesh-agent")
		err = os.Chmod(shared, 0o755)
	}
	sessions := makeSessions()
	if err == nil {
		err = meshtest.Programs(shared, "mesh", "mesh-agent")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		_ = os.RemoveAll(shared)
		sessions()
		os.Exit(1)
	}
	meshtest.Parallel(4)
	goleak.VerifyTestMain(m, append(meshtest.LeakOptions(), goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(shared)
		sessions()
		os.Exit(status)
	}))...)
}

// sessionOf returns the folder of a user's login session.
func sessionOf(user int) string { return fmt.Sprintf("/run/user/%d", user) }

// makeSessions makes these folders for the agents' users, if it may; remove removes them.
func makeSessions() (remove func()) {
	var made []string
	for _, user := range []int{os.Geteuid(), nobody} {
		if dir := sessionOf(user); os.Mkdir(dir, 0o700) == nil {
			made = append(made, dir)
			_ = os.Chown(dir, user, user)
		}
	}
	return func() {
		for _, dir := range made {
			_ = os.Remove(dir)
		}
	}
}

// mesh is a mesh up, or an agent at a NATS server of the test.
type mesh struct {
	dir, data, url string
	admin          string // file of the administrator's key
}

// credentials returns the flag for a file with a key, or with a user's JWT.
func credentials(file string) string {
	if filepath.Ext(file) == ".creds" {
		return "--creds=" + file
	}
	return "--nkey=" + file
}

// up starts mesh up. start makes the command, which may be another program that executes it.
func up(t *testing.T, dir string, start func(program string, args ...string) *exec.Cmd, args ...string) *mesh {
	t.Helper()
	m := &mesh{dir: dir, data: filepath.Join(dir, "data")}
	m.admin = access.File(m.data, access.Admin)
	cmd := start(program, append([]string{"up", "--nats-listen=127.0.0.1:0", "--data-dir=" + m.data}, args...)...)
	cmd.Dir = dir
	m.url = begin(t, cmd, `nats=(\S+)(?: \S+)?\n`)[1]
	return m
}

// begin starts a command that runs until the test ends, and waits for its output to match until.
func begin(t *testing.T, cmd *exec.Cmd, until string) []string {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		_ = out.Close()
		t.Skipf("it cannot be started on this machine: %v", err)
	}
	var logs bytes.Buffer // owned by the goroutine until it ends
	said := regexp.MustCompile(until)
	found, read := make(chan []string, 1), make(chan struct{})
	go func() {
		defer close(read)
		for part := make([]byte, 4096); ; {
			n, err := out.Read(part)
			logs.Write(part[:n])
			if said != nil {
				if is := said.FindStringSubmatch(logs.String()); is != nil {
					found <- is
					said = nil
				}
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if !hung.Stop() || err != nil {
			t.Errorf("%s ended with %v", cmd.Args, err)
		}
		<-read
		_ = out.Close()
		if t.Failed() || meshtest.ShowLogs() {
			t.Log(logs.String())
		}
	})
	select {
	case is := <-found:
		return is
	case <-read:
		t.Fatalf("%s ended: %s", cmd.Args, logs.String())
	}
	return nil
}

// upAsUs starts mesh up as the user of the tests.
func upAsUs(t *testing.T, dir string) *mesh {
	t.Helper()
	return up(t, dir, func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Env = environ(dir)
		return cmd
	})
}

// do runs a command of mesh with the administrator's key and expects an exit status.
func (m *mesh) do(t *testing.T, status int, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append(args, "--server="+m.url, credentials(m.admin))...)
	cmd.Dir, cmd.Env = m.dir, environ(m.dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != status {
		t.Fatalf("mesh %s: %v, want status %d\n%s%s", strings.Join(args, " "), err, status, &stdout, &stderr)
	}
	return stdout.String() + stderr.String()
}

// connect connects with the key or the credentials in a file, or without any.
func (m *mesh) connect(t *testing.T, key string, options ...nats.Option) *nats.Conn {
	t.Helper()
	switch {
	case filepath.Ext(key) == ".creds":
		options = append(options, nats.UserCredentials(key))
	case key != "":
		option, err := nats.NkeyOptionFromSeed(key)
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, option)
	}
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	nc, err := nats.Connect(m.url, append([]nats.Option{quiet, nats.NoReconnect()}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// node is a node in the output of mesh nodes.
type node struct {
	ID      string `json:"id"`
	Sandbox struct{ Asked, Effective string }
	Reasons []string
}

func (m *mesh) node(t *testing.T) node {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "nodes", "--json", "--server="+m.url, credentials(m.admin))
	cmd.Env = environ(m.dir)
	out, err := cmd.Output()
	var said struct{ Nodes []node }
	if err == nil {
		err = json.Unmarshal(out, &said)
	}
	if err != nil || len(said.Nodes) != 1 {
		t.Fatalf("mesh nodes: %s, %v", out, err)
	}
	return said.Nodes[0]
}

func environ(home string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_STATE_HOME=" + filepath.Join(home, "state"),
		"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_SYSTEM=" + os.DevNull,
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // independent of the umask
		t.Fatal(err)
	}
}
