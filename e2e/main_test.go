package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/toolmesh/toolmesh/meshtest"
)

// Of all tests: the folder of shared files, and that of the binaries.
var shared, bin string

// root is the repository's folder, seen from this one.
const root = ".."

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mesh-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared, bin = dir, filepath.Join(dir, "bin")
	if err := meshtest.Programs(bin, "mesh", "mesh-agent", "mesh-router"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}
	meshtest.Parallel(4)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		if err := os.RemoveAll(dir); err != nil && status == 0 {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
		os.Exit(status)
	}))
}

// needsPackages skips a test where packages cannot be had, except in CI.
func needsPackages(t *testing.T) {
	t.Helper()
	if err := installedUV(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("no package index: %v", err)
		}
		t.Skipf("no package index: %v", err)
	}
}

// installedUV puts uv next to the binaries, so that the agents of all tests share it.
var installedUV = sync.OnceValue(func() error {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		out, err := exec.Command(filepath.Join(dir, "uv"), "--version").Output()
		if err == nil && strings.HasPrefix(string(out), "uv ") {
			return nil
		}
	}
	target := filepath.Join(shared, "uv")
	if err := pip("install", "--no-deps", "--target", target, "uv"); err != nil {
		return err
	}
	return os.Symlink(filepath.Join(target, "bin", "uv"), filepath.Join(bin, "uv"))
})

func pip(args ...string) error {
	return run("python3", append([]string{"-m", "pip", "--quiet", "--disable-pip-version-check"}, args...)...)
}

// run runs a command that prepares something.
func run(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return nil
}

// user is a person with their own home folder and our binaries on the PATH.
type user struct {
	home string
	env  []string
	bin  string // a folder of other binaries than those of all tests, or empty
}

func newUser(t *testing.T, env ...string) *user {
	t.Helper()
	home := t.TempDir()
	tmp := filepath.Join(home, "tmp")
	if err := os.Mkdir(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	u := &user{home: home, env: []string{
		"PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + tmp,
		"XDG_DATA_HOME=" + filepath.Join(home, "data"), "XDG_STATE_HOME=" + filepath.Join(home, "state"),
		"XDG_CONFIG_HOME=" + filepath.Join(home, "config"), "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_SYSTEM=" + os.DevNull,
	}}
	for _, name := range []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_CONFIG_FILE", "PIP_TRUSTED_HOST", "SSL_CERT_FILE", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"} {
		if value, ok := os.LookupEnv(name); ok {
			u.env = append(u.env, name+"="+value)
		}
	}
	u.env = append(u.env, env...)
	return u
}

// command is one of our binaries, or any other command, in the user's home.
func (u *user) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path := filepath.Join(cmp.Or(u.bin, bin), name)
	if _, err := os.Stat(path); err != nil {
		path = name
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = u.env, u.home, 20*time.Second
	return cmd
}

// result is how a command ended.
type result struct {
	stdout, stderr string
	status         int
}

func (r result) String() string {
	return fmt.Sprintf("status %d\nstdout: %s\nstderr: %s", r.status, r.stdout, r.stderr)
}

// do runs a command to its end.
func (u *user) do(t *testing.T, name string, args ...string) result {
	t.Helper()
	r, err := finish(u.command(t.Context(), name, args...))
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return r
}

// mesh runs mesh and expects an exit status.
func (u *user) mesh(t *testing.T, status int, args ...string) result {
	t.Helper()
	r := u.do(t, "mesh", args...)
	if r.status != status {
		t.Fatalf("mesh %s: want status %d, got %v", strings.Join(args, " "), status, r)
	}
	return r
}

func finish(cmd *exec.Cmd) (result, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return result{}, err
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}, nil
}
