//go:build unix

package access_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh/internal/access"
)

const secretFile = "TEST_SECRET_FILE"

// TestReadsASecret is the other process of TestGroupMayReadASecretOfRoot.
func TestReadsASecret(t *testing.T) {
	path := os.Getenv(secretFile)
	if path == "" {
		t.Skip("it is run as another user by TestGroupMayReadASecretOfRoot")
	}
	_, err := access.Read(path)
	fmt.Println("said:", err)
}

// A group may read a file of root's if the process is not root, as for a Secret of Kubernetes; no
// other user may, and only root may write it.
func TestGroupMayReadASecretOfRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("it takes root to run as another user")
	}
	const other = 65532
	dir, err := os.MkdirTemp("", "secret")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the other user comes by
		t.Fatal(err)
	}
	keys := t.TempDir()
	if _, err := access.OpenKeys(keys); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(access.File(keys, access.Node))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "test"), program, 0o755) //nolint:gosec // likewise
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		owner int
		mode  os.FileMode
		good  bool
	}{
		"a Secret's":               {0, 0o440, true},
		"that root may write":      {0, 0o640, true},
		"for the group, one's own": {other, 0o440, false},
		"for all":                  {0, 0o444, false},
		"the group may write":      {0, 0o460, false},
		"one's own":                {other, 0o400, true},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		err := os.WriteFile(path, key, 0o600)
		if err == nil {
			err = os.Chown(path, c.owner, other)
		}
		if err == nil {
			err = os.Chmod(path, c.mode)
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run", "^TestReadsASecret$")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), secretFile+"="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if good := strings.Contains(string(out), "said: <nil>"); good != c.good {
			t.Errorf("%s, mode %v: %s", name, c.mode, out)
		}
	}
}
