package archtest

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/python"
)

// The agent carries every file of the worker. python/tests/test_rooms.py, which reads Python as Python does, holds which
// module of the Python package may import which, and that there are no circles.
func TestTheWorkerIsEmbeddedWhole(t *testing.T) {
	t.Parallel()
	root := "../../python"
	if _, err := os.Stat(path.Join(root, "tests/test_rooms.py")); err != nil {
		t.Errorf("nothing holds the graph of the Python package: %v", err)
	}
	list := func(files fs.FS) (found []string) {
		err := fs.WalkDir(files, python.WorkerDir, func(name string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(name, ".py") {
				found = append(found, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(found)
		return found
	}
	if diff := cmp.Diff(list(os.DirFS(root)), list(python.Worker)); diff != "" {
		t.Errorf("files of the worker and what is embedded (-files +embedded):\n%s", diff)
	}
}
