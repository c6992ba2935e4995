package venv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The interpreter itself, and no shim before it, which takes longer to start.
	if python, err := exec.Command("python3", "-I", "-S", "-c", "import sys; print(sys._base_executable, end='')").Output(); err == nil {
		_ = os.Setenv("PATH", filepath.Dir(string(python))+":"+os.Getenv("PATH"))
	}
	goleak.VerifyTestMain(keptTogether{m}, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(uvFolder)
		_ = os.RemoveAll(workerFolder)
		os.Exit(status)
	}))
}

// keptTogether ends the spawner of the tests after them.
type keptTogether struct{ *testing.M }

func (m keptTogether) Run() int {
	status := m.M.Run()
	if workerFolder != "" {
		spawner().Close()
	}
	return status
}
