package index

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
)

// git, and processes that it starts, see only the variables of our environment that they need.
func TestGitSeesNoVariablesOfOurs(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"git*": "#!/bin/sh\nenv >> " + filepath.Join(dir, "seen") + "\ncase $* in *\" init \"*) ;; *) exit 1 ;; esac\n"})
	given := map[string]string{
		"MESH_NKEY_SEED": "s", "API_TOKEN": "s", "PYTHONPATH": "s", "UV_INDEX_URL": "s", "GIT_TRACE2_EVENT": "s", "GIT_DIR": "s",
		"https_proxy": "http://proxy.invalid", "HTTP_PROXY": "http://proxy.invalid", "SSH_AUTH_SOCK": "/agent", "GIT_SSL_CAINFO": "/ca", "XDG_CONFIG_HOME": "/config",
	}
	for name, value := range given {
		t.Setenv(name, value)
	}
	_, err := fetch(t, "ssh://example.invalid/x", &options{Git: filepath.Join(dir, "git")})
	wantFailed(t, err, reasonUnreachable)
	seen, err := os.ReadFile(filepath.Join(dir, "seen"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range given {
		want := value != "s"
		if got := strings.Contains("\n"+string(seen), "\n"+name+"="+value+"\n"); got != want {
			t.Errorf("git sees %s: %v, want %v", name, got, want)
		}
	}
}

// A git that talks HTTP apart from this process gets what it needs for that address, and neither
// the home of this process nor the way to its keys. It is asked by this process for a login of
// a credential helper, and by an address that settings rewrite.
func TestGitGetsTheSettingsOfItsAddress(t *testing.T) {
	repo := repository(t, indexFiles)
	served := smartHTTP(t, filepath.Dir(repo), func(r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		return user == "bob" && password == "hunter2!"
	})
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"ca.pem": "certificates", "home/ca.pem": "certificates", "home/more/a.pem": "certificates", "home/more/b.pem": "-> ../ca.pem",
		"home/.gitconfig": "[credential]\n\thelper = \"!echo username=bob; echo password=hunter2!; :\"\n[url \"" + served + "/\"]\n\tinsteadOf = http://short.invalid/\n" +
			"[http \"" + served + "\"]\n\tuserAgent = mine\n\tsslCAInfo = " + dir + "/ca.pem\n\tsslCAPath = ~/more\n[http \"http://other.invalid\"]\n\textraHeader = of another\n",
	})
	t.Setenv("HOME", filepath.Join(dir, "home"))
	t.Setenv("SSH_AUTH_SOCK", "/agent")
	t.Setenv("API_TOKEN", "s")
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAPATH"} { // of the machine of the test
		t.Setenv(name, "")
	}
	t.Setenv("GIT_SSL_CAINFO", dir+"/home/ca.pem")
	t.Setenv("SSL_CERT_DIR", dir+"/home/more")
	var ran []string
	var files string // of settings
	far := apart(t)
	run := far.Run
	far.Run = func(ctx context.Context, in string, argv, env []string, out io.Writer) (string, error) {
		ran = append(ran, fmt.Sprint(argv, env))
		for _, line := range env {
			if _, file, ok := strings.Cut(line, "="+in+"/setting-"); ok {
				for _, name := range onDisk(t, in+"/setting-"+file) {
					text, err := os.ReadFile(filepath.Join(in, "setting-"+file, name))
					files += string(text)
					if err != nil {
						t.Error(err)
					}
				}
			}
		}
		return run(ctx, in, argv, env, out)
	}
	how := fetching{git: "git", timeout: time.Minute, limits: defaultLimits, apart: far}
	tree, err := how.fetch(t.Context(), source(t, "http://short.invalid/weather/.git"), filepath.Join(t.TempDir(), "tree"), "")
	if err != nil || len(tree.Files) != len(indexNames()) || !fullCommit.MatchString(tree.Revision) {
		t.Fatalf("the tree is %+v, %v", tree, err)
	}
	if len(ran) != 4 { // a list without a login, and one with it
		t.Errorf("apart ran %d programs, want 4: %s", len(ran), ran)
	}
	// Two files and two folders of two, for each program that talks.
	if want := strings.Repeat("certificates", 3*(2+4)); files != want {
		t.Errorf("the files of settings are %q, want %q", files, want)
	}
	for _, one := range ran {
		for text, want := range map[string]bool{"http.useragent": !strings.Contains(one, " archive "), "of another": false, "/agent": false, "API_TOKEN": false, "home/": false, "hunter2": false, "PATH=": true, "GIT_CONFIG_NOSYSTEM=1": true} {
			if strings.Contains(one, text) != want {
				t.Errorf("%q is in %s: %v, want %v", text, one, !want, want)
			}
		}
	}
}

// The user that settings put into an address is the one that credential helpers are asked for.
func TestFetchAsksForTheUserOfSettings(t *testing.T) {
	var others atomic.Int64
	served := smartHTTP(t, filepath.Dir(repository(t, indexFiles)), func(r *http.Request) bool {
		user, password, given := r.BasicAuth()
		if given && password != "hunter2!" {
			others.Add(1)
		}
		return user == "bob" && password == "hunter2!"
	})
	home := t.TempDir()
	t.Setenv("HOME", home)
	write(t, home, map[string]string{".gitconfig": "[credential]\n\thelper = \"!f() { test $1 = get && grep -q username=bob && echo password=hunter2!; }; f\"\n" +
		"[url \"" + strings.Replace(served, "://", "://bob@", 1) + "/\"]\n\tinsteadOf = http://short.invalid/\n"})
	if _, err := fetch(t, "http://short.invalid/weather/.git", nil); err != nil || others.Load() > 0 {
		t.Errorf("the fetch tried %d other logins: %v", others.Load(), err)
	}
}

// Settings that git cannot read are reported, not left out.
func TestFetchReportsUnreadableSettings(t *testing.T) {
	url := smartHTTP(t, filepath.Dir(repository(t, indexFiles)), nil) + "/weather/.git"
	home := t.TempDir()
	t.Setenv("HOME", home)
	write(t, home, map[string]string{".gitconfig": "[http]\n\tsslCAInfo = ~nouser/ca.pem\n"})
	_, err := fetch(t, url, nil)
	wantFailed(t, err, reasonGit, "nouser")
}

// If git cannot run apart, the error names that, not the network.
func TestFetchReportsWhyGitCannotRunApart(t *testing.T) {
	t.Parallel()
	url := smartHTTP(t, filepath.Dir(repository(t, indexFiles)), nil) + "/weather/.git"
	far := apart(t)
	far.Run = func(context.Context, string, []string, []string, io.Writer) (string, error) {
		return "", toolmesh.Errorf(toolmesh.CodeInstallFailed, "no interpreter").WithDetail("python", "3")
	}
	how := fetching{git: "git", timeout: time.Minute, limits: defaultLimits, apart: far}
	_, err := how.fetch(t.Context(), source(t, url), filepath.Join(t.TempDir(), "tree"), "")
	if e := wantFailed(t, err, reasonGit, "no interpreter"); e.Details["python"] != "3" || strings.Contains(e.Message, "network") {
		t.Errorf("the error is %v, %v", e, e.Details)
	}
}

// Settings of the repository that we happen to be started in are none of a fetch's.
func TestFetchIgnoresTheRepositoryOfTheWorkingFolder(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "ran")
	url := smartHTTP(t, filepath.Dir(repository(t, indexFiles)), func(*http.Request) bool { return false }) + "/weather/.git"
	here := repository(t, map[string]string{"a.py": "x"})
	gitRun(t, here, "config", "credential.helper", "!touch "+marker+"; true")
	t.Chdir(here)
	_, err := fetch(t, url, nil)
	wantFailed(t, err, reasonDenied)
	if _, err := os.Stat(marker); err == nil {
		t.Error("fetching ran a command of the repository that we are in")
	}
}

// A folder with the settings of a stranger's repository is listed, and none of the
// commands that these name runs: neither on the folder as it is on disk nor on a revision.
func TestFetchFolderRunsNothingOfItsSettings(t *testing.T) {
	t.Parallel()
	marks := t.TempDir()
	command := func(name string) string { return "touch " + filepath.Join(marks, name) }
	settings := func(more ...string) string {
		text := "[core]\n\trepositoryformatversion = 1\n"
		for _, line := range []string{
			"fsmonitor", "sshCommand", "gitProxy", "pager", "editor", "askPass", "alternateRefsCommand", "hooksPath=" + filepath.Join(marks, "hooks"),
		} {
			name, value, ok := strings.Cut(line, "=")
			if !ok {
				value = command(name)
			}
			text += fmt.Sprintf("\t%s = %q\n", name, value)
		}
		for _, section := range []string{"filter \"evil\"|clean|smudge|process", "credential|helper", "uploadpack|packObjectsHook", "diff|external", "remote \"origin\"|uploadpack|vcs", "alias|ls-files|fetch"} {
			parts := strings.Split(section, "|")
			text += "[" + parts[0] + "]\n"
			for _, key := range parts[1:] {
				text += fmt.Sprintf("\t%s = %q\n", key, "!"+command(key))
				if parts[0] != "alias" && parts[0] != "credential" {
					text += fmt.Sprintf("\t%s = %q\n", key, command(key))
				}
			}
		}
		return text + strings.Join(more, "")
	}
	hostile := func(name string) string {
		repo := repository(t, map[string]string{"a.py": name, ".gitattributes": "* filter=evil diff=evil\n", "sub/b.py": "x"})
		for _, hook := range []string{"post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman"} {
			write(t, repo, map[string]string{".git/hooks/" + hook + "*": "#!/bin/sh\n" + command("hook") + "\n"})
			write(t, marks, map[string]string{"hooks/" + hook + "*": "#!/bin/sh\n" + command("hook") + "\n"})
		}
		return repo
	}
	plain := hostile("plain")
	write(t, plain, map[string]string{".git/config": settings()})

	included := hostile("included")
	write(t, included, map[string]string{".git/config": "[include]\n\tpath = more\n", ".git/more": settings()})

	elsewhere, secret := hostile("elsewhere"), t.TempDir()
	write(t, secret, map[string]string{"a.py": "secret", "id_rsa": "secret"})
	write(t, elsewhere, map[string]string{".git/config": settings("[core]\n\tworktree = " + secret + "\n")})

	// The folder itself is a bare repository.
	bare := t.TempDir()
	gitRun(t, bare, "init", "-q", "--bare", ".")
	write(t, bare, map[string]string{"config": settings("[core]\n\tbare = false\n\tworktree = .\n"), "a.py": "bare"})

	// Its index lacks a tree, which git has the repository's settings fetch.
	sparse := hostile("sparse")
	tree := gitRun(t, sparse, "rev-parse", "HEAD:sub")
	gitRun(t, sparse, "-c", "index.sparse=true", "sparse-checkout", "set", "--cone", "--sparse-index", "none")
	if err := os.Remove(filepath.Join(sparse, ".git", "objects", tree[:2], tree[2:])); err != nil {
		t.Fatal(err)
	}
	for _, config := range []string{"config", "config.worktree"} {
		write(t, sparse, map[string]string{".git/" + config: settings("[core]\n\tsparseCheckout = true\n\tsparseCheckoutCone = true\n[index]\n\tsparse = true\n" +
			"[extensions]\n\tpartialClone = origin\n[remote \"origin\"]\n\tpromisor = true\n\turl = " + plain + "\n")})
	}
	if err := os.RemoveAll(filepath.Join(marks, "hook")); err != nil { // of the steps above
		t.Fatal(err)
	}
	for name, repo := range map[string]string{"plain": plain, "included": included, "worktree": elsewhere, "bare": bare, "sparse": sparse} {
		tree, err := fetch(t, repo, nil)
		switch {
		case err != nil && name == "sparse": // it cannot be listed, and says so
		case err != nil:
			t.Errorf("%s: %v", name, err)
		default:
			data, err := os.ReadFile(filepath.Join(tree.Dir, "a.py"))
			if name != "worktree" && (err != nil || string(data) != name) || strings.Contains(string(data), "secret") {
				t.Errorf("%s: a.py is %q, %v", name, data, err)
			}
		}
		if name != "bare" {
			_, err = fetch(t, repo, &options{Rev: "main"})
			t.Logf("%s at a revision: %v", name, err)
		}
	}
	entries, err := os.ReadDir(marks)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "hooks" {
			t.Errorf("fetching ran the command of %s", e.Name())
		}
	}
}

// A server that sends files alone may name others that have the objects: nothing is
// asked of these, which may be where we alone can ask.
func TestFetchFollowsNoAlternates(t *testing.T) {
	t.Parallel()
	repo := repository(t, indexFiles)
	gitRun(t, repo, "update-server-info")
	var inside atomic.Int64
	private := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		inside.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(private.Close)
	files, named := http.FileServer(http.Dir(repo)), atomic.Int64{}
	dumb := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "alternates"):
			named.Add(1)
			fmt.Fprintln(w, private.URL+"/objects")
		case strings.Contains(r.URL.Path, "/objects/"):
			w.WriteHeader(http.StatusNotFound)
		default:
			files.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(dumb.Close)
	_, err := fetch(t, dumb.URL+"/.git", nil)
	wantFailed(t, err, reasonUnreachable)
	if inside.Load() > 0 {
		t.Errorf("another server was asked %d times: %v", inside.Load(), err)
	}
	t.Logf("alternates were asked for %d times: %v", named.Load(), err)
}

// A tree of many submodules, which a repository can have in a few bytes, costs no more
// than its limits, and few words.
func TestFetchOfATreeOfSubmodules(t *testing.T) {
	t.Parallel()
	repo := repository(t, map[string]string{"a.py": "x"})
	head := gitRun(t, repo, "rev-parse", "HEAD")
	mktree := func(lines string) string {
		cmd := exec.CommandContext(t.Context(), "git", "mktree", "--missing")
		cmd.Dir, cmd.Stdin = repo, strings.NewReader(lines)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	entry := "160000 commit " + head
	for level := range 5 { // to 1,000 submodules, and to 100,000
		var lines strings.Builder
		for i := range 10 {
			fmt.Fprintf(&lines, "%s\td%d\n", entry, i)
		}
		entry = "040000 tree " + mktree(lines.String())
		if level != 2 && level != 4 {
			continue
		}
		with := mktree("100644 blob " + gitRun(t, repo, "rev-parse", head+":a.py") + "\ta.py\n" + entry + "\td\n")
		gitRun(t, repo, "update-ref", "refs/heads/main", gitRun(t, repo, "commit-tree", "-m", "bomb", with))
		got, err := fetch(t, "file://"+repo, &options{Rev: "main", Limits: Limits{Bytes: 1 << 20, Files: 1000}})
		if level == 4 {
			wantFailed(t, err, reasonTooLarge)
		} else if err != nil || len(got.Files) != 1 || len(got.Warnings) != 1 || strings.Count(got.Warnings[0], ",") != namedInWarning+1 {
			t.Errorf("got %v, %v", got, err)
		}
	}
}

// A name that is .git, also on a file system that ignores case, is none of an index's files.
func TestGitFoldersAreRefused(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]bool{
		".git": true, "a/.GIT/config": true, ".Git/hooks/post-checkout": true,
		".gitignore": false, ".github/x": false, "git": false, ".gi": false,
	} {
		if err := checkName(name); (err != nil) != refused {
			t.Errorf("%q: %v, want refused %v", name, err, refused)
		}
	}
	if _, err := checkLink("l", "x/.GIT/y"); err == nil {
		t.Error("a link to .GIT is taken")
	}
}

// A repository that is much larger than a source may be is given up while it is fetched.
func TestFetchIsBoundedOnDisk(t *testing.T) {
	t.Parallel()
	repo := repository(t, indexFiles)
	// It goes on with a fetch until it is ended.
	endless := filepath.Join(t.TempDir(), "git")
	script := "#!/bin/sh\ncase \" $* \" in *' fetch '*) while :; do head -c 1000000 /dev/zero >> objects/pack/tmp_pack; sleep 0.05; done;; esac\nexec git \"$@\"\n"
	if err := os.WriteFile(endless, []byte(script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	_, err := fetch(t, "file://"+repo, &options{Git: endless, Timeout: 20 * time.Second, Limits: Limits{Bytes: 1 << 20, Files: 1000}})
	wantFailed(t, err, reasonTooLarge)
}

// A server may name references without end.
func TestAnswersOfGitAreBounded(t *testing.T) {
	t.Parallel()
	command := filepath.Join(t.TempDir(), "git")
	if err := os.WriteFile(command, []byte("#!/bin/sh\nexec head -c 200000000 /dev/zero\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := git{command: command}.output(t.Context(), "", nil, "ls-remote")
	if e := toolmesh.AsError(err); len(out) > 0 || e == nil || e.Details["reason"] != reasonTooLarge {
		t.Errorf("%d bytes, error %v", len(out), err)
	}
}
