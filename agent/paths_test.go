package agent_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

const pathsTools = `
import os

def read(path: str) -> str:
    with open(os.path.expanduser(path)) as f:
        return f.read()

def write(path: str, mode: int = 0o644) -> None:
    os.close(os.open(os.path.expanduser(path), os.O_CREAT | os.O_WRONLY, mode))

def strictly(path: str) -> None:
    write(path)

def set_id(path: str) -> None:
    os.chmod(path, 0o4755)
`

// pathsIndex is an index that asks for folders.
func pathsIndex(paths string) map[string]string {
	return map[string]string{"t.py": pathsTools, "tools.toml": `[index]
tools = ["t.read", "t.write", "t.strictly", "t.set_id"]
paths = ` + paths + `
[tool."t.strictly"]
sandbox = "strict"
[tool.put]
command = ["sh", "-c", "echo null | tee \"$0\"", "{path}"]
`}
}

// folder makes a folder with a file, of a mode and an owner.
func folder(t *testing.T, path string, mode os.FileMode, owner int) string {
	t.Helper()
	err := os.MkdirAll(path, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(path, "there"), []byte("text"), 0o600)
	}
	if err == nil {
		err = os.Chmod(path, mode)
	}
	for _, one := range []string{path, filepath.Join(path, "there")} {
		if err == nil && owner != os.Geteuid() {
			err = os.Chown(one, owner, owner)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// openBelow makes a folder that others may pass.
func openBelow(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "paths-")
	if err == nil {
		err = os.Chmod(dir, 0o755) //nolint:gosec // others are to pass it
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func at(path, name string) string { return fmt.Sprintf(`{"path":%q}`, filepath.Join(path, name)) }

// The tools of an index read and write the folders given to it, whichever user owns them, and none
// next to them. New files belong to the folder's owner and are no way to become that user.
func TestFoldersOfAnIndex(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]string{"users of their own": "", "the agent's user": strconv.Itoa(os.Geteuid())} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := user == ""
			if own && os.Geteuid() != 0 {
				t.Skip("not root")
			}
			s := meshtest.Broker(t)
			nc := s.Connect(t)
			startIn(t, s, "one", t.TempDir(), func(o *agent.Options) { o.WorkerUser = user })
			if reasons := lease(t, nc).Reasons; len(reasons) > 0 {
				t.Skip(reasons)
			}
			c, top := newClient(t, nc, nil), openBelow(t)
			roots, closed := folder(t, top+"/roots", 0o700, os.Geteuid()), folder(t, top+"/closed", 0o700, os.Geteuid())
			inner, asked := folder(t, closed+"/inner", 0o755, os.Geteuid()), folder(t, top+"/asked", 0o755, os.Geteuid())
			others := folder(t, top+"/others", 0o700, map[bool]int{true: 4321, false: os.Geteuid()}[own])
			source := repository(t, "files", pathsIndex(fmt.Sprintf(
				`[{path = %q, write = true}, {path = "~/notes", write = true}, {path = "/etc", write = true}, {path = "/nowhere"}]`, asked)))
			last := install(t, nc, map[string]any{"source": source, "paths": []map[string]any{
				{"path": roots, "write": true}, {"path": inner, "write": true}, {"path": others}, {"path": folder(t, roots+"/below", 0o700, os.Geteuid()), "write": true},
			}})
			for _, want := range []string{
				"the index has the folder " + asked + " to write, which it asks for",
				"the index asks for the folder /etc to write and does not get it: it belongs to the system, or is a user's home (mesh install … --path /etc:rw gives it)",
				"the index asks for the folder /nowhere to read and does not get it: no such folder exists on this node",
			} {
				if !strings.Contains(fmt.Sprint(last["warnings"]), want) {
					t.Errorf("no warning %q in %v", want, last["warnings"])
				}
			}
			for _, dir := range []string{roots, inner, asked} {
				gives(t, c, "files.t.read", at(dir, "there"), `"text"`)
				gives(t, c, "files.t.write", at(dir, "made"), `null`)
				gives(t, c, "files.t.strictly", at(dir, "strictly"), `null`)
				gives(t, c, "files.put", at(dir, "put"), `null`)
				for _, made := range []string{"made", "strictly", "put"} {
					var stat syscall.Stat_t
					if err := syscall.Stat(filepath.Join(dir, made), &stat); err != nil || int(stat.Uid) != os.Geteuid() {
						t.Errorf("%s in %s: %v, of the user %d", made, dir, err, stat.Uid)
					}
				}
			}
			gives(t, c, "files.t.read", at(others, "there"), `"text"`)
			gives(t, c, "files.t.write", `{"path":"~/notes/made"}`, `null`)
			gives(t, c, "files.t.read", `{"path":"~/notes/made"}`, `""`)
			fails(t, c, "files.t.strictly", at(others, "made"), "tool_error", "")
			fails(t, c, "files.t.strictly", at(top, "made"), "tool_error", "")
			if own {
				ownFolders(t, c, roots, others, closed)
				testmesh.Commit(t, strings.TrimPrefix(source, "file://"), map[string]string{"more": "a new revision"})
				if _, failure := admin(t, nc, "install", map[string]any{"source": source}); failure == nil || !strings.Contains(failure.Message, "it is reached through a symbolic link") {
					t.Errorf("installed again with the link: %v", failure)
				}
			}
		})
	}
}

// ownFolders checks an agent that runs tools under users of their own.
func ownFolders(t *testing.T, c *client.Client, roots, others, closed string) {
	t.Helper()
	fails(t, c, "files.t.write", at(others, "made"), "tool_error", "Read-only file system")
	fails(t, c, "files.t.read", at(closed, "there"), "tool_error", "No such file")
	fails(t, c, "files.t.write", at("/etc", "made"), "tool_error", "Permission denied")
	gives(t, c, "files.t.write", at(roots, "program"), `null`)
	fails(t, c, "files.t.set_id", at(roots, "program"), "tool_error", "Operation not permitted")
	fails(t, c, "files.t.write", fmt.Sprintf(`{"path":%q,"mode":%d}`, roots+"/another", 0o4755), "tool_error", "Operation not permitted")
	// A folder is replaced by a link to a folder that was not given, as another index could do that
	// has the one above.
	err := os.Rename(roots+"/below", roots+"/old")
	if err == nil {
		err = os.Symlink(closed, roots+"/below")
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Call(t.Context(), "files.t.read", json.RawMessage(at(roots+"/below", "there")), client.WithIsolation(toolmesh.IsolationFresh))
	if err == nil {
		t.Errorf("a folder that was not given is read: %s", r.Value)
	}
	for _, name := range []string{"program", "another"} {
		if info, err := os.Stat(filepath.Join(roots, name)); err == nil && info.Mode()&os.ModeSetuid != 0 {
			t.Errorf("%s is what root's programs are: %v", name, info.Mode())
		}
	}
}

// Folders that cannot be given are refused when the index is installed.
func TestFoldersThatCannotBeGiven(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nc, dir := s.Connect(t), t.TempDir()
	startIn(t, s, "one", dir)
	source := repository(t, "files", pathsIndex("[]"))
	link := filepath.Join(openBelow(t), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		path, text string
		code       toolmesh.Code
	}{
		{"relative", "must be an absolute path, or one below ~/", "invalid_request"},
		{"~/../up", "must be an absolute path, or one below ~/", "invalid_request"},
		{"/nowhere", "--path /nowhere: no such folder exists on this node", "install_failed"},
		{"/etc/passwd", "it is not a folder", "install_failed"},
		{link, "it is reached through a symbolic link: use its own path, which is " + dir + " now", "install_failed"},
		{dir + "/executor", "it contains the agent's own files", "install_failed"},
		{"/", "it contains the agent's own files", "install_failed"},
	} {
		_, failure := admin(t, nc, "install", map[string]any{"source": source, "paths": []map[string]any{{"path": one.path}}})
		if failure == nil || failure.Code != one.code || !strings.Contains(failure.Message, one.text) {
			t.Errorf("%s: %v, want %s with %q", one.path, failure, one.code, one.text)
		}
	}
	_, failure := admin(t, nc, "install", map[string]any{"source": repository(t, "wrong", pathsIndex(`["/data", {path = "x"}]`))})
	if failure == nil || !strings.Contains(failure.Error(), "paths") {
		t.Errorf("a list of texts: %v", failure)
	}
}
