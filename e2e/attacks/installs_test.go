package attacks_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/meshtest"
)

// Facts of the product on which this test relies.
const (
	// refusedCode and refusedReason are those of an install with a forbidden entry in its dependency files.
	refusedCode, refusedReason = "install_failed", "dependency"
	// declaredSecret stands for the declared variable TOKEN in an address of a dependency.
	declaredSecret = "${TOKEN}"
	// soak is the variable that turns on the slower machines and levels.
	soak = "MESH_SOAK"
	// slow is the duration from which an install is logged.
	slow = 2 * time.Second
)

// only picks recipes by name.
var only = flag.String("installs", "", "`REGEXP` of the recipes to try")

// installMachine is the user of an agent, and its requested level.
type installMachine struct {
	name  string
	root  bool
	alone bool // without namespaces
	asked level
	soak  bool
	// second: a second agent installs the indexes, too. It needs root: otherwise its tools have the first agent's
	// user, and read that user's files.
	second bool
}

var installMachines = []installMachine{
	{name: "root, guard", root: true, asked: guard, second: true},
	{name: "ordinary user, guard", asked: guard, soak: true},
	{name: "ordinary user, no namespaces", alone: true, asked: guard, soak: true},
	{name: "root, strict", root: true, asked: strict, soak: true},
	{name: "root, none", root: true, asked: none, soak: true},
	{name: "ordinary user, strict", asked: strict, soak: true},
	{name: "ordinary user, none", asked: none, soak: true},
	{name: "ordinary user, no namespaces, strict", alone: true, asked: strict, soak: true},
}

// from is the level from which on an attempt is stopped on the machine.
func (m installMachine) from(a installAttempt) level {
	switch {
	case m.alone:
		return a.alone
	case m.root:
		return a.root
	}
	return a.user
}

// Indexes attack during their installation, a restart, the installation on a second node, and their removal.
func TestInstalls(t *testing.T) {
	t.Parallel()
	for _, m := range installMachines {
		t.Run(m.name, func(t *testing.T) {
			if m.soak && os.Getenv(soak) == "" {
				t.Skipf("it takes a minute more: set %s=1", soak)
			}
			if os.Geteuid() != 0 {
				t.Skip("needs root, to start agents of other users")
			}
			t.Parallel()
			installAt(t, m)
		})
	}
}

// workplace is a machine with a mesh up and the server of the indexes' authors.
type workplace struct {
	installMachine
	*mesh
	t       *testing.T
	user    int
	dir     string // folder of all its files, the agent's home included
	drop    string // folder for the reports of probes
	path    string // the agent's PATH
	python  string // the interpreter on it
	pidns   string
	author  *author
	envword string // a word in the agent's environment
	phase   string
	nc      *nats.Conn
	stop    func()
	mu      sync.Mutex // of logs
	logs    bytes.Buffer
	cases   []*attempted
	byID    map[string]*attempted
	reports []report // from drop and from the author's server
}

// attempted is the installation of one recipe, and its effects.
type attempted struct {
	*workplace
	*recipe       // a copy of of
	of            *recipe
	id            string // in the names of its packages and folders, and in its canary
	canary, token string
	out           bytes.Buffer // output of commands
	ok            bool
	code, reason  string
	retryable     bool
	answer        string // answers of its tool, after the install and after the restart
	leaks         []string
	changed       []string
	before        map[string]string
	argv          []string // command lines with its token
	left          []string // processes that outlived it
}

func (c *attempted) planted() string { return filepath.Join(c.dir, "planted", c.id) }
func (c *attempted) target() string  { return filepath.Join(c.data, "targets", c.id) }
func (c *attempted) base() string {
	return fmt.Sprintf("http://%s/c/%s", c.author.host, c.id)
}

// words match canaries and tokens in lower case; the group is the case's id.
var words = map[string]*regexp.Regexp{
	"canary": regexp.MustCompile(`canary([a-z]{3})x[a-z0-9]{12}`), "secrettoken": regexp.MustCompile(`secrettoken([a-z]{3})x[a-z0-9]{12}`),
}

func word(kind, id string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	b := make([]byte, 12)
	for i := range b {
		b[i] = letters[rand.IntN(len(letters))]
	}
	if id != "" {
		id += "x"
	}
	return kind + id + string(b)
}

func installAt(t *testing.T, m installMachine) {
	w := &workplace{installMachine: m, t: t, envword: word("agentenv", ""), user: os.Geteuid(), path: interpreterAndUV(t), phase: "install"}
	if !m.root {
		w.user = nobody
	}
	var err error
	if w.dir, err = os.MkdirTemp(shared, ""); err != nil {
		t.Fatal(err)
	}
	w.pidns, _ = os.Readlink("/proc/self/ns/pid")
	w.python = filepath.Join(filepath.SplitList(w.path)[0], "python3")
	// This git runs a case's code when it fetches the case's repository, as a fault of git would.
	write(t, filepath.Join(w.dir, "bin", "git"), `#!/bin/sh
name=
case "$*" in
*" ls-remote -q "* | *" fetch "*) for one; do case $one in */git/*.git) name=${one##*/} ;; esac; done ;;
*" archive "*) name=$(sed -n 's|.*/git/\([a-z0-9]*\).*|\1|p' FETCH_HEAD) ;;
esac
[ -z "$name" ] || python3 "`+w.dir+`/bin/${name%.git}.py" 2>/dev/null
exec /usr/bin/git "$@"
`, 0o755)
	w.path = filepath.Join(w.dir, "bin") + ":" + w.path
	w.drop = filepath.Join(w.dir, "drop")
	for folder, mode := range map[string]os.FileMode{w.dir: 0o755, w.drop: 0o777, filepath.Join(w.dir, "home"): 0o755, filepath.Join(w.dir, "planted"): 0o755} {
		if err := errors.Join(os.MkdirAll(folder, 0o755), os.Chmod(folder, mode)); err != nil {
			t.Fatal(err)
		}
	}
	w.own(filepath.Join(w.dir, "home"))
	tokens := map[string]string{}
	w.author = newAuthor(t, word("ownpass", ""), func(id string) string { return tokens[id] })
	w.byID = map[string]*attempted{}
	w.start()
	w.victim()
	start := time.Now()
	picked := regexp.MustCompile(*only)
	for i, r := range recipes {
		if !picked.MatchString(r.name) || r.spelling && os.Getenv(soak) == "" {
			continue
		}
		id := string([]byte{'a' + byte(i/676), 'a' + byte(i/26%26), 'a' + byte(i%26)})
		mine := *r
		c := &attempted{workplace: w, recipe: &mine, of: r, id: id, canary: word("canary", id), token: word("secrettoken", id)}
		tokens[id] = c.token
		w.cases, w.byID[id] = append(w.cases, c), c
		c.plant()
		w.author.during(id)
		began := time.Now()
		c.install(c.recipe, c.id)
		if took := time.Since(began); took > slow {
			t.Logf("%s (%s) took %.1fs: ok %t %s", c.name, c.id, took.Seconds(), c.ok, c.code)
		}
		c.look()
	}
	w.leftovers()
	t.Logf("installs took %.0fs", time.Since(start).Seconds())
	w.author.during("later")
	w.again()
	t.Logf("and a restart, %.0fs", time.Since(start).Seconds())
	if m.second {
		w.phase = "second node"
		w.secondNode()
	}
	w.scan()
	t.Logf("and all looked into, %.0fs", time.Since(start).Seconds())
	w.phase = "uninstall"
	for _, c := range w.cases {
		if c.ok && (c.prepare != nil || strings.Contains(c.files["tools.toml"], "init =")) {
			c.mesh(0, "uninstall", c.id)
			c.look()
		}
	}
	w.leftovers()
	w.take()
	t.Logf("in all %.0fs, %d reports", time.Since(start).Seconds(), len(w.reports))
	w.judge()
}

// interpreterAndUV makes a folder with an interpreter and uv for all users, once, and returns a PATH. A
// successful attempt changes these files, not the machine's.
var interpreterAndUV = func() func(t *testing.T) string {
	var once sync.Once
	var path string
	var err error
	return func(t *testing.T) string {
		t.Helper()
		once.Do(func() {
			dir := filepath.Join(shared, "programs")
			var real []byte
			if real, err = exec.Command("/usr/bin/python3", "-I", "-c", "import os, sys; print(os.path.realpath(sys.executable), os.path.dirname(os.__file__))").Output(); err != nil {
				return
			}
			var program, library string
			if _, err = fmt.Sscan(string(real), &program, &library); err != nil {
				return
			}
			text, read := os.ReadFile(program)
			write(t, filepath.Join(dir, "bin", "python3"), string(text), 0o755)
			err = errors.Join(read, os.MkdirAll(filepath.Join(dir, "lib"), 0o755), os.Symlink(library, filepath.Join(dir, "lib", filepath.Base(library))))
			if uv, found := exec.LookPath("uv"); found == nil {
				var text []byte
				text, read = os.ReadFile(uv)
				write(t, filepath.Join(dir, "bin", "uv"), string(text), 0o755)
				err = errors.Join(err, read)
			} else {
				out, failed := exec.Command("/usr/bin/env", "python3", "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target", filepath.Join(dir, "uv"), "uv").CombinedOutput()
				if failed != nil {
					failed = fmt.Errorf("uv: %w: %s", failed, out)
				} else {
					failed = os.Link(filepath.Join(dir, "uv", "bin", "uv"), filepath.Join(dir, "bin", "uv"))
				}
				err = errors.Join(err, failed)
			}
			path = filepath.Join(dir, "bin") + ":/usr/bin:/bin"
		})
		if err != nil {
			t.Skipf("no interpreter or no uv is available: %v", err)
		}
		return path
	}
}()

func (w *workplace) own(path string) {
	if err := os.Lchown(path, w.user, w.user); err != nil {
		w.t.Fatal(err)
	}
}

// start starts mesh up; w.stop stops it.
func (w *workplace) start() {
	w.t.Helper()
	home := filepath.Join(w.dir, "home")
	w.mesh = &mesh{dir: home, data: filepath.Join(home, "data")}
	w.admin = access.File(w.data, access.Admin)
	w.url, w.stop = w.process(program, "nats=(\\S+)(?: \\S+)?\n", "up", "--nats-listen=127.0.0.1:0", "--labels=first=yes", "--private-sources", "--data-dir="+w.data, "--sandbox="+w.asked.String())
	w.nc = w.connect(w.t, w.admin)
}

// process starts a program as the agent's user, and returns its match of until.
func (w *workplace) process(program, until string, args ...string) (said string, stop func()) {
	w.t.Helper()
	secret := filepath.Join(w.dir, "secret")
	write(w.t, secret, "a secret", 0o600)
	settings := map[string]any{"refused": []string{}, "secret": secret, "user": w.user, "unprivileged": false}
	script, err := os.ReadFile("testdata/start.py")
	if err != nil {
		w.t.Fatal(err)
	}
	if w.alone {
		settings["refused"] = []string{"user", "pid"}
	}
	text, err := json.Marshal(settings)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command("/usr/bin/python3", append([]string{"-I", "-", string(text), program}, args...)...)
	home := filepath.Join(w.dir, "home")
	cmd.Dir, cmd.Stdin = home, bytes.NewReader(script)
	cmd.Env = append(environ(home),
		"PATH="+w.path, fmt.Sprintf("PIP_INDEX_URL=http://agent:%s@127.0.0.1:%d/own/simple/", w.author.password, w.author.port),
		"UV_HTTP_RETRIES=0", "ATTACKED="+w.envword, "UV_ATTACKED="+w.envword, "PIP_ATTACKED="+w.envword, "GIT_ATTACKED="+w.envword, "XDG_ATTACKED="+w.envword)
	if w.alone {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:                 syscall.CLONE_NEWUSER,
			UidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}},
			GidMappingsEnableSetgroups: true,
			GidMappings:                []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}},
		}
	}
	out, in, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		_ = out.Close()
		w.t.Skipf("it cannot be started on this machine: %v", err)
	}
	found, read := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(read)
		ready := regexp.MustCompile(until)
		var mine bytes.Buffer
		for part := make([]byte, 8192); ; {
			n, err := out.Read(part)
			w.mu.Lock()
			w.logs.Write(part[:n])
			w.mu.Unlock()
			if ready != nil {
				mine.Write(part[:n])
				if is := ready.FindStringSubmatch(mine.String()); is != nil {
					found <- is[len(is)-1]
					ready = nil
				}
			}
			if err != nil {
				return
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		if err := cmd.Wait(); !hung.Stop() || err != nil {
			w.t.Errorf("%s ended with %v", cmd.Args[3:], err)
		}
		<-read
		_ = out.Close()
	})
	w.t.Cleanup(func() {
		stop()
		if meshtest.ShowLogs() {
			asked, _ := w.author.took()
			w.t.Log(strings.Join(asked, "\n"))
		}
		if meshtest.ShowLogs() {
			w.t.Log(w.logs.String())
		}
	})
	select {
	case said = <-found:
	case <-read:
		w.t.Fatalf("%s ended: %s", cmd.Args[3:], w.logs.String())
	}
	return said, stop
}

// victim installs the index whose home, environment, variables and process the others attack.
func (w *workplace) victim() {
	w.t.Helper()
	file, data := wheel("victimlib", map[string]string{"victimlib/__init__.py": "VALUE = 'victim-library'\n"})
	w.author.publish("victimlib", file, data)
	file, data = wheel("honest", map[string]string{"honest/__init__.py": "VALUE = 'honest'\n"})
	w.author.publish("honest", file, data)
	file, data = wheel("later", map[string]string{"later/__init__.py": "VALUE = 'later'\n"})
	w.author.publish("later", file, data)
	r := &recipe{name: "victim", files: map[string]string{
		"tools.toml":       "[index]\ntools = [\"v.hello\"]\n[[index.env]]\nname = \"TOKEN\"\nsecret = true\n",
		"v.py":             "# victim-source\nimport os, victimlib, later\ndef hello() -> str:\n    try:\n        open(os.path.expanduser('~/kept'), 'w').write('victim-home')\n    except OSError:\n        pass\n    return 'hello'\n",
		"requirements.txt": "victimlib\nlater\n",
	}, tool: "v.hello", env: []string{"TOKEN"}}
	c := &attempted{workplace: w, recipe: r, id: "victim", token: word("othertoken", ""), canary: word("canary", "zzz")}
	c.install(r, "victim")
	if !c.ok || c.answer != `"hello"` {
		w.t.Fatalf("the victim: %s %s\n%s", c.answer, &c.out, w.logs.String())
	}
}

// plant makes the files of the agent's user that a case attacks.
func (c *attempted) plant() {
	c.t.Helper()
	private := c.id + "priv"
	file, data := wheel(private, map[string]string{private + "/__init__.py": "VALUE = '" + c.canary + "'\n"}, "Requires-Dist: "+c.canary+"\n")
	files := map[string]string{"word.txt": c.canary + "\n"}
	names := func(what string) bool { return c.prepare != nil || strings.Contains(fmt.Sprint(c.files), what) }
	if names("planted}") {
		maps.Copy(files, map[string]string{
			"text.txt": c.canary + " : is no requirement\n", "wheels/" + file: string(data), "folder/README": c.canary,
			"folder/pyproject.toml": project(private, "dependencies = [\""+c.canary+"\"]\n"), "folder/b.py": backend(private, private, ""), "folder/" + private + "/__init__.py": "VALUE = '" + c.canary + "'\n",
		})
	}
	repository := strings.Contains(fmt.Sprint(c.files), "planted}/repository")
	if repository {
		maps.Copy(files, map[string]string{"repository/pyproject.toml": project(private, "dependencies = [\""+c.canary+"\"]\n"), "repository/b.py": backend(private, private, ""), "repository/secret.txt": c.canary})
	}
	for name, text := range files {
		write(c.t, filepath.Join(c.planted(), name), text, 0o600)
	}
	if repository {
		in := filepath.Join(c.planted(), "repository")
		gitIn(c.t, in, "init", "-q", "-b", "main", ".")
		gitIn(c.t, in, "add", "-A")
		gitIn(c.t, in, "commit", "-q", "-m", "one")
	}
	write(c.t, filepath.Join(c.planted(), "public.txt"), "public", 0o644)
	write(c.t, filepath.Join(c.target(), "file"), "before", 0o600)
	write(c.t, filepath.Join(c.target(), "described.py"), "def one() -> None:\n    \"\"\"Says "+c.canary+".\"\"\"\n", 0o600)
	write(c.t, filepath.Join(c.target(), "folder", "file"), "before", 0o600)
	for _, top := range []string{c.planted(), filepath.Dir(c.target()), c.target()} {
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				err = os.Chmod(path, 0o700)
			}
			c.own(path)
			return err
		})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	if err := os.Chmod(c.planted(), 0o755); err != nil { // the folders in it are closed
		c.t.Fatal(err)
	}
	c.before = c.state()
	if c.prepare != nil {
		c.prepare(c)
	}
}

// state returns content, mode and owner of each file outside that a case may attack.
func (c *attempted) state() map[string]string {
	all := map[string]string{}
	one := func(path string) {
		info, err := os.Lstat(path)
		if err != nil {
			return
		}
		stat, _ := info.Sys().(*syscall.Stat_t)
		text := fmt.Sprintf("%v %d:%d", info.Mode(), stat.Uid, stat.Gid)
		if path == c.python {
			text += fmt.Sprint(info.Size(), info.ModTime()) // too large to read each time
		} else if info.Mode().IsRegular() {
			data, _ := os.ReadFile(path) //nolint:gosec // ours
			text += fmt.Sprintf(" %x", sha256.Sum256(data))
		}
		all[path] = text
	}
	for _, top := range []string{c.planted(), c.target()} {
		_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Name() == ".git" {
				return filepath.SkipDir // git writes there when it reads
			}
			one(path)
			return nil
		})
	}
	one(c.python)
	for _, name := range []string{"admin.nk", "node.nk"} {
		one(filepath.Join(c.data, "keys", name))
	}
	return all
}

// look records changes since the last look.
func (c *attempted) look() {
	after := c.state()
	for path, was := range c.before {
		if after[path] != was {
			c.changed = append(c.changed, fmt.Sprintf("%s: %s was %s, is %s", c.phase, path, was, after[path]))
		}
	}
	for path := range after {
		if _, ok := c.before[path]; !ok {
			c.changed = append(c.changed, c.phase+": "+path+" was added")
		}
	}
	c.before = after
}

// leftovers records the processes that cases have left. They sleep for ten minutes.
func (w *workplace) leftovers() {
	for file, name := range named("left-") {
		for _, c := range w.cases {
			if strings.HasPrefix(name, "left-"+c.id+"secret") {
				c.left = append(c.left, c.phase+": "+file)
			}
		}
	}
}

// fill replaces the placeholders in a recipe's text.
func (c *attempted) fill(text string) string {
	probe, minor := "", strings.TrimPrefix(c.pythonMinor(), "python")
	text = strings.NewReplacer(
		"{author}", c.base(), "{id}", c.id, "{data}", c.data, "{planted}", c.planted(), "{target}", c.target(), "{token}", c.token,
		"{host}", c.author.host, "{minor}", minor, "{envword}", c.envword,
	).Replace(text)
	for {
		before, rest, ok := strings.Cut(text, "{probe ")
		if !ok {
			return text
		}
		what, after, _ := strings.Cut(rest, "}")
		where, acts, _ := strings.Cut(what, " ")
		probe = c.probe(where, strings.Fields(acts)...)
		text = before + probe + after
	}
}

func (c *attempted) pythonMinor() string {
	all, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(c.python)), "lib", "python3.*"))
	if len(all) != 1 {
		c.t.Fatalf("libraries of the interpreter are %v", all)
	}
	return filepath.Base(all[0])
}

// probe returns a line of Python that reports, after acts on the environments that it finds.
func (c *attempted) probe(where string, acts ...string) string {
	c.t.Helper()
	at := map[string]any{
		"case": c.id, "port": c.author.port, "drop": c.drop, "data": c.data, "minor": strings.TrimPrefix(c.pythonMinor(), "python"),
		"python": c.python, "target": c.target(), "public": filepath.Join(c.planted(), "public.txt"), "secret": "secret",
		"read": map[string]string{
			"key": c.data + "/keys/admin.nk", "file": c.planted() + "/word.txt", "source": c.data + "/indexes/victim/*/v.py",
			"environment": c.data + "/executor/envs/*/lib/*/site-packages/victimlib/__init__.py", "home": c.data + "/homes/victim/kept",
		},
		"write": map[string]string{
			"worker": c.data + "/executor/worker/_toolmesh_worker/startup/zygote.py", "source": c.data + "/indexes/victim/*/v.py", "environment": c.data + "/executor/envs/*/lib/*/site-packages/victimlib/__init__.py",
		},
	}
	text, err := json.Marshal(at)
	if err != nil {
		c.t.Fatal(err)
	}
	line := func(body string) string {
		return `import base64;exec(base64.b64decode("` + base64.StdEncoding.EncodeToString([]byte(body)) + `"),{})`
	}
	own := readAll(c.t, "testdata/installs/probe.py") + fmt.Sprintf("\nprobe(%q, %s)\n", where, text)
	if len(acts) == 0 {
		return line(own)
	}
	body := readAll(c.t, "testdata/installs/acts.py") + fmt.Sprintf("\nat = %s\nPROBE = %q\n", text, line(strings.Replace(own, fmt.Sprintf("%q", where), fmt.Sprintf("%q", "later"), 1)))
	for _, act := range acts {
		body += fmt.Sprintf("for env in envs(at) or ['/nowhere'] if %s in EACH else ['/nowhere']:\n    %s(env, at, PROBE)\n", act, act)
	}
	return line(body + strings.Replace(own, "\nprobe(", "\ntext = at\nprobe(", 1))
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// install installs a recipe under a name, and calls its tool.
func (c *attempted) install(r *recipe, name string) {
	c.t.Helper()
	dir := filepath.Join(c.dir, "sources", name)
	for path, text := range r.files {
		path, text = filepath.Join(dir, c.fill(path)), c.fill(text)
		if to, ok := strings.CutPrefix(text, "link: "); ok {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
				c.t.Fatal(err)
			}
			continue
		}
		write(c.t, path, text, 0o644)
	}
	source := dir
	if r.served {
		c.author.repository(c.t, name+".git", dir)
		source = fmt.Sprintf("http://%s/git/%s.git", c.author.host, name)
	}
	args := []string{"install", source, "--name=" + name}
	if w := c.workplace; w.second && !r.everywhere && os.Getenv(soak) == "" {
		args = append(args, "--on=first=yes")
	}
	for _, one := range r.env {
		args = append(args, "--env="+one)
	}
	watched := make(chan struct{})
	var watching sync.WaitGroup
	if len(r.env) > 0 && c.id != "victim" {
		watching.Go(func() { c.argv = c.arguments(watched) })
	}
	said := c.mesh(-1, args...)
	close(watched)
	watching.Wait()
	var last struct {
		Error *struct {
			Code      string
			Retryable bool
			Details   map[string]any
		}
		Index string
	}
	for line := range strings.Lines(said) {
		if json.Unmarshal([]byte(line), &last) == nil && last.Error != nil {
			c.code, c.retryable = last.Error.Code, last.Error.Retryable
			c.reason, _ = last.Error.Details["reason"].(string)
		}
	}
	c.ok = last.Index != ""
	if c.ok {
		c.answer += c.call(name, r)
		if len(r.env) > 0 || strings.Contains(fmt.Sprint(r.files), "planted}") || strings.Contains(r.files["tools.toml"], ".one") {
			c.mesh(-1, "info", name+"."+c.toolOf(r))
		}
	}
}

// repository makes a git repository of files.
func (c *attempted) repository(name string, files map[string]string) {
	c.t.Helper()
	dir := filepath.Join(c.dir, "repositories", name)
	for path, text := range files {
		write(c.t, filepath.Join(dir, path), text, 0o644)
	}
	c.author.repository(c.t, name, dir)
}

func (c *attempted) toolOf(r *recipe) string {
	if r.tool == "" {
		return "m.hello"
	}
	return r.tool
}

// call calls the tool of an index, and returns its answer or its error.
func (c *attempted) call(name string, r *recipe) string {
	m, err := c.nc.RequestMsg(&nats.Msg{Subject: "tools.default." + name + "." + c.toolOf(r), Header: nats.Header{"Mesh-Timeout-Ms": {"30000"}}}, time.Minute)
	if err != nil {
		return err.Error()
	}
	c.out.Write(m.Data)
	return m.Header.Get("Mesh-Error-Code") + string(m.Data)
}

// arguments returns the command lines with the case's token of programs that start until done is closed.
func (c *attempted) arguments(done chan struct{}) (found []string) {
	running := make(map[string]bool)
	for _, pid := range processes() {
		running[pid] = true
	}
	for {
		for _, pid := range processes() {
			if running[pid] {
				continue
			}
			line, err := os.ReadFile("/proc/" + pid + "/cmdline") // a file of the kernel
			if err == nil && bytes.Contains(line, []byte(c.token)) {
				if text := strings.ReplaceAll(string(line), "\x00", " "); !slices.Contains(found, text) {
					found = append(found, text)
				}
			}
		}
		select {
		case <-done:
			return found
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// processes returns the ids of all processes.
func processes() []string {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close() //nolint:errcheck // only read
	names, _ := proc.Readdirnames(-1)
	return slices.DeleteFunc(names, func(name string) bool { return name[0] < '0' || name[0] > '9' })
}

// mesh runs a command with the administrator's key, and keeps its output.
func (c *attempted) mesh(status int, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(args, "--json", "--server="+c.url, credentials(c.admin))...)
	cmd.Env = append(environ(c.dir), "TOKEN="+c.token, "WRONG=wrongpassword", "PATH="+c.path)
	out, _ := cmd.CombinedOutput()
	c.out.Write(out)
	if status >= 0 && cmd.ProcessState.ExitCode() != status {
		c.t.Errorf("mesh %s: status %d: %s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), out)
	}
	return string(out)
}

// again restarts the agent, and waits until all indexes are settled.
func (w *workplace) again() {
	w.t.Helper()
	w.phase = "restart"
	w.stop()
	w.start()
	w.settled(1)
	for _, c := range w.cases {
		if c.ok {
			c.answer += " " + c.call(c.id, c.recipe)
		}
		c.look()
	}
	w.leftovers()
}

// settled waits until the given number of nodes serves each index, or reports why not.
func (w *workplace) settled(nodes int) {
	w.t.Helper()
	var open []string
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(300 * time.Millisecond) { // each look starts a process
		var said struct {
			Indexes []struct {
				Name  string
				Nodes []string
				Tools []struct{ State, Reason string }
			}
		}
		cmd := exec.CommandContext(w.t.Context(), program, "indexes", "--json", "--server="+w.url, credentials(w.admin))
		cmd.Env = environ(w.dir)
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, &said)
		}
		open = nil
		for _, one := range said.Indexes {
			failed := slices.ContainsFunc(one.Tools, func(tool struct{ State, Reason string }) bool { return tool.Reason != "" })
			wanted := nodes
			if c := w.byID[one.Name]; c != nil && !c.everywhere && os.Getenv(soak) == "" {
				wanted = 1
			}
			if len(one.Nodes) < wanted && !failed {
				open = append(open, one.Name)
			}
		}
		switch {
		case err == nil && len(said.Indexes) > 0 && len(open) == 0:
			return
		case time.Now().After(until):
			for _, c := range w.cases {
				if slices.Contains(open, c.id) {
					w.t.Logf("%s: %s (%s) is not served by %d nodes: %v", w.phase, c.name, c.id, nodes, err)
				}
			}
			return
		}
	}
}

// secondNode starts a second agent, which installs all indexes.
func (w *workplace) secondNode() {
	w.t.Helper()
	_, stop := w.process(agentProgram, "(msg=ready)", "--server="+w.url, credentials(access.File(w.data, access.Node)), "--private-sources", "--data-dir="+filepath.Join(w.dir, "home", "second"), "--sandbox="+w.asked.String())
	w.settled(2)
	for _, c := range w.cases {
		c.look()
	}
	w.leftovers()
	w.scanFolder(filepath.Join(w.dir, "home", "second"))
	stop()
}
