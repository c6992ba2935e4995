package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/toolmesh/toolmesh/meshtest"
)

// e2e/python passes in a virtual environment of its own: a client that uses only nats-py, on a mesh of this test,
// and our package on meshes that its tests start.
func TestPythonClients(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	python, err := meshtest.Python(filepath.Join(t.TempDir(), "venv"), "-r", filepath.Join("python", "requirements.txt"))
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	m, _ := foreign(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder",
		"python/test_host.py", "python/test_wheel.py", "python/test_client.py", "python/test_host_programs.py", "python/test_nodes.py",
		"python") // most of a test is waiting; the longest files come first
	cmd.Env = append(os.Environ(), "MESH_E2E_URL="+m.url, "MESH_E2E_EMPTY="+emptyServer(t), "MESH_E2E_TLS="+tlsMesh(t),
		// Bytecode of all programs, that of our sources, too: to compile them takes each a second more.
		"PYTHONPYCACHEPREFIX="+t.TempDir(), "PYTHONDONTWRITEBYTECODE=",
		"MESH_E2E_BIN="+filepath.Join(bin, "mesh"), "MESH_E2E_AGENT="+filepath.Join(bin, "mesh-agent"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if summary := regexp.MustCompile(`(\d+) passed`).FindString(string(out)); summary == "" || strings.Contains(string(out), "skipped") {
		t.Errorf("not every test ran:\n%s", out)
	} else {
		t.Log(summary)
	}
}

// emptyServer starts a NATS server without a mesh, and returns its URL.
func emptyServer(t *testing.T) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server does not start")
	}
	return s.ClientURL()
}
