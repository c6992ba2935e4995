package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

const usersTools = `
import os

def who() -> int:
    return os.getuid()

def keep(text: str) -> str:
    with open(os.path.expanduser("~/kept"), "a+") as f:
        f.write(text)
        f.seek(0)
        return f.read()

def lead(name: str, to: str) -> None:
    os.remove(os.path.expanduser("~/" + name))
    os.symlink(to, os.path.expanduser("~/" + name))

def read(path: str) -> str:
    with open(path) as f:
        return f.read()
`

// An agent that runs as root runs the tools of each index as a user of its own. That user keeps its
// home until the uninstall, and reads no file of root or of another index.
func TestEachIndexHasAUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	s := meshtest.Broker(t)
	nc := s.Connect(t)
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"executor", "indexes"} { // as strict permissions of root would be
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	each := func(o *agent.Options) { o.WorkerUser = "" }
	a := startIn(t, s, "one", link, each)
	if reasons := lease(t, nc).Reasons; slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(r, "root") }) {
		t.Skip(reasons)
	}
	c := newClient(t, nc, nil)
	files := map[string]string{
		"t.py": usersTools,
		"tools.toml": `[index]
init = ["sh", "-c", "(echo init > $HOME/made) || true; id -u > who; touch $VIRTUAL_ENV/added; ! touch /var/tmp/../../etc/toolmesh-made"]
tools = ["t.who", "t.keep", "t.read", "t.lead"]
[tool.id]
command = ["id", "-u"]
`,
	}
	sources := map[string]string{"first": repository(t, "first", files), "second": repository(t, "second", files)}
	for _, source := range sources {
		install(t, nc, map[string]any{"source": source})
	}
	who := func(index string) int {
		t.Helper()
		uid, command := 0, 0
		callInto(t, c, index+".t.who", `{}`, &uid)
		callInto(t, c, index+".id", `{}`, &command)
		if uid == 0 || uid != command {
			t.Errorf("%s: its function is the user %d, its command %d", index, uid, command)
		}
		return uid
	}
	first, second := who("first"), who("second")
	if first == second {
		t.Errorf("both are the user %d", first)
	}
	gives(t, c, "first.t.keep", `{"text":"a"}`, `"a"`)
	home := filepath.Join(dir, "homes", "first")
	gives(t, c, "first.t.read", fmt.Sprintf(`{"path":%q}`, home+"/made"), `"init\n"`)
	for path, refused := range map[string]string{
		"/etc/shadow": "Permission denied", home + "/kept": "No such file",
		dir + "/node": "No such file", dir + "/jobs": "No such file",
	} {
		fails(t, c, "second.t.read", fmt.Sprintf(`{"path":%q}`, path), "tool_error", refused)
	}

	// A link that a tool left in its home does not mislead a later init.
	target := filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(target, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	gives(t, c, "second.t.lead", fmt.Sprintf(`{"name":"made","to":%q}`, target), `null`)
	testmesh.Commit(t, strings.TrimPrefix(sources["second"], "file://"), map[string]string{"more": "a new revision"})
	install(t, nc, map[string]any{"source": sources["second"]})
	if text, err := os.ReadFile(target); err != nil || string(text) != "root's" {
		t.Errorf("init was led to %q, %v", text, err)
	}
	gives(t, c, "second.t.read", `{"path":"who"}`, fmt.Sprintf(`"%d\n"`, second))

	meshtest.End(t, a)
	startIn(t, s, "one", link, each)
	meshtest.Until(t, "both are served again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := c.Call(ctx, "second.t.who", json.RawMessage(`{}`))
		_, other := c.Call(ctx, "first.t.who", json.RawMessage(`{}`))
		return err == nil && other == nil
	})
	if again := who("first"); again != first {
		t.Errorf("after a restart it is the user %d, not %d", again, first)
	}
	gives(t, c, "first.t.keep", `{"text":"b"}`, `"ab"`)
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "first"}); failure != nil {
		t.Fatal(failure)
	}
	meshtest.Until(t, "its home is gone", func() bool {
		_, err := os.Stat(home)
		return errors.Is(err, fs.ErrNotExist)
	})
	gives(t, c, "second.t.keep", `{"text":"c"}`, `"c"`)
}

// An agent with an unknown worker user starts with the reason in its condition.
func TestInvalidWorkerUserIsRefused(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	a, err := agent.New(s.Connect(t), t.TempDir(), &agent.Options{Node: "one", Environ: os.Environ(), WorkerUser: "nobody of this name"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err == nil || !strings.Contains(err.Error(), `tools cannot run as "nobody of this name": no such user exists on this machine`) {
		t.Errorf("got %v", err)
	}
	meshtest.End(t, a)
}

func callInto(t *testing.T, c *client.Client, tool, args string, into any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := c.Call(ctx, subjects.ToolID(tool), json.RawMessage(args))
	if err == nil {
		err = json.Unmarshal(r.Value, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
