package venv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What uv finds when it makes the lock is what the package index has today; what
// the author wrote is what it had when they looked.
func TestTheHashesOfARequirementsFileStandInTheLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"requirements.txt": "\ufeff--index-url https://example.org/simple\r\n" +
			"Some_Package[extra] == 1.0 ; python_version > '3' \\\r\n    --hash=sha256:aa \\\r\n    --hash sha512:bb  # why\r\n" +
			"free>=1\n-r more/base.txt\n-c missing.txt\n",
		"more/base.txt": "-r ../requirements.txt\nother.one==2.10 --hash=sha256:cc#2\nbare==3\n# gone==1 --hash=sha256:dd\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pins := pinned(filepath.Join(dir, "requirements.txt"))
	want := map[string][]string{"some-package==1": {"sha256:aa", "sha512:bb"}, "other-one==2.10": {"sha256:cc#2"}}
	if diff := cmp.Diff(want, pins); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	got := string(hold([]byte("bare==3 \\\n    --hash=sha256:11\nfree==1.2 \\\n    --hash=sha256:22 \\\n    --hash=sha256:33\n"+
		"./here\nother-one==2.10 \\\n    --hash=sha256:44\nsome-package==1.0.0 ; python_version > '3' \\\n    --hash=sha256:55\n"), pins))
	lock := "bare==3 \\\n    --hash=sha256:11\nfree==1.2 \\\n    --hash=sha256:22 \\\n    --hash=sha256:33\n" +
		"./here\nother-one==2.10 \\\n    --hash=sha256:cc#2\nsome-package==1.0.0 ; python_version > '3' \\\n    --hash=sha256:aa \\\n    --hash=sha512:bb\n"
	if diff := cmp.Diff(lock, got); diff != "" {
		t.Errorf("the lock (-want +got):\n%s", diff)
	}
	if text := "bare==3 \\\n    --hash=sha256:11\n"; string(hold([]byte(text), nil)) != text {
		t.Error("a lock is changed without a reason")
	}
}
