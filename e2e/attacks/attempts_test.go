package attacks_test

// level is a sandbox level, as the loosest one that stops an attempt.
type level int

const (
	none  level = iota // stopped at every level
	guard              // allowed in none; the others likewise
	strict
	offline
	never // allowed at every level
)

var levels = []string{"none", "guard", "strict", "offline", "never"}

func (l level) String() string { return levels[l] }

// proof is how the test sees from outside that an attempt succeeded.
type proof int

const (
	said     proof = iota // not at all: the attempt reports it
	reads                 // the answer holds the secret
	changes               // the file has another content or mode, or was removed
	kills                 // the process outside is dead
	leaves                // a process outlives the call
	harmless              // the call may end in any way, and others are served
)

// attempt is what a tool tries, a function of testdata/index/t.py.
type attempt struct {
	area, name, what string
	// What stops it, and from which level on, for an agent of root and for one of an ordinary user.
	by         stopper
	root, user level
	proof      proof
	whose      string // owner of the file: "everybody", "agent", "root"
	limit      string // its declaration in tools.toml
	code       string // of the error with which the call must end
	// varies: on some machines looser levels stop it, too.
	varies bool
	// mounts: mounts stop it, though its stopper needs none for other attempts.
	mounts bool
	// command: a tool that is a command tries it, not a function.
	command bool
}

// stopper stops attempts; errors are those that a tool sees of it.
type stopper struct {
	name, errors string
	// alone: it also stops them without namespaces, itself or by Landlock.
	alone bool
}

// alone is the loosest level that stops an attempt where the agent is an ordinary user
// and there are no namespaces.
func (a attempt) alone() level {
	if a.user == offline || a.user > none && (a.mounts || !a.by.alone) {
		return never
	}
	return max(a.user, guard)
}

var (
	ownUser     = stopper{"a user of its own", "EACCES EPERM", true}
	ownOrIPC    = stopper{"a user of its own, IPC of its own", "EACCES ENOENT", false}
	ownOrCover  = stopper{"a user of its own", "EACCES ENOENT", false}
	session     = stopper{"a user of its own, mounts of its own", "EACCES ENOENT", false}
	ownOrMounts = stopper{"a user of its own, read-only mounts", "EPERM EROFS EACCES", true}
	mounts      = stopper{"mounts of its own", "EROFS ENOENT EACCES EPERM", true}
	readOnly    = stopper{"read-only mounts", "EROFS", true}
	landlock    = stopper{"Landlock", "EACCES EPERM EROFS", true}
	pids        = stopper{"namespaces of its own", "ESRCH ENOENT", false}
	caps        = stopper{"no capabilities", "EPERM EACCES EINVAL", true}
	limits      = stopper{"limits", "EPERM", true}
	seccomp     = stopper{"a filter of system calls", "EPERM EACCES", true}
	network     = stopper{"a network of its own", "ECONNREFUSED", false}
	shm         = stopper{"a `/dev/shm` of its own", "ENOSPC", false}
	keyring     = stopper{"a keyring of its own", "ENOKEY EPERM", true}
	noSetUser   = stopper{"no new privileges", "EACCES", true}
	ownTTY      = stopper{"a session of its own", "ENXIO", true}
	broker      = stopper{"the broker's permissions", "EACCES ECONNREFUSED", true} // offline does not even reach it
	agent       = stopper{"the agent", "ENOENT EMFILE tool_not_found", true}
	nothing     = stopper{}
)

const timeout = `timeout = "500ms"`

// nodeLimits are low, so that attempts exceed them soon.
const nodeLimits = "memory=150MB,temp_files=30MB"

var attempts = []attempt{
	{area: "files", name: "read_system", what: "read what all users may", by: nothing, root: never, user: never},
	{area: "files", name: "write_own_temporary", what: "write temporary files", by: nothing, root: never, user: never},
	{area: "files", name: "move_own_temporary", what: "move temporary files", by: nothing, root: never, user: never},
	{area: "files", name: "null", what: "write `/dev/null`", by: nothing, root: never, user: never},
	{area: "files", name: "read_other_source", what: "read another index's source", by: mounts, root: guard, user: guard},
	{area: "files", name: "read_file", what: "read a file of the agent's user", by: ownUser, root: guard, user: never, proof: reads, whose: "agent"},
	{area: "files", name: "read_file", what: "read a file of root", by: ownUser, root: guard, user: none, proof: reads, whose: "root"},
	{area: "files", name: "append_to_file", what: "change a file of the agent's user", by: ownOrMounts, root: guard, user: strict, proof: changes, whose: "agent"},
	{area: "files", name: "remove", what: "remove one", by: ownOrMounts, root: guard, user: strict, proof: changes, whose: "agent"},
	{area: "files", name: "change_mode", what: "change the mode of one", by: ownOrMounts, mounts: true, root: guard, user: strict, proof: changes, whose: "agent"},
	{area: "files", name: "append_to_file", what: "change a file that all may write", by: readOnly, root: strict, user: strict, proof: changes, whose: "everybody"},
	{area: "files", name: "truncate", what: "truncate one", by: readOnly, root: strict, user: strict, proof: changes, whose: "everybody"},
	{area: "files", name: "remove", what: "remove one", by: readOnly, root: strict, user: strict, proof: changes, whose: "everybody"},
	{area: "files", name: "rename", what: "rename one", by: readOnly, root: strict, user: strict, proof: changes, whose: "everybody"},
	{area: "files", name: "make_link", what: "put a link next to one", by: readOnly, root: strict, user: strict, whose: "everybody"},
	{area: "files", name: "open_by_handle", what: "open a file past its folders", by: caps, root: guard, user: none, proof: reads, whose: "agent"},
	{area: "files", name: "set_user_program", what: "become root by a setuid program", by: noSetUser, root: guard, user: none, proof: reads, whose: "root"},
	{area: "files", name: "make_device", what: "make a device", by: caps, root: guard, user: none},
	{area: "files", name: "read_disk", what: "read the disk", by: ownUser, root: guard, user: none},
	{area: "files", name: "read_memory_device", what: "write memory or ports of the machine", by: ownUser, root: guard, user: none},
	{area: "files", name: "read_key", what: "read a key of the mesh", by: mounts, root: guard, user: guard},
	{area: "files", name: "read_store", what: "read the NATS server's files", by: mounts, root: guard, user: guard},
	{area: "files", name: "list_data", what: "look into the agent's folder", by: mounts, mounts: true, root: guard, user: guard},
	{area: "files", name: "uncover", what: "remove the mounts that hide these", by: mounts, root: guard, user: guard},
	{area: "files", name: "through_proc", what: "reach them through `/proc`", by: mounts, root: guard, user: guard},
	{area: "files", name: "import_first_root", what: "see them as the first process of its namespace does, while it is imported", by: mounts, root: guard, user: guard},
	{area: "files", name: "write_worker", what: "change the worker", by: mounts, root: guard, user: guard},
	{area: "files", name: "replace_worker", what: "replace the worker", by: mounts, root: guard, user: guard},
	{area: "files", name: "write_source", what: "change its own source", by: mounts, root: guard, user: guard},
	{area: "files", name: "write_environment", what: "change its environment of packages", by: mounts, root: guard, user: guard},
	{area: "files", name: "read_other_home", what: "read another index's home", by: ownOrCover, root: guard, user: never, proof: reads},
	{area: "files", name: "read_other_temporary", what: "read another index's temporary files", by: mounts, mounts: true, root: guard, user: guard, proof: reads},
	{area: "files", name: "swap_temporary_folder", what: "make the agent remove a folder of another user", by: agent, root: none, user: none, proof: harmless, whose: "everybody"},
	{area: "files", name: "write_given", what: "write a folder that it is given", by: nothing, root: never, user: never},
	{area: "files", name: "write_given_to_read", what: "write one that it is given to read", by: mounts, mounts: true, root: guard, user: guard},
	{area: "files", name: "past_given", what: "leave it by `..`", by: ownOrCover, root: guard, user: never, proof: reads},
	{area: "files", name: "link_past_given", what: "by a link", by: ownOrCover, root: guard, user: never, proof: reads},
	{area: "files", name: "read_others_given", what: "read one that another index is given", by: ownOrCover, root: guard, user: never, proof: reads},
	{area: "files", name: "set_user_in_given", what: "make a program in one that runs as its owner (setuid)", by: seccomp, root: guard, user: never},

	{area: "processes", name: "start_program", what: "start a program", by: nothing, root: never, user: never},
	{area: "processes", name: "lock_between_processes", what: "lock between processes", by: nothing, root: never, user: never},
	{area: "processes", name: "limit_sibling", what: "lower the limits of another worker of its index", by: nothing, root: never, user: never},
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
	{area: "processes", name: "go_first", what: "raise its own priority", by: caps, root: guard, user: none},
	{area: "processes", name: "dump_core", what: "write a core file", by: limits, root: guard, user: guard},
	{area: "processes", name: "into_namespace", what: "enter a namespace", by: caps, root: guard, user: none},
	{area: "processes", name: "own_namespaces", what: "make namespaces, and be root in them", by: seccomp, root: strict, user: strict, varies: true},

	{area: "sockets", name: "own_server", what: "connect to itself", by: nothing, root: never, user: never},
	{area: "sockets", name: "connect", what: "connect to a server", by: network, root: offline, user: offline, proof: reads},
	{area: "sockets", name: "send_datagram", what: "send a datagram", by: network, root: offline, user: offline, proof: reads},
	{area: "sockets", name: "connect_to_file", what: "connect to a socket in the file system", by: seccomp, root: offline, user: offline, proof: reads},
	{area: "sockets", name: "connect_to_session", what: "connect to a socket of its user's session, in `/run/user`", by: session, root: guard, user: strict, proof: reads},
	{area: "sockets", name: "connect_to_abstract", what: "connect to an abstract socket", by: landlock, root: strict, user: strict, proof: reads},
	{area: "sockets", name: "hypervisor", what: "open a socket to the hypervisor", by: seccomp, root: offline, user: offline},
	{area: "sockets", name: "raw_socket", what: "send raw packets", by: caps, root: guard, user: none},
	{area: "sockets", name: "hear_all", what: "read all packets", by: caps, root: guard, user: none},
	{area: "sockets", name: "set_up_network", what: "set up the network", by: caps, root: guard, user: none},
	{area: "sockets", name: "low_port", what: "take a port below 1024", by: caps, root: guard, user: none},
	{area: "sockets", name: "shared_memory", what: "attach memory that the agent's user shares", by: ownOrIPC, root: guard, user: strict, proof: reads},
	{area: "sockets", name: "shared_file", what: "read it in `/dev/shm`", by: ownOrIPC, root: guard, user: strict, proof: reads},

	{area: "descriptors", name: "print_by_name", what: "open its standard output by name", by: nothing, root: never, user: never, varies: true},
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
	{area: "kernel", name: "magic_keys", what: "use its magic keys (sysrq)", by: mounts, root: guard, user: none},
	{area: "kernel", name: "device_settings", what: "change settings of devices", by: mounts, root: guard, user: none},
	{area: "kernel", name: "control_groups", what: "leave its control group", by: mounts, root: guard, user: none},
	{area: "kernel", name: "program_the_kernel", what: "load programs into the kernel (bpf)", by: seccomp, root: strict, user: strict, varies: true},
	{area: "kernel", name: "watch_the_kernel", what: "watch the kernel (perf)", by: seccomp, root: strict, user: strict, varies: true},
	{area: "kernel", name: "rings", what: "make system calls by io_uring, past a filter", by: seccomp, root: strict, user: strict, varies: true},
	{area: "kernel", name: "page_faults", what: "handle page faults (userfaultfd)", by: seccomp, root: strict, user: strict, varies: true},
	{area: "kernel", name: "keep_keys", what: "leave keys in the kernel's keyring", by: seccomp, root: strict, user: strict, varies: true},

	{area: "broker", name: "broker_call", what: "call as a client without a key does", by: network, root: offline, user: offline},
	{area: "broker", name: "broker_install", what: "install", by: broker, root: none, user: none},
	{area: "broker", name: "broker_drain", what: "drain its node", by: broker, root: none, user: none},
	{area: "broker", name: "broker_variables", what: "read variables of indexes", by: broker, root: none, user: none},
	{area: "broker", name: "broker_listen", what: "listen to calls", by: broker, root: none, user: none},
	{area: "broker", name: "broker_serve", what: "serve another index's tool", by: broker, root: none, user: none},
	{area: "broker", name: "broker_session", what: "call in another session", by: broker, root: none, user: none},

	{area: "protocol", name: "call_other_index", what: "call another index's tool through the agent", by: nothing, root: never, user: never},
	{area: "protocol", name: "call_private", what: "call a tool of another session", by: agent, root: none, user: none},
	{area: "protocol", name: "call_administration", what: "call an administrative request as a tool", by: agent, root: none, user: none},
	{area: "protocol", name: "call_pattern", what: "call by a pattern", by: agent, root: none, user: none},
	{area: "protocol", name: "forge_results", what: "answer other calls", by: agent, proof: harmless},
	{area: "protocol", name: "forge_ends", what: "end them", by: agent, proof: harmless},
	{area: "protocol", name: "forge_nested", what: "call in the name of other calls", by: agent, proof: harmless},
	{area: "protocol", name: "flood_nested", what: "make nested calls without end", by: agent, proof: harmless},
	{area: "protocol", name: "endless_frame", what: "announce a frame without end", by: agent, proof: harmless},
	{area: "protocol", name: "unknown_frame", what: "send a frame of an unknown type", by: agent, proof: harmless},
	{area: "protocol", name: "ready_again", what: "report its start a second time", by: agent, proof: harmless},
	{area: "protocol", name: "broken_error", what: "send an error in broken JSON", by: agent, proof: harmless},
	{area: "protocol", name: "overwrite_page", what: "overwrite the memory that it shares with the agent", by: agent, proof: harmless},
	{area: "protocol", name: "cut_page", what: "cut that off", by: agent, proof: harmless},
	{area: "protocol", name: "close_pipes", what: "close all its descriptors", by: agent, proof: harmless},
	{area: "protocol", name: "end_itself", what: "end its process during a call", by: agent, proof: harmless},
	{area: "protocol", name: "kill_group", what: "kill its process group", by: agent, proof: harmless},

	{area: "commands", command: true, name: "write_given", what: "write a folder that it is given", by: nothing, root: never, user: never},
	{area: "commands", command: true, name: "read_file", what: "read a file of the agent's user", by: ownUser, root: guard, user: never, proof: reads, whose: "agent"},
	{area: "commands", command: true, name: "read_key", what: "read a key of the mesh", by: mounts, root: guard, user: guard},
	{area: "commands", command: true, name: "write_worker", what: "change the worker", by: mounts, root: guard, user: guard},
	{area: "commands", command: true, name: "write_source", what: "change its own source", by: mounts, root: guard, user: guard},
	{area: "commands", command: true, name: "write_given_to_read", what: "write a folder that it is given to read", by: mounts, mounts: true, root: guard, user: guard},
	{area: "commands", command: true, name: "see_outside", what: "see a process outside", by: pids, root: guard, user: guard},
	{area: "commands", command: true, name: "kill_outside", what: "kill one", by: pids, root: none, user: none, proof: kills},
	{area: "commands", command: true, name: "be_root", what: "become root", by: caps, root: guard, user: none},
	{area: "commands", command: true, name: "own_environment", what: "find variables of the agent in its own", by: agent, root: none, user: none, proof: reads},
	{area: "commands", command: true, name: "agent_environment", what: "read the agent's variables", by: pids, root: guard, user: none, proof: reads},
	{area: "commands", command: true, name: "connect", what: "connect to a server", by: network, root: offline, user: offline, proof: reads},

	{area: "time and memory", name: "never_end", what: "go on after its timeout and catch every exception", by: agent, code: "deadline_exceeded", limit: timeout},
	{area: "time and memory", name: "hear_nothing", what: "block all signals", by: agent, code: "deadline_exceeded", limit: timeout},
	{area: "time and memory", name: "stop_itself", what: "stop itself", by: agent, code: "deadline_exceeded", limit: timeout},
	{area: "time and memory", name: "leave_behind", what: "leave a process behind", by: agent, root: none, user: none, proof: leaves},
	{area: "time and memory", name: "use_processor", what: "use more processor time than declared", by: agent, code: "deadline_exceeded", limit: `limits = { cpu_time = "300ms" }`},
	{area: "time and memory", name: "use_memory", what: "more memory", by: agent, code: "worker_out_of_memory", limit: `limits = { memory = "64MB" }`},
	{area: "time and memory", name: "fork_on", what: "more threads", by: agent, code: "tool_error", limit: `limits = { pids = 20 }`},
	{area: "time and memory", name: "open_on", what: "more files", by: agent, root: none, user: none, limit: `limits = { open_files = 64 }`},
	{area: "time and memory", name: "fork_on_undeclared", what: "more threads than 256, where it declares nothing", by: agent, code: "tool_error"},
	{area: "time and memory", name: "open_on_undeclared", what: "more files than 1,024, likewise", by: agent, root: none, user: none},
	{area: "time and memory", name: "use_memory_undeclared", what: "more memory than the node's share, likewise", by: agent, code: "worker_out_of_memory"},
	{area: "time and memory", name: "fill_temporary_undeclared", what: "more temporary files than the node's limit, likewise", by: agent, code: "tool_error"},
	{area: "time and memory", name: "answer_much", what: "return a longer result", by: agent, code: "payload_too_large", limit: `limits = { output = "10KB" }`},
	{area: "time and memory", name: "print_much", what: "print without end", by: agent, proof: harmless},
	{area: "time and memory", name: "fill_shared", what: "fill `/dev/shm`", by: shm, root: strict, user: strict},
}

// tool is the name of the attempt's tool.
func (a attempt) tool() string {
	if a.command {
		return "t.command"
	}
	return "t.try_" + a.name
}
