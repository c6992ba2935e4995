package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// Attempts of tools, and their outcomes: "ok", or the error's name.
const intruder = `
import ctypes, errno, multiprocessing, os, signal, socket, subprocess, tempfile, time

libc = ctypes.CDLL(None, use_errno=True)

def tried(f, *args):
    try:
        f(*args)
        return "ok"
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))

def system(f, *args):
    ctypes.set_errno(0)
    if f(*args) != -1:
        return "ok"
    return errno.errorcode[ctypes.get_errno()]

def write(path):
    with open(path, "w") as f:
        f.write("x")

def read(path):
    with open(path, "rb") as f:
        f.read(1)

def connect(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20):
        pass

def own_server():
    with socket.create_server(("127.0.0.1", 0)) as s:
        with socket.create_connection(s.getsockname(), timeout=20):
            pass

def unix(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)

def temporary():
    with tempfile.NamedTemporaryFile() as f:
        f.write(b"x")

def moved():
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/below")
        with open(folder + "/f", "w"):
            os.rename(folder + "/f", folder + "/below/f")

def mounted():
    os.makedirs(tempfile.gettempdir() + "/m", exist_ok=True)
    return libc.mount(b"none", (tempfile.gettempdir() + "/m").encode(), b"tmpfs", 0, None)

def settings():
    """Only opens them. What is mounted to be read is refused by another name."""
    for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/kernel/uevent_seqnum", "/sys/power/state"):
        try:
            os.close(os.open(path, os.O_WRONLY))
        except FileNotFoundError:
            continue
        except OSError as e:
            if e.errno not in (errno.EROFS, errno.EACCES):
                raise
        else:
            return
    raise PermissionError(errno.EACCES, "none can be written")

def append(path):
    open(path, "a").close()

def secret(path):
    """That a hidden file is not there, or not to be looked for, is one outcome."""
    try:
        read(path)
    except FileNotFoundError:
        raise PermissionError(errno.EACCES, path)

def keyring():
    """Looks for what the agent's session keyring holds."""
    call = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
    return min(libc.syscall(call, 10, -3, b"user", b"toolmesh-test", 0), 0)

def uncover(data):
    """Takes what hides and keeps away, in a child with all rights over mounts."""
    child = os.fork()
    if child == 0:
        try:
            if libc.unshare(0x10020000) != 0:
                os._exit(ctypes.get_errno())
            libc.umount2((data + "/keys").encode(), 2)
            libc.umount2(data.encode(), 2)
            libc.mount(b"none", data.encode(), None, 4096 | 32, None)
            for undone in (lambda: read(data + "/keys/admin.nk"), lambda: append(data + "/node")):
                try:
                    undone()
                    os._exit(0)
                except OSError:
                    pass
        finally:
            os._exit(errno.EPERM)
    failed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if failed:
        raise OSError(errno.EPERM, "all")

def attempts(outside: str, data: str, port: int, path: str, sibling: int, drastic: bool):
    """sibling is another worker's process id, as it knows it itself."""
    more = {
        "ptrace a sibling": system(libc.ptrace, 16, sibling, 0, 0),
        "mount": system(mounted),
        "set the host's name": system(libc.sethostname, b"intruded", 8),
    } if drastic else {}
    return more | {
        "write outside": tried(write, outside),
        "write the index": tried(write, "new.txt"),
        "truncate": tried(os.truncate, outside, 0),
        "write the worker": tried(append, data + "/executor/worker/_toolmesh_worker/__init__.py"),
        "write the agent's files": tried(append, data + "/node"),
        "rename the agent's files": tried(os.rename, data + "/node", data + "/lock"),
        "read a key": tried(secret, data + "/keys/admin.nk"),
        "uncover": tried(uncover, data) if drastic else "ok",
        "write temporary files": tried(temporary),
        "move temporary files": tried(moved),
        "write null": tried(write, "/dev/null"),
        "read": tried(read, "/etc/passwd"),
        "read what is root's": tried(read, "/etc/shadow"),
        "read what is another index's": tried(read, data + "/homes/B/secret"),
        "see another index's source": tried(secret, data + "/other/t.py"),
        "see another environment": tried(secret, data + "/executor/envs/other/pyvenv.cfg"),
        "see another's temporary files": tried(secret, data + "/executor/tmp/other"),
        "be root": tried(os.setuid, 0) if os.getuid() else "ok",
        "write its home": tried(append, os.path.expanduser("~/x")),
        "print by name": tried(write, "/dev/stdout"),
        "start a program": tried(subprocess.run, ["true"]),
        "a lock between processes": tried(multiprocessing.Lock),
        "connect": tried(connect, port),
        "connect to a file": tried(unix, path),
        "connect to itself": tried(own_server),
        "signal a sibling": tried(os.kill, sibling, 0),
        "signal the zygote": tried(os.kill, os.getppid(), 0),
        "read a sibling's environment": tried(read, f"/proc/{sibling}/environ"),
        "read a sibling's memory": tried(read, f"/proc/{sibling}/mem"),
        "change the kernel's settings": tried(settings),
        "unshare": system(libc.unshare, 0x10000000),
        "use the agent's keyring": system(keyring),
    }

def pid(seconds: float = 0):
    print("here", flush=True)
    time.sleep(seconds)
    return os.getpid()

# Programs, whose environments the system keeps as they were given.
beside = subprocess.Popen(["sleep", "600"])

def environments():
    """The environments of all processes that can be read."""
    found = ""
    # It has an environment only when it runs: Popen returns a little earlier.
    child = subprocess.Popen(["sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as f:
                    found += f.read().decode("utf-8", "replace")
            except OSError:
                pass
    return [one for one in ("SECRET_OF_A", "SECRET_OF_B") if one in found]
`

// beIntruded serves two indexes in one sandbox level and prints the outcomes of a tool of the
// first one.
func beIntruded(dir string) {
	if err := intrude(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type achieved struct {
	Effective tool.Sandbox
	Reasons   []string
	Held      bool // by Landlock alone
	Kept      sandbox.Level
	Outcome   map[string]string
	Secrets   []string
}

func intrude(dir string) error {
	data := filepath.Join(dir, "data")
	o := &executor.Options{
		Environ: os.Environ(), Sandbox: tool.Sandbox(os.Getenv("TOOLMESH_TEST_SANDBOX")),
		Sealed: data, Shown: []string{filepath.Join(data, "index"), filepath.Join(data, "other")}, Users: os.Getenv("TOOLMESH_TEST_USERS"),
	}
	if level := os.Getenv("TOOLMESH_TEST_LEVEL"); level != "" {
		o.SetLevels(sandbox.Level(level))
	}
	x, err := executor.New(filepath.Join(data, "executor"), o)
	if err != nil {
		return err
	}
	defer x.Close() //nolint:errcheck // the process ends
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		return err
	}
	ctx := context.Background()
	env, err := x.Environment(ctx, dir, executor.Lock{}, executor.Making{}, nil)
	if err != nil {
		return err
	}
	var indexes []*executor.Index
	for _, file := range []string{"executor/envs/other/pyvenv.cfg", "executor/tmp/other"} {
		file = filepath.Join(data, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil { //nolint:gosec // all may read it
			return err
		}
	}
	for _, one := range [][2]string{{"A", "index"}, {"B", "other"}} {
		name, source := one[0], one[1]
		ix, err := x.Open(ctx, executor.Spec{
			Name: name, SourceDir: filepath.Join(data, source), Env: env, Tools: []string{"t.attempts", "t.pid", "t.environments"},
			Vars: map[string]string{"SECRET_OF_" + name: "1"},
		})
		if err != nil {
			return err
		}
		indexes = append(indexes, ix)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close() //nolint:errcheck // the process ends
	path := filepath.Join(dir, "socket")
	unix, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer unix.Close() //nolint:errcheck // the process ends

	var a achieved
	a.Effective, a.Reasons = x.Sandbox()
	a.Held = strings.Contains(fmt.Sprint(a.Reasons), "Landlock keeps tools from")
	// A sibling that is busy meanwhile: its id is known when it is done.
	sibling, err := indexes[0].Call(ctx, executor.Call{Tool: "t.pid"}, nil)
	if err != nil {
		return err
	}
	busy, cancel := context.WithCancel(ctx)
	defer cancel()
	sink := &collector{logged: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = indexes[0].Call(busy, executor.Call{Tool: "t.pid", Args: json.RawMessage(`{"seconds":600}`)}, sink)
	}()
	<-sink.logged
	args := fmt.Sprintf(`{"outside":%q,"data":%q,"port":%d,"path":%q,"sibling":%s,"drastic":%t}`,
		outside, data, listener.Addr().(*net.TCPAddr).Port, path, sibling, a.Held || a.Effective != tool.SandboxNone)
	body, err := indexes[0].Call(ctx, executor.Call{Tool: "t.attempts", Args: json.RawMessage(args)}, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &a.Outcome); err != nil {
		return err
	}
	if body, err = indexes[0].Call(ctx, executor.Call{Tool: "t.environments"}, nil); err != nil {
		return err
	}
	if err := json.Unmarshal(body, &a.Secrets); err != nil {
		return err
	}
	cancel()
	<-ended
	a.Kept = x.Level()
	return json.NewEncoder(os.Stdout).Encode(a)
}

// outcomesOfLevels are the outcomes of a tool's attempts, by level. Attempts that are not named
// depend on the machine and the user.
func outcomesOfLevels() map[tool.Sandbox]map[string]string {
	none := map[string]string{
		"write outside": "ok", "write the index": "ok", "truncate": "ok", "write temporary files": "ok", "move temporary files": "ok", "write null": "ok",
		"read": "ok", "start a program": "ok", "a lock between processes": "ok", "connect": "ok", "connect to a file": "ok",
		"connect to itself": "ok", "write the worker": "ok", "write the agent's files": "ok", "rename the agent's files": "ok",
		"read a key": "ok", "uncover": "ok", "use the agent's keyring": "ok",
		"see another index's source": "ok", "see another environment": "ok", "see another's temporary files": "ok",
	}
	guard := with(none, "EPERM", "signal a sibling", "signal the zygote", "ptrace a sibling", "mount", "set the host's name")
	guard = with(guard, "EACCES", "read a sibling's environment", "read a sibling's memory", "change the kernel's settings")
	guard = with(guard, "EROFS", "write the index", "write the worker", "write the agent's files", "rename the agent's files")
	guard = with(guard, "EACCES", "read a key", "see another index's source", "see another environment", "see another's temporary files")
	guard = with(guard, "EPERM", "uncover")
	guard = with(guard, "ENOKEY", "use the agent's keyring")
	strict := with(guard, "EROFS", "write outside", "truncate")
	strict = with(strict, "EPERM", "unshare", "mount", "use the agent's keyring")
	offline := with(strict, "ECONNREFUSED", "connect")
	offline = with(offline, "EACCES", "connect to a file")
	return map[tool.Sandbox]map[string]string{
		tool.SandboxNone: none, tool.SandboxGuard: guard, tool.SandboxStrict: strict, tool.SandboxOffline: offline,
	}
}

// ofAnotherUser are the outcomes if the agent is root and the tool is not: as that user sees the
// machine, with the agent's folder in root's own.
func ofAnotherUser(want map[string]string, level tool.Sandbox) map[string]string {
	want = with(want, "ok", "print by name")
	if level == tool.SandboxNone {
		return with(want, "ok", "read what is root's", "be root", "write its home")
	}
	want = with(want, "EPERM", "be root")
	want = with(want, "EACCES", "read what is root's", "write the worker")
	want = with(want, "ENOENT", "truncate", "read what is another index's")
	want = with(want, "EROFS", "write outside")
	if level == tool.SandboxGuard {
		want = with(want, "ok", "write its home")
	} else {
		want = with(want, "EROFS", "write its home")
	}
	if level != tool.SandboxOffline {
		want = with(want, "ENOENT", "connect to a file")
	}
	return want
}

// Each level denies exactly what it promises: for root and for an ordinary user.
func TestLevelsDeny(t *testing.T) {
	t.Parallel()
	outcomes := outcomesOfLevels()
	for _, c := range []struct {
		user  string
		kept  sandbox.Level
		asked tool.Sandbox
		users string
	}{
		// e2e/attacks makes more attempts at each level: here are the combinations that it has not.
		{"root", sandbox.LevelPID, tool.SandboxNone, ""},
		{"root", sandbox.LevelPID, tool.SandboxGuard, ""},
		{"root", sandbox.LevelPID, tool.SandboxOffline, ""},
		{"root", sandbox.LevelPID, tool.SandboxStrict, "each"},
		{"root", sandbox.LevelPID, tool.SandboxGuard, "nobody"},
		{"root", sandbox.LevelUser, tool.SandboxStrict, ""},
		{"root", sandbox.LevelUser, tool.SandboxGuard, "each"},
		{"ordinary", sandbox.LevelUser, tool.SandboxGuard, ""},
		{"ordinary", sandbox.LevelUser, tool.SandboxOffline, ""},
	} {
		t.Run(fmt.Sprintf("%s %s %s %s", c.user, c.kept, c.asked, c.users), func(t *testing.T) {
			t.Parallel()
			a := intruded(t, c.user, c.kept, c.asked, c.users)
			if a.Kept != c.kept || a.Effective != c.asked {
				t.Skipf("not to be had here: %v", a.Reasons)
			}
			want := outcomes[c.asked]
			if c.users != "" {
				want = ofAnotherUser(want, c.asked)
			}
			got := map[string]string{}
			for name := range want {
				got[name] = a.Outcome[name]
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("what became of it (-want +got):\n%s\nall: %v", diff, a.Outcome)
			}
			if c.asked != tool.SandboxNone {
				if diff := cmp.Diff([]string{"SECRET_OF_A"}, a.Secrets); diff != "" {
					t.Errorf("environments that can be read (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// Under strict, sessions of users are hidden, except the agent's own folders there.
func TestUsersSessionsAreHidden(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/run/user", "toolmesh-test-")
	if err != nil {
		t.Skipf("no sessions here: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data, given := filepath.Join(dir, "data"), filepath.Join(dir, "given")
	source := `
import os, tempfile
def f() -> list:
    tempfile.NamedTemporaryFile().close()
    open("` + given + `/made", "w").close()
    return sorted(os.listdir("` + dir + `"))
`
	for path, text := range map[string]string{"data/index/t.py": source, "given/file": "", "socket": ""} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755), os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Warm(filepath.Join(data, "executor"), t.Cleanup)
	x, err := executor.New(filepath.Join(data, "executor"), &executor.Options{
		Environ: os.Environ(), Sandbox: tool.SandboxStrict, Sealed: data, Shown: []string{filepath.Join(data, "index")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	if level, why := x.Sandbox(); level != tool.SandboxStrict {
		t.Skip(why)
	}
	spec := specOf(t, x, filepath.Join(data, "index"), "t.f")
	if spec.Paths, _, err = x.Paths("test", []executor.Path{{Path: given, Write: true}}, nil); err != nil {
		t.Fatal(err)
	}
	mustCall(t, open(t, x, spec), "t.f", `{}`, `["data","given"]`)
	if _, err := os.Stat(filepath.Join(given, "made")); err != nil {
		t.Error(err)
	}
}

// landlocked reports whether the kernel has Landlock.
func landlocked() bool {
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0
}

// An agent that is root where nothing can be mounted, as in most containers, runs each
// index as a user of its own all the same.
func TestUsersWithoutNamespaces(t *testing.T) {
	t.Parallel()
	a := intruded(t, "root", sandbox.LevelReaper, tool.SandboxGuard, "each")
	if a.Effective != tool.SandboxNone || !strings.Contains(fmt.Sprint(a.Reasons), "indexes have users of their own all the same") {
		t.Fatalf("effective %s, reasons %q", a.Effective, a.Reasons)
	}
	want := map[string]string{
		"write the index": "EACCES", "write the worker": "EACCES", "write the agent's files": "EACCES", "rename the agent's files": "EACCES",
		"read a key": "EACCES", "read what is root's": "EACCES", "read what is another index's": "EACCES", "be root": "EPERM",
		"see another index's source": "EACCES", "see another environment": "EACCES", "see another's temporary files": "EACCES",
		"read": "ok", "write temporary files": "ok", "write its home": "ok", "start a program": "ok",
	}
	got := map[string]string{}
	for name := range want {
		got[name] = a.Outcome[name]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what became of it (-want +got):\n%s\nall: %v", diff, a.Outcome)
	}
	if diff := cmp.Diff([]string{"SECRET_OF_A"}, a.Secrets); diff != "" {
		t.Errorf("environments that can be read (-want +got):\n%s", diff)
	}
}

// A tool that demands a level which the machine lacks is not served; the others are.
func TestAToolThatDemandsALevelIsNotServedWithoutIt(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.SetLevels(sandbox.LevelReaper) })
	dir := writeFiles(t, map[string]string{"t.py": "def a(): return 1\ndef b(): return 2\ndef c(): return 3"})
	spec := specOf(t, x, dir, "t.a", "t.b", "t.c")
	spec.Policies = map[string]executor.Policy{
		"t.b": {Sandbox: tool.SandboxStrict}, "t.c": {Sandbox: tool.SandboxGuard},
	}
	ix := open(t, x, spec)
	mustCall(t, ix, "t.a", `{}`, `1`)
	reasons := map[string]string{}
	for _, u := range ix.Unavailable() {
		reasons[u.Name] = u.Reason
	}
	for name, level := range map[string]string{"t.b": "strict", "t.c": "guard"} {
		if !strings.Contains(reasons[name], "sandbox level "+level) || !strings.Contains(reasons[name], "namespaces") {
			t.Errorf("%s: reason %q", name, reasons[name])
		}
	}
	if len(ix.Tools()) != 1 || len(reasons) != 2 {
		t.Errorf("served %d tools, unavailable %v", len(ix.Tools()), reasons)
	}
}

func with(base map[string]string, outcome string, names ...string) map[string]string {
	all := map[string]string{}
	for name, one := range base {
		all[name] = one
	}
	for _, name := range names {
		all[name] = outcome
	}
	return all
}

func intruded(t *testing.T, user string, kept sandbox.Level, asked tool.Sandbox, users string) achieved {
	t.Helper()
	if user == "root" && os.Geteuid() != 0 {
		t.Skip("not root")
	}
	cmd, dir := beside(t, user, map[string]string{"data/index/t.py": intruder, "data/other/t.py": intruder, "data/keys/admin.nk": "secret", "data/node": "n"})
	if kept == sandbox.LevelReaper && users != "" { // other files cannot be covered
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // others are to pass it
			t.Fatal(err)
		}
		if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
			t.Skip("no interpreter that another user could run")
		}
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
	}
	cmd.Env = append(cmd.Env, "TOOLMESH_TEST_INTRUDED="+dir, "TOOLMESH_TEST_LEVEL="+string(kept), "TOOLMESH_TEST_SANDBOX="+string(asked), "TOOLMESH_TEST_USERS="+users)
	runtime.LockOSThread() // for good: the thread ends with the test, and its keyring
	ring, noKeys := unix.KeyctlJoinSessionKeyring("toolmesh-test")
	if noKeys == nil {
		_, noKeys = unix.AddKey("user", "toolmesh-test", []byte("secret"), ring)
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var a achieved
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatalf("it said %q: %v", out, err)
	}
	if noKeys != nil {
		t.Logf("no keyrings here: %v", noKeys)
		a.Outcome["use the agent's keyring"] = outcomesOfLevels()[asked]["use the agent's keyring"]
	}
	return a
}

// A program that fetches writes its own folder, by relative paths too, and finds nothing of the
// agent's environment.
func TestFetchIsApart(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.Environ = append(o.Environ, "HOME=/agent", "SECRET=x") })
	dir, err := os.MkdirTemp(x.Fetches(), "fetch-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var out strings.Builder
	said, err := x.Fetch(t.Context(), dir, []string{"/bin/sh", "-c", "echo written > file && cat file && env && echo said >&2"}, []string{"GIVEN=1"}, &out)
	if err != nil || said != "said" {
		t.Fatalf("it said %q, %v", said, err)
	}
	for text, want := range map[string]bool{"written\n": true, "GIVEN=1\n": true, "HOME=" + dir + "\n": true, "SECRET": false} {
		if strings.Contains(out.String(), text) != want {
			t.Errorf("%q is in its output: %v, want %v: %s", text, !want, want, out.String())
		}
	}
	for program, ran := range map[string]bool{"/bin/false": true, "/no/such/program": false} { // one that did not begin has failed for us
		_, err := x.Fetch(t.Context(), dir, []string{program}, nil, io.Discard)
		var own *toolmesh.Error
		if err == nil || errors.As(err, &own) == ran {
			t.Errorf("%s: the error is %#v", program, err)
		}
	}
}
