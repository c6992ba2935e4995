package attacks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
)

// nobody is the user of an agent that is not to be root, where the tests are.
const nobody = 65534

// shared is the folder of everything, which all users can reach; program is mesh.
var shared, program string

func TestMain(m *testing.M) {
	var err error
	if shared, err = os.MkdirTemp("", "mesh-attacks-"); err == nil {
		program = filepath.Join(shared, "mesh")
		err = os.Chmod(shared, 0o755)
	}
	if err == nil {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../../cmd/mesh")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		_ = os.RemoveAll(shared)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(shared)
		os.Exit(status)
	}))
}

// mesh is a mesh up of its own.
type mesh struct {
	dir, data, url string
	admin          string // the file of its key
}

// up starts mesh up by a command, which may be another program that ends up as it.
func up(t *testing.T, dir string, start func(program string, args ...string) *exec.Cmd, args ...string) *mesh {
	t.Helper()
	m := &mesh{dir: dir, data: filepath.Join(dir, "data")}
	m.admin = access.File(m.data, access.Admin)
	cmd := start(program, append([]string{"up", "--nats-listen=127.0.0.1:0", "--data-dir=" + m.data}, args...)...)
	var logs bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &logs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("not to be had here: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if !hung.Stop() || err != nil {
			t.Errorf("mesh up ended with %v", err)
		}
		if t.Failed() || os.Getenv("MESH_TEST_LOGS") != "" {
			t.Log(logs.String())
		}
	})
	said := make([]byte, 0, 256)
	for !bytes.ContainsRune(said, '\n') {
		n, err := out.Read(said[len(said):cap(said)])
		said = said[:len(said)+n]
		if err != nil {
			_, _ = io.Copy(io.Discard, out)
			t.Fatalf("mesh up: %s%s, %v", said, logs.String(), err)
		}
	}
	m.url = regexp.MustCompile(`nats=(\S+)`).FindStringSubmatch(string(said))[1]
	return m
}

// upAsUs starts mesh up as who runs the tests.
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
	cmd := exec.CommandContext(t.Context(), program, append(args, "--server="+m.url, "--nkey="+m.admin)...)
	cmd.Dir, cmd.Env = m.dir, environ(m.dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != status {
		t.Fatalf("mesh %s: %v, want status %d\n%s%s", strings.Join(args, " "), err, status, &stdout, &stderr)
	}
	return stdout.String() + stderr.String()
}

// connect makes a connection with the key in a file, or without one.
func (m *mesh) connect(t *testing.T, key string, options ...nats.Option) *nats.Conn {
	t.Helper()
	if key != "" {
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

// node is the one node of the mesh, as mesh nodes shows it.
type node struct {
	ID      string `json:"id"`
	Sandbox struct{ Asked, Effective string }
	Reasons []string
}

func (m *mesh) node(t *testing.T) node {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "nodes", "--json", "--server="+m.url, "--nkey="+m.admin)
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
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}
