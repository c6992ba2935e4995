package agent_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// An init command that ignores signals, and has left processes in sessions of their own, ends with
// all of them when its index is uninstalled.
func TestUninstallEndsAnInitThatIgnoresSignals(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	script := "i" + uuid.NewString() + ".py"
	source := repository(t, "stuck", map[string]string{
		"tools.toml": "[index]\ninit = ['python', '" + script + "']\ntools = ['m.f']\n", "m.py": "def f() -> int:\n    return 1\n",
		script: `import os, signal
for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(one, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            signal.pause()
while True:
    signal.pause()
`,
	})
	processes := func() (n int) {
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if text, _ := os.ReadFile(line); bytes.Contains(text, []byte(script)) { // of one that has ended: empty
				n++
			}
		}
		return n
	}
	installed := make(chan *toolmesh.Error, 1)
	go func() {
		_, failure, err := tryAdmin(t.Context(), nc, "install", map[string]any{"source": source})
		if err != nil {
			t.Error(err)
		}
		installed <- failure
	}()
	meshtest.Until(t, "the command and what it left behind run", func() bool { return processes() >= 4 })
	if _, failure := admin(t, nc, "uninstall", map[string]any{"name": "stuck"}); failure != nil {
		t.Errorf("uninstall: %v", failure)
	}
	if failure := <-installed; failure == nil || failure.Code != toolmesh.CodeCancelled {
		t.Errorf("install: %v", failure)
	}
	meshtest.Until(t, "nothing of it runs", func() bool { return processes() == 0 })
}
