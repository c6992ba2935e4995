package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// handedIn has tasks in every state. The commands that submitted them have ended.
type handedIn struct {
	folder string
	ids    []string
}

// handIn submits tasks that run until they are released: running of them run, the others wait for room, one is
// between two attempts, and one is scheduled.
func (u *user) handIn(t *testing.T, name string, all, running int) *handedIn {
	t.Helper()
	h := &handedIn{folder: open(t)}
	submit := func(tool, id string, args ...string) {
		u.mesh(t, 0, append([]string{"task", "submit", tool, "folder=" + h.folder, "name=" + id, "--id=" + id}, args...)...)
		h.ids = append(h.ids, id)
	}
	retried := name + "-retried"
	submit("held.t.retried", retried, "--attempts=100")
	meshtest.Until(t, "an attempt has failed", func() bool {
		runs, err := os.ReadFile(filepath.Join(h.folder, retried))
		return err == nil && len(runs) > 0
	})
	for i := range all {
		submit("held.t.wait", fmt.Sprintf("%s-wait-%d", name, i))
	}
	submit("held.t.wait", name+"-later", "--in=3s")
	meshtest.Until(t, "tasks run", func() bool {
		files, err := filepath.Glob(filepath.Join(h.folder, name+"-wait-*"))
		return err == nil && len(files) >= running
	})
	return h
}

// end releases the tasks, and waits until each has its result.
func (u *user) end(t *testing.T, h *handedIn) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.folder, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, id := range h.ids {
		if r := u.mesh(t, 0, "task", "wait", id, "--timeout=2m"); strings.TrimSpace(r.stdout) != `"`+id+`"` {
			t.Errorf("%s: %v", id, r)
		}
	}
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

// The router and then an agent, which run tasks and their calls, are killed.
func TestTasksOutliveAgentAndRouter(t *testing.T) {
	t.Parallel()
	const slots, all = 2, 12
	m := newTwoAgents(t, fmt.Sprint("MESH_SLOTS=", slots))
	router, _ := m.start(t, t.TempDir(), "mesh-router", "--server="+m.url)
	router.await(t, router.logs, `msg=ready`)

	first := m.handIn(t, "router", all, 2*slots)
	router.kill(t)
	m.end(t, first)
	second := m.handIn(t, "agent", all, 2*slots)
	m.a.kill(t)
	m.end(t, second)

	var answer struct{ Tasks []struct{ ID, State string } }
	m.json(t, &answer, "task", "ls", "--state=succeeded", "--json")
	if want := len(first.ids) + len(second.ids); len(answer.Tasks) != want {
		t.Errorf("%d of %d tasks have succeeded: %+v", len(answer.Tasks), want, answer.Tasks)
	}
}

// Broker, agent and router are killed at once, and started again on their folders.
func TestTasksOutliveAWholeMesh(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	dir := filepath.Join(u.home, "mesh")
	p := u.up(t, dir, "--slots=2")
	u.mesh(t, 0, "install", "file://"+held(t))
	h := u.handIn(t, "mesh", 6, 2)
	p.kill(t)
	u.up(t, dir)
	u.end(t, h)
}
