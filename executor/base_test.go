package executor_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/tool"
)

// logged is a log that tests look into.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

func (l *logged) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), part)
}

// bases are the started base processes whose end was not logged.
func (l *logged) bases() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var pids []int
	for _, m := range regexp.MustCompile(`msg="base process (started|ended)".* pid=(\d+)`).FindAllStringSubmatch(l.text.String(), -1) {
		pid, _ := strconv.Atoi(m[2])
		if m[1] == "started" {
			pids = append(pids, pid)
		} else {
			pids = slices.DeleteFunc(pids, func(one int) bool { return one == pid })
		}
	}
	return pids
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// interpreterTools report a tool's view of its interpreter before it imports anything.
const interpreterTools = `
import sys
before = sorted(sys.modules)
import gc, locale, os, resource, signal, site, sysconfig, threading, time, warnings

def interpreter(opened: float) -> dict:
    import logging, pinned, random
    return {
        "sys": {name: repr(getattr(sys, name, None)) for name in (
            "abiflags", "api_version", "argv", "base_exec_prefix", "base_prefix", "builtin_module_names", "byteorder",
            "dont_write_bytecode", "exec_prefix", "executable", "_base_executable", "flags", "maxsize",
            "orig_argv", "path", "platform", "prefix", "ps1", "pycache_prefix", "version", "warnoptions",
            "_xoptions", "_home", "platlibdir",
        )},
        "names": sorted(sys.stdlib_module_names),
        "hooks": [one.__name__ for one in sys.path_hooks],
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "finders": [type(one).__name__ + getattr(one, "__name__", "") for one in sys.meta_path],
        "streams": [[one.encoding, one.errors, one.line_buffering] for one in (sys.__stdin__, sys.__stdout__, sys.__stderr__)],
        "environ": {name: value for name, value in os.environ.items() if name != "TMPDIR"},
        "locale": [locale.setlocale(one) for one in (locale.LC_CTYPE, locale.LC_NUMERIC, locale.LC_TIME)],
        "encoding": [locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "zone": [time.tzname, time.timezone, time.altzone, time.daylight, time.localtime(0)[:6]],
        "site": [site.PREFIXES, site.ENABLE_USER_SITE, sorted(set(dir(__builtins__)) | set(__builtins__ if isinstance(__builtins__, dict) else ()))],
        "paths": sysconfig.get_paths(),
        "config": [sysconfig.get_config_var(one) for one in ("prefix", "exec_prefix", "base", "installed_base", "userbase")],
        "signals": {int(one): repr(signal.getsignal(one)).partition(" at ")[0] for one in signal.valid_signals()},
        "mask": sorted(int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "limits": [resource.getrlimit(one) for one in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)],
        "umask": [os.umask(0o22), os.umask(0o22)],
        "cwd": os.getcwd(),
        "ids": [os.getuid(), os.getgid(), os.getgroups(), os.getpid() > 2, os.getppid() > 1],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "gc": [gc.isenabled(), gc.get_threshold()],
        "threads": [[one.name, one.ident == threading.get_ident(), one.native_id == threading.get_native_id()] for one in threading.enumerate()],
        "forks": type(os.register_at_fork).__name__,
        "warnings": [repr(one) for one in warnings.filters],
        "logging": [logging.root.level, len(logging.root.handlers) > 0, logging._startTime / (1e9 if isinstance(logging._startTime, int) else 1) >= opened],
        "files": sorted(int(one) for one in os.listdir("/proc/self/fd") if int(one) < 10),  # the rest may come from whoever runs the test
        "namespaces": len([1 for line in open("/proc/self/status") if line.startswith("NSpid")]),
        "status": {line.split(":")[0]: line.split()[1:] for line in open("/proc/self/status")
            if line.startswith(("Cap", "NoNewPrivs", "Seccomp:", "SigB", "SigI", "SigC"))},
        "pinned": [pinned.VALUE, pinned.__file__],
        "main": sys.modules["__main__"].__name__,
        "early": getattr(sys, "set_by_pth", None),
        "modules": [one for one in before if one.startswith(("sitecustomize", "usercustomize", "early"))],
    }

def pids() -> list:
    return [os.getpid(), os.getppid()]
`

// To a tool a copy of the base equals an interpreter started in its environment: in Python 3.11,
// with MESH_SOAK in every Python of this machine, for every sandbox level.
func TestCopyEqualsAnInterpreterOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, python := range []string{"3.10", "3.11", "3.12", "3.13", "3.14"} {
		for i, vars := range []map[string]string{
			{"TZ": "Asia/Kolkata", "GREETING": "hi ümläut"},
			{"LC_ALL": "C", "TZ": "UTC"},
			{"LANG": "xx_YY.UTF-8", "LC_CTYPE": "C"},
		} {
			box := []tool.Sandbox{tool.SandboxGuard, tool.SandboxNone, tool.SandboxStrict}[i]
			t.Run(fmt.Sprintf("%s %s", python, box), func(t *testing.T) {
				t.Parallel()
				if python != "3.11" && (i > 0 || !meshtest.Soak()) {
					t.Skip("one version is enough for this; the first row is in make soak for each")
				}
				log := &logged{}
				x := newExecutor(t, func(o *executor.Options) { o.Logger = log.logger() })
				copied := interpreterSeen(t, x, log, python, vars, box, false)
				own := interpreterSeen(t, x, log, python, vars, box, true)
				if diff := cmp.Diff(own, copied); diff != "" {
					t.Errorf("a copy differs from an interpreter of its own (-own +copy):\n%s", diff)
				}
				if got := own["early"]; got != "yes" {
					t.Errorf("the .pth file has set %v, the comparison is worth nothing", got)
				}
			})
		}
	}
}

// ownInterpreter is a variable with which an index has an interpreter of its own: it could be
// read at the start.
const ownInterpreter = "PYTHON_OF_THE_TEST"

// interpreterSeen is the answer of interpreterTools, with names for folders. The copy is asked
// first: the log of x tells of the first interpreter of its own.
func interpreterSeen(t *testing.T, x *executor.Executor, log *logged, python string, vars map[string]string, box tool.Sandbox, own bool) map[string]any {
	t.Helper()
	vars = maps.Clone(vars)
	if own {
		vars[ownInterpreter] = "1"
	}
	dir := writeFiles(t, map[string]string{"t.py": interpreterTools})
	env, err := x.Environment(t.Context(), dir, executor.Lock{Python: "==" + python + ".*"}, executor.Making{}, nil)
	if err != nil {
		t.Skipf("no Python %s here: %v", python, err)
	}
	packages, err := filepath.Glob(filepath.Join(env.Dir, "lib", "python*", "site-packages"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("site-packages: %v %v", packages, err)
	}
	for name, text := range map[string]string{
		"pinned.py": "VALUE = 7", "early.pth": "import sys; sys.set_by_pth = 'yes'\nmore", "more/deep.py": "",
	} {
		file := filepath.Join(packages[0], name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	opened := time.Now()
	ix := open(t, x, executor.Spec{
		Name: "test", SourceDir: dir, Env: env, Tools: []string{"t.interpreter"}, Vars: vars,
		Policies: map[string]executor.Policy{"t.interpreter": {Sandbox: box}},
	})
	if why := x.Lacks(box); why != "" {
		t.Skip(why)
	}
	text, err := call(t, ix, "t.interpreter", fmt.Sprintf(`{"opened":%f}`, float64(opened.UnixMicro())/1e6))
	if err != nil {
		t.Fatal(err)
	}
	if copied := !log.has("starts an interpreter of its own"); copied == own {
		t.Fatalf("whether it is a copy: %v", copied)
	}
	text = strings.ReplaceAll(text, env.Dir, "ENV")
	text = strings.ReplaceAll(text, dir, "INDEX")
	text = strings.ReplaceAll(text, filepath.Dir(filepath.Dir(env.Dir)), "DATA")
	seen := map[string]any{}
	if err := json.Unmarshal([]byte(text), &seen); err != nil {
		t.Fatal(err)
	}
	if environ, ok := seen["environ"].(map[string]any); ok {
		delete(environ, ownInterpreter)
	}
	return seen
}

// Nothing of one index's variables is in another's processes, nor in the base.
func TestCopyHasOnlyItsOwnVariables(t *testing.T) {
	t.Parallel()
	log := &logged{}
	x := newExecutor(t, func(o *executor.Options) { o.Logger = log.logger() })
	dir := writeFiles(t, map[string]string{"t.py": `
import ctypes, os
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
def seen() -> list:
    of_c = [one for one in ("OF_A", "OF_B") if libc.getenv(one.encode())]
    return [sorted(one for one in os.environ if one.startswith("OF_")), of_c]
`})
	var indexes []*executor.Index
	for _, name := range []string{"A", "B"} {
		spec := specOf(t, x, dir, "t.seen")
		spec.Vars = map[string]string{"OF_" + name: "a-secret-value"}
		indexes = append(indexes, open(t, x, spec))
	}
	mustCall(t, indexes[0], "t.seen", `{}`, `[["OF_A"],["OF_A"]]`)
	mustCall(t, indexes[1], "t.seen", `{}`, `[["OF_B"],["OF_B"]]`)
	pids := log.bases()
	if len(pids) != 1 {
		t.Fatalf("bases: %v, want one", pids)
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pids[0]))
	if err != nil {
		t.Skip(err)
	}
	if got, want := string(data), "PATH=/usr/local/bin:/usr/bin:/bin\x00"; !strings.HasPrefix(got, want) || strings.Contains(got, "OF_") {
		t.Errorf("the base's environment is %q", got)
	}
}

// A module that an index brings along is its own, though the base has loaded one
// of that name; and where libraries read a variable at their start, they do.
func TestInterpreterIsStartedWhereACopyIsImpossible(t *testing.T) {
	t.Parallel()
	const tools = `
import os, sys
import csv
def module() -> str:
    return getattr(csv, "MARK", "standard")
def loaded() -> bool:
    return "xml.dom.minidom" in sys.modules
`
	for name, c := range map[string]struct {
		files map[string]string
		vars  map[string]string
		want  string
		own   bool
	}{
		"nothing":             {want: "standard"},
		"a module":            {files: map[string]string{"csv.py": "MARK = 'mine'"}, want: "mine", own: true},
		"a package":           {files: map[string]string{"csv/__init__.py": "MARK = 'mine'"}, want: "mine", own: true},
		"below src":           {files: map[string]string{"src/csv.py": "MARK = 'mine'"}, want: "mine", own: true},
		"a folder of data":    {files: map[string]string{"csv/list.txt": "", "json/a.json": "{}"}, want: "standard"},
		"another file":        {files: map[string]string{"csv.md": "", "email.txt": ""}, want: "standard"},
		"a loader's variable": {vars: map[string]string{"LD_LIBRARY_PATH": "/nowhere"}, want: "standard", own: true},
		"OpenSSL's":           {vars: map[string]string{"OPENSSL_CONF": "/dev/null"}, want: "standard", own: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &logged{}
			x := newExecutor(t, func(o *executor.Options) { o.Logger = log.logger() })
			files := map[string]string{"t.py": tools}
			for file, text := range c.files {
				files[file] = text
			}
			spec := specOf(t, x, writeFiles(t, files), "t.module", "t.loaded")
			spec.Vars = c.vars
			ix := open(t, x, spec)
			mustCall(t, ix, "t.module", `{}`, fmt.Sprintf("%q", c.want))
			mustCall(t, ix, "t.loaded", `{}`, fmt.Sprint(!c.own))
			if got := log.has("starts an interpreter of its own"); got != c.own {
				t.Errorf("the log says that it has an interpreter of its own: %v, want %v", got, c.own)
			}
		})
	}
}

// Isolation fresh is a new interpreter, even if other processes are copies.
func TestFreshIsNoCopy(t *testing.T) {
	t.Parallel()
	ix := openModule(t, newExecutor(t, nil), "import sys\ndef loaded() -> bool:\n    return 'xml.dom.minidom' in sys.modules", "loaded")
	mustCall(t, ix, "t.loaded", `{}`, `true`)
	body, err := ix.Call(t.Context(), executor.Call{Tool: "t.loaded", Args: json.RawMessage(`{}`), Isolation: toolmesh.IsolationFresh}, nil)
	if err != nil || string(body) != "false" {
		t.Errorf("got %s %v: a fresh interpreter has loaded what the base has", body, err)
	}
}

// The base is killed: its copies go on serving, the next index gets a new base. An index's root
// is killed: its processes end, others stay.
func TestIndexesOutliveTheirBase(t *testing.T) {
	t.Parallel()
	for _, level := range []sandbox.Level{sandbox.LevelPID, sandbox.LevelUser, sandbox.LevelReaper} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			if level == sandbox.LevelPID && os.Geteuid() != 0 {
				t.Skip("not root")
			}
			log := &logged{}
			x := newExecutor(t, func(o *executor.Options) { o.SetLevels(level); o.Logger = log.logger() })
			dir := writeFiles(t, map[string]string{"t.py": "import os, time\ndef one(): return 1\ndef die(): os._exit(3)\n"})
			first := open(t, x, specOf(t, x, dir, "t.one", "t.die"))
			mustCall(t, first, "t.one", `{}`, `1`)
			base := log.bases()
			if len(base) != 1 {
				t.Fatalf("bases: %v, want one", base)
			}
			if err := syscall.Kill(base[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			meshtest.Until(t, "the end of the base is noticed", func() bool { return len(log.bases()) == 0 })
			mustCall(t, first, "t.one", `{}`, `1`)
			_, _ = call(t, first, "t.die", `{}`)
			mustCall(t, first, "t.one", `{}`, `1`) // a worker that was forked since

			second := open(t, x, specOf(t, x, dir, "t.one"))
			mustCall(t, second, "t.one", `{}`, `1`)
			if again := log.bases(); len(again) != 1 || again[0] == base[0] {
				t.Errorf("bases: %v after %v was killed, want another one", again, base)
			}
			if log.has("starts an interpreter of its own") {
				t.Error("the second index is no copy of the new base")
			}
			before, root := first.Stats(), rootOf(first)
			if err := syscall.Kill(root, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			meshtest.Until(t, "the processes below the killed root are gone", func() bool {
				for _, pid := range before.Pids {
					if alive(pid) {
						return false
					}
				}
				return !alive(root)
			})
			mustCall(t, second, "t.one", `{}`, `1`)
			meshtest.Until(t, "the index is served again", func() bool {
				got, err := call(t, first, "t.one", `{}`)
				return err == nil && got == `1`
			})
		})
	}
}

// Closing an index that began as a copy leaves nothing of it, and closing the
// executor nothing at all.
func TestABaseEndsWithItsExecutor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := &logged{}
	x, err := executor.New(dir, &executor.Options{Environ: os.Environ(), Logger: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	ix := openModule(t, x, "def one(): return 1", "one")
	base := log.bases()
	root := rootOf(ix)
	if len(base) != 1 || !alive(base[0]) || !alive(root) {
		t.Fatalf("base %v, root %d: not alive", base, root)
	}
	if err := ix.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive(root) || !alive(base[0]) {
		t.Errorf("after the index's end its root lives: %v, the base lives: %v", alive(root), alive(base[0]))
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if left := processes(t, dir); len(left) > 0 || alive(base[0]) {
		t.Errorf("left behind: %v, the base: %v", left, alive(base[0]))
	}
}

// The base is idle most of the time: it must not cost much.
func TestABaseIsSmall(t *testing.T) {
	t.Parallel()
	log := &logged{}
	x := newExecutor(t, func(o *executor.Options) { o.Logger = log.logger() })
	openModule(t, x, "def one(): return 1", "one")
	pids := log.bases()
	if len(pids) != 1 {
		t.Fatalf("bases: %v, want one", pids)
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pids[0]))
	if err != nil {
		t.Skip(err)
	}
	sizes := map[string]int{}
	for _, line := range strings.Split(string(data), "\n") {
		var name string
		var size int
		if n, _ := fmt.Sscanf(line, "%s %d kB", &name, &size); n == 2 {
			sizes[name] = size
		}
	}
	// Pages of memory that no file backs, shared with copies or not.
	if kb := sizes["Anonymous:"]; kb == 0 || kb > 18<<10 {
		t.Errorf("the base holds %d KB, want about 16 MB: %v", kb, sizes)
	} else {
		t.Logf("the base holds %d KB", kb)
	}
}

// Where no base can be had, indexes are served all the same, and the log says so.
func TestWithoutABaseAnIndexStartsAnInterpreter(t *testing.T) {
	t.Parallel()
	log := &logged{}
	x := newExecutor(t, func(o *executor.Options) { o.Logger = log.logger() })
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": "import sys\ndef loaded(): return 'xml.dom.minidom' in sys.modules"}), "t.loaded")
	meshtest.Until(t, "the environment has a base started", func() bool { return len(log.bases()) == 1 })
	for _, pid := range log.bases() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Until(t, "the end of the base is noticed", func() bool { return len(log.bases()) == 0 })
	// A new one cannot be made.
	file := filepath.Join(t.TempDir(), "python")
	planted(t, file, "#!/bin/sh\ncase \"$*\" in *'base.main()'*) exit 1; esac\nexec "+spec.Env.Base+" \"$@\"\n")
	other := *spec.Env
	other.Base, spec.Env = file, &other
	ix := open(t, x, spec)
	mustCall(t, ix, "t.loaded", `{}`, `false`)
	for _, want := range []string{"base process could not be started", "the index starts an interpreter of its own"} {
		if !log.has(want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

// The base of an interpreter that is replaced, by an update say, ends when its successor starts.
func TestBaseOfAReplacedInterpreterEnds(t *testing.T) {
	t.Parallel()
	log := &logged{}
	x := newExecutor(t, func(o *executor.Options) { o.Logger = log.logger() })
	dir := writeFiles(t, map[string]string{"t.py": "def one(): return 1"})
	spec := specOf(t, x, dir, "t.one")
	file := filepath.Join(t.TempDir(), "python")
	planted(t, file, "#!/bin/sh\nexec "+spec.Env.Base+" \"$@\"\n")
	other := *spec.Env
	other.Base, spec.Env = file, &other
	mustCall(t, open(t, x, spec), "t.one", `{}`, `1`)
	before := log.bases() // another may be of the environment's own interpreter
	if err := os.Chtimes(file, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	second := specOf(t, x, dir, "t.one")
	second.Name, second.Env = "second", &other
	mustCall(t, open(t, x, second), "t.one", `{}`, `1`)
	meshtest.Until(t, "the base of the replaced interpreter ends", func() bool {
		now := log.bases()
		return slices.ContainsFunc(before, func(pid int) bool { return !slices.Contains(now, pid) })
	})
}
