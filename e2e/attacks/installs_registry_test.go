package attacks_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The sandbox of installs does not prevent a package with compiled code, from the machine's package index.
func TestNumpyInstalls(t *testing.T) {
	t.Parallel()
	path := interpreterAndUV(t)
	dir, err := os.MkdirTemp(shared, "")
	if err != nil {
		t.Fatal(err)
	}
	var environment []string
	for _, one := range os.Environ() {
		for _, family := range []string{"PIP_", "UV_", "SSL_", "HTTP", "http", "NO_PROXY", "no_proxy"} {
			if strings.HasPrefix(one, family) {
				environment = append(environment, one)
			}
		}
	}
	environment = append(environment, environ(dir)...)
	environment = append(environment, "PATH="+path)
	compile := exec.CommandContext(t.Context(), filepath.Join(filepath.SplitList(path)[0], "uv"), "pip", "compile", "--quiet", "-")
	compile.Env, compile.Stdin = append(environment, "UV_SYSTEM_CERTS=true", "UV_NATIVE_TLS=true"), strings.NewReader("numpy\n")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Skipf("no package index can be reached: %v: %s", err, out)
	}
	m := up(t, dir, func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Env = environment
		return cmd
	})
	write(t, filepath.Join(dir, "small", "tools.toml"), "[index]\ntools = [\"m.total\"]\n", 0o644)
	write(t, filepath.Join(dir, "small", "requirements.txt"), "numpy\n", 0o644)
	write(t, filepath.Join(dir, "small", "m.py"), "import numpy\n\n\ndef total() -> float:\n    return float(numpy.ones((3, 4)).sum())\n", 0o644)
	m.do(t, 0, "install", "./small")
	if said := m.do(t, 0, "call", "small.m.total"); strings.TrimSpace(said) != "12.0" && strings.TrimSpace(said) != "12" {
		t.Errorf("it answers %q", said)
	}
}
