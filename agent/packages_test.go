package agent_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// uvFolder is where a test run keeps the uv that it installed.
var uvFolder string

// installedUV finds uv or installs it once for all agents of a run.
var installedUV = sync.OnceValues(func() (string, error) {
	if found, err := exec.LookPath("uv"); err == nil {
		if out, err := exec.Command(found, "--version").Output(); err == nil && strings.HasPrefix(string(out), "uv ") {
			return found, nil
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "python3", "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check",
		"--target", uvFolder, "uv").CombinedOutput()
	if err != nil {
		return "", &installError{string(out), err}
	}
	return filepath.Join(uvFolder, "bin", "uv"), nil
})

type installError struct {
	said string
	err  error
}

func (e *installError) Error() string { return e.err.Error() + ": " + e.said }

// needsPackages skips a test where packages cannot be had, except in CI, and
// returns uv.
func needsPackages(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("installs packages")
	}
	uv, err := installedUV()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("uv cannot be installed: %v", err)
		}
		t.Skipf("uv cannot be installed: %v", err)
	}
	return uv
}
