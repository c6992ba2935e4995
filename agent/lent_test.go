package agent_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/meshtest"
)

// hostileInit runs as the index's init command, in the folder that it is lent. It tries
// to have the agent write through links, and to read another manifest and lock when it
// starts again.
const hostileInit = `
import os, sys
target = sys.argv[1]
if os.path.lexists(".toolmesh"):
    os.rename(".toolmesh", "elsewhere")
os.symlink(os.path.dirname(target), ".toolmesh")
with open("tools.toml", "w") as f:
    f.write('[index]\ntools = ["t.other"]\npaths = [{path = "~/made-by-the-agent", write = true}]\n')
with open("pyproject.toml", "w") as f:
    f.write('[project]\nname = "x"\nversion = "1"\nrequires-python = ">=4"\n')
with open("runs", "a") as f:
    f.write("x")
`

// A hostile init command changes nothing outside of its index: the agent records elsewhere that it
// has run, and reads the index from its own copy.
func TestAgentFollowsNoLinkThatInitLeft(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	for _, user := range []string{"", "root"} {
		dir, keys := t.TempDir(), t.TempDir()
		for _, name := range []string{"files.txt", "lock.txt", "bundle.json", "init.done", "target"} {
			if err := os.WriteFile(filepath.Join(keys, name), []byte("root's"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		change := func(o *agent.Options) {
			if o.WorkerUser = user; user == "root" {
				o.Sandbox = "none" // so that it may write wherever the agent may
			}
		}
		node := "one" + user
		a := startIn(t, s, "hostile", dir, change)
		install(t, nc, map[string]any{"source": repository(t, "hostile"+user, map[string]string{
			"tools.toml": "[index]\ntools = [\"t.tool\"]\ninit = [\"python\", \"attack.py\", \"" + filepath.Join(keys, "target") + "\"]\n",
			"attack.py":  hostileInit, "t.py": "def tool(): return open('runs').read()\ndef other(): return 'other'\n",
		})})
		c := newClient(t, nc, nil)
		for _, when := range []string{"the install", "a restart", "another restart"} {
			gives(t, c, "hostile"+user+".t.tool", `{}`, `"x"`)
			if tools, err := c.List(t.Context()); err != nil || len(tools) != 1 {
				t.Errorf("%s, after %s: the tools are %v, %v", node, when, tools, err)
			}
			for _, name := range []string{"files.txt", "lock.txt", "bundle.json", "init.done", "target"} {
				if data, err := os.ReadFile(filepath.Join(keys, name)); err != nil || string(data) != "root's" {
					t.Errorf("%s, after %s: %s is %q, %v", node, when, name, data, err)
				}
			}
			meshtest.End(t, a)
			a = startIn(t, s, "hostile", dir, change)
			if err := a.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "hostile" + user}); failure != nil {
			t.Fatal(failure)
		}
		meshtest.Until(t, "its folders are gone", func() bool {
			left, err := filepath.Glob(filepath.Join(dir, "*", "hostile"+user))
			return err == nil && len(left) == 0
		})
		meshtest.End(t, a)
	}
}

// Files that an honest init command wrote next to the modules survive a restart, and it runs once.
func TestFilesOfAnHonestInitStay(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	dir := t.TempDir()
	each := func(o *agent.Options) { o.WorkerUser = "" }
	a := startIn(t, s, "one", dir, each)
	source := map[string]any{"source": repository(t, "honest", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.tool\"]\ninit = [\"python\", \"prepare.py\"]\n",
		"prepare.py": "import os, t\nos.makedirs('data/made')\nopen('data/made/model', 'a').write('x')\n",
		"t.py":       "def tool(): return open('data/made/model').read()\n", "data/seed": "1",
	})}
	install(t, nc, source)
	c := newClient(t, nc, nil)
	gives(t, c, "honest.t.tool", `{}`, `"x"`)
	meshtest.End(t, a)
	a = startIn(t, s, "one", dir, each)
	if err := a.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	gives(t, c, "honest.t.tool", `{}`, `"x"`)
	// Installed again, the index runs its init command again.
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "honest"}); failure != nil {
		t.Fatal(failure)
	}
	meshtest.Until(t, "its folders are gone", func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "*", "honest"))
		return err == nil && len(left) == 0
	})
	install(t, nc, source)
	gives(t, c, "honest.t.tool", `{}`, `"x"`)
}

// Only the user of an index can read its files, in each sandbox level, and only the agent reads the
// agent's.
func TestSourcesAreTheirUsers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: all are one user")
	}
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	dir := t.TempDir()
	for folder := dir; folder != "/"; folder = filepath.Dir(folder) { // the way to it is open
		if info, err := os.Stat(folder); err == nil && info.Mode()&1 == 0 {
			if err := os.Chmod(folder, info.Mode().Perm()|0o055); err != nil {
				t.Fatal(err)
			}
		}
	}
	each := func(o *agent.Options) { o.WorkerUser = "" }
	a := startIn(t, s, "one", dir, each)
	if reasons := lease(t, nc).Reasons; slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(r, "root") }) {
		t.Skip(reasons)
	}
	who := map[string]int{}
	c := newClient(t, nc, nil)
	for _, name := range []string{"first", "second"} {
		install(t, nc, map[string]any{"source": repository(t, name, map[string]string{
			"tools.toml": "[index]\ntools = [\"t.who\"]\ninit = [\"sh\", \"-c\", \"umask 000; mkdir -p sub; echo made > sub/made\"]\n",
			"t.py":       "import os\ndef who() -> int: return os.getuid()\n", "requirements.txt": "# token\n",
		})})
		uid := 0
		callInto(t, c, name+".t.who", `{}`, &uid)
		who[name] = uid
	}
	readsAs := func(uid int, path string) bool {
		cmd := exec.CommandContext(t.Context(), "cat", path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "Permission denied") {
			t.Fatalf("cat %s: %v %s", path, err, out)
		}
		return err == nil
	}
	look := func(when string) {
		t.Helper()
		for _, file := range []string{"requirements.txt", "t.py", "sub/made"} {
			found, err := filepath.Glob(filepath.Join(dir, "indexes", "first", "*", file))
			if err != nil || len(found) != 1 {
				t.Fatal(found, err)
			}
			for reader, uid := range map[string]int{"first": who["first"], "second": who["second"], "nobody": 65534} {
				if got, want := readsAs(uid, found[0]), reader == "first"; got != want {
					t.Errorf("%s: %s reads %s: %v, want %v", when, reader, file, got, want)
				}
			}
		}
		err := filepath.WalkDir(filepath.Join(dir, "records"), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			if readsAs(who["first"], path) {
				return fmt.Errorf("%s can be read by a tool", path)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	look("installed")
	meshtest.End(t, a)
	sources, err := filepath.Glob(filepath.Join(dir, "indexes", "*", "*"))
	if err != nil || len(sources) != 2 {
		t.Fatal(sources, err)
	}
	var open []error
	for _, source := range sources { // as an earlier version left them
		open = append(open, os.Chmod(source, 0o755), os.Chown(source, 0, 0))
	}
	if err := errors.Join(open...); err != nil {
		t.Fatal(err)
	}
	if err := startIn(t, s, "one", dir, each).Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	gives(t, c, "first.t.who", `{}`, fmt.Sprint(who["first"]))
	look("restarted")
}
