package access_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/meshtest"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

func TestKeysThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := access.OpenKeys(dir); err != nil {
		t.Fatal(err)
	}
	path := access.File(dir, access.Admin)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"readable by others": {string(whole), 0o644, "chmod 600"},
		"damaged":            {strings.Replace(string(whole), "SU", "SUA", 1), 0o600, "damaged"},
		"empty":              {"", 0o600, "SU"},
		"a public key":       {"UAAAA\n", 0o600, "SU"},
	} {
		file := filepath.Join(t.TempDir(), "key.nk")
		if err := os.WriteFile(file, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := access.Read(file)
		if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", what, err)
		}
		for line := range strings.Lines(string(whole)) {
			if strings.HasPrefix(line, "SU") && strings.Contains(err.Error(), strings.TrimSpace(line)[3:20]) {
				t.Errorf("%s: the error tells the key", what)
			}
		}
	}
	if _, err := access.Read(filepath.Join(dir, "none")); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("missing: %v", err)
	}
	// A start with a key that others may read says so, and makes no other one.
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := access.OpenKeys(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("open: %v", err)
	}
}

// Commands that make the keys of a mesh at once all get the same ones, those in the files, and only one of those that
// make a session's key in one file gets it.
func TestKeysThatAreMadeAtOnceAreOne(t *testing.T) {
	t.Parallel()
	for range 20 {
		dir := t.TempDir()
		file := filepath.Join(dir, "bob.nk")
		var making sync.WaitGroup
		made, owners := make([]access.Keys, 8), make([]string, 8)
		for i := range made {
			making.Go(func() {
				var err error
				if made[i], err = access.OpenKeys(dir); err != nil {
					t.Error(err)
				}
				owners[i], _ = access.CreateSessionKey(file) // it may be another's already
			})
		}
		making.Wait()
		kept, err := access.OpenKeys(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, keys := range made {
			if !maps.Equal(keys, kept) {
				t.Fatalf("one got the keys %v, and %v are kept", keys, kept)
			}
		}
		public, err := access.PublicKey(file)
		owners = slices.DeleteFunc(owners, func(one string) bool { return one == "" })
		if err != nil || !slices.Equal(owners, []string{public}) {
			t.Fatalf("%v got the key %s: %v", owners, public, err)
		}
	}
}

// The key of a person's indexes is made once, and is that person's alone to read.
func TestOneOwnerIsMade(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "owner.nk")
	first, err := access.OpenOwner(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := access.OpenOwner(path)
	if err != nil {
		t.Fatal(err)
	}
	one, errOne := first.PublicKey()
	two, errTwo := again.PublicKey()
	if errOne != nil || errTwo != nil || one != two {
		t.Errorf("%s and %s, %v %v", one, two, errOne, errTwo)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	names, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(names) != 1 {
		t.Errorf("beside the key: %v, %v", names, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := access.OpenOwner(path); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("one that others read: %v", err)
	}
}
