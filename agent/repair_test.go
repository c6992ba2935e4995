package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// An agent checks its unpacked sources and environments at its start: a full disk, a power loss or
// a tool may have damaged them.
func TestAgentRepairsDamagedFoldersAtItsStart(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	dir := t.TempDir()
	a := startIn(t, s, "one", dir)
	nc := s.Connect(t)
	install(t, nc, map[string]any{"source": repository(t, "index", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.tool\"]\ninit = [\"python\", \"-c\", \"open('made', 'a').write('x')\"]\n",
		"t.py":       "from data import value\ndef tool(): return [value.TEXT, open('made').read()]\n",
		// No newline: a truncated text is still a program.
		"data/value.py": "TEXT = 'one' + 'two' + 'three'",
	})})
	c := newClient(t, nc, nil)
	serves := func(after, want string) {
		t.Helper()
		r, err := c.Call(t.Context(), "index.t.tool", nil)
		if err != nil {
			t.Errorf("%s: %v, want %s", after, err, want)
		} else if string(r.Value) != want {
			t.Errorf("%s: got %s, want %s", after, r.Value, want)
		}
	}
	serves("the install", `["onetwothree","x"]`)
	for _, c := range []struct {
		name, want string
		harm       func(source, env string) error
	}{
		{"nothing", `["onetwothree","x"]`, func(string, string) error { return nil }},
		// The folder is another one now, so the init command has run in it.
		{"a file that was cut short", `["onetwothree","x"]`, func(source, _ string) error {
			return os.Truncate(filepath.Join(source, "data", "value.py"), int64(len("TEXT = 'one'")))
		}},
		{"a half-made folder", `["onetwothree","x"]`, func(source, _ string) error {
			return errors.Join(os.RemoveAll(filepath.Join(source, "data")), os.Remove(filepath.Join(source, "tools.toml")))
		}},
		// The environment was made anew, so the init command ran again.
		{"a damaged environment", `["onetwothree","xx"]`, func(_, env string) error { return os.Truncate(filepath.Join(env, "pyvenv.cfg"), 0) }},
	} {
		meshtest.End(t, a)
		sources, err := filepath.Glob(filepath.Join(dir, "indexes", "*", "*"))
		envs := environments(t, dir)
		if err != nil || len(sources) != 1 || len(envs) != 1 {
			t.Fatalf("sources %v, environments %v, %v", sources, envs, err)
		}
		if err := c.harm(sources[0], envs[0]); err != nil {
			t.Fatal(err)
		}
		a = startIn(t, s, "one", dir)
		if err := a.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		serves(c.name, c.want)
	}
}
