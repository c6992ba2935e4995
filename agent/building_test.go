package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/router/standby"
)

// The only node of an index starts again, makes its damaged environment anew and imports for
// seconds. Calls of that time are refused without a router, with the advice to come back, and
// wait for the end of the build at a router.
func TestCallsDuringABuild(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	dir, marks := t.TempDir(), t.TempDir()
	hold, imported := filepath.Join(marks, "hold"), filepath.Join(marks, "imported")
	a := startIn(t, s, "one", dir)
	nc := s.Connect(t)
	install(t, nc, map[string]any{"source": repository(t, "index", map[string]string{"tools.toml": working, "t.py": "import os, time\n" +
		"def tool(): return 'built'\n" +
		"while os.path.exists(" + quoted(hold) + "):\n" +
		"    open(" + quoted(imported) + ", 'w').close()\n" +
		"    time.sleep(0.02)\n"})})
	meshtest.End(t, a)
	envs := environments(t, dir)
	if len(envs) != 1 {
		t.Fatalf("environments: %v", envs)
	}
	if err := os.Truncate(filepath.Join(envs[0], "pyvenv.cfg"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	startIn(t, s, "one", dir)
	meshtest.Until(t, "its module is imported", func() bool {
		_, err := os.Stat(imported)
		return err == nil
	})
	time.Sleep(3 * time.Second) // of a build, not of a race: nothing has to happen meanwhile
	c := newClient(t, nc, nil)
	_, err := c.Call(t.Context(), "index.t.tool", nil)
	if e := toolmesh.AsError(err); err == nil || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo || !e.Retryable || !strings.Contains(e.Message, "send the call again later") {
		t.Errorf("without a router: %+v", e)
	}
	r := testmesh.Router(t, s.Connect(t), &router.Options{Standby: &standby.Options{}})
	testmesh.Start(t, r)
	type answer struct {
		*client.Result
		error
	}
	answers := make(chan answer, 1)
	meshtest.Until(t, "the router takes calls of the index", func() bool { return r.Standby().Indexes == 1 })
	go func() {
		result, err := c.Call(t.Context(), "index.t.tool", nil, client.WithTimeout(time.Minute))
		answers <- answer{result, err}
	}()
	meshtest.Until(t, "the call waits", func() bool {
		select {
		case got := <-answers:
			t.Fatalf("the call did not wait: %v", got.error)
		default:
		}
		return r.Seen().Awaited()[registry.DefaultPool].Calls == 1
	})
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	if got := <-answers; got.error != nil || string(got.Value) != `"built"` || got.NodeWait <= 0 {
		t.Errorf("the call that waited: %+v %v", got.Result, got.error)
	}
}
