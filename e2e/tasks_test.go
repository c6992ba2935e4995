package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// handIn submits tasks that run until the file "go" is in the folder, and returns their
// ids. The commands that submit them have ended then.
func (u *user) handIn(t *testing.T, folder string, n int) []string {
	t.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("task-%d", i)
		u.mesh(t, 0, "task", "submit", "held.t.wait", "folder="+folder, "name="+ids[i], "--id", ids[i])
	}
	return ids
}

// open makes a folder that other users may write to.
func open(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "toolmesh-e2e-")
	if err == nil {
		err = os.Chmod(folder, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

// run waits until the code of tasks runs.
func (u *user) run(t *testing.T, folder string, n int) {
	t.Helper()
	meshtest.Until(t, "all tasks run", func() bool {
		files, err := filepath.Glob(filepath.Join(folder, "task-*"))
		return err == nil && len(files) == n
	})
}

// TestTasksOutliveAgentAndRouter kills the router and an agent, which run tasks and have
// their calls, while the tasks are under way.
func TestTasksOutliveAgentAndRouter(t *testing.T) {
	t.Parallel()
	m := newTwoAgents(t)
	router, _ := m.start(t, t.TempDir(), "mesh-router", "--server="+m.url)
	router.await(t, router.logs, `msg=ready`)
	folder := open(t)
	ids := m.handIn(t, folder, 9)
	m.run(t, folder, len(ids))
	router.kill(t)
	m.a.kill(t)
	if err := os.WriteFile(filepath.Join(folder, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if r := m.mesh(t, 0, "task", "wait", id, "--timeout=2m"); strings.TrimSpace(r.stdout) != `"`+id+`"` {
			t.Errorf("%s: %v", id, r)
		}
	}
	var answer struct{ Tasks []struct{ ID, State string } }
	m.json(t, &answer, "task", "ls", "--state=succeeded", "--json")
	if len(answer.Tasks) != len(ids) {
		t.Errorf("%d of %d tasks have succeeded: %+v", len(answer.Tasks), len(ids), answer.Tasks)
	}
}

// TestTasksOutliveAWholeMesh kills broker, agent and router at once, and starts them again
// on what they have left.
func TestTasksOutliveAWholeMesh(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	dir := filepath.Join(u.home, "mesh")
	p := u.up(t, dir)
	u.mesh(t, 0, "install", "file://"+held(t))
	folder := open(t)
	ids := u.handIn(t, folder, 3)
	u.run(t, folder, len(ids))
	u.mesh(t, 0, "task", "submit", "held.t.fast", "n=5", "--in=2s", "--id=later")
	p.kill(t)
	if err := os.WriteFile(filepath.Join(folder, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	u.up(t, dir)
	for _, id := range ids {
		if r := u.mesh(t, 0, "task", "wait", id, "--timeout=2m"); strings.TrimSpace(r.stdout) != `"`+id+`"` {
			t.Errorf("%s: %v", id, r)
		}
	}
	if r := u.mesh(t, 0, "task", "wait", "later", "--timeout=2m"); strings.TrimSpace(r.stdout) != "5" {
		t.Errorf("a task that was due meanwhile: %v", r)
	}
}
