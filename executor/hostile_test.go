package executor_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/python"
	"github.com/toolmesh/toolmesh/tool"
)

// impostor has messages that a module can send in its zygote's name.
const impostor = `
import _socket, os, stat, sys

frames = next(m for name, m in sys.modules.items() if name.endswith(".wire.frames"))
fds = [fd for fd in range(3, 300) if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode)]
control = _socket.socket(fileno=os.dup(fds[0]))

def say(kind, body=b"", number=0, flags=0, give=()):
    data = frames.HEADER.pack(len(body), kind, flags, 0, number) + body
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, "little") for fd in give))] if give else []
    control.sendmsg([data], rights)

described = b'{"tools":[{"name":"t.f","kind":"sync","input_schema":{}}],"unavailable":[],"python":"3","fork_unsafe":""}'
forked = (1).to_bytes(4, "little")
many = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]

def f(): return 1
`

// A module that speaks to the agent in its zygote's name harms its index alone: that
// is opened or not, within the time of a start, it is closed at once, and no
// descriptor stays with the agent.
func TestModuleForgesFramesOfItsZygote(t *testing.T) {
	for name, says := range map[string]string{
		"three descriptions":      "for _ in range(3): say(frames.DESCRIBED, described)",
		"forks nobody asked for":  "for _ in range(9): say(frames.FORKED, forked, 1)",
		"forks after description": "say(frames.DESCRIBED, described)\nfor _ in range(9): say(frames.FORKED, forked, 1)",
		"ends nobody asked for":   "say(frames.DESCRIBED, described)\nfor i in range(999): say(frames.EXITED, bytes(8), i)",
		"another hello":           "say(frames.HELLO, forked)",
		"imports without end":     "for _ in range(9): say(frames.IMPORTING, b'{\"module\":\"t\"}')",
		"an unknown frame":        "say(200)",
		"what is no frame":        "control.send(b'x' * 100)",
		"a closed channel":        "control.shutdown(2)\nimport time\ntime.sleep(600)",
		"modules of others":       "say(frames.IMPORTING, b'{\"module\":\"u\"}')",
		"tools of others":         "say(frames.DESCRIBED, described.replace(b't.f', b't.g'))",
		"confined again":          "say(frames.CONFINED, b'{\"notes\":[]}')",
		"a description cut off":   "say(frames.DESCRIBED, b'{\"tools\":')",
		"a frame without end":     "control.send(frames.HEADER.pack(0x7fffffff, frames.DESCRIBED, 0, 0, 0))",
		"descriptors":             "for _ in range(9): say(frames.IMPORTING, b'{}', give=many)",
		"the agent as its worker": "say(frames.DESCRIBED, described)\ncontrol.recv(1 << 16)\n" +
			"agent = control.getsockopt(_socket.SOL_SOCKET, 77)\nsay(frames.FORKED, forked, 1, 1, [agent])\nimport time\ntime.sleep(600)", // SO_PEERPIDFD
		"another process as its worker": "say(frames.DESCRIBED, described)\ncontrol.recv(1 << 16)\nsay(frames.FORKED, os.getppid().to_bytes(4, 'little'), 1, 1, many[:1])\nimport time\ntime.sleep(600)",
		"descriptors later":             "say(frames.DESCRIBED, described)\nfor _ in range(9): say(frames.EXITED, bytes(8), 77, give=many)",
	} {
		t.Run(name, func(t *testing.T) {
			x := sharedExecutor(t)
			good := open(t, x, specOf(t, x, writeFiles(t, map[string]string{"t.py": "def f(): return 1"}), "t.f"))
			before := openFiles(t)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			ix, err := x.Open(ctx, specOf(t, x, writeFiles(t, map[string]string{"t.py": impostor + "\n" + says + "\n"}), "t.f"))
			if ctx.Err() != nil {
				t.Fatal("the index is still being opened")
			}
			if e := toolmesh.AsError(err); e != nil && (e.Code != toolmesh.CodeInstallFailed || e.Retryable || !strings.Contains(e.Message, "broke the worker's protocol")) {
				t.Errorf("the failure is not final, or does not say why: %v, retryable %v", e, e.Retryable)
			}
			if err == nil {
				for _, u := range ix.Unavailable() {
					if !strings.Contains(u.Reason, "the module t broke the worker's protocol while it was imported") {
						t.Errorf("unavailable: %q", u.Reason)
					}
				}
				_, _ = ix.Call(ctx, executor.Call{Tool: "t.f"}, nil)
				closed, stop := context.WithTimeout(t.Context(), 30*time.Second)
				defer stop()
				if err := ix.Close(closed); err != nil {
					t.Error(err)
				}
			}
			meshtest.Until(t, "what was handed over is closed", func() bool { return openFiles(t) <= before+20 })
			mustCall(t, good, "t.f", `{}`, `1`)
		})
	}
}

// openFiles counts the descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		if strings.Contains(err.Error(), "no such file") {
			t.Skip("no /proc here")
		}
		t.Fatal(err)
	}
	return len(entries)
}

// With any input, a zygote ends with all its processes when the agent's end closes.
func FuzzInputOfWorkers(f *testing.F) {
	x, dir := newExecutor(f, nil), f.TempDir()
	spec := specOf(f, x, writeFiles(f, map[string]string{"t.py": "def f(): return 1"}), "t.f")
	open(f, x, spec) // whose worker package is compiled
	files := filepath.Join(filepath.Dir(filepath.Dir(spec.Env.Dir)), "worker")
	spawner := sandbox.NewSpawner(slog.New(slog.DiscardHandler))
	f.Cleanup(spawner.Close)
	if level, why := x.Sandbox(); level == tool.SandboxNone {
		f.Skip(why)
	}
	setup := fmt.Sprintf(`{"root":%[1]q,"cwd":%[1]q,"paths":[%[1]q],"tools":["t.f"],"exclude":{},"secrets":null,"sandbox":"none","folder":"","adopt":{"environ":"","executable":%[2]q,"argv":[%[2]q,"-I","-c",%[3]q,%[4]q]}}`,
		spec.SourceDir, spec.Env.Python, python.Bootstrap("zygote", "confined()"), files)
	fork := `{"kind":"sync","limit":1000,"isolation":"warm","limits":{}}`
	for _, typ := range []frame.Type{frame.Setup, frame.Fork, frame.Become, frame.Call, 0, 99} {
		f.Add(frame.Append(nil, frame.Header{Type: typ}, []byte(setup)))
		begun := frame.Append(nil, frame.Header{Type: frame.Setup}, []byte(setup))
		f.Add(frame.Append(begun, frame.Header{Type: typ, ID: 1}, []byte(fork)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		proc, err := spawner.Start(sandbox.Command{
			Path: spec.Env.Base, Args: []string{"-I", "-S", "-X", "utf8", "-c", python.Bootstrap("zygote", "main(sys.argv[2])"), files},
			Env: []string{"PATH=/usr/bin:/bin"}, Dir: dir,
			Sandbox: tool.SandboxGuard, // with mounts of its own, at any level
		})
		if err != nil {
			t.Fatal(err)
		}
		defer proc.Kill()
		go io.Copy(io.Discard, proc.Stdout) //nolint:errcheck // they end with it
		go io.Copy(io.Discard, proc.Stderr) //nolint:errcheck // likewise
		_, _ = proc.Control.Write(data)     // it may have ended before the last of it
		_ = proc.Control.CloseWrite()
		select {
		case <-proc.Done():
		case <-time.After(10 * time.Second):
			t.Error("it goes on")
		}
	})
}
