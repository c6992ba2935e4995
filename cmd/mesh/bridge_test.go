package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolmesh/toolmesh/meshtest"
)

// upWhile runs `mesh up` while the test does.
func upWhile(t *testing.T, home string) {
	t.Helper()
	cmd, _, log := startUp(t, home)
	t.Cleanup(func() {
		_ = cmd.Wait() // the end of the test's context has killed it
		if t.Failed() {
			t.Logf("mesh up:\n%s", log.text())
		}
	})
}

// succeed runs a command and returns its output.
func succeed(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, &errors)
	}
	return strings.TrimSpace(string(out))
}

// The program of examples/bridge, which has nothing of ours, offers tools, calls one,
// and ends well.
func TestBridgeExample(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	upWhile(t, home)
	example, err := filepath.Abs("../../examples/bridge/program.py")
	if err != nil {
		t.Fatal(err)
	}
	program := meshCommand(t, home)
	program.Path, err = exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	program.Args = []string{"python3", example, "--node=example"}
	log := newWatch("")
	program.Stderr = log
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	if line, err := said.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the program says %q, %v\n%s", line, err, log.text())
	}
	for _, c := range []struct{ command, want string }{
		{"call shout text=hello", `"HELLO!"`},
		{"call shout text=hello through=shout", `"HELLO!!"`}, // by way of the mesh
		{"stream countdown n=3", "3\n2\n1"},
		{"call countdown n=2", "1"},
	} {
		if got := succeed(t, meshCommand(t, home, strings.Fields(c.command)...)); got != c.want {
			t.Errorf("mesh %s: %s, want %s", c.command, got, c.want)
		}
	}
	failed := meshCommand(t, home, "call", "shout", "text=x", "through=nowhere", "--json")
	if answer, err := failed.Output(); exitStatus(err) != 1 || !strings.Contains(string(answer), `"type":"RuntimeError"`) || !strings.Contains(string(answer), "program.py") {
		t.Errorf("a tool that fails: %s, %v", answer, err)
	}
	if nodes := succeed(t, meshCommand(t, home, "nodes")); !strings.Contains(nodes, "example") {
		t.Errorf("the program is no node:\n%s", nodes)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(said); err != nil || len(rest) > 0 {
		t.Errorf("the program says %q, %v", rest, err)
	}
	if err := program.Wait(); err != nil {
		t.Errorf("the program ended with %v\n%s", err, log.text())
	}
}

// bridged is a running `mesh bridge`.
type bridged struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  io.Closer
	from *bufio.Reader
	log  *watch
}

func startBridge(t *testing.T, home string, args ...string) *bridged {
	t.Helper()
	b := &bridged{t: t, cmd: meshCommand(t, home, append([]string{"bridge"}, args...)...), log: newWatch("")}
	b.cmd.Stderr = b.log
	var err error
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	b.out, b.from = out, bufio.NewReader(out)
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bridged) write(frame string) {
	b.t.Helper()
	if _, err := b.in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
		b.t.Fatalf("%v\n%s", err, b.log.text())
	}
}

func (b *bridged) read() map[string]any {
	b.t.Helper()
	var head [4]byte
	if _, err := io.ReadFull(b.from, head[:]); err != nil {
		b.t.Fatalf("%v\n%s", err, b.log.text())
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(b.from, body); err != nil {
		b.t.Fatal(err)
	}
	var f map[string]any
	if err := json.Unmarshal(body, &f); err != nil {
		b.t.Fatalf("%s: %v", body, err)
	}
	return f
}

// end is the exit status, when stdout holds nothing more.
func (b *bridged) end() int {
	b.t.Helper()
	if rest, err := io.ReadAll(b.from); err != nil || len(rest) > 0 {
		b.t.Errorf("behind the end stdout has %q, %v", rest, err)
	}
	return exitStatus(b.cmd.Wait())
}

// SIGTERM lets what runs end, and is a good end; a program that closes its pipe in the
// middle of a call is not. stdout has frames alone, at the most talkative level.
func TestBridgeEnds(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	upWhile(t, home)
	called := func(b *bridged) (answer func() (string, int), id any) {
		t.Helper()
		if f := b.read(); f["type"] != "ready" || f["session_id"] != "default" {
			t.Fatalf("first frame %v", f)
		}
		b.write(`{"type":"init_tool_bridge","tools":[{"name":"f"}]}`)
		if f := b.read(); f["status"] != "ok" {
			t.Fatalf("the offer: %v\n%s", f, b.log.text())
		}
		call := meshCommand(t, home, "call", "f", "--json")
		var out bytes.Buffer
		call.Stdout = &out
		if err := call.Start(); err != nil {
			t.Fatal(err)
		}
		return func() (string, int) { err := call.Wait(); return out.String(), exitStatus(err) }, b.read()["rpc_id"]
	}

	b := startBridge(t, home, "--log-level=debug")
	answer, id := called(b)
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if f := b.read(); f["type"] != "draining" {
		t.Errorf("after SIGTERM: %v", f)
	}
	b.write(fmt.Sprintf(`{"type":"rpc_tool_response","rpc_id":%q,"status":"ok","result":"done"}`, id))
	if got, status := answer(); status != 0 || !strings.Contains(got, `"done"`) {
		t.Errorf("the call that ran: %s, status %d", got, status)
	}
	if status := b.end(); status != 0 {
		t.Errorf("status %d after SIGTERM\n%s", status, b.log.text())
	}

	b = startBridge(t, home)
	answer, _ = called(b)
	if err := b.in.Close(); err != nil {
		t.Fatal(err)
	}
	if got, status := answer(); status != 1 || !strings.Contains(got, "worker_crashed") {
		t.Errorf("the call whose program is gone: %s, status %d", got, status)
	}
	if status := b.end(); status != 1 || !strings.Contains(b.log.text(), "left 1 calls that it was serving") {
		t.Errorf("status %d when the program is gone\n%s", status, b.log.text())
	}
	// So is one that reads nothing any more.
	b = startBridge(t, home)
	answer, _ = called(b)
	if err := b.out.Close(); err != nil {
		t.Fatal(err)
	}
	another, err := meshCommand(t, home, "call", "f", "--json").Output()
	if exitStatus(err) != 1 || !strings.Contains(string(another), "worker_crashed") {
		t.Errorf("a call that cannot be written: %s, %v", another, err)
	}
	if got, status := answer(); status != 1 || !strings.Contains(got, "worker_crashed") {
		t.Errorf("the call before: %s, status %d", got, status)
	}
	if status := exitStatus(b.cmd.Wait()); status != 1 {
		t.Errorf("status %d when nobody reads\n%s", status, b.log.text())
	}
	meshtest.Until(t, "the tool is gone", func() bool {
		out, err := meshCommand(t, home, "ls", "--json").Output()
		return err == nil && !strings.Contains(string(out), `"id":"f"`)
	})

	b = startBridge(t, home, "--msgpack")
	if head, err := b.from.Peek(5); err != nil || head[4]&0xf0 != 0xd0 {
		t.Errorf("the first frame with --msgpack begins with %x, %v", head, err)
	}
	_, _ = b.from.Discard(b.from.Buffered())
	if err := b.in.Close(); err != nil {
		t.Fatal(err)
	}
	if status := b.end(); status != 0 {
		t.Errorf("status %d\n%s", status, b.log.text())
	}
}

// Without the key of a node a program calls, and is told why it cannot offer.
func TestBridgeOfACaller(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	upWhile(t, home)
	key := filepath.Join(home, "data", "toolmesh", "keys", "caller.nk")
	if _, err := os.Stat(key); err != nil {
		t.Fatal(err)
	}
	b := startBridge(t, home, "--nkey="+key)
	b.read()
	b.write(`{"type":"init_tool_bridge","rpc_id":1,"tools":[{"name":"f"}]}`)
	if f := b.read(); f["status"] != "error" || f["error"].(map[string]any)["code"] != "permission_denied" {
		t.Errorf("the offer: %v", f)
	}
	b.write(`{"type":"init_tool_bridge","rpc_id":2}`)
	if f := b.read(); f["status"] != "ok" {
		t.Errorf("what there is: %v", f)
	}
	if err := b.in.Close(); err != nil {
		t.Fatal(err)
	}
	if status := b.end(); status != 0 {
		t.Errorf("status %d\n%s", status, b.log.text())
	}
}
