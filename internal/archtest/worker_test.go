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

// The agent carries every file of the worker. Which of its rooms may import which is held by
// python/tests/test_rooms.py, that reads Python as Python does.
func TestTheWorkerIsEmbeddedWhole(t *testing.T) {
	t.Parallel()
	root := "../../python"
	if _, err := os.Stat(path.Join(root, "tests/test_rooms.py")); err != nil {
		t.Errorf("nothing holds the worker's rooms: %v", err)
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
