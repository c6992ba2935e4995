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
)

// TestForeignPythonClient runs e2e/python with nats-py, in a virtual environment
// of its own, against a mesh.
func TestForeignPythonClient(t *testing.T) {
	t.Parallel()
	needsPackages(t)
	venv := filepath.Join(t.TempDir(), "venv")
	if err := run("python3", "-m", "venv", venv); err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(venv, "bin", "python")
	if err := run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", filepath.Join("python", "requirements.txt")); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	m, _ := foreign(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "python")
	cmd.Env = append(os.Environ(), "MESH_E2E_URL="+m.url, "PYTHONDONTWRITEBYTECODE=1")
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
