package executor_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// drawing has generators that were seeded at import, as bad examples have them.
// numpy's is a stand-in with numpy's interface.
var drawing = map[string]string{
	"numpy/__init__.py": "",
	"numpy/random.py": `
import random as _random
_legacy = _random.Random()
seed, rand = _legacy.seed, _legacy.random
`,
	"t.py": `
import os, random, secrets, tempfile, uuid
import numpy.random
random.seed(7)
numpy.random.seed(7)
tempfile.mktemp()

def draw():
    return {
        "random": random.random(), "choice": random.sample(range(10**9), 3), "numpy": numpy.random.rand(),
        "secrets": secrets.token_hex(), "uuid1": str(uuid.uuid1()), "uuid4": str(uuid.uuid4()), "urandom": os.urandom(8).hex(),
        "tempfile": tempfile.mktemp(),
    }

async def adraw():
    return draw()
`,
}

func TestForksDrawDifferentNumbers(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	spec := specOf(t, x, writeFiles(t, drawing), "t.draw", "t.adraw")
	spec.Policies = map[string]executor.Policy{"t.draw": {Isolation: toolmesh.IsolationFork}, "t.adraw": {Isolation: toolmesh.IsolationSession}}
	ix := open(t, x, spec)
	seen := map[string]string{}
	for n := range 8 {
		name, session := "t.draw", fmt.Sprint(n)
		if n%2 == 1 {
			name = "t.adraw"
		}
		body, err := callIn(t, ix, session, name, `{}`)
		if err != nil {
			t.Fatal(err)
		}
		var drawn map[string]json.RawMessage
		if err := json.Unmarshal([]byte(body), &drawn); err != nil || len(drawn) != 8 {
			t.Fatalf("got %s, %v", body, err)
		}
		for source, value := range drawn {
			key := source + " " + string(value)
			if other, twice := seen[key]; twice {
				t.Errorf("%s gave the same to the sessions %s and %s: %s", source, other, session, value)
			}
			seen[key] = session
		}
	}
}

// The parts of threading and logging that a forked process normally makes anew are kept when
// the zygote forks, which holds none of their locks; not when a tool does.
func TestForksOfAToolRenewTheirLocks(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	spec := specOf(t, x, writeFiles(t, map[string]string{"t.py": `
import logging, os, random, threading
handler = logging.StreamHandler(open(os.devnull, "w"))
at_import = []
os.register_at_fork(after_in_child=lambda: at_import.append("ran"))

def fork():
    """What a child of a tool's has, forked while another thread holds a lock of logging's."""
    held, go = threading.Event(), threading.Event()
    def hold():
        with handler.lock:
            held.set()
            go.wait(20)
    other = threading.Thread(target=hold)
    other.start()
    held.wait(20)
    before = at_import[:]
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        taken = handler.lock.acquire(timeout=10)
        own = [[one.name for one in threading.enumerate()], taken]
        os.write(w, repr([own, before, at_import]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    go.set()
    other.join()
    return [os.read(r, 4096).decode(), threading.main_thread().native_id == threading.get_native_id() == os.getpid()]

warm = fork
`}), "t.fork", "t.warm")
	spec.Policies = map[string]executor.Policy{"t.fork": {Isolation: toolmesh.IsolationFork}}
	ix := open(t, x, spec)
	want := `["[[['MainThread'], True], ['ran'], ['ran', 'ran']]",true]`
	mustCall(t, ix, "t.fork", `{}`, want)
	mustCall(t, ix, "t.warm", `{}`, want)
}

// unsafeModules reads forking.py, so that a module that is added there is tested.
func unsafeModules(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "python", "src", "toolmesh", "_worker", "state", "forking.py"))
	if err != nil {
		t.Fatal(err)
	}
	list, _, _ := strings.Cut(string(text[strings.Index(string(text), "UNSAFE_MODULES"):]), "\n)\n")
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^    \("([\w.]+)", "`).FindAllStringSubmatch(list, -1) {
		names = append(names, m[1])
	}
	if len(names) < 10 || !slices.Contains(names, "grpc._cython") {
		t.Fatalf("read %v", names)
	}
	return names
}

// openUnforkable serves one tool with an import that makes forks unsafe.
func openUnforkable(t *testing.T, at string, more map[string]string) *executor.Index {
	t.Helper()
	files := map[string]string{"t.py": at + `
import os
calls = 0
def count():
    global calls
    calls += 1
    return calls
async def acount():
    return count()
def name():
    return os.urandom(8).hex()
warm = count
`}
	for name, text := range more {
		files[name] = text
	}
	x := sharedExecutor(t)
	spec := specOf(t, x, writeFiles(t, files), "t.count", "t.acount", "t.warm")
	spec.Policies = map[string]executor.Policy{"t.count": {Isolation: toolmesh.IsolationFork}, "t.acount": {Isolation: toolmesh.IsolationFork}}
	return open(t, x, spec)
}

// warned reports whether each tool says so.
func warned(t *testing.T, ix *executor.Index, reason string) {
	t.Helper()
	for _, served := range ix.Tools() {
		want := "isolation fork starts a new interpreter for each call: "
		if served.Name == "t.warm" {
			want = "its worker is not forked but imports the index anew: "
		}
		if !slices.ContainsFunc(served.Warnings, func(w string) bool { return strings.HasPrefix(w, want) && strings.Contains(w, reason) }) {
			t.Errorf("the warnings of %s are %q, want one that begins with %q and says %q", served.Name, served.Warnings, want, reason)
		}
	}
}

func TestForkFallsBackVisibly(t *testing.T) {
	t.Parallel()
	thread := "import threading, time\nthreading.Thread(target=lambda: time.sleep(1000), daemon=True).start()\n"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	for name, c := range map[string]struct{ at, reason string }{
		"a thread":     {thread, "2 threads"},
		"a connection": {fmt.Sprintf("import socket\nconn = socket.create_connection((%q, %s))\n", host, port), "a connection to 127.0.0.1 port " + port},
	} {
		t.Run(name, func(t *testing.T) {
			ix := openUnforkable(t, c.at, nil)
			for range 2 {
				mustCall(t, ix, "t.count", `{}`, `1`)
				mustCall(t, ix, "t.acount", `{}`, `1`)
			}
			mustCall(t, ix, "t.warm", `{}`, `1`)
			mustCall(t, ix, "t.warm", `{}`, `2`)
			warned(t, ix, c.reason)
		})
	}
}

func TestDescriptorsOfEventLoopsAreNoConnections(t *testing.T) {
	t.Parallel()
	ix := openUnforkable(t, "import asyncio, socket\nloop = asyncio.new_event_loop()\nlistener = socket.create_server(('127.0.0.1', 0))\n", nil)
	mustCall(t, ix, "t.count", `{}`, `1`)
	for _, served := range ix.Tools() {
		if len(served.Warnings) > 0 {
			t.Errorf("%s: %q", served.Name, served.Warnings)
		}
	}
}

func TestModulesThatMustNotBeForkedAreKnown(t *testing.T) {
	t.Parallel()
	for _, name := range unsafeModules(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A package of that name, as far as its import goes.
			files := map[string]string{}
			parts := strings.Split(name, ".")
			for i := range parts {
				files[filepath.Join(append(slices.Clone(parts[:i+1]), "__init__.py")...)] = ""
			}
			ix := openUnforkable(t, "import "+name+"\n", files)
			mustCall(t, ix, "t.count", `{}`, `1`)
			warned(t, ix, parts[0]+" is imported: ")
		})
	}
}
