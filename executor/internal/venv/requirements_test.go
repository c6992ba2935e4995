package venv

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
)

// tree writes files below a new folder. "-> target" makes a link.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(file), 0o700)
		if target, isLink := strings.CutPrefix(text, "-> "); isLink && err == nil {
			err = os.Symlink(target, file)
		} else if err == nil {
			err = os.WriteFile(file, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// readTree reads the declaration of an index, with the variable LAB_TOKEN, and returns the files written for uv.
func readTree(t testing.TB, dir string, environ ...string) (declared, string, string, error) {
	t.Helper()
	s := &Store{environ: environ, log: slog.New(slog.DiscardHandler)}
	r := s.reader(map[string]string{"LAB_TOKEN": "hunter2"})
	var err error
	if r.root, err = os.OpenRoot(dir); err != nil {
		t.Fatal(err)
	}
	defer r.root.Close() //nolint:errcheck // only read
	if err := r.declaration(); err != nil {
		return *r.d, "", "", err
	}
	work := t.TempDir()
	if _, err := r.d.write(work, "/tree"); err != nil {
		t.Fatal(err)
	}
	requirements, err := os.ReadFile(filepath.Join(work, "requirements.in"))
	if err != nil {
		t.Fatal(err)
	}
	constraints, err := os.ReadFile(filepath.Join(work, "constraints.in"))
	if err != nil {
		t.Fatal(err)
	}
	return *r.d, string(requirements), string(constraints), nil
}

const (
	aProject  = "[project]\nname = 'x'\nversion = '1'\n"
	libOfTree = "[project]\nname = 'acme'\nversion = '1'\n"
	hashOfX   = "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" // of "x"
)

// Accepted declarations, and uv's input for them.
func TestAcceptedRequirements(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files        map[string]string
		requirements string
		constraints  string
		environ      []string
	}{
		"as pip writes it": {map[string]string{
			"requirements.txt": "\ufeff# a comment\r\nSome_Package [ b, a ] == 1.0 ; python_version > '3' \\\r\n    --hash=sha256:aa \\\r\n    --hash sha512:BB  # why\r\n" +
				"free>=1,\\\n<2\n-r more/base.txt\n-c=limits.txt\nother (>=1)\n\n-r more/base.txt\n",
			"more/base.txt": "-r ../requirements.txt\nother.one==2.10 --hash=sha256:cc\n",
			"limits.txt":    "limited<3\n",
		}, "Some_Package[b,a]==1.0 ; python_version > '3' --hash=sha256:aa --hash=sha512:bb\nfree>=1,<2\nother.one==2.10 --hash=sha256:cc\nother>=1\n", "limited<3\n", nil},
		"lines": {map[string]string{
			"requirements.txt":   "a\n-r more/base.txt\n--requirement=more/third.txt\n-climits.txt\nb (>=1)\n",
			"more/base.txt":      "-r ../requirements.txt\n-c nested.txt\nc~=2.10\n",
			"more/nested.txt":    "n!=3\n",
			"more/third.txt":     "d\n",
			"limits.txt":         "-r more/limits.txt\n",
			"more/limits.txt":    "limited<3\n",
			"unread/nothing.txt": "-r /etc/passwd\n",
		}, "a\nc~=2.10\nd\nb>=1\n", "n!=3\nlimited<3\n", nil},
		"paths": {map[string]string{
			"requirements.txt": "./lib\n-e ./lib[x]\n--editable=lib/\nacme @ file:./lib ; sys_platform == 'linux'\n${PROJECT_ROOT}/lib\nacme @ file:///${PROJECT_ROOT}/lib\n" +
				"file:./lib\nmore/../lib\n./my lib\nlinked/lib\nx.whl --hash=" + hashOfX + "\n",
			"lib/pyproject.toml": libOfTree, "my lib/setup.py": "", "x.whl": "x", "linked": "-> .",
		}, "file:///tree/lib\nfile:///tree/lib[x]\nfile:///tree/lib\nacme @ file:///tree/lib ; sys_platform == 'linux'\nfile:///tree/lib\nacme @ file:///tree/lib\n" +
			"file:///tree/lib\nfile:///tree/lib\nfile:///tree/my%20lib\nfile:///tree/linked/lib\nfile:///tree/x.whl --hash=" + hashOfX + "\n", "", nil},
		"addresses": {map[string]string{
			"requirements.txt": "https://example.org/a-1-py3-none-any.whl; python_version > '3'\nlib @ git+https://example.org/lab/lib.git@v1#subdirectory=py&egg=lib\n" +
				"git+https://example.org:22/lab/lib.git#egg=lib[x]\nhttp://example.org/b-1.tar.gz#sha256=AA\n-e git+http://example.org/c@main#egg=c\n",
		}, "https://example.org/a-1-py3-none-any.whl ; python_version > '3'\nlib @ git+https://example.org/lab/lib.git@v1#subdirectory=py\n" +
			"lib[x] @ git+https://example.org:22/lab/lib.git\nhttp://example.org/b-1.tar.gz --hash=sha256:aa\nc @ git+http://example.org/c@main\n", "", nil},
		"logins": {map[string]string{
			"requirements.txt": "lib @ git+https://${LAB_TOKEN}@example.org/lab/lib.git@v1\nother @ https://oauth2:${LAB_TOKEN}@files.example.org:8443/other-1-py3-none-any.whl\n",
		}, "lib @ git+https://example.org/lab/lib.git@v1\nother @ https://files.example.org:8443/other-1-py3-none-any.whl\n", "", nil},
		"options that change nothing": {map[string]string{
			"requirements.txt": "--index-url " + publicIndex + "/\n-i https://mirror.example.org/simple\n--extra-index-url=https://more.example.org\n-f /wheels\n--trusted-host mirror.example.org\n--no-index\n--prefer-binary\na\n",
		}, "a\n", "", []string{"UV_DEFAULT_INDEX=https://bob:pw@mirror.example.org/simple/", "UV_INDEX=more=https://more.example.org", "PIP_FIND_LINKS=/none /wheels", "PIP_TRUSTED_HOST=mirror.example.org", "PIP_NO_INDEX=1"}},
		"a project": {map[string]string{
			"pyproject.toml": aProject + "dependencies = ['a>=1', 'acme @ file:./lib']\n[project.optional-dependencies]\nx = ['not this']\n[dependency-groups]\ndev = ['nor this']\n" +
				"[tool.uv]\ndev-dependencies = ['nor this']\npackage = true\n[[tool.uv.index]]\nurl = '" + publicIndex + "'\n[tool.uv.sources]\nunused = { git = 'https://example.org/unused' }\n",
			"lib/pyproject.toml": libOfTree,
			"requirements.txt":   "-r /etc/passwd\n",
		}, "a>=1\nacme @ file:///tree/lib\n", "", nil},
		"sources": {map[string]string{
			"pyproject.toml":        aProject + "dependencies = ['A_a', 'm']\n[tool.uv.sources]\na-a = [{ path = 'libs/a', marker = \"sys_platform == 'linux'\" }]\nm = { workspace = true }\n[tool.uv.workspace]\nmembers = ['libs/*']\n",
			"libs/a/pyproject.toml": "[project]\nname = 'a-a'\ndependencies = ['b']\n[tool.uv.sources]\nb = { path = '../b' }\nx = { git = 'https://example.org/x' }\n",
			"libs/b/pyproject.toml": "[project]\nname = 'b'\n[project.optional-dependencies]\nmore = ['c']\n[tool.uv.sources]\nc = { workspace = true }\n",
			"libs/c/pyproject.toml": "[project]\nname = 'C'\n",
			"libs/m/pyproject.toml": "[project]\nname = 'm'\ndependencies = ['A.a']\n",
			"libs/old/setup.py":     "",
		}, "A_a\nm\n", "a-a @ file:///tree/libs/a ; sys_platform == 'linux'\nb @ file:///tree/libs/b\nc @ file:///tree/libs/c\nm @ file:///tree/libs/m\na-a @ file:///tree/libs/a ; sys_platform == 'linux'\n", nil},
		"nothing": {map[string]string{"requirements.txt": "# none\n", "uv.toml": "index-url = 'http://x'\n"}, "", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, requirements, constraints, err := readTree(t, tree(t, c.files), c.environ...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.requirements, requirements) + cmp.Diff(c.constraints, constraints); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Declarations that name anything outside of the index's folder, or are not supported, are
// refused with their file, line and word.
func TestRefusedRequirements(t *testing.T) {
	t.Parallel()
	outside := tree(t, map[string]string{"secret": "SUAADMINSEED\n", "lib/setup.py": "", "x.whl": "x"})
	lines := map[string]string{ // a line of requirements.txt, and a part of the error
		"--index-url http://author.example/simple": "setting of the agent", "-ihttp://author.example/simple": "setting of the agent",
		"--extra-index-url=http://author.example/": "setting of the agent", "-f ./wheels": "setting of the agent", "--find-links /wheels": "setting of the agent",
		"--no-index": "setting of the agent", "--trusted-host author.example": "setting of the agent",
		"--index-url https://bob:hunter2@index.example.org/simple": "***@index.example.org",
		"--config-settings x=y": "not supported", "--proxy http://x": "not supported", "-x": "not supported", "-": "not supported", "--": "not supported",
		"a --config-settings=x=y": "--config-settings is not supported", "a==1 --global-option=x": "--global-option is not supported", "a --index-url x": "--index-url is not supported",
		"-r ../../keys/admin.nk": "escapes", "-r /etc/passwd": "copy it there", "-r https://author.example/r.txt": "copy it there", "-r missing.txt": "cannot be read",
		"-r ${HOME}/x": "copy it there", "-c ../x": "escapes", "-r link": "escapes", "--requirement=/etc/passwd": "copy it there", "--constraint=../x": "escapes", "-r file:///etc/passwd": "cannot be read", "-r \\\n/etc/passwd": "copy it there", "-r folder/link": "escapes", "-r folder": "cannot be read", "-r \"/etc/passwd\"": "copy it there",
		outside + "/lib": "leads out", "-e " + outside + "/lib": "leads out", "../" + filepath.Base(outside) + "/lib": "leads out", "./linked": "leads out of it", "./linked/lib": "leads out of it",
		"acme @ file://" + outside + "/lib": "leads out", "file:" + outside + "/x.whl": "leads out", "acme @ file:..%2f..%2flib": "leads out", "FILE:" + outside: "leads out",
		"acme @ file://localhost" + outside: "cannot be found", "~/lib": "character", "./a b#c": "character", "./folder -x": "not supported", "./missing": "cannot be found", `..\lib`: "character", `C:\lib`: "kind",
		"git+file:///srv/repo": "kind", "a @ git+file:///srv/repo": "kind", "ftp://example.org/a.whl": "kind", "a @ bzr+https://example.org/a": "kind", "ssh://git@example.org/a": "kind", "git+git://example.org/a": "kind", "git@example.org:lab/lib.git": "",
		"a @ https:example.org": "kind", "https://": "not an address", "https://-x.example/a.whl": "not an address", "git+https://example.org/a@--upload-pack=x": "not an address", "https://example.org/a b.whl": "not an address",
		"https://bob:hunter2@example.org/a.whl": "declare a secret variable", "a @ git+https://hunter2@example.org/a": "${NAME}@host", "git+ssh://git:hunter2@example.org/a": "kind",
		"a @ https://example.org/a.whl?token=hunter2": "declare a secret variable", "a @ https://bob:hun/ter2@example.org/a": "not an address",
		"a @ https://${OTHER}@example.org/a.whl": "--env OTHER", "a @ https://x${LAB_TOKEN}@example.org/a": "cannot be read", "a @ git+ssh://git@example.org/a": "kind",
		"a @ https://example.org/${LAB_TOKEN}/a": "${LAB_TOKEN} is not expanded", "a==${LAB_TOKEN}": "${LAB_TOKEN} is not expanded", "./${HOME}": "${HOME} is not expanded", "https://${LAB_TOKEN}.example.org/": "${LAB_TOKEN} is not expanded",
		"a @ https://${LAB_TOKEN}@example.org/a.whl#${HOME}": "${HOME} is not expanded", "${GIT_SSH_COMMAND}": "is not expanded",
		"a @ https://example.org/a.whl#x=y": "not supported", "a @ git+https://example.org/a#subdirectory=../x": "not supported",
		"a\x00b": "control character", "a\x1b[31m": "control character", "a\rb": "control character", "a\u202eb": "control character", "a\xff": "UTF-8", "a\u2028-r x": "control character",
		"this is no requirement": "not a requirement", "a ; $(x)": "marker", "a==1 ; 'x' == 'y'; -r z": "marker", "a @": "leads out", "a>=": "not a requirement",
		"a==1 --hash=md5:aa": "sha256", "a==1 --hash": "sha256", "a>=1 --hash=sha256:aa": "exactly one version", "a==1.* --hash=sha256:aa": "exactly one version", "./folder --hash=sha256:aa": "exactly one version", "a @ git+https://example.org/a --hash=sha256:aa": "exactly one version",
		"--no-binary=a;b": "names no package",
	}
	for line, says := range lines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			dir := tree(t, map[string]string{
				"requirements.txt": "# one\n\n" + line + "\n", "link": "-> " + outside + "/secret", "folder/link": "-> ../../secret", "linked": "-> " + outside, "x.whl": "x",
			})
			_, _, _, err := readTree(t, dir)
			wantRefused(t, err, says, "requirements.txt line 3: ")
		})
	}
	for name, c := range map[string]struct {
		files      map[string]string
		says, file string
	}{
		"a link":              {map[string]string{"requirements.txt": "-> " + outside + "/secret"}, "escapes", "requirements.txt"},
		"a linked project":    {map[string]string{"pyproject.toml": "-> " + outside + "/secret"}, "escapes", "pyproject.toml"},
		"a file of an option": {map[string]string{"requirements.txt": "-r more.txt\n", "more.txt": "a\n--index-url http://author.example\n"}, "setting of the agent", "more.txt line 2"},
		"a dependency":        {map[string]string{"pyproject.toml": aProject + "dependencies = [\n 'a',\n '../lib']\n"}, "leads out", "pyproject.toml line 6"},
		"an option":           {map[string]string{"pyproject.toml": aProject + "dependencies = ['--index-url http://x']\n"}, "", "pyproject.toml line 4"},
		"two lines":           {map[string]string{"pyproject.toml": aProject + "dependencies = [\"a\\n-r x\"]\n"}, "control character", "pyproject.toml"},
		"an option behind":    {map[string]string{"pyproject.toml": aProject + "dependencies = ['a --hash=sha256:aa']\n"}, "not a requirement", "pyproject.toml line 4"},
		"settings":            {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv]\nindex-url = 'http://author.example'\n"}, "changes which packages", "pyproject.toml line 6"},
		"an index":            {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[[tool.uv.index]]\nurl = 'http://author.example'\n"}, "changes which packages", "pyproject.toml"},
		"pip's settings":      {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv.pip]\nfind-links = ['x']\n"}, "changes which packages", "pyproject.toml"},
		"overrides":           {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv]\noverride-dependencies = ['a @ file:///x']\n"}, "changes which packages", "pyproject.toml"},
		"beside requirements": {map[string]string{"requirements.txt": "a\n", "pyproject.toml": "[tool.uv]\nconstraint-dependencies = ['a @ file:///x']\n"}, "changes which packages", "pyproject.toml"},
		"uv.toml":             {map[string]string{"requirements.txt": "a\n", "uv.toml": "extra-index-url = ['http://author.example']\n"}, "changes which packages", "uv.toml"},
		"a deep project":      {map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": strings.Repeat("a.", 41) + "a = 1\n"}, "at most 40 levels", "lib/pyproject.toml"},
		"a deep uv.toml":      {map[string]string{"requirements.txt": "a\n", "uv.toml": strings.Repeat("a.", 41) + "a = 1\n"}, "at most 40 levels", "uv.toml"},
		"a source's address":  {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv.sources]\na = { git = 'file:///srv/repo' }\n"}, "not a path in the index", "pyproject.toml line 6"},
		"a source's index":    {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv.sources]\na = { index = 'x' }\n"}, "not a path in the index", "pyproject.toml line 6"},
		"a source outside":    {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv.sources]\na = { path = '../a' }\n"}, "leads out", "pyproject.toml"},
		"a member outside":    {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv.sources]\na = { workspace = true }\n[tool.uv.workspace]\nmembers = ['../a']\n"}, "neither a folder", "pyproject.toml"},
		"no member":           {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv.sources]\na = { workspace = true }\n[tool.uv.workspace]\nmembers = ['a']\n"}, "no member", "pyproject.toml"},
		"nested":              {map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": aProject + "dependencies = ['a @ file:///etc']\n"}, "leads out", "lib/pyproject.toml line 4"},
		"nested in the tree":  {map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": aProject + "dependencies = ['a @ file:../a']\n", "a/x": ""}, "[tool.uv.sources]", "lib/pyproject.toml line 4"},
		"nested extra":        {map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": aProject + "[project.optional-dependencies]\nx = ['a @ git+file:///srv']\n"}, "kind", "lib/pyproject.toml line 5"},
		"nested source":       {map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv.sources]\na = { path = '../../a' }\n"}, "leads out", "lib/pyproject.toml"},
		"nested login":        {map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": aProject + "dependencies = ['a @ git+https://${LAB_TOKEN}@example.org/a']\n"}, "index's own declaration", "lib/pyproject.toml line 4"},
		"nested link":         {map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": "-> " + outside + "/secret"}, "escapes", "lib/pyproject.toml"},
		"a build":             {map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": "[build-system]\nrequires = ['a @ file:///srv/a']\n"}, "leads out", "lib/pyproject.toml line 2"},
		"a backend outside":   {map[string]string{"setup.py": "", "pyproject.toml": "[build-system]\nrequires = []\nbackend-path = ['../..']\n"}, "leads out", "pyproject.toml line 3"},
		"a source's name":     {map[string]string{"pyproject.toml": aProject + "dynamic = ['dependencies']\n[tool.uv.sources]\n\"a\\n--index-url http://author.example\" = { path = 'lib' }\n", "lib/setup.py": ""}, "package's name", "pyproject.toml"},
		"a name and more":     {map[string]string{"pyproject.toml": aProject + "dynamic = ['dependencies']\n[tool.uv.sources]\n\"a --index-url x\" = { path = 'lib' }\n", "lib/setup.py": ""}, "package's name", "pyproject.toml"},
		"a member's folder":   {map[string]string{"pyproject.toml": aProject + "dependencies = ['a']\n[tool.uv.sources]\na = { workspace = true }\n[tool.uv.workspace]\nmembers = ['libs/*']\n", "libs/a\n--index-url x/pyproject.toml": "[project]\nname = 'a'\n"}, "character", "pyproject.toml"},
		"a build of the tree": {map[string]string{"requirements.txt": "./lib\n", "lib/pyproject.toml": "[build-system]\nrequires = ['b']\n[tool.uv.sources]\nb = { path = '../b' }\n"}, "package index", "lib/pyproject.toml line 4"},
		"two logins":          {map[string]string{"requirements.txt": "a @ https://${LAB_TOKEN}@example.org/a.whl\nb @ https://bob:${LAB_TOKEN}@example.org:8443/b.whl\n"}, "another login", "requirements.txt line 2"},
		"too much":            {map[string]string{"requirements.txt": strings.Repeat("a\n", maxDependencyBytes/2+1)}, "MB", "requirements.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, _, err := readTree(t, tree(t, c.files))
			wantRefused(t, err, c.says, c.file)
		})
	}
}

func wantRefused(t *testing.T, err error, says ...string) {
	t.Helper()
	e := toolmesh.AsError(err)
	if e == nil || e.Code != toolmesh.CodeInstallFailed || e.Details["reason"] != reasonDependency {
		t.Fatalf("got %v", err)
	}
	for _, one := range says {
		if !strings.Contains(e.Message, one) {
			t.Errorf("%q is not in %s", one, e.Message)
		}
	}
	for _, secret := range []string{"SUAADMIN", "hunter2", "root:x"} {
		if strings.Contains(fmt.Sprint(e.Message, e.Details), secret) {
			t.Errorf("it shows %s: %s", secret, e.Message)
		}
	}
}

// The files written for uv repeat the declaration, without options except --hash.
func FuzzRequirements(f *testing.F) {
	for _, text := range []string{
		"a==1 \\\n --hash=sha256:aa # x", "./lib[x] ; python_version > '3'", "-e file:lib", "acme@file:./lib", "-r requirements.txt\n-c x.txt", "a[b, c](>=1,)",
		"a @ git+https://${LAB_TOKEN}:x@h/a@v#egg=a&subdirectory=x", "https://h/a.whl#sha256=AA", "\ufeff--pre\r\n--no-binary=:all:", "a @ https://[::1]:8/a;b ; c", "x.whl", "${PROJECT_ROOT}/lib",
	} {
		f.Add(text)
	}
	dir := tree(f, map[string]string{"lib/pyproject.toml": libOfTree, "x.whl": "x", "my lib/setup.py": ""})
	root, err := os.OpenRoot(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = root.Close() })
	newReader := func() *reader {
		return &reader{
			root: root, vars: map[string]string{"LAB_TOKEN": "hunter2"}, allowed: func(string, string) bool { return false }, d: &declared{}, left: maxDependencyBytes,
			read: map[string]bool{}, projects: map[string]*project{},
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := newReader()
		for _, line := range logical([]byte(text)) {
			_ = r.requirement("requirements.txt", line, &r.d.requirements)
		}
		for _, q := range slices.Concat(r.d.requirements, r.d.constraints) {
			line := q.write("")
			bare := line
			for _, hash := range q.hashes {
				bare = strings.Replace(bare, " --hash="+hash, "", 1)
			}
			if strings.HasPrefix(line, "-") || strings.Contains(bare, " -") || strings.ContainsAny(line, "\n\r\\$#\x00") && !strings.Contains(line, "#subdirectory=") || strings.Contains(line, "${") || strings.Contains(line, "hunter2") {
				t.Fatalf("%q is written as %q", text, line)
			}
			again, err := newReader().line(line)
			if err != nil || again.write("") != line {
				t.Fatalf("%q is read as %q, %v", line, again.write(""), err)
			}
			if lines := logical([]byte(line)); len(lines) != 1 || lines[0].text != line {
				t.Fatalf("%q is %v for pip", line, lines)
			}
		}
	})
}
