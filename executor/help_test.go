package executor

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/executor/internal/venv"
)

// Output of a build shows no password of a proxy, also in forms other than URLs.
func TestProxyLoginsStayOutOfBuilds(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	const proxy = "HTTPS_PROXY=alice:s3cretpass@proxy:3128"
	x, err := New(t.TempDir(), &Options{Environ: []string{"PATH=/usr/local/bin:/usr/bin:/bin", proxy}, ToolEnv: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	_, said, err := x.help(context.WithoutCancel(t.Context()), venv.Builder, venv.Job{
		Interpreter: python, Dir: t.TempDir(), Tmp: t.TempDir(), Argv: []string{python, "-c", "import os, sys; sys.exit(os.environ['HTTPS_PROXY'])"}, Env: []string{proxy},
	})
	if err == nil || !strings.Contains(said, "***@proxy:3128") || strings.Contains(said, "s3cret") {
		t.Errorf("%v: %q", err, said)
	}
}
