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

// machine is a machine and the settings of its agent.
type machine struct {
	name string
	root bool
	// refused are the kinds of namespaces that the kernel refuses, best is the strictest level without them.
	refused []string
	best    level
	// held is the level of tools without a declared one where best is none: the parts of the node's requested
	// level that need no namespaces.
	held level
	// workers is the user of all tools; by default each index has its own.
	workers string
	// unprivileged: the agent may make user namespaces only.
	unprivileged bool
	// soak: only in the soak, because another machine shows the same for another user.
	soak bool
}

// decides reports whether an attempt is made at level l: at the first level that stops it, and at the one before,
// where it succeeds. In the soak it is made at all levels.
func (m machine) decides(a attempt, l, loosest, strictest level) bool {
	from := a.user
	if m.root {
		from = a.root
	}
	switch {
	case m.workers == "root" && (strings.HasPrefix(a.by.name, "a user of its own") || a.by == noSetUser || strings.HasPrefix(a.name, "be_root") || a.name == "read_other_temporary"):
		return false // the tools of all indexes are root; below strict they keep their files in their homes
	case m.held > none || os.Getenv(soak) != "":
		return true
	case a.code != "" || a.proof == harmless:
		return l == loosest
	}
	from = min(max(from, loosest), strictest+1)
	return l == min(from, strictest) || l == max(from-1, loosest)
}

// workerUser returns the arguments for the user of tools.
func (m machine) workerUser() []string {
	if m.workers == "" {
		return nil
	}
	return []string{"--worker-user=" + m.workers}
}

// asked is the level that is requested of the node.
func (m machine) asked() level {
	if m.held == guard {
		return guard
	}
	return offline
}

// Tools attack at each level, on machines of each kind. A level that the machine does not have is refused if an
// index demands it, and shown as a lower one if the node requests it.
func TestTools(t *testing.T) {
	t.Parallel()
	for _, m := range []machine{
		{name: "root", root: true, best: offline},
		{name: "root, user namespaces alone", root: true, best: offline, unprivileged: true},
		{name: "ordinary user", best: offline},
		{name: "root, tools of one user, no network namespaces", root: true, workers: "nobody", refused: []string{"net"}, best: strict},
		{name: "ordinary user, no network namespaces", refused: []string{"net"}, best: strict, soak: true},
		{name: "root, tools of root, no IPC namespaces", root: true, workers: "root", refused: []string{"ipc"}, best: guard},
		{name: "root, no namespaces", root: true, refused: []string{"user", "pid"}, held: strict},
		{name: "ordinary user, no namespaces", refused: []string{"user", "pid"}, held: guard, soak: true},
		{name: "ordinary user, no namespaces, asked for more", refused: []string{"user", "pid"}, held: strict},
	} {
		t.Run(m.name, func(t *testing.T) {
			if m.soak && os.Getenv(soak) == "" {
				t.Skipf("set %s=1", soak)
			}
			t.Parallel()
			attack(t, m)
		})
	}
}

// attacked is a machine with the targets of the attempts.
type attacked struct {
	machine
	*mesh
	t      *testing.T
	user   int // of the agent
	secret string
	at     map[string]any
	nc     *nats.Conn
}

func attack(t *testing.T, m machine) {
	if os.Geteuid() != 0 && (m.root || m.refused != nil) {
		t.Skip("needs root, to start agents of other users")
	}
	w := prepare(t, m)
	n := w.node(t)
	if m.best == offline && n.Sandbox.Effective != "offline" {
		if m.root {
			t.Skipf("the machine does not have it: %v", n.Reasons)
		}
		t.Logf("the machine has no level offline: %v", n.Reasons)
		m.best = level(slices.Index(levels, n.Sandbox.Effective))
	}
	if m.held > none {
		const createRuleset, version = 444, 1
		if _, _, errno := syscall.Syscall(createRuleset, 0, 0, version); errno != 0 {
			t.Skipf("the kernel has no Landlock: %v", n.Reasons)
		}
	}
	if m.root && m.held > none && !strings.Contains(fmt.Sprint(n.Reasons), "indexes have users of their own all the same") {
		t.Errorf("mesh nodes does not say that indexes have users of their own: %q", n.Reasons)
	}
	if n.Sandbox.Asked != m.asked().String() || n.Sandbox.Effective != m.best.String() || (m.best != offline) != (len(n.Reasons) > 0) {
		t.Fatalf("mesh nodes says %+v, want %s", n, m.best)
	}
	w.at["node"] = n.ID
	index := filepath.Join(w.dir, "index")
	if err := os.CopyFS(index, os.DirFS("testdata/index")); err != nil {
		t.Fatal(err)
	}
	give, giveVictim := w.given()
	for name, l := range map[string]level{"victim": min(strict, m.best), "homely": min(guard, m.best)} {
		w.install(name, index, fmt.Sprintf("sandbox = %q\n", l), append([]string{"--env", "ATTACKED"}, giveVictim[name]...)...)
		folder := "~"
		if l == strict {
			folder = "" // its own folder of temporary files: it cannot write to its home
		}
		kept, code := w.call(name+".t.keep", map[string]any{"folder": folder})
		if code != "" {
			t.Fatalf("%s %s", kept, code)
		}
		w.at["kept_by_"+name] = json.RawMessage(kept)
	}
	sources, err := filepath.Glob(filepath.Join(w.data, "indexes", "victim*", "**", "t.py"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("the source of an index was not found: %v", err)
	}
	w.at["source"] = sources[0]
	w.install("private", index, "", "--session=apart")
	w.hold("victim", "att-victim")
	var running sync.WaitGroup
	loosest := guard
	if m.best == offline && !m.unprivileged { // two machines are enough to show that the attempts work
		loosest = none
	}
	for l := loosest; l <= offline; l++ {
		said, ok := w.tryInstall(l.String(), index, fmt.Sprintf("sandbox = %q\n", l), "", append([]string{"--env", "ATTACKED_OTHER"}, give...)...)
		switch {
		case l > m.best:
			if ok || !strings.Contains(said, fmt.Sprintf("it demands the sandbox level %s, which this node does not have: the system refuses", l)) {
				t.Errorf("an index that demands %s is installed: %t\n%s", l, ok, said)
			}
		case !ok:
			t.Fatalf("install %s: %s", l, said)
		default:
			running.Go(func() { w.attackAt(l.String(), l, loosest, m.best) })
		}
	}
	if m.held > none {
		w.install("held", index, "", "--env", "ATTACKED_OTHER")
		running.Go(func() { w.attackAt("held", m.held, m.held, m.held) })
	}
	running.Wait()
	// An index without a level has the level that mesh nodes shows; its tools that demand a stricter one are not
	// served.
	demands := "sandbox = \"offline\"\n"
	if said, ok := w.tryInstall("plain", index, "", "[tool.\"t.hello\"]\n"+demands+"[tool.command]\ncommand = [\"true\"]\nstdout = \"text\"\n"+demands); !ok {
		t.Fatal(said)
	}
	for _, tool := range []string{"plain.t.hello", "plain.command"} {
		if said, code := w.call(tool, nil); (code == "unavailable") != (m.best < offline) {
			t.Errorf("%s, which demands offline: %s %s", tool, said, code)
		}
	}
	at := maps.Clone(w.at)
	at["file"], _ = w.plant("plain", "everybody")
	if got, code := w.call("plain.t.try_truncate", map[string]any{"at": at}); strings.Contains(string(got), "stopped") != (max(m.best, m.held) >= strict) {
		t.Errorf("without a level: %s %s", got, code)
	}
}

// given makes folders of the agent's user, and returns the arguments that give them to the attacking indexes and
// to others, by name. Without mounts, and in a user namespace, which shows no file as another user's, nothing is
// given.
func (w *attacked) given() (attackers []string, others map[string][]string) {
	w.t.Helper()
	if w.refused != nil || w.unprivileged {
		return nil, nil
	}
	top := filepath.Join(filepath.Dir(w.dir), "given")
	for _, name := range []string{"write", "read", "others", "beside"} {
		file := filepath.Join(top, name, "file")
		write(w.t, file, w.secret, 0o600)
		w.own(file)
		w.own(filepath.Dir(file))
		if err := os.Chmod(filepath.Dir(file), 0o700); err != nil {
			w.t.Fatal(err)
		}
	}
	w.at["given"] = top
	return []string{"--path=" + filepath.Join(top, "write") + ":rw", "--path=" + filepath.Join(top, "read")},
		map[string][]string{"homely": {"--path=" + filepath.Join(top, "others")}}
}

// attackAt makes the attempts that level l decides, with the tools of an index of that level.
func (w *attacked) attackAt(index string, l, loosest, strictest level) {
	at := maps.Clone(w.at)
	at["level"], at["beside"] = l.String(), "att-sib-"+l.String()
	at["sibling"] = w.hold(index, "att-sib-"+l.String())
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
		if !w.decides(a, l, loosest, strictest) {
			continue
		}
		try := func() { w.try(i, a, index, l, maps.Clone(at), outside.Process) }
		if a.limit != "" || a.code != "" {
			slow.Go(try)
		} else {
			try()
		}
	}
}

// prepare starts a mesh and the targets of its tools.
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
	for _, folder := range []string{home, filepath.Join(dir, "planted")} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.own(home)

	socket, abstract := filepath.Join(dir, "socket"), "attacked-"+w.secret[7:15]
	tcp := w.serve("tcp", "127.0.0.1:0")
	w.serve("unix", socket)
	w.serve("unix", "@"+abstract)
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	inSession := filepath.Join(sessionOf(w.user), abstract)
	if info, err := os.Stat(filepath.Dir(inSession)); err == nil && info.IsDir() {
		w.serve("unix", inSession)
		w.own(inSession)
	} else {
		inSession = ""
	}
	port := tcp.(*net.TCPAddr).Port
	w.answer(port)

	settings, err := json.Marshal(map[string]any{"refused": append([]string{}, m.refused...), "secret": secret, "user": w.user, "unprivileged": m.unprivileged})
	if err != nil {
		t.Fatal(err)
	}
	if w.user == os.Geteuid() {
		meshtest.Warm(filepath.Join(home, "data", "executor"), t.Cleanup)
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
	}, append(m.workerUser(), "--sandbox="+m.asked().String(), "--limits="+nodeLimits)...)
	_, natsPort, err := net.SplitHostPort(strings.TrimPrefix(w.url, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	w.nc = w.connect(t, "")
	w.at = map[string]any{
		"data": w.data, "port": port, "socket": socket, "abstract": abstract, "in_session": inSession, "nats": json.RawMessage(natsPort), "as_root": w.asRoot(dir),
	}
	w.shareMemory()
	return w
}

// forAll is a PATH of folders whose programs all users can start.
const forAll = "/usr/local/bin:/usr/bin:/bin"

// path returns the agent's PATH, and the first interpreter on it.
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
	w.t.Skip("no interpreter that all users can run")
	return "", ""
}

// asAgent makes a command that runs as the agent's user.
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

// serve writes the secret to each connection.
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

// answer answers each datagram with the secret.
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

// asRoot makes a setuid copy of cat, if the file system allows that.
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

// shareMemory starts a process of the agent's user that shares memory with the secret.
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

// install installs the attempts as an index of a name; more are lines of its [index].
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
		if a.command || slices.Contains(tools, a.tool()) {
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

[tool."t.command"]
command = ["python", "-c", "import sys, t; print(t.tried_by_command(*sys.argv[1:]))", "{name}", "{at}"]

%s%s`, strings.Join(tools, `", "`), more, limits, ofTools), 0o644)
	cmd := exec.Command(program, append([]string{"install", dir, "--name=" + name, "--server=" + w.url, "--nkey=" + w.admin}, args...)...)
	cmd.Env = append(environ(w.dir), "ATTACKED="+w.secret, "ATTACKED_OTHER="+w.secret)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	return string(out), err == nil
}

// call calls a tool without a key, and returns its answer or the error's code.
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
		return nil, "unavailable" // no node serves it
	}
	if err != nil {
		w.t.Errorf("%s: %v", tool, err)
		return nil, "none"
	}
	return m.Data, m.Header.Get("Mesh-Error-Code")
}

// hold keeps a worker of an index busy until the test ends, under a name, and returns its process id.
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

// plant makes the file of one attempt; changed reports whether it was changed since.
func (w *attacked) plant(name, whose string) (path string, changed func() bool) {
	w.t.Helper()
	dir := filepath.Join(filepath.Dir(w.dir), "planted", name) // not below a folder of the agent
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

// try makes one attempt at a level, and requires the outcome of its row.
func (w *attacked) try(i int, a attempt, index string, l level, at map[string]any, outside *os.Process) {
	from, errs := a.user, a.by.errors
	if w.root {
		from = a.root
	}
	if w.held > none {
		errs += " ENOSPC " + landlock.errors // ENOSPC is the kernel's error for refused namespaces
		if !w.root || a.by == pids || a.by == shm {
			from = a.alone()
		}
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
	args := map[string]any{"at": at}
	if a.command {
		text, err := json.Marshal(at)
		if err != nil {
			failed("%v", err)
			return
		}
		args = map[string]any{"name": a.name, "at": string(text)}
	}
	answer, code := w.call(index+"."+a.tool(), args)
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
		if hello, code := w.call(index+".t.hello", nil); string(hello) != `"hello"` {
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
	if got.Stopped != nil && !slices.Contains(strings.Fields(errs), *got.Stopped) {
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
		meshtest.Until(w.t, "the process that it left has ended", func() bool { return len(named(left)) == 0 })
		return
	default:
		proved = done
	}
	if done != proved {
		failed("it reports %s, and the proof from outside is %t", answer, proved)
	}
	if want := l < from; done != want && !(a.varies && want && !(l == none && w.root)) {
		failed("%s, want success: %t", answer, want)
	}
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

// named returns the command lines of the processes that were started under a name with a prefix, by their files.
func named(prefix string) map[string]string {
	found := map[string]string{}
	for _, pid := range processes() {
		file := "/proc/" + pid + "/cmdline"
		if line, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(line), prefix) {
			found[file] = string(line)
		}
	}
	return found
}
