package meshtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Programs puts commands of this module, like mesh-agent, into a folder: as `make build` has made
// them, where MESH_TEST_BIN names their folder, which saves linking them once more.
func Programs(dir string, names ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // agents of other users start them
		return err
	}
	built := os.Getenv("MESH_TEST_BIN")
	if built == "" {
		args := []string{"build", "-buildvcs=false", "-o", dir + string(filepath.Separator)}
		for _, name := range names {
			args = append(args, "github.com/toolmesh/toolmesh/cmd/"+name)
		}
		return command("go", args...)
	}
	for _, name := range names {
		program, err := os.ReadFile(filepath.Join(built, name)) //nolint:gosec // of the test run
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), program, 0o755) //nolint:gosec // as above
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Python makes a virtual environment in a folder, installs the packages that pip's arguments
// name, and returns its interpreter. With uv on PATH it takes a tenth of the time.
func Python(folder string, install ...string) (string, error) {
	python := filepath.Join(folder, "bin", "python")
	if _, err := exec.LookPath("uv"); err == nil {
		if err := command("uv", "venv", "--quiet", "--seed", "--python", "python3", folder); err != nil {
			return "", err
		}
		return python, command("uv", append([]string{"pip", "install", "--quiet", "--python", python}, install...)...)
	}
	if err := command("python3", "-m", "venv", folder); err != nil {
		return "", err
	}
	return python, command(python, append([]string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check"}, install...)...)
}

// command runs a command that prepares something.
func command(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return nil
}
