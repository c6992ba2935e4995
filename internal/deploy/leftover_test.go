package deploy_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// The folder of an index is removed if its first install was killed; those of served indexes stay.
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

// A source that is installed for the whole mesh is refused for a session, and the
// other way round, before anything is built for it, and in words that say why.
func TestSourceInstalledForTheMeshIsRefusedForASession(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, _ := source(t, "idx")
	for _, tc := range []struct {
		name          subjects.IndexName
		first, second subjects.SessionID
		says          string
	}{
		{"wide", "", "t", "installed for the whole mesh"},
		{"narrow", "t", "", `installed for session "t"`},
	} {
		n.mustInstall(t, deploy.Request{Source: url, Name: tc.name, Session: tc.first})
		n.workshop.mu.Lock()
		builds := len(n.workshop.opened)
		n.workshop.mu.Unlock()
		_, err := n.install(t, deploy.Request{Source: url, Name: tc.name, Session: tc.second})
		if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInvalidRequest || !strings.Contains(e.Message, tc.says) || strings.Contains(e.Message, "belongs to") {
			t.Errorf("%s: %v, want invalid_request that says %q", tc.name, err, tc.says)
		}
		n.workshop.mu.Lock()
		if got := len(n.workshop.opened); got != builds {
			t.Errorf("%s: %d builds for what is refused", tc.name, got-builds)
		}
		n.workshop.mu.Unlock()
	}
}
