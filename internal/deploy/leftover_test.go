package deploy_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/meshtest"
)

// The folder of an index whose first install was killed goes with what was in it,
// and what is served stays.
func TestTheFolderOfAnUnfinishedIndexGoes(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	n := start(t, s, "")
	url, _ := source(t, "idx")
	n.mustInstall(t, deploy.Request{Source: url})
	n.stop(t)
	for _, left := range []string{"indexes/slow/0123", "indexes/half/.unpack-1", "indexes/empty"} {
		if err := os.MkdirAll(filepath.Join(n.dir, left), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	again := start(t, s, n.dir)
	for _, name := range []string{"slow", "half", "empty"} {
		if _, err := os.Stat(filepath.Join(n.dir, "indexes", name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("indexes/%s is there after a start: %v", name, err)
		}
	}
	again.workshop.serves(t, "idx", n.record(t, "idx").Revision)
	again.awaitFolders(t, filepath.Join("indexes", "idx", n.record(t, "idx").Bundle))
}
