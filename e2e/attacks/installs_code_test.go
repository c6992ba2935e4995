package attacks_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// dependency publishes a wheel of files as a package of the case.
func dependency(files map[string]string) func(c *attempted) {
	return func(c *attempted) {
		filled := map[string]string{}
		for name, text := range files {
			filled[c.fill(name)] = c.fill(text)
		}
		file, data := wheel(c.id+"evil", filled)
		c.author.publish(c.id+"evil", file, data)
	}
}

func source(hook string) func(c *attempted) {
	return func(c *attempted) {
		file, data := sdist(c.id+"evil", backend(c.id+"evil", "evil", c.fill(hook)))
		c.author.publish(c.id+"evil", file, data)
	}
}

func (t *installTable) environments() {
	const area, by = "environments", "assembled by the agent, started confined"
	// fresh is an index that starts an interpreter for each call.
	fresh := func(lines ...string) map[string]string {
		files := requiring("", lines...)
		files["tools.toml"] += "isolation = \"fresh\"\n"
		return files
	}
	for _, one := range []struct {
		what  string
		files map[string]string
	}{
		{"run a `.pth` of a wheel as the agent, in an interpreter for each call (`isolation = \"fresh\"`)", map[string]string{"a.pth": "{probe start}\n"}},
		{"its `sitecustomize.py`", map[string]string{"sitecustomize.py": "{probe start}\n"}},
		{"its `usercustomize.py`", map[string]string{"usercustomize.py": "{probe start}\n"}},
		{"a program of it in place of the interpreter (`.data/scripts/python`)", map[string]string{
			"{id}evil-1.data/scripts/python": "#!/bin/sh\n/usr/bin/python3 -c '{probe start}'\nexec /usr/bin/python3 \"$@\"\n", "{id}evil-1.data/scripts/python3": "#!/bin/sh\n/usr/bin/python3 -c '{probe start}'\nexec /usr/bin/python3 \"$@\"\n",
		}},
		{"by an entry point of that name", map[string]string{
			"evilmain.py": "def main():\n    {probe start}\n", "{id}evil-1.dist-info/entry_points.txt": "[console_scripts]\npython = evilmain:main\npython3 = evilmain:main\npython{minor} = evilmain:main\n",
		}},
		{"by `.data/data/bin`", map[string]string{"{id}evil-1.data/data/bin/python": "#!/bin/sh\n/usr/bin/python3 -c '{probe start}'\nexec /usr/bin/python3 \"$@\"\n"}},
		{"a standard library of it, by `.data/data/pyvenv.cfg`", map[string]string{
			"{id}evil-1.data/data/pyvenv.cfg":                                                   "home = {data}/targets/{id}/nowhere\n",
			"{id}evil-1.data/data/lib/python{minor}/os.py":                                      "{probe start}\n",
			"{id}evil-1.data/data/lib/python{minor}/site.py":                                    "{probe start}\n",
			"{id}evil-1.data/data/toolmesh-environment.json":                                    "{}",
			"{id}evil-1.data/data/toolmesh-files.json":                                          "{}",
			"{id}evil-1.data/data/lib/python{minor}/site-packages/_toolmesh_worker/__init__.py": "{probe start}\n",
		}},
		{"modules of it named as the worker's", map[string]string{"_toolmesh_worker/__init__.py": "{probe start}\n", "_toolmesh_worker/startup/__init__.py": "{probe start}\n", "_toolmesh_worker/startup/zygote.py": "{probe start}\n", "toolmesh/__init__.py": "{probe start}\n"}},
	} {
		r := t.recipe(recipe{name: one.what, files: fresh("{id}evil"), prepare: dependency(one.files), everywhere: one.files["a.pth"] != "" || strings.Contains(one.what, "standard library")})
		t.row(area, one.what, by, confined, r, unconfined())
		t.row(area, one.what+": change a file of the agent", by, always, r, altered)
	}
	for _, kind := range kinds[1:] {
		r := t.recipe(recipe{name: ".pth, " + kind, spelling: kind != "command", files: requiring(kind, "{id}evil"), prepare: dependency(map[string]string{"a.pth": "{probe start}\n", "sitecustomize.py": "{probe start}\n"})})
		t.row(area, "run a `.pth` of a wheel as the agent, "+kind, by, confined, r, unconfined())
	}
	for _, one := range []struct{ what, tools, more string }{
		{"in a copy of the agent's interpreter", "", ""},
		{"where it is given folders", "paths = [{ path = \"~/x\", write = true }]\n", ""},
		{"at the level `none`, which it asks for", "sandbox = \"none\"\n", ""},
		{"where its modules cannot be forked", "", "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"},
	} {
		files := requiring("", "{id}evil")
		files["tools.toml"] += one.tools
		files["m.py"] = one.more + files["m.py"]
		promised := confined
		if strings.Contains(one.tools, "none") {
			promised = promise{never, never, never}
		}
		r := t.recipe(recipe{name: ".pth " + one.what, files: files, spelling: strings.HasPrefix(one.what, "where"), prepare: dependency(map[string]string{"a.pth": "{probe start}\n", "sitecustomize.py": "{probe start}\n"})})
		t.row(area, "run a `.pth` of a wheel as the agent, "+one.what, by, promised, r, unconfined())
	}
	for what, files := range inOrder(map[string]map[string]string{
		"write outside of it by a name with `../`":        {"../../../../../../targets/{id}/folder/added": "x"},
		"by an absolute one":                              {"{target}/folder/added": "x"},
		"by one in `.data/data`":                          {"{id}evil-1.data/data/../../../targets/{id}/folder/added": "x"},
		"remove a file outside, by `../` in its `RECORD`": {"{id}evil-1.dist-info/RECORD": "../../../../../../targets/{id}/file,,\n{target}/file,,\n"},
		"by an entry point whose name has `../`":          {"evilmain.py": "def main(): pass\n", "{id}evil-1.dist-info/entry_points.txt": "[console_scripts]\n../../../../targets/{id}/folder/added = evilmain:main\n"},
	}) {
		t.row(area, what, by, always, t.recipe(recipe{name: what, files: requiring("", "{id}evil"), prepare: dependency(files)}), altered)
	}
	// The index's own files.
	shadows := map[string]string{}
	for _, name := range []string{"sitecustomize", "usercustomize", "encodings", "ast", "json", "inspect", "typing", "struct", "_toolmesh_worker", "site"} {
		shadows[name+".py"] = "{probe start}\nraise ImportError\n"
	}
	r := t.recipe(recipe{name: "shadows", files: plain(shadows)})
	t.row(area, "have modules of its source taken for the standard library's or the worker's", by, confined, r, unconfined())
	// Build code and init.
	acts := []struct{ what, act string }{
		{"an interpreter of its own", "replace_interpreter"},
		{"`pyvenv.cfg`, and a standard library of its own", "own_library"},
		{"start-up files", "start_up"},
		{"markers that name its own interpreter", "markers"},
	}
	for _, one := range acts {
		r := t.recipe(recipe{name: "sdist " + one.act, files: fresh("{id}evil", "honest"), prepare: source("{probe build " + one.act + "}"), spelling: one.act != "replace_interpreter", everywhere: one.act == "replace_interpreter"})
		t.row(area, "a backend puts into the environment "+one.what+", which the agent runs", by, confined, r, unconfined("later", "build"))
	}
	init := func(kind, acts, more string) map[string]string {
		files := requiring(kind, "honest")
		text := "tools.toml"
		files[text] = strings.Replace(files[text], "[index]\n", "[index]\ninit = [\"python\", \"i.py\"]\n"+more, 1)
		files["i.py"] = "{probe init " + acts + "}\n"
		return files
	}
	r = t.recipe(recipe{name: "sdist, command", files: requiring("command", "{id}evil", "honest"), prepare: source("{probe build replace_interpreter}")})
	t.row(area, "a backend replaces the interpreter of an index of commands", by, confined, r, unconfined("later", "build"))
	for _, one := range acts {
		r := t.recipe(recipe{name: "init " + one.act, files: init("", one.act, "isolation = \"fresh\"\n"), spelling: one.act == "markers", everywhere: true})
		t.row(area, "`init` puts into it "+one.what+", which the agent runs, also after a restart", by, confined, r, unconfined("later", "init"))
	}
	r = t.recipe(recipe{name: "init interpreter, command", files: init("command", "replace_interpreter start_up", "")})
	t.row(area, "`init` does", by, confined, r, unconfined("later", "init"))
	files := init("", "replace_interpreter", "")
	files["tools.toml"] = strings.Replace(files["tools.toml"], `"m.hello"]`, `"m.hello", "broken.one"]`, 1)
	files["broken.py"] = "raise ImportError('no')\ndef one(): pass\n"
	r = t.recipe(recipe{name: "static describing", files: files})
	t.row(area, "have its interpreter run where a tool is described that cannot be imported", by, confined, r, func(c *attempted) string {
		for _, one := range c.said("later") {
			if strings.Contains(strings.Join(one.Argv, " "), "utf8") && (one.Read["key"] != "" || c.root && one.UID == c.user || !c.alone && one.PIDNS == c.pidns) {
				return fmt.Sprint(one.Argv)
			}
		}
		return ""
	})
	r = t.recipe(recipe{name: "static links", files: plain(map[string]string{
		"tools.toml": "[index]\ninit = [\"python\", \"i.py\"]\ntools = [\"m.hello\", \"n.one\"]\n",
		"n.py":       "raise ImportError('no')\n",
		"i.py":       "{probe init}\nimport os\nos.remove('n.py')\nos.symlink('{target}/described.py', 'n.py')\n",
	})})
	t.row(area, "have a file of the agent read for a description, by a link", by, confined, r, leaks)
	// Two indexes with one lock: the second must have only the files of its wheels.
	t.recipe(recipe{name: "same lock, first", files: requiring("", "shared-evil", "honest"), prepare: func(c *attempted) {
		file, data := sdist("shared-evil", backend("shared-evil", "evil", c.fill("{probe build other_package start_up}")))
		c.author.publish("shared-evil", file, data)
	}})
	second := requiring("", "shared-evil", "honest")
	second["m.py"] = "import honest, os\ndef hello() -> str:\n    return honest.VALUE + str(os.path.exists(os.path.dirname(os.path.dirname(honest.__file__)) + '/sitecustomize.py'))\n"
	r = t.recipe(recipe{name: "same lock, second", files: second})
	t.row(area, "a build alters another package, for all indexes with the same lock", "builds yield wheels alone", confined, r, answers("altered"))
	t.row(area, "or adds files that its wheel does not have", "builds yield wheels alone", confined, r, answers("True"))
}

func (t *installTable) links() {
	const area, by = "links", "the agent writes to no folder that it lent"
	for _, one := range []struct{ what, act, tell string }{
		{"`init` makes the agent write into a file of its own, by a link for `init.done`", "link_source", ""},
		{"by one for `.toolmesh`", "link_folder", ""},
		{"by links for its lists, and `__pycache__`", "link_written", ""},
		{"change the owner or mode of a file of the agent, by a second name for it", "hard_links", ""},
	} {
		files := plain(map[string]string{"requirements.txt": "honest\n", "i.py": "{probe init " + one.act + "}\n", "tools.toml": "[index]\ninit = [\"python\", \"i.py\"]\ntools = [\"m.hello\"]\n"})
		t.row(area, one.what, by, confined, t.recipe(recipe{name: "init " + one.act, files: files, everywhere: true}), altered)
	}
	r := t.recipe(recipe{name: "backend link_written", files: requiring("", "{id}evil", "honest"), prepare: source("{probe build link_written}")})
	t.row(area, "a backend does, by links for lists and `__pycache__`", by, confined, r, altered)
	r = t.recipe(recipe{name: "setuid", files: plain(map[string]string{"i.py": "{probe init set_user}\n", "tools.toml": "[index]\ninit = [\"python\", \"i.py\"]\ntools = [\"m.hello\"]\n"})})
	t.row(area, "leave a program that runs as the agent", "modes are taken away", confined, r, func(c *attempted) string {
		found := ""
		_ = filepath.WalkDir(c.data, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Name() != "as-owner" {
				return nil //nolint:nilerr // not to be looked into
			}
			if info, err := entry.Info(); err == nil && info.Mode()&fs.ModeSetuid != 0 {
				if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) == c.user && c.root {
					found = path
				}
			}
			return nil
		})
		return found
	})
	r = t.recipe(recipe{name: "rewrite", everywhere: true, files: plain(map[string]string{"i.py": "{probe init rewrite_source}\n", "tools.toml": "[index]\ninit = [\"python\", \"i.py\"]\ntools = [\"m.hello\"]\n"})})
	t.row(area, "`init` rewrites the manifest and the lists: tools at a lower level, after a restart", "sources are verified", confined, r, unconfined(), func(c *attempted) string {
		if strings.Contains(c.mesh(-1, "ls"), c.id+".m.added") {
			return "a tool was added"
		}
		return ""
	})
}

// A probe runs in each place where code of an index can start: each of its attempts is a row.
func (t *installTable) builds() {
	const by = "each step sees its own"
	dynamic := func(hook string) map[string]string {
		return plain(map[string]string{
			"pyproject.toml": strings.Replace(project("own"), "version = \"1\"\n", "version = \"1\"\ndynamic = [\"dependencies\"]\n", 1), "b.py": backend("own", "own", hook),
		})
	}
	inTree := func(hook string) map[string]string {
		return plain(map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": project("mylib"), "lib/b.py": backend("mylib", "mylib", hook)})
	}
	withInit := plain(map[string]string{"i.py": "{probe init}\n", "tools.toml": "[index]\ninit = [\"python\", \"i.py\"]\ntools = [\"m.hello\"]\n"})
	imports := plain(map[string]string{"m.py": "{probe import}\n" + hello})
	for _, place := range []struct {
		area, where string
		r           recipe
	}{
		{"builds: of a dependency", "build", recipe{name: "build of a dependency", files: requiring("", "{id}evil"), prepare: source("{probe build}")}},
		{"builds: of a package in the tree", "build", recipe{name: "build in the tree", files: inTree("{probe build}")}},
		{"builds: of the index itself", "build", recipe{name: "build of itself", files: dynamic("{probe build}")}},
		{"`init`", "init", recipe{name: "init probes", files: withInit}},
		{"imports at the install", "import", recipe{name: "import probes", files: imports}},
	} {
		place.r.everywhere = true
		r := t.recipe(place.r)
		t.row(place.area, "run as the agent", by, confined, r, unconfined(place.where))
		t.row(place.area, "read a key", by, confined, r, readsOf(place.where, "key"))
		t.row(place.area, "read a file of the agent's user", "a user of its own", byUser, r, readsOf(place.where, "file"))
		t.row(place.area, "read another index's source", by, confined, r, readsOf(place.where, "source"))
		t.row(place.area, "read another index's environment", by, confined, r, readsOf(place.where, "environment"))
		t.row(place.area, "read another index's home", by, confined, r, readsOf(place.where, "home"))
		t.row(place.area, "find the agent's variables, or the password of its package index, in its own", "the agent", always, r, readsOf(place.where, "own environment "))
		t.row(place.area, "read them, or another index's, of other processes", "namespaces of its own", bySpaces, r, readsOf(place.where, "environment "))
		t.row(place.area, "write the worker, another index's source or environment", by, confined, r, writesOf(place.where, "worker", "source", "environment"))
	}
	const area = "builds"
	files := inTree("open(os.path.join(HERE, '..', 'm.py'), 'w').write('def hello() -> str:\\n    return \"rewritten\"\\n')\nfor root in __import__('glob').glob('{data}/jobs/*/*/m.py') + __import__('glob').glob('{data}/indexes/{id}/*/m.py'):\n    open(root, 'w').write('def hello() -> str:\\n    return \"rewritten\"\\n')")
	t.row(area, "rewrite the index's own module, one folder up", "the tree is read only", confined, t.recipe(recipe{name: "one folder up", files: files}), answers("rewritten"))
	r := t.recipe(recipe{name: "remain", files: requiring("", "{id}evil"), prepare: source("{probe build remain}")})
	t.row(area, "leave a process behind", "namespaces of its own", bySpaces, r, remains)
	r = t.recipe(recipe{name: "multiply", files: requiring("", "{id}evil"), prepare: source("{probe build multiply}")})
	t.row(area, "have more than 512 processes at once", "limits", confined, r, func(c *attempted) string {
		for _, one := range c.said("build") {
			if one.Processes > 512 {
				return fmt.Sprintf("it had %d", one.Processes)
			}
		}
		return ""
	})
	t.recipe(recipe{name: "poison", files: requiring("", "{id}evil"), prepare: source("{probe build poison_cache}")})
	after := requiring("", "later", "honest")
	after["m.py"] = "import later\ndef hello() -> str:\n    return later.VALUE\n"
	r = t.recipe(recipe{name: "after poison", files: after})
	t.row(area, "put a package of another index into uv's cache", "a cache of its own", confined, r, answers("altered"))
}

func (t *installTable) credentials() {
	const area, by = "credentials", "declared variables, by file or helper"
	secret := "\n[[index.env]]\nname = \"TOKEN\"\nsecret = true\n"
	with := func(line string) map[string]string {
		return plain(map[string]string{"requirements.txt": line + "\n", "tools.toml": tooltml + secret})
	}
	git := func(c *attempted) {
		c.repository(c.id+"git", map[string]string{"pyproject.toml": project(c.id + "git"), "b.py": backend(c.id+"git", "privategit", "")})
	}
	file := func(c *attempted) {
		name, data := wheel(c.id+"whl", map[string]string{"privatewheel/__init__.py": "VALUE = 'private'\n"})
		c.author.publish(c.id+"whl", name, data)
	}
	for _, one := range []struct {
		what, line string
		prepare    func(*attempted)
	}{
		{"keep a token that is written in the address of a repository", "{id}git @ git+http://u:{token}@{host}/private/{id}/git/{id}git", git},
		{"of a wheel", "{id}whl @ http://u:{token}@{host}/private/{id}/{id}whl-1-py3-none-any.whl", file},
		{"of a wheel that there is not, in the error", "{id}whl @ http://u:{token}@{host}/private/{id}/missing-1-py3-none-any.whl", file},
		{"of a package index", "--index-url http://u:{token}@{host}/private/{id}/simple\n{id}whl", file},
	} {
		r := t.recipe(recipe{name: one.what, files: with(one.line), prepare: one.prepare, refused: true})
		t.row(area, one.what, by, always, r, tokenKept)
	}
	declared := t.recipe(recipe{name: "a private repository with a declared token", everywhere: true, files: with("{id}git @ git+http://" + declaredSecret + "@{host}/private/{id}/git/{id}git"), prepare: git, env: []string{"TOKEN"}, control: `"hello"`})
	t.row(area, "have a declared token stand in locks, logs, environments, bundles or answers", by, always, declared, leaks)
	t.row(area, "among the arguments of git or uv", by, always, declared, argued)
	declaredWheel := t.recipe(recipe{name: "a private wheel with a declared token", everywhere: true, files: with("{id}whl @ http://u:" + declaredSecret + "@{host}/private/{id}/{id}whl-1-py3-none-any.whl"), prepare: file, env: []string{"TOKEN"}, control: `"hello"`})
	t.row(area, "the same of a wheel's", by, always, declaredWheel, leaks, argued)
	// Another index requests the same package with a wrong password.
	t.row(area, "get a private wheel of another index from uv's cache, with a wrong password", "a cache of its own", always, t.recipe(recipe{
		name: "wrong password", files: with("placeholder"), env: []string{"TOKEN=wrongpassword"}, prepare: func(c *attempted) {
			for _, one := range c.cases {
				if one.of == declaredWheel {
					c.recipe.files = map[string]string{
						"tools.toml": tooltml, "m.py": "import privatewheel\n" + hello,
						"requirements.txt": fmt.Sprintf("%[1]swhl @ http://u:%[2]s@%[3]s/private/%[1]s/%[1]swhl-1-py3-none-any.whl\n", one.id, declaredSecret, c.author.host),
					}
				}
			}
		},
	}), installed)
	t.row(area, "the same, written in the address", "a cache of its own", always, t.recipe(recipe{
		name: "right, then wrong password", refused: true, files: with("{id}whl @ http://u:{token}@{host}/private/{id}/{id}whl-1-py3-none-any.whl"), prepare: file,
	}), tokenKept)
	r := t.recipe(recipe{name: "own index fails", files: requiring("", "broken")})
	t.row(area, "see the password of the agent's package index in an error", by, always, r, leaks)
	wrong := strings.Repeat("1", 64)
	r = t.recipe(recipe{name: "wrong hash by address", files: requiring("", "{id}whl @ {author}/files/{id}whl-1-py3-none-any.whl --hash=sha256:"+wrong), prepare: file})
	t.row(area, "have a wheel taken whose `--hash` is another one, by its address", "hashes are held to", always, r, installed)
	r = t.recipe(recipe{name: "wrong hash by path", spelling: true, files: map[string]string{}, prepare: func(c *attempted) {
		name, data := wheel(c.id+"whl", nil)
		c.recipe.files = plain(map[string]string{name: string(data), "requirements.txt": "./" + name + " --hash=sha256:" + wrong + "\n"})
	}})
	t.row(area, "by its path", "hashes are held to", always, r, installed)
	r = t.recipe(recipe{name: "wrong hash, required", files: map[string]string{}, prepare: func(c *attempted) {
		name, data := wheel(c.id+"whl", nil)
		c.recipe.files = plain(map[string]string{name: string(data), "requirements.txt": "--require-hashes\n./" + name + " --hash=sha256:" + wrong + "\n"})
	}})
	t.row(area, "under `--require-hashes`", "hashes are held to", always, r, installed)
	r = t.recipe(recipe{name: "wrong hash of a version", spelling: true, files: requiring("", "honest==1 --hash=sha256:"+wrong)})
	t.row(area, "by its version", "hashes are held to", always, r, installed)
	r = t.recipe(recipe{name: "reads addresses", files: plain(map[string]string{"m.py": `import glob


def hello() -> str:
    found = []
    for file in glob.glob("{data}/indexes/*/*/requirements.txt") + glob.glob("{data}/indexes/*/*/.toolmesh/*") + glob.glob("{data}/executor/envs/*/requirements.txt"):
        try:
            with open(file) as f:
                text = f.read()
            if "/{id}/" not in file:
                found.append(file)
        except OSError:
            pass
    return "hello" + "other" * bool(found)
`})})
	t.row(area, "a tool reads sources and locks of other indexes", "each index sees its own", confined, r, answers("other"))
}

// tokenKept returns places that keep the token, except for the source that has it.
func tokenKept(c *attempted) string {
	var all []string
	for _, one := range c.leaks {
		if !strings.Contains(one, "requirements.txt has") || !strings.Contains(one, "/indexes/"+c.id+"/") {
			all = append(all, one)
		}
	}
	return few(all)
}

func (t *installTable) protocol() {
	const area, by = "protocol", "the agent"
	// impostor is the beginning of a module that speaks to the agent in its zygote's name.
	const impostor = `import _socket, os, stat, sys
frames = next(m for name, m in sys.modules.items() if name.endswith(".wire.frames"))
fds = [fd for fd in range(3, 300) if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode)]
control = _socket.socket(fileno=os.dup(fds[0]))
def say(kind, body=b"", length=None):
    control.send(frames.HEADER.pack(len(body) if length is None else length, kind, 0, 0, 0) + body)
`
	for _, one := range []struct{ what, text string }{
		{"have its install tried again, by a module that sends an unknown frame while it is imported", impostor + "say(200)\n"},
		{"by one that sends a frame without end", impostor + "say(frames.DESCRIBED, length=0x7fffffff)\n"},
		{"by a description that is cut off", impostor + "say(frames.DESCRIBED, b'{\"tools\":')\n"},
		{"by another hello", impostor + "say(frames.HELLO, b'1234')\n"},
		{"by one that closes all descriptors", "import os\nos.closerange(3, 1000)\n"},
		{"by one that ends its process", "import os\nos._exit(3)\n"},
	} {
		// A test of the executor tries other wrong frames.
		spelling := strings.Contains(one.text, "say(") && !strings.Contains(one.text, "say(200)")
		r := t.recipe(recipe{name: one.what, files: plain(map[string]string{"m.py": one.text + hello}), spelling: spelling})
		t.row(area, one.what, by, always, r, func(c *attempted) string {
			if c.ok || c.code != refusedCode || c.retryable {
				return fmt.Sprintf("installed %t, code %q, retryable %t", c.ok, c.code, c.retryable)
			}
			return ""
		})
	}
}

// controls are honest indexes: each must install, and answer also after a restart.
func (t *installTable) controls() {
	lib := func(dir, name string, more ...string) map[string]string {
		return map[string]string{dir + "/pyproject.toml": project(name, more...), dir + "/b.py": backend(name, name, "")}
	}
	control := func(name, answer string, files map[string]string, prepare func(*attempted)) {
		// One of each kind of index and of each origin of packages.
		everywhere := slices.Contains([]string{"a package of the agent's index, functions", "a package of the agent's index, command", "a package in the tree", "an `init` that writes data"}, name)
		spelling := slices.Contains([]string{"by a file URL", "used where it lies (`-e`)"}, name)
		t.recipe(recipe{name: name, files: files, control: answer, prepare: prepare, everywhere: everywhere, spelling: spelling})
	}
	uses := func(module string, parts ...map[string]string) map[string]string {
		files := plain(map[string]string{"m.py": "import " + module + "\ndef hello() -> str:\n    return " + module + ".VALUE\n"})
		for _, part := range parts {
			maps.Copy(files, part)
		}
		return files
	}
	for _, kind := range kinds {
		control("a package of the agent's index, "+kind, `"hello"`, requiring(kind, "honest==1"), nil)
	}
	control("`-r` in the tree", `"honest"`, uses("honest", map[string]string{"requirements.txt": "-r more/base.txt\n", "more/base.txt": "honest\n"}), nil)
	control("`-c` in the tree", `"honest"`, uses("honest", map[string]string{"requirements.txt": "-c c.txt\nhonest\n", "c.txt": "honest==1\n"}), nil)
	control("a hash that is right", `"honest"`, nil, func(c *attempted) {
		_, data := wheel("honest", map[string]string{"honest/__init__.py": "VALUE = 'honest'\n"})
		c.recipe.files = uses("honest", map[string]string{"requirements.txt": fmt.Sprintf("honest==1 --hash=sha256:%x\n", sha256.Sum256(data))})
	})
	control("a package in the tree", `"built"`, uses("mylib", map[string]string{"requirements.txt": "./lib\n"}, lib("lib", "mylib")), nil)
	control("by a file URL", `"built"`, uses("mylib", map[string]string{"requirements.txt": "mylib @ file:./lib\n"}, lib("lib", "mylib")), nil)
	control("by `tool.uv.sources`", `"built"`, uses("mylib", map[string]string{
		"pyproject.toml": "[project]\nname = \"x\"\nversion = \"1\"\ndependencies = [\"mylib\"]\n[tool.uv.sources]\nmylib = { path = \"./lib\" }\n",
	}, lib("lib", "mylib")), nil)
	control("used where it lies (`-e`)", `"hello"`, plain(map[string]string{"requirements.txt": "-e ./lib\n", "lib/pyproject.toml": project("mylib"), "lib/b.py": backend("mylib", "mylib", "")}), nil)
	nested := lib("libs/a", "a", "dependencies = [\"b\"]\n")
	nested["libs/a/pyproject.toml"] += "[tool.uv.sources]\nb = { path = \"../b\" }\n"
	nested["libs/a/b.py"] = backend("a", "a", "", "b")
	control("one that needs another, beside it", `"built"`, uses("b", map[string]string{"requirements.txt": "./libs/a\n"}, nested, lib("libs/b", "b")), nil)
	control("a link within the tree", `"honest"`, uses("honest", map[string]string{"requirements.txt": "link: real.txt", "real.txt": "honest\n"}), nil)
	control("a package without a wheel", `"built"`, uses("evil", map[string]string{"requirements.txt": "{id}evil\n"}), source("pass"))
	control("a wheel by its address", `"far"`, uses("far", map[string]string{"requirements.txt": "{id}far @ {author}/files/{id}far-1-py3-none-any.whl\n"}), func(c *attempted) {
		file, data := wheel(c.id+"far", map[string]string{"far/__init__.py": "VALUE = 'far'\n"})
		c.author.publish(c.id+"far", file, data)
	})
	control("a public repository", `"built"`, uses("pub", map[string]string{"requirements.txt": "{id}pub @ git+http://{host}/git/{id}pub\n"}), func(c *attempted) {
		c.repository(c.id+"pub", map[string]string{"pyproject.toml": project(c.id + "pub"), "b.py": backend(c.id+"pub", "pub", "")})
	})
	control("an `init` that writes data", `"data"`, plain(map[string]string{
		"tools.toml": "[index]\ninit = [\"python\", \"i.py\"]\ntools = [\"m.hello\"]\n", "i.py": "open('data.txt', 'w').write('data')\n",
		"m.py": "import os\ndef hello() -> str:\n    return open(os.path.join(os.path.dirname(__file__), 'data.txt')).read()\n",
	}), nil)
	control("an index from a repository", `"hello"`, plain(nil), nil)
	t.recipes[len(t.recipes)-1].served = true
	control("a `.pth` that adds a folder", `"added"`, uses("addedmodule", map[string]string{"requirements.txt": "{id}evil\n"}), dependency(map[string]string{"a.pth": "added\n", "added/addedmodule.py": "VALUE = 'added'\n"}))
	control("a `.pth` that runs code", `"set"`, plain(map[string]string{"requirements.txt": "{id}evil\n", "m.py": "import sys\ndef hello() -> str:\n    return getattr(sys, 'set_by_pth', 'not')\n"}), dependency(map[string]string{"a.pth": "import sys; sys.set_by_pth = 'set'\n"}))
}
