package agent_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
)

// refusing names the variable that tells a re-executed test that its system
// refuses namespaces.
const refusing = "TOOLMESH_TEST_REFUSING"

// On a machine that cannot confine as strict demands, a tool that demands strict is not served and
// has the reason, the others are, and the lease names the level in force. The refusal is real: the
// test runs itself in a user namespace that allows no IPC namespace.
func TestAToolThatDemandsMoreThanTheMachineGives(t *testing.T) {
	t.Parallel()
	if os.Getenv(refusing) == "" {
		runtime.LockOSThread() // the system takes this thread's end for its parent's
		defer runtime.UnlockOSThread()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), refusing+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			Pdeathsig:   syscall.SIGKILL,
		}
		out, err := cmd.CombinedOutput()
		switch {
		case cmd.Process == nil:
			t.Skipf("no user namespaces here: %v", err)
		case strings.Contains(string(out), "--- SKIP"):
			t.Skipf("%s", out)
		case err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()):
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_ipc_namespaces", []byte("0"), 0); err != nil {
		t.Skipf("namespaces cannot be refused here: %v", err)
	}
	s := meshtest.Broker(t)
	startIn(t, s, "one", t.TempDir(), func(o *agent.Options) { o.Sandbox = "strict" })
	nc := s.Connect(t)
	body := install(t, nc, map[string]any{"source": limitedRepository(t)})
	list, _ := body["unavailable"].([]any)
	if len(list) != 1 {
		t.Fatalf("unavailable: %v, want one tool", list)
	}
	lost, _ := list[0].(map[string]any)
	reason := fmt.Sprint(lost["reason"])
	if lost["id"] != "lim.t.confined" || !strings.Contains(reason, "sandbox level strict") || !strings.Contains(reason, "IPC") {
		t.Errorf("unavailable: %v", lost)
	}
	c := newClient(t, nc, nil)
	_, err := c.Call(t.Context(), toolID("lim", "t.confined"), nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo ||
		!strings.Contains(e.Message, "sandbox level strict") {
		t.Errorf("a call of it: %v", err)
	}
	if r, err := c.Call(t.Context(), toolID("lim", "t.write"), nil); err != nil || string(r.Value) != `"ok"` {
		t.Errorf("write: got %v, %v", r, err)
	}
	last := install(t, nc, map[string]any{"source": repository(t, "cmd", map[string]string{"tools.toml": outside(t, limitedCommands)})})
	for _, one := range []string{"cmd.confined", "cmd.temporary", "cmd.offline"} {
		if !strings.Contains(fmt.Sprint(unavailableOf(last)), one) {
			t.Errorf("%s is served: unavailable are %v", one, unavailableOf(last))
		}
	}
	gives(t, c, "cmd.touch", `{}`, `""`)
	node := lease(t, nc)
	if diff := cmp.Diff(registry.SandboxState{Asked: "strict", Effective: "guard"}, node.Sandbox); diff != "" {
		t.Errorf("the lease's sandbox (-want +got):\n%s", diff)
	}
	if len(node.Reasons) != 1 || !strings.Contains(node.Reasons[0], "sandbox level strict") || !strings.Contains(node.Reasons[0], "IPC") {
		t.Errorf("reasons %q", node.Reasons)
	}
}
