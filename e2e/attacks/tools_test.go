package attacks_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/meshtest"
)

// level is the loosest that stops an attempt.
type level int

const (
	none  level = iota // stopped at every level
	guard              // allowed in none, and so on
	strict
	offline
	never // allowed at every level
)

var levels = []string{"none", "guard", "strict", "offline", "never"}

func (l level) String() string { return levels[l] }

// proof is how it is seen, from outside, that an attempt has done what it says.
type proof int

const (
	said     proof = iota // it is not: the attempt's own word
	reads                 // the answer holds the secret
	changes               // the file is another one, has another mode, or is gone
	kills                 // the process outside is dead
	leaves                // a process is there after the call
	harmless              // whatever becomes of the call, others are served
)

// attempt is what a tool tries, a function of testdata/index/t.py.
type attempt struct {
	area, name, what string
	// What stops it, and from which level on: where the agent is root, and where it
	// is an ordinary user.
	by         stopper
	root, user level
	proof      proof
	whose      string // of the file: "everybody", "agent", "root"; empty for nobody
	limit      string // declared of it, as in tools.toml
	code       string // of the error that the call ends with instead
	// varies says that machines differ in whether looser levels stop it, too.
	varies bool
}

// stopper is what stops attempts, and the errors that a tool sees of it.
type stopper struct{ name, errors string }

var (
	ownUser     = stopper{"a user of its own", "EACCES EPERM"}
	ownOrIPC    = stopper{"a user of its own, IPC of its own", "EACCES ENOENT"}
	ownOrMounts = stopper{"a user of its own, read-only mounts", "EPERM EROFS EACCES"}
	mounts      = stopper{"mounts of its own", "EROFS ENOENT EACCES EPERM"}
	readOnly    = stopper{"read-only mounts", "EROFS"}
	landlock    = stopper{"Landlock", "EACCES EPERM EROFS"}
	pids        = stopper{"namespaces of its own", "ESRCH ENOENT"}
	caps        = stopper{"no capabilities", "EPERM EACCES EINVAL"}
	limits      = stopper{"limits", "EPERM"}
	seccomp     = stopper{"a filter of system calls", "EPERM EACCES"}
	network     = stopper{"a network of its own", "ECONNREFUSED"}
	shm         = stopper{"a `/dev/shm` of its own", "ENOSPC"}
	keyring     = stopper{"a keyring of its own", "ENOKEY EPERM"}
	noSetUser   = stopper{"no new privileges", "EACCES"}
	ownTTY      = stopper{"a session of its own", "ENXIO"}
	broker      = stopper{"the broker's permissions", "EACCES ECONNREFUSED"} // it cannot even be reached from offline
	agent       = stopper{"the agent", "ENOENT EMFILE tool_not_found"}
	nobodys     = stopper{}
)

const timeout = `timeout = "500ms"`

var attempts = []attempt{
	{area: "files", name: "read_system", what: "read what all users may", by: nobodys, root: never, user: never},
	{area: "files", name: "write_own_temporary", what: "write temporary files", by: nobodys, root: never, user: never},
	{area: "files", name: "null", what: "write `/dev/null`", by: nobodys, root: never, user: never},
	{area: "files", name: "read_other_source", what: "read another index's source", by: nobodys, root: never, user: never},
	{area: "files", name: "read_file", what: "read a file of the agent's user", by: ownUser, root: guard, user: never, proof: reads, whose: "agent"},
	{area: "files", name: "read_file", what: "read a file of root", by: ownUser, root: guard, user: none, proof: reads, whose: "root"},
	{area: "files", name: "append_to_file", what: "change a file of the agent's user", by: ownOrMounts, root: guard, user: strict, proof: changes, whose: "agent"},
	{area: "files", name: "remove", what: "remove one", by: ownOrMounts, root: guard, user: strict, proof: changes, whose: "agent"},
	{area: "files", name: "change_mode", what: "change the mode of one", by: ownOrMounts, root: guard, user: strict, proof: changes, whose: "agent"},
	{area: "files", name: "append_to_file", what: "change a file that all may write", by: readOnly, root: strict, user: strict, proof: changes, whose: "everybody"},
	{area: "files", name: "truncate", what: "truncate one", by: readOnly, root: strict, user: strict, proof: changes, whose: "everybody"},
	{area: "files", name: "remove", what: "remove one", by: readOnly, root: strict, user: strict, proof: changes, whose: "everybody"},
	{area: "files", name: "rename", what: "rename one", by: readOnly, root: strict, user: strict, proof: changes, whose: "everybody"},
	{area: "files", name: "make_link", what: "put a link beside one", by: readOnly, root: strict, user: strict, whose: "everybody"},
	{area: "files", name: "open_by_handle", what: "open a file past its folders", by: caps, root: guard, user: none, proof: reads, whose: "agent"},
	{area: "files", name: "set_user_program", what: "become root by a program that makes root of its user", by: noSetUser, root: guard, user: none, proof: reads, whose: "root"},
	{area: "files", name: "make_device", what: "make a device", by: caps, root: guard, user: none},
	{area: "files", name: "read_disk", what: "read the disk", by: ownUser, root: guard, user: none},
	{area: "files", name: "read_memory_device", what: "write memory or ports of the machine", by: ownUser, root: guard, user: none},
	{area: "files", name: "read_key", what: "read a key of the mesh", by: mounts, root: guard, user: guard},
	{area: "files", name: "read_store", what: "read the NATS server's files", by: mounts, root: guard, user: guard},
	{area: "files", name: "list_data", what: "look into the agent's folder", by: mounts, root: guard, user: guard},
	{area: "files", name: "uncover", what: "take away what hides these", by: mounts, root: guard, user: guard},
	{area: "files", name: "through_proc", what: "go around it through `/proc`", by: mounts, root: guard, user: guard},
	{area: "files", name: "import_first_root", what: "see them as the first process of its namespace does, while it is imported", by: mounts, root: guard, user: guard},
	{area: "files", name: "write_worker", what: "change the worker", by: mounts, root: guard, user: guard},
	{area: "files", name: "replace_worker", what: "replace the worker", by: mounts, root: guard, user: guard},
	{area: "files", name: "write_source", what: "change its own source", by: mounts, root: guard, user: guard},
	{area: "files", name: "write_environment", what: "change its environment of packages", by: mounts, root: guard, user: guard},
	{area: "files", name: "read_other_home", what: "read another index's home", by: ownUser, root: guard, user: never, proof: reads},
	{area: "files", name: "read_other_temporary", what: "read another index's temporary files", by: ownUser, root: guard, user: never, proof: reads},
	{area: "files", name: "swap_temporary_folder", what: "have the agent remove a folder of others", by: agent, root: none, user: none, proof: harmless, whose: "everybody"},

	{area: "processes", name: "start_program", what: "start a program", by: nobodys, root: never, user: never},
	{area: "processes", name: "limit_sibling", what: "lower the limits of another worker of its index", by: nobodys, root: never, user: never},
	{area: "processes", name: "see_outside", what: "see a process outside", by: pids, root: guard, user: guard},
	{area: "processes", name: "kill_outside", what: "kill one", by: pids, root: none, user: none, proof: kills},
	{area: "processes", name: "signal_sibling", what: "signal another worker of its index", by: landlock, root: guard, user: guard},
	{area: "processes", name: "signal_zygote", what: "signal the process that started it", by: landlock, root: guard, user: guard},
	{area: "processes", name: "signal_first", what: "signal the first process of its namespace", by: landlock, root: guard, user: guard},
	{area: "processes", name: "import_first_memory", what: "read its memory while it is imported", by: caps, root: guard, user: guard},
	{area: "processes", name: "trace_sibling", what: "trace another worker", by: landlock, root: guard, user: guard},
	{area: "processes", name: "read_sibling_memory", what: "read its memory", by: landlock, root: guard, user: guard},
	{area: "processes", name: "sibling_memory", what: "open its memory", by: landlock, root: guard, user: guard},
	{area: "processes", name: "sibling_environment", what: "read what it was started with", by: landlock, root: guard, user: guard},
	{area: "processes", name: "be_root", what: "become root", by: caps, root: guard, user: none},
	{area: "processes", name: "be_roots_group", what: "join root's group", by: caps, root: guard, user: none},
	{area: "processes", name: "raise_limit", what: "raise a hard limit", by: caps, root: guard, user: none},
	{area: "processes", name: "go_first", what: "go before other processes", by: caps, root: guard, user: none},
	{area: "processes", name: "dump_core", what: "write a core file", by: limits, root: guard, user: guard},
	{area: "processes", name: "into_namespace", what: "enter a namespace", by: caps, root: guard, user: none},
	{area: "processes", name: "own_namespaces", what: "make namespaces, and be root in them", by: seccomp, root: strict, user: strict, varies: true},

	{area: "sockets", name: "own_server", what: "connect to itself", by: nobodys, root: never, user: never},
	{area: "sockets", name: "connect", what: "connect to a server", by: network, root: offline, user: offline, proof: reads},
	{area: "sockets", name: "send_datagram", what: "send a datagram", by: network, root: offline, user: offline, proof: reads},
	{area: "sockets", name: "connect_to_file", what: "connect to a socket in the file system", by: seccomp, root: offline, user: offline, proof: reads},
	{area: "sockets", name: "connect_to_abstract", what: "connect to an abstract socket", by: landlock, root: strict, user: strict, proof: reads},
	{area: "sockets", name: "hypervisor", what: "open a socket to the hypervisor", by: seccomp, root: offline, user: offline},
	{area: "sockets", name: "raw_socket", what: "send packets of its own making", by: caps, root: guard, user: none},
	{area: "sockets", name: "hear_all", what: "hear all packets", by: caps, root: guard, user: none},
	{area: "sockets", name: "set_up_network", what: "set up the network", by: caps, root: guard, user: none},
	{area: "sockets", name: "low_port", what: "take a port below 1024", by: caps, root: guard, user: none},
	{area: "sockets", name: "shared_memory", what: "attach memory that the agent's user shares", by: ownOrIPC, root: guard, user: strict, proof: reads},
	{area: "sockets", name: "shared_file", what: "read it in `/dev/shm`", by: ownOrIPC, root: guard, user: strict, proof: reads},

	{area: "descriptors", name: "print_by_name", what: "open its standard output by name", by: nobodys, root: never, user: never, varies: true},
	{area: "descriptors", name: "descriptors", what: "use a descriptor that the agent was started with", by: agent, root: none, user: none, proof: reads},
	{area: "descriptors", name: "import_descriptors", what: "use one while it is imported", by: agent, root: none, user: none, proof: reads},
	{area: "descriptors", name: "import_type_at_terminal", what: "write and type at the terminal of `mesh up` while it is imported", by: ownTTY, root: none, user: none},
	{area: "descriptors", name: "talk_as_zygote", what: "talk to the agent as its zygote", by: agent, root: none, user: none},
	{area: "descriptors", name: "zygote_descriptor", what: "take the zygote's descriptors", by: landlock, root: guard, user: guard},
	{area: "descriptors", name: "sibling_descriptor", what: "take those of another worker", by: landlock, root: guard, user: guard},
	{area: "descriptors", name: "sibling_file", what: "open one of them by its name", by: landlock, root: guard, user: guard},

	{area: "environment", name: "own_environment", what: "find variables of the agent in its own", by: agent, root: none, user: none, proof: reads},
	{area: "environment", name: "other_tool_environment", what: "find variables of another tool", by: agent, root: none, user: none, proof: reads},
	{area: "environment", name: "agent_environment", what: "read the agent's variables", by: pids, root: guard, user: none, proof: reads},
	{area: "environment", name: "other_index_environment", what: "read another index's variables", by: pids, root: guard, user: none, proof: reads},
	{area: "environment", name: "zygote_memory", what: "read the memory of its zygote", by: landlock, root: guard, user: guard},
	{area: "environment", name: "agent_keyring", what: "read the kernel's keys of the agent's login", by: keyring, root: guard, user: guard, proof: reads},

	{area: "kernel", name: "mount", what: "mount", by: caps, root: guard, user: none},
	{area: "kernel", name: "change_root", what: "change the root folder", by: caps, root: guard, user: none},
	{area: "kernel", name: "host_name", what: "set the machine's name", by: caps, root: guard, user: none},
	{area: "kernel", name: "set_clock", what: "set the clock", by: caps, root: guard, user: none},
	{area: "kernel", name: "load_module", what: "load a module", by: caps, root: guard, user: none},
	{area: "kernel", name: "load_kernel", what: "load another kernel", by: caps, root: guard, user: none},
	{area: "kernel", name: "reboot", what: "reboot", by: caps, root: guard, user: none},
	{area: "kernel", name: "accounting", what: "turn accounting on", by: caps, root: guard, user: none},
	{area: "kernel", name: "swap", what: "turn swap on", by: caps, root: guard, user: none},
	{area: "kernel", name: "clear_log", what: "clear the kernel's log", by: caps, root: guard, user: none},
	{area: "kernel", name: "ports", what: "use ports of devices", by: caps, root: guard, user: none},
	{area: "kernel", name: "write_kernel_log", what: "write the kernel's log", by: ownUser, root: guard, user: none},
	{area: "kernel", name: "kernel_settings", what: "change settings of the kernel", by: mounts, root: guard, user: none},
	{area: "kernel", name: "magic_keys", what: "press its magic keys", by: mounts, root: guard, user: none},
	{area: "kernel", name: "device_settings", what: "change settings of devices", by: mounts, root: guard, user: none},
	{area: "kernel", name: "control_groups", what: "leave its control group", by: mounts, root: guard, user: none},
	{area: "kernel", name: "program_the_kernel", what: "give the kernel programs", by: seccomp, root: strict, user: strict, varies: true},
	{area: "kernel", name: "watch_the_kernel", what: "watch the kernel", by: seccomp, root: strict, user: strict, varies: true},
	{area: "kernel", name: "rings", what: "call by rings, past a filter", by: seccomp, root: strict, user: strict, varies: true},
	{area: "kernel", name: "page_faults", what: "answer page faults", by: seccomp, root: strict, user: strict, varies: true},
	{area: "kernel", name: "keep_keys", what: "leave keys in the kernel", by: seccomp, root: strict, user: strict, varies: true},

	{area: "broker", name: "broker_call", what: "call as a client without a key does", by: network, root: offline, user: offline},
	{area: "broker", name: "broker_install", what: "install", by: broker, root: none, user: none},
	{area: "broker", name: "broker_drain", what: "drain its node", by: broker, root: none, user: none},
	{area: "broker", name: "broker_variables", what: "read variables of indexes", by: broker, root: none, user: none},
	{area: "broker", name: "broker_listen", what: "listen to calls", by: broker, root: none, user: none},
	{area: "broker", name: "broker_serve", what: "serve another index's tool", by: broker, root: none, user: none},
	{area: "broker", name: "broker_session", what: "call in another session", by: broker, root: none, user: none},

	{area: "protocol", name: "call_other_index", what: "call another index's tool through the agent", by: nobodys, root: never, user: never},
	{area: "protocol", name: "call_private", what: "call a tool of another session", by: agent, root: none, user: none},
	{area: "protocol", name: "call_administration", what: "call what administers as a tool", by: agent, root: none, user: none},
	{area: "protocol", name: "call_pattern", what: "call by a pattern", by: agent, root: none, user: none},
	{area: "protocol", name: "forge_results", what: "answer other calls", by: agent, proof: harmless},
	{area: "protocol", name: "forge_ends", what: "end them", by: agent, proof: harmless},
	{area: "protocol", name: "forge_nested", what: "call in the name of other calls", by: agent, proof: harmless},
	{area: "protocol", name: "flood_nested", what: "call without end", by: agent, proof: harmless},
	{area: "protocol", name: "endless_frame", what: "announce a frame without end", by: agent, proof: harmless},
	{area: "protocol", name: "unknown_frame", what: "send a frame that there is not", by: agent, proof: harmless},
	{area: "protocol", name: "ready_again", what: "begin anew", by: agent, proof: harmless},
	{area: "protocol", name: "broken_error", what: "fail in broken JSON", by: agent, proof: harmless},
	{area: "protocol", name: "overwrite_page", what: "overwrite what it shares with the agent", by: agent, proof: harmless},
	{area: "protocol", name: "close_pipes", what: "close all that it was given", by: agent, proof: harmless},
	{area: "protocol", name: "end_itself", what: "end in the midst of a call", by: agent, proof: harmless},
	{area: "protocol", name: "kill_group", what: "kill its process group", by: agent, proof: harmless},

	{area: "time and memory", name: "never_end", what: "go on after its timeout, whatever is raised", by: agent, code: "deadline_exceeded", limit: timeout},
	{area: "time and memory", name: "hear_nothing", what: "hear no signal", by: agent, code: "deadline_exceeded", limit: timeout},
	{area: "time and memory", name: "stop_itself", what: "stop itself", by: agent, code: "deadline_exceeded", limit: timeout},
	{area: "time and memory", name: "leave_behind", what: "leave a process behind", by: agent, root: none, user: none, proof: leaves},
	{area: "time and memory", name: "use_processor", what: "use more processor time than declared", by: agent, code: "deadline_exceeded", limit: `limits = { cpu_time = "300ms" }`},
	{area: "time and memory", name: "use_memory", what: "more memory", by: agent, code: "worker_out_of_memory", limit: `limits = { memory = "64MB" }`},
	{area: "time and memory", name: "fork_on", what: "more threads", by: agent, code: "tool_error", limit: `limits = { pids = 20 }`},
	{area: "time and memory", name: "open_on", what: "more files", by: agent, root: none, user: none, limit: `limits = { open_files = 64 }`},
	{area: "time and memory", name: "answer_much", what: "a longer answer", by: agent, code: "payload_too_large", limit: `limits = { output = "10KB" }`},
	{area: "time and memory", name: "print_much", what: "print without end", by: agent, proof: harmless},
	{area: "time and memory", name: "fill_shared", what: "fill `/dev/shm`", by: shm, root: strict, user: strict},
}

// tool is that of the attempt.
func (a attempt) tool() string { return "t.try_" + a.name }

// machine is what an agent runs on.
type machine struct {
	name string
	root bool
	// refused are kinds of namespaces that the kernel is to make no more of, and best
	// is the strictest level that is left.
	refused []string
	best    level
}

// What a tool tries at each level, as a user and on a machine of each kind. A level that
// the machine does not have is refused where it is demanded, and shown as a lower one
// where it is asked for.
func TestTools(t *testing.T) {
	t.Parallel()
	for _, m := range []machine{
		{name: "root", root: true, best: offline},
		{name: "ordinary user", best: offline},
		{name: "root, no network namespaces", root: true, refused: []string{"net"}, best: strict},
		{name: "ordinary user, no network namespaces", refused: []string{"net"}, best: strict},
		{name: "root, no IPC namespaces", root: true, refused: []string{"ipc"}, best: guard},
		{name: "root, no namespaces", root: true, refused: []string{"user", "pid"}, best: none},
		{name: "ordinary user, no namespaces", refused: []string{"user", "pid"}, best: none},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			attack(t, m)
		})
	}
}

// attacked is a machine with all that is attacked on it.
type attacked struct {
	machine
	*mesh
	t      *testing.T
	user   int // the agent's
	secret string
	at     map[string]any
	nc     *nats.Conn
}

func attack(t *testing.T, m machine) {
	if os.Geteuid() != 0 && (m.root || m.refused != nil) {
		t.Skip("needs root, to start an agent as the user that it is to be")
	}
	w := prepare(t, m)
	n := w.node(t)
	if m.best == offline && n.Sandbox.Effective != "offline" {
		t.Skipf("the machine does not have it: %v", n.Reasons)
	}
	if n.Sandbox.Asked != "offline" || n.Sandbox.Effective != m.best.String() || (m.best != offline) != (len(n.Reasons) > 0) {
		t.Fatalf("mesh nodes says %+v, want %s", n, m.best)
	}
	w.at["node"] = n.ID
	index := filepath.Join(w.dir, "index")
	if err := os.CopyFS(index, os.DirFS("testdata/index")); err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]level{"victim": min(strict, m.best), "homely": min(guard, m.best)} {
		w.install(name, index, fmt.Sprintf("sandbox = %q\n", l), "--env", "ATTACKED")
		folder := "~"
		if l == strict {
			folder = "" // of temporary files: it has one of its own, and cannot write to its home
		}
		kept, code := w.call(name+".t.keep", map[string]any{"folder": folder})
		if code != "" {
			t.Fatalf("%s %s", kept, code)
		}
		w.at["kept_by_"+name] = json.RawMessage(kept)
	}
	sources, err := filepath.Glob(filepath.Join(w.data, "indexes", "victim*", "**", "t.py"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("the source of an index is not found: %v", err)
	}
	w.at["source"] = sources[0]
	w.install("private", index, "", "--session=apart")
	w.hold("victim", "att-victim")
	var running sync.WaitGroup
	for l := none; l <= offline; l++ {
		said, ok := w.tryInstall(l.String(), index, fmt.Sprintf("sandbox = %q\n", l), "", "--env", "ATTACKED_OTHER")
		switch {
		case l > m.best:
			if ok || !strings.Contains(said, fmt.Sprintf("it demands the sandbox level %s, which this node does not have: the system refuses", l)) {
				t.Errorf("an index that demands %s is installed: %t\n%s", l, ok, said)
			}
		case !ok:
			t.Fatalf("install %s: %s", l, said)
		case l > none || m.refused == nil: // there two others have told whether the attempts are any good
			running.Go(func() { w.attackAt(l) })
		}
	}
	running.Wait()
	// An index that demands nothing has the level that is shown; a tool of it that demands
	// more is not served.
	if said, ok := w.tryInstall("plain", index, "", "[tool.\"t.hello\"]\nsandbox = \"offline\"\n"); !ok {
		t.Fatal(said)
	}
	if hello, code := w.call("plain.t.hello", nil); (code == "unavailable") != (m.best < offline) {
		t.Errorf("a tool that demands offline: %s %s", hello, code)
	}
	at := maps.Clone(w.at)
	at["file"], _ = w.plant("plain", "everybody")
	if got, code := w.call("plain.t.try_truncate", map[string]any{"at": at}); strings.Contains(string(got), "stopped") != (m.best >= strict) {
		t.Errorf("without a level: %s %s", got, code)
	}
}

// attackAt makes all attempts at a level.
func (w *attacked) attackAt(l level) {
	at := maps.Clone(w.at)
	at["level"], at["beside"] = l.String(), "att-sib-"+l.String()
	at["sibling"] = w.hold(l.String(), "att-sib-"+l.String())
	name := fmt.Sprintf("outside-%s-%s", l, w.secret[7:15])
	at["outside"], at["left"] = name, "left-"+name
	outside := w.asAgent("sleep", "600")
	outside.Args[0], outside.Path = name, "/bin/sleep"
	if err := outside.Start(); err != nil {
		w.t.Error(err)
		return
	}
	defer func() {
		_ = outside.Process.Kill()
		_ = outside.Wait()
	}()
	var slow sync.WaitGroup
	defer slow.Wait()
	for i, a := range attempts {
		try := func() { w.try(i, a, l, maps.Clone(at), outside.Process) }
		if a.limit != "" {
			slow.Go(try)
		} else {
			try()
		}
	}
}

// prepare starts a mesh and what is to be attacked from it.
func prepare(t *testing.T, m machine) *attacked {
	t.Helper()
	w := &attacked{machine: m, t: t, secret: "secret-" + rand.Text(), user: os.Geteuid()}
	dir, err := os.MkdirTemp(shared, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if !m.root && w.user == 0 {
		w.user = nobody
	}
	home := filepath.Join(dir, "home")
	secret := filepath.Join(dir, "secret")
	write(t, secret, w.secret, 0o600)
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	w.own(home)

	socket, abstract := filepath.Join(dir, "socket"), "attacked-"+w.secret[7:15]
	tcp := w.serve("tcp", "127.0.0.1:0")
	w.serve("unix", socket)
	w.serve("unix", "@"+abstract)
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	port := tcp.(*net.TCPAddr).Port
	w.answer(port)

	settings, err := json.Marshal(map[string]any{"refused": append([]string{}, m.refused...), "secret": secret, "user": w.user})
	if err != nil {
		t.Fatal(err)
	}
	w.mesh = up(t, home, func(program string, args ...string) *exec.Cmd {
		start, err := filepath.Abs("testdata/start.py")
		if err != nil {
			t.Fatal(err)
		}
		path, python := w.path()
		cmd := exec.Command(python, append([]string{"-I", "-", string(settings), program}, args...)...)
		text, err := os.ReadFile(start)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = bytes.NewReader(text)
		cmd.Env = append(environ(home), "PATH="+path, "ATTACKED_AGENT="+w.secret)
		if m.refused != nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:                 syscall.CLONE_NEWUSER,
				UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}},
				GidMappingsEnableSetgroups: true,
				GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}},
			}
		}
		return cmd
	}, "--sandbox=offline")
	_, natsPort, err := net.SplitHostPort(strings.TrimPrefix(w.url, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	w.nc = w.connect(t, "")
	w.at = map[string]any{
		"data": w.data, "port": port, "socket": socket, "abstract": abstract, "nats": json.RawMessage(natsPort), "as_root": w.asRoot(dir),
	}
	w.shareMemory()
	return w
}

// forAll are the folders whose programs all users can start.
const forAll = "/usr/local/bin:/usr/bin:/bin"

// path is where the agent finds programs, and python the interpreter among them.
func (w *attacked) path() (path, python string) {
	w.t.Helper()
	path = os.Getenv("PATH")
	if w.user == nobody || w.best == none {
		path = forAll
	}
	for _, dir := range filepath.SplitList(path) {
		python = filepath.Join(dir, "python3")
		if _, err := os.Stat(python); err == nil {
			return path, python
		}
	}
	w.t.Skip("no interpreter that another user could run")
	return "", ""
}

// asAgent is a program of the agent's user.
func (w *attacked) asAgent(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	if w.user != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(w.user), Gid: uint32(w.user)}}
	}
	return cmd
}

func (w *attacked) own(path string) {
	if err := os.Lchown(path, w.user, w.user); os.Geteuid() == 0 && err != nil {
		w.t.Fatal(err)
	}
}

// serve says the secret to whoever connects.
func (w *attacked) serve(network, address string) net.Addr {
	w.t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(w.secret))
			_ = c.Close()
		}
	}()
	w.t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr()
}

// answer says the secret to every datagram.
func (w *attacked) answer(port int) {
	w.t.Helper()
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			_, from, err := l.ReadFromUDP(make([]byte, 64))
			if err != nil {
				return
			}
			_, _ = l.WriteToUDP([]byte(w.secret), from)
		}
	}()
	w.t.Cleanup(func() { _ = l.Close(); <-done })
}

// asRoot makes a cat that makes root of its user, where that can be.
func (w *attacked) asRoot(dir string) string {
	var fs syscall.Statfs_t
	const noSetUser = 2
	text, err := os.ReadFile("/bin/cat")
	if os.Geteuid() != 0 || w.refused != nil || err != nil || syscall.Statfs(dir, &fs) != nil || fs.Flags&noSetUser != 0 {
		return ""
	}
	path := filepath.Join(dir, "cat")
	write(w.t, path, string(text), 0o755|os.ModeSetuid)
	return path
}

// shareMemory has a process of the agent's user share memory that holds the secret.
func (w *attacked) shareMemory() {
	w.t.Helper()
	key := int(time.Now().UnixNano() & 0x3fffffff)
	file := "/dev/shm/attacked-" + w.secret[7:15]
	text, err := os.ReadFile("testdata/outside.py")
	if err != nil {
		w.t.Fatal(err)
	}
	_, python := w.path()
	cmd := w.asAgent(python, "-c", string(text), w.secret, fmt.Sprint(key), file)
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			w.t.Error(err)
		}
	})
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		w.t.Fatal(err)
	}
	w.at["shm"], w.at["shm_file"] = key, file
}

// install installs the attempts under a name; more is said of the index.
func (w *attacked) install(name, index, more string, args ...string) {
	w.t.Helper()
	if said, ok := w.tryInstall(name, index, more, "", args...); !ok {
		w.t.Fatalf("install %s: %s", name, said)
	}
}

func (w *attacked) tryInstall(name, index, more, ofTools string, args ...string) (said string, ok bool) {
	w.t.Helper()
	dir := filepath.Join(w.dir, "of-"+name)
	if err := os.CopyFS(dir, os.DirFS(index)); err != nil {
		w.t.Fatal(err)
	}
	tools, limits := []string{"t.hello", "t.hold", "t.keep", "t.other"}, ""
	for _, a := range attempts {
		if slices.Contains(tools, a.tool()) {
			continue
		}
		tools = append(tools, a.tool())
		if a.limit != "" {
			limits += fmt.Sprintf("[tool.%q]\n%s\n", a.tool(), a.limit)
		}
	}
	write(w.t, filepath.Join(dir, "tools.toml"), fmt.Sprintf(`[index]
tools = ["%s"]
isolation = "fork"
%s
[[index.env]]
name = "ATTACKED"
secret = true

[[index.env]]
name = "ATTACKED_OTHER"
tools = ["t.other"]
secret = true

[tool."t.keep"]
isolation = "warm"

%s%s`, strings.Join(tools, `", "`), more, limits, ofTools), 0o644)
	cmd := exec.Command(program, append([]string{"install", dir, "--name=" + name, "--server=" + w.url, "--nkey=" + w.admin}, args...)...)
	cmd.Env = append(environ(w.dir), "ATTACKED="+w.secret, "ATTACKED_OTHER="+w.secret)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	return string(out), err == nil
}

// call calls a tool without a key: its answer, or the error's code.
func (w *attacked) call(tool string, args any) (answer []byte, code string) {
	w.t.Helper()
	body, err := json.Marshal(args)
	if err != nil {
		w.t.Fatal(err)
	}
	if args == nil {
		body = nil
	}
	m, err := w.nc.RequestMsg(&nats.Msg{Subject: "tools.default." + tool, Data: body, Header: nats.Header{"Mesh-Timeout-Ms": {"60000"}}}, 2*time.Minute)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, "unavailable" // nobody serves it
	}
	if err != nil {
		w.t.Errorf("%s: %v", tool, err)
		return nil, "none"
	}
	return m.Data, m.Header.Get("Mesh-Error-Code")
}

// hold has a worker of an index busy until the end, under a name, and returns its process id.
func (w *attacked) hold(index, name string) int {
	w.t.Helper()
	inbox := nats.NewInbox()
	sub, err := w.nc.SubscribeSync(inbox)
	if err != nil {
		w.t.Fatal(err)
	}
	err = w.nc.PublishMsg(&nats.Msg{
		Subject: "tools.default." + index + ".t.hold", Reply: inbox, Data: fmt.Appendf(nil, `{"name":%q}`, name),
		Header: nats.Header{"Mesh-Stream": {"inbox"}, "Mesh-Rpc-Id": {name}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if _, err := w.nc.Request("mesh.ctl.default."+name, nil, time.Minute); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	})
	for {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			w.t.Fatalf("%s: %v", name, err)
		}
		var pid int
		if json.Unmarshal(m.Data, &pid) == nil {
			return pid
		}
		if code := m.Header.Get("Mesh-Error-Code"); code != "" {
			w.t.Fatalf("%s: %s %s", name, code, m.Data)
		}
	}
}

// plant makes a file of one attempt, and returns what tells whether it is as it was.
func (w *attacked) plant(name, whose string) (path string, changed func() bool) {
	w.t.Helper()
	dir := filepath.Join(filepath.Dir(w.dir), name)
	path = filepath.Join(dir, "file")
	switch whose {
	case "everybody":
		write(w.t, path, w.secret, 0o666)
		if err := os.Chmod(dir, 0o777); err != nil {
			w.t.Fatal(err)
		}
	case "agent":
		write(w.t, path, w.secret, 0o600)
		w.own(dir)
		w.own(path)
	default:
		write(w.t, path, w.secret, 0o600)
	}
	before, err := os.Stat(path)
	if err != nil {
		w.t.Fatal(err)
	}
	return path, func() bool {
		after, err := os.Stat(path)
		return err != nil || after.Size() != before.Size() || after.Mode() != before.Mode()
	}
}

// try has a tool make one attempt at a level, and wants the outcome that the row says.
func (w *attacked) try(i int, a attempt, l level, at map[string]any, outside *os.Process) {
	from := a.user
	if w.root {
		from = a.root
	}
	id := fmt.Sprintf("%s-%d-%s-%s", l, i, a.name, a.whose)
	failed := func(format string, args ...any) {
		w.t.Errorf("%s: %s (%s): %s", l, a.what, a.name, fmt.Sprintf(format, args...))
	}
	var changed func() bool
	if a.whose == "root" && os.Geteuid() != 0 {
		return
	}
	at["file"], changed = w.plant(id, a.whose)
	answer, code := w.call(l.String()+"."+a.tool(), map[string]any{"at": at})
	var got struct {
		Done, Stopped, Said, Absent *string
	}
	if code == "" {
		if err := json.Unmarshal(answer, &got); err != nil {
			failed("%s: %v", answer, err)
			return
		}
	}
	if a.proof == harmless {
		if hello, code := w.call(l.String()+".t.hello", nil); string(hello) != `"hello"` {
			failed("afterwards its index answers %s %s", hello, code)
		}
		if hello, code := w.call("victim.t.hello", nil); string(hello) != `"hello"` {
			failed("afterwards others answer %s %s", hello, code)
		}
		if changed() {
			failed("the file has changed")
		}
		return
	}
	if code != a.code {
		failed("the call ends with %s: %s, want %q", code, answer, a.code)
		return
	}
	if code != "" {
		return
	}
	if got.Absent != nil {
		w.t.Logf("%s: %s: not here: %s", l, a.what, *got.Absent)
		return
	}
	if got.Stopped != nil && !slices.Contains(strings.Fields(a.by.errors), *got.Stopped) {
		failed("%s, want %s to stop it", answer, a.by.name)
	}
	done := got.Done != nil
	var proved bool
	switch a.proof {
	case reads:
		proved = bytes.Contains(answer, []byte(w.secret))
	case changes:
		proved = changed()
	case kills:
		proved = !alive(outside.Pid)
		if done {
			meshtest.Until(w.t, "the process outside is dead", func() bool { return !alive(outside.Pid) })
			proved = true
		}
	case leaves:
		left := at["left"].(string)
		meshtest.Until(w.t, "what it left is gone", func() bool { return len(named(left)) == 0 })
		return
	default:
		proved = done
	}
	if done != proved {
		failed("it says %s, but what it is to prove is %t", answer, proved)
	}
	if want := l < from; done != want && !(a.varies && want && !(l == none && w.root)) {
		failed("%s, want it to be done: %t", answer, want)
	}
}

// alive says whether a process runs, and is not a dead one that nobody has waited for.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

// named are the processes that were started by a name.
func named(name string) []string {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.DeleteFunc(files, func(file string) bool {
		line, err := os.ReadFile(file)
		return err != nil || !strings.HasPrefix(string(line), name+"\x00")
	})
}
