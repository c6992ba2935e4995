package index

import (
	std "cmp"
	"context"
	"crypto/sha1" //nolint:gosec // git's digest
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var indexFiles = map[string]string{
	"tools.toml": "[index]\ntools = [\"a.b\"]\n", "a.py": "def b(): ...\n", "run.sh*": "#!/bin/sh\n",
	"pkg/data.txt": "x\r\ny\n", "link": "-> pkg/data.txt", "umlaut-ä.txt": "ä",
}

func indexNames() []string {
	return []string{"a.py", "link", "pkg/data.txt", "run.sh", "tools.toml", "umlaut-ä.txt"}
}

func source(t testing.TB, text string) Source {
	t.Helper()
	src, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// options configure fetches of a test; nil and zero fields mean Fetch's own.
type options struct {
	Rev, Git string
	Timeout  time.Duration
	Silence  time.Duration
	Limits   Limits
}

func fetch(t testing.TB, text string, o *options) (*Tree, error) {
	t.Helper()
	o = std.Or(o, &options{})
	how := fetching{
		git: std.Or(o.Git, "git"), timeout: std.Or(o.Timeout, time.Minute), silence: o.Silence, limits: std.Or(o.Limits, defaultLimits), apart: apart(t),
	}
	return how.fetch(t.Context(), source(t, text), filepath.Join(t.TempDir(), "tree"), o.Rev)
}

// apart runs programs as an agent has them run, but as this user.
func apart(t testing.TB) *Apart {
	t.Helper()
	dir := t.TempDir()
	return &Apart{Dir: dir, Run: func(ctx context.Context, in string, argv, env []string, out io.Writer) (string, error) {
		if filepath.Dir(in) != dir || !filepath.IsAbs(argv[0]) {
			t.Errorf("%q is to run in %s", argv, in)
		}
		if slices.ContainsFunc(argv, func(arg string) bool { return strings.Contains(arg, "git://") }) {
			t.Errorf("every user of this machine can read the way to the repository: %q", argv)
		}
		return git{}.here(ctx, in, argv, append(env, "HOME="+in), out)
	}}
}

// onDisk lists the files below a folder.
func onDisk(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			names = append(names, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

func TestFetchRevisions(t *testing.T) {
	t.Parallel()
	repo := repository(t, indexFiles)
	first := gitRun(t, repo, "rev-parse", "HEAD")
	gitRun(t, repo, "tag", "-a", "-m", "one", "v1.0")
	gitRun(t, repo, "branch", "feature/x")
	write(t, repo, map[string]string{"a.py": "def b(): return 2\n"})
	gitRun(t, repo, "commit", "-q", "-am", "second")
	second := gitRun(t, repo, "rev-parse", "HEAD")
	write(t, repo, map[string]string{"a.py": "def b(): return 3\n"})
	gitRun(t, repo, "commit", "-q", "-am", "third")
	third := gitRun(t, repo, "rev-parse", "HEAD")

	servers := map[string]string{
		"file":   "file://" + repo,
		"http":   smartHTTP(t, filepath.Dir(repo), nil) + "/weather/.git",
		"dumb":   dumbHTTP(t, repo),
		"folder": repo,
	}
	for server, url := range servers {
		for rev, want := range map[string]string{
			"": third, "main": third, "v1.0": first, "feature/x": first, "refs/heads/main": third, "heads/main": third,
			first: first, second: second, second[:9]: second, third[:7]: third, second[:16]: second,
		} {
			if server == "folder" && rev == "" {
				continue // the folder as it is on disk
			}
			t.Run(server+" "+rev, func(t *testing.T) {
				t.Parallel()
				tree, err := fetch(t, url, &options{Rev: rev})
				if err != nil {
					t.Fatal(err)
				}
				if tree.Revision != want {
					t.Errorf("revision is %s, want %s", tree.Revision, want)
				}
				if diff := cmp.Diff(indexNames(), tree.Files); diff != "" {
					t.Errorf("files (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(indexNames(), onDisk(t, tree.Dir)); diff != "" {
					t.Errorf("files on disk (-want +got):\n%s", diff)
				}
				if info, err := os.Stat(filepath.Join(tree.Dir, "run.sh")); err != nil || info.Mode()&0o111 == 0 {
					t.Errorf("run.sh: %v, %v, want it executable", info, err)
				}
				if left, err := filepath.Glob(filepath.Join(filepath.Dir(tree.Dir), ".fetch-*")); err != nil || len(left) > 0 {
					t.Errorf("left behind: %v, %v", left, err)
				}
			})
		}
	}
}

// The digits of a short commit may begin the name of a file's object too.
func TestFetchShortCommitThatAlsoBeginsABlob(t *testing.T) {
	t.Parallel()
	repo := repository(t, indexFiles)
	first := gitRun(t, repo, "rev-parse", "HEAD")
	text := ""
	for n := 0; ; n++ {
		text = fmt.Sprint(n)
		if sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text)); hex.EncodeToString(sum[:2]) == first[:4] { //nolint:gosec // git's digest
			break
		}
	}
	write(t, repo, map[string]string{"same": text})
	gitRun(t, repo, "add", "same")
	gitRun(t, repo, "commit", "-q", "-m", "second")
	tree, err := fetch(t, "file://"+repo, &options{Rev: first[:4]})
	if err != nil || tree.Revision != first {
		t.Errorf("the tree of %s is %+v, %v", first, tree, err)
	}
}

func TestFetchUnknownRevision(t *testing.T) {
	t.Parallel()
	repo := repository(t, indexFiles)
	gitRun(t, repo, "tag", "v1.0")
	gitRun(t, repo, "tag", "v1.1")
	_, err := fetch(t, "file://"+repo+"@v1.o", nil)
	e := wantFailed(t, err, reasonRevision, `no revision "v1.o"`, "did you mean v1.0")
	if diff := cmp.Diff([]string{"v1.0", "v1.1"}, e.Details["near"]); diff != "" {
		t.Errorf("details.near (-want +got):\n%s", diff)
	}
	_, err = fetch(t, "file://"+repo, &options{Rev: "deadbeef"})
	wantFailed(t, err, reasonRevision, `no revision "deadbeef"`, "main")
	_, err = fetch(t, "file://"+repo, &options{Rev: strings.Repeat("0123456789", 4)})
	wantFailed(t, err, reasonRevision, "no revision")
	_, err = fetch(t, "file://"+repo+"@v1.0", &options{Rev: "v1.1"})
	wantFailed(t, err, reasonRevision, "give one of them")
	_, err = fetch(t, "file://"+repo, &options{Rev: "--upload-pack=touch"})
	wantFailed(t, err, reasonRevision, "not a revision")
	empty := t.TempDir()
	gitRun(t, empty, "init", "-q", "--bare")
	_, err = fetch(t, "file://"+empty, nil)
	wantFailed(t, err, reasonRevision, "is empty")
}

func TestFetchUnreachable(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "no.git")
	_, err := fetch(t, "file://"+missing, nil)
	e := wantFailed(t, err, reasonUnreachable, missing, "check the address")
	if e.Details["stderr"] == "" {
		t.Error("details.stderr is empty")
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	url := gone.URL
	_, err = fetch(t, url+"/a/b", nil)
	wantFailed(t, err, reasonUnreachable, "not found")
	gone.Close()
	_, err = fetch(t, url+"/a/b", nil)
	wantFailed(t, err, reasonUnreachable, url)
	_, err = fetch(t, "file://"+missing, &options{Git: "no-such-git"})
	wantFailed(t, err, reasonGitMissing, "install git")
	_, err = fetch(t, "file://"+missing, &options{Git: "/no/such/git"})
	wantFailed(t, err, reasonGitMissing, "install git")
}

// smartHTTP serves the repositories below dir through git http-backend.
func smartHTTP(t testing.TB, dir string, check func(r *http.Request) bool) string {
	t.Helper()
	backend, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	handler := &cgi.Handler{
		Path: backend, Args: []string{"http-backend"}, Dir: dir, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if check != nil && !check(r) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// dumbHTTP serves a repository as plain files: no shallow fetch is possible.
func dumbHTTP(t testing.TB, repo string) string {
	t.Helper()
	bare := filepath.Join(t.TempDir(), "weather.git")
	gitRun(t, repo, "clone", "-q", "--bare", "--no-local", repo, bare)
	gitRun(t, bare, "update-server-info")
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(bare))))
	t.Cleanup(server.Close)
	return server.URL + "/weather.git"
}

func TestFetchCredentials(t *testing.T) {
	t.Parallel()
	repo := repository(t, indexFiles)
	var asked atomic.Int64
	url := smartHTTP(t, filepath.Dir(repo), func(r *http.Request) bool {
		asked.Add(1)
		user, password, ok := r.BasicAuth()
		return ok && user == "bob" && password == "hunter2!"
	}) + "/weather/.git"
	with := func(login string) string { return strings.Replace(url, "http://", "http://"+login+"@", 1) }

	tree, err := fetch(t, with("bob:hunter2%21"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Files) != len(indexNames()) || asked.Load() == 0 {
		t.Errorf("files are %q after %d requests", tree.Files, asked.Load())
	}
	for _, login := range []string{"bob:hunter3%21", "topsecrettoken"} {
		_, err = fetch(t, with(login), nil)
		e := wantFailed(t, err, reasonDenied, "credentials")
		if all := fmt.Sprint(err, e.Details); strings.Contains(all, "hunter3") || strings.Contains(all, "topsecret") {
			t.Errorf("the error shows a credential: %s", all)
		}
	}
	_, err = fetch(t, url, nil)
	wantFailed(t, err, reasonDenied, "private repository")
}

// An address may lead to another one on its host. No other host is asked, nor sees
// the credentials.
func TestFetchRedirected(t *testing.T) {
	t.Parallel()
	repo := repository(t, indexFiles)
	served := smartHTTP(t, filepath.Dir(repo), func(r *http.Request) bool {
		user, _, _ := r.BasicAuth()
		return user == "bob"
	})
	target, err := neturl.Parse(served)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	moved := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest, ok := strings.CutPrefix(r.URL.Path, "/old/"); ok {
			http.Redirect(w, r, "/weather/"+rest+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(moved.Close)
	with := func(server string) string { return strings.Replace(server, "http://", "http://bob:hunter2@", 1) }
	tree, err := fetch(t, with(moved.URL)+"/old/.git", nil)
	if err != nil || len(tree.Files) != len(indexNames()) {
		t.Errorf("redirected on its host: %v", err)
	}

	var seen atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		seen.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(elsewhere.Close)
	away := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/weather/.git/info/refs?service=git-upload-pack", http.StatusFound))
	t.Cleanup(away.Close)
	_, err = fetch(t, with(away.URL)+"/weather/.git", nil)
	wantFailed(t, err, reasonUnreachable, elsewhere.URL, "another host")
	if seen.Load() != 0 {
		t.Errorf("the other host was asked %d times", seen.Load())
	}
}

func TestFetchTimeoutAndCancel(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	asked := make(chan struct{}, 10)
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	}))
	t.Cleanup(server.Close)
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-release
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(release) })

	_, err := fetch(t, server.URL+"/x", &options{Timeout: 300 * time.Millisecond})
	wantFailed(t, err, reasonTimeout, "300ms")
	_, err = fetch(t, server.URL+"/x", &options{Silence: time.Second})
	wantFailed(t, err, reasonTimeout, "has not answered in 1s")
	_, err = fetch(t, silent.URL+"/x", &options{Silence: time.Second})
	wantFailed(t, err, reasonUnreachable, "too slow")

	for len(asked) > 0 {
		<-asked
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { <-asked; cancel() }()
	dest := filepath.Join(t.TempDir(), "tree")
	if _, err := Fetch(ctx, source(t, server.URL+"/x"), dest, "", FetchOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled fetch: %v, want context.Canceled", err)
	}
	if _, err := os.Stat(dest); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed fetch leaves %s: %v", dest, err)
	}
}

func TestFetchHostileRepository(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files  map[string]string
		reason string
		part   string
	}{
		"absolute link":  {map[string]string{"l": "-> /etc/passwd"}, reasonUnsafe, "outside"},
		"link upwards":   {map[string]string{"a/l": "-> ../../x"}, reasonUnsafe, "outside"},
		"link to a link": {map[string]string{"k": "-> .", "m": "-> k/k/../../.."}, reasonUnsafe, "outside"},
		"too large":      {map[string]string{"big": strings.Repeat("x", 5000)}, reasonTooLarge, "larger"},
		"too many":       {map[string]string{"a": "", "b": "", "c": "", "d": ""}, reasonTooLarge, "more than 3 files"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := repository(t, tt.files)
			limits := Limits{Bytes: 4000, Files: 3}
			_, err := fetch(t, "file://"+repo, &options{Limits: limits})
			wantFailed(t, err, tt.reason, tt.part)
			_, err = fetch(t, repo, &options{Limits: limits})
			wantFailed(t, err, tt.reason, tt.part)
		})
	}
	// Hooks, filters, and a configuration that runs commands.
	marker := filepath.Join(t.TempDir(), "ran")
	repo := repository(t, map[string]string{"a.py": "x", ".gitattributes": "*.py filter=evil\n", "__pycache__/x.pyc": "", "pkg/.venv/x": ""})
	command := "touch " + marker
	for _, hook := range []string{"post-checkout", "post-index-change", "reference-transaction", "upload-pack"} {
		write(t, repo, map[string]string{".git/hooks/" + hook + "*": "#!/bin/sh\n" + command + "\n"})
	}
	gitRun(t, repo, "config", "core.fsmonitor", command)
	gitRun(t, repo, "config", "filter.evil.smudge", command)
	for _, text := range []string{"file://" + repo, repo} {
		tree, err := fetch(t, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{".gitattributes", "a.py"}, onDisk(t, tree.Dir)); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", text, diff)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("fetching ran a command of the repository")
	}
}

func TestFetchSubmoduleWarns(t *testing.T) {
	t.Parallel()
	inner := repository(t, map[string]string{"x": ""})
	repo := repository(t, indexFiles)
	gitRun(t, repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", inner, "sub")
	gitRun(t, repo, "commit", "-q", "-m", "sub")
	for _, text := range []string{"file://" + repo, repo} {
		tree, err := fetch(t, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(tree.Warnings) != 1 || !slices.Contains(strings.Fields(tree.Warnings[0]), "sub") || slices.Contains(tree.Files, "sub/x") {
			t.Errorf("%s: warnings %q, files %q, want a warning of sub", text, tree.Warnings, tree.Files)
		}
	}
}

// Attributes that a repository has for its releases do not change the fetched files.
func TestFetchLeavesNothingOutForAttributes(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long/", 50) + "name.txt"
	repo := repository(t, map[string]string{
		".gitattributes": "*.txt export-ignore export-subst\n/dir export-ignore\n", "a.txt": "$Format:%H$", "dir/b.py": "x", long: "x",
	})
	tree, err := fetch(t, "file://"+repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".gitattributes", "a.txt", "dir/b.py", long}, onDisk(t, tree.Dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if text, err := os.ReadFile(filepath.Join(tree.Dir, "a.txt")); err != nil || string(text) != "$Format:%H$" {
		t.Errorf("a.txt is %q, %v", text, err)
	}
}

func TestFetchPointersWarn(t *testing.T) {
	t.Parallel()
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
	repo := repository(t, indexFiles)
	write(t, repo, map[string]string{"data/a.bin": pointer, "data/b.bin": pointer, "data/c.bin": strings.Repeat(pointer, 20), "d.txt": "version 1\n"})
	commit := func() {
		t.Helper()
		gitRun(t, repo, "add", "-A")
		gitRun(t, repo, "commit", "-q", "-m", "more")
	}
	look := func(want ...string) {
		t.Helper()
		for _, text := range []string{"file://" + repo, repo} {
			tree, err := fetch(t, text, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(tree.Warnings) != min(len(want), 1) {
				t.Errorf("%s: warnings %q, want %q", text, tree.Warnings, want)
			}
			for _, part := range want {
				if !strings.Contains(strings.Join(tree.Warnings, "\n"), part) {
					t.Errorf("%s: warnings %q, want %q", text, tree.Warnings, part)
				}
			}
		}
	}
	write(t, repo, map[string]string{".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
	// Without the program of Git LFS files are stored as they are.
	gitRun(t, repo, "config", "filter.lfs.clean", "cat")
	commit()
	look("data/a.bin, data/b.bin", "Git LFS")
	write(t, repo, map[string]string{"data/b.bin": "content"})
	commit()
	look(": data/a.bin")
}

func TestFetchFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "weather")
	write(t, dir, indexFiles)
	write(t, dir, map[string]string{
		".gitignore": "*.log\nbuild/\n/top.txt\n", "x.log": "", "build/x": "", "top.txt": "", "pkg/.gitignore": "!keep.log\n", "pkg/keep.log": "k",
		"pkg/__pycache__/a.pyc": "", ".venv/bin/python": "",
	})
	want := append([]string{".gitignore"}, indexNames()...)
	want = append(want, "pkg/.gitignore", "pkg/keep.log")
	slices.Sort(want)
	revisions := map[string]bool{}
	check := func(git string) {
		t.Helper()
		tree, err := fetch(t, dir, &options{Git: git})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, tree.Files); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, onDisk(t, tree.Dir)); diff != "" {
			t.Errorf("files on disk (-want +got):\n%s", diff)
		}
		revisions[tree.Revision] = true
	}
	_, err := fetch(t, dir, &options{Git: "no-such-git"})
	wantFailed(t, err, reasonGitMissing, ".gitignore")
	check("git")
	gitRun(t, dir, "init", "-q")
	check("git") // untracked files are taken as well
	gitRun(t, dir, "add", "-A")
	check("git")
	if len(revisions) != 1 {
		t.Errorf("equal content has revisions %v, want one", revisions)
	}
	if err := os.Chmod(filepath.Join(dir, "a.py"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("git") // only whether a file can be run counts
	if len(revisions) != 1 {
		t.Errorf("another mode changes the revision: %v", revisions)
	}
	if err := os.Remove(filepath.Join(dir, "a.py")); err != nil { // tracked, but gone
		t.Fatal(err)
	}
	want = slices.DeleteFunc(want, func(n string) bool { return n == "a.py" })
	check("git")
	if len(revisions) != 2 {
		t.Errorf("a removed file leaves the revision: %v", revisions)
	}
}

// TestFetchFolderWithoutGit: a folder without rules for git needs no git.
func TestFetchFolderWithoutGit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "weather")
	write(t, dir, indexFiles)
	write(t, dir, map[string]string{"pkg/__pycache__/a.pyc": "", ".venv/bin/python": "", ".git/config": ""})
	tree, err := fetch(t, dir, &options{Git: "no-such-git"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(indexNames(), tree.Files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	with, err := fetch(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if with.Revision != tree.Revision {
		t.Errorf("with git the revision is %s, without %s", with.Revision, tree.Revision)
	}
}

// TestFetchIgnoredFolder: a folder that the repository around it ignores as a
// whole is still an index.
func TestFetchIgnoredFolder(t *testing.T) {
	t.Parallel()
	repo := repository(t, map[string]string{".gitignore": "tmp/\n"})
	write(t, repo, map[string]string{"tmp/sky/a.py": "x", "tmp/sky/.gitignore": "*.log", "tmp/sky/b.log": ""})
	tree, err := fetch(t, filepath.Join(repo, "tmp", "sky"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".gitignore", "a.py"}, tree.Files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestFetchFolderRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.py": "x", "sub/b.py": "x"})
	_, err := fetch(t, filepath.Join(dir, "none"), nil)
	wantFailed(t, err, reasonFolder, "no folder")
	_, err = fetch(t, dir, &options{Rev: "main"})
	wantFailed(t, err, reasonRevision, "--rev")
	gitRun(t, dir, "init", "-q")
	_, err = fetch(t, filepath.Join(dir, "sub"), &options{Rev: "main"})
	wantFailed(t, err, reasonRevision, "--rev")
	_, err = Fetch(t.Context(), source(t, dir), filepath.Join(dir, "in", "side"), "", FetchOptions{})
	wantFailed(t, err, reasonFolder, "inside")
	_, err = Fetch(t.Context(), source(t, dir), t.TempDir(), "", FetchOptions{})
	wantFailed(t, err, reasonExists, "exists already")
	_, err = fetch(t, t.TempDir(), nil)
	wantFailed(t, err, reasonFolder, "no files")
	write(t, dir, map[string]string{".toolmesh/x": ""})
	_, err = fetch(t, dir, nil)
	wantFailed(t, err, reasonUnsafe, "reserved")
}

func TestFetchFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"sum.py": someScript, "other.txt": "", "tools.toml": someTOML})
	tree, err := fetch(t, filepath.Join(dir, "sum.py"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"sum.py"}, onDisk(t, tree.Dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	m, err := Load(tree.Dir)
	if err != nil || m.Convention != "sum.py" || m.Tools[0] != "sum.f" {
		t.Errorf("manifest %+v, %v; want that of the script alone", m, err)
	}
}

// A link to a file is that file under the link's name.
func TestFetchLinkToFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"store/1a2b-sum": someScript})
	link := filepath.Join(dir, "bin", "sum.py")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../store/1a2b-sum", link); err != nil {
		t.Fatal(err)
	}
	tree, err := fetch(t, link, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"sum.py"}, onDisk(t, tree.Dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	plain := filepath.Join(t.TempDir(), "sum.py")
	write(t, filepath.Dir(plain), map[string]string{"sum.py": someScript})
	same, err := fetch(t, plain, nil)
	if err != nil || same.Revision != tree.Revision {
		t.Errorf("the link's revision is %s, that of its file %s: %v", tree.Revision, same.Revision, err)
	}
	if err := os.Remove(filepath.Join(dir, "store", "1a2b-sum")); err != nil {
		t.Fatal(err)
	}
	_, err = fetch(t, link, nil)
	wantFailed(t, err, reasonFolder, "cannot be read")
}

// Errors pass on the reasons that git and ssh print.
func TestGitsOwnReason(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stderr      string
		parts, none []string
	}{
		"another user's": {
			"fatal: detected dubious ownership in repository at '/x/.git'\nTo add an exception for this directory, call:\n\n\tgit config --global --add safe.directory /x/.git\nfatal: Could not read from remote repository.\n",
			[]string{"dubious ownership in repository at '/x/.git'", "git config --global --add safe.directory /x/.git"}, []string{"check the address"},
		},
		"refused": {
			"Warning: Permanently added 'h' to the list of known hosts.\nssh: connect to host h port 22: Connection refused\nfatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\nand the repository exists.\n",
			[]string{"ssh: connect to host h port 22: Connection refused", "check the address and the network"}, []string{"Could not read from remote", "Permanently"},
		},
		"changed key": {
			"@@@@@@@@@@@@@\n@ WARNING @\n@@@@@@@@@@@@@\nHost key for h has changed and you have requested strict checking.\nHost key verification failed.\nfatal: Could not read from remote repository.\n",
			[]string{"Host key for h has changed and you have requested strict checking.; Host key verification failed."}, []string{"@@"},
		},
		"no key": {
			"git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.\n",
			[]string{"git@h: Permission denied (publickey)", "needs credentials"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := unreachable("here", &gitError{stderr: tc.stderr, cause: errors.New("exit status 128")})
			for _, part := range tc.parts {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v\nwant %q in it", err, part)
				}
			}
			for _, part := range tc.none {
				if strings.Contains(err.Error(), part) {
					t.Errorf("%v\nwant no %q in it", err, part)
				}
			}
		})
	}
}

// TestFetchSSH goes through a stub of ssh that runs the remote command
// here, with variables set that would send git to another repository.
func TestFetchSSH(t *testing.T) {
	repo := repository(t, indexFiles)
	dir := t.TempDir()
	write(t, dir, map[string]string{"ssh*": "#!/bin/sh\nfor last; do :; done\necho \"$@\" >> " + dir + "/log\nunset GIT_DIR\nexec sh -c \"$last\"\n"})
	t.Setenv("GIT_SSH", filepath.Join(dir, "ssh"))
	t.Setenv("GIT_DIR", filepath.Join(dir, "nowhere"))
	t.Setenv("GIT_INDEX_FILE", filepath.Join(dir, "nowhere"))
	for _, text := range []string{"me@example.invalid:" + repo + "@main", "ssh://me@example.invalid" + repo} {
		tree, err := fetch(t, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(indexNames(), onDisk(t, tree.Dir)); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", text, diff)
		}
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil || !strings.Contains(string(log), "me@example.invalid git-upload-pack '"+repo+"'") {
		t.Errorf("ssh was asked %q, %v", log, err)
	}
}

// TestGitRunsApart looks at what git runs apart from the agent for repositories that only the
// agent's user reaches, and at what another user of the machine gets from the port.
func TestGitRunsApart(t *testing.T) {
	repo := repository(t, indexFiles)
	dir := t.TempDir()
	write(t, dir, map[string]string{"ssh*": "#!/bin/sh\nfor last; do :; done\nexec sh -c \"$last\"\n"})
	t.Setenv("GIT_SSH_COMMAND", filepath.Join(dir, "ssh")+" -v")
	for _, location := range []string{repo, "file://" + repo, "me@example.invalid:" + repo, "ssh://me@example.invalid:2222" + repo} {
		var ran []string
		a := apart(t)
		run := a.Run
		a.Run = func(ctx context.Context, in string, argv, env []string, out io.Writer) (string, error) {
			for _, variable := range env {
				_, address, ok := strings.Cut(variable, "=url.git://")
				if !ok {
					continue
				}
				ran = append(ran, variable)
				address = strings.TrimSuffix(address, ".insteadOf")
				host, token, _ := strings.Cut(address, "/")
				for _, request := range []string{"git-upload-pack /", "git-upload-pack /" + token + "x", "git-receive-pack /" + token, "git-upload-pack " + repo} {
					conn, err := net.Dial("tcp", host)
					if err != nil {
						t.Fatal(err)
					}
					request += "\x00host=h\x00"
					_, _ = fmt.Fprintf(conn, "%04x%s", len(request)+4, request)
					if data, _ := io.ReadAll(conn); len(data) > 0 { // an error is a reset connection
						t.Errorf("%s: %q is answered %q", location, request, data)
					}
					_ = conn.Close()
				}
				for range 200 { // a program that holds all that it gets keeps git out of nothing
					conn, err := net.Dial("tcp", host)
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
				}
			}
			return run(ctx, in, argv, env, out)
		}
		tree := filepath.Join(t.TempDir(), "tree")
		if err := os.Mkdir(tree, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := (git{command: "git"}).fetch(t.Context(), location, nil, "main", tree, defaultLimits, a); err != nil {
			t.Errorf("%s: %v", location, err)
		}
		if len(ran) != 2 { // ls-remote and fetch
			t.Errorf("%s: apart ran with %q", location, ran)
		}
	}
	for location, want := range map[string]string{
		"file://" + repo + "x":        "does not appear to be a git repository",
		"me@example.invalid:" + "/no": "does not appear to be a git repository",
	} {
		if _, err := (git{command: "git"}).fetch(t.Context(), location, nil, "main", t.TempDir(), defaultLimits, apart(t)); err == nil ||
			!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "git://") || !strings.Contains(err.Error(), location) {
			t.Errorf("%s: %v", location, err)
		}
	}
}

// A helper's password for the host of an ssh repository is of no use to ssh, and none of git's apart.
func TestPasswordsAreNotForSSH(t *testing.T) {
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	write(t, dir, map[string]string{
		"ssh*":    "#!/bin/sh\necho 'me@example.invalid: Permission denied (publickey).' >&2\nexit 255\n",
		"helper*": "#!/bin/sh\necho asked >> " + asked + "\necho username=me\necho password=secret\n",
	})
	t.Setenv("GIT_SSH_COMMAND", filepath.Join(dir, "ssh"))
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "credential.helper")
	t.Setenv("GIT_CONFIG_VALUE_0", filepath.Join(dir, "helper"))
	_, err := (git{command: "git"}).fetch(t.Context(), "ssh://me@example.invalid/weather", nil, "main", t.TempDir(), defaultLimits, apart(t))
	if !isDenied(err) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(asked); err == nil {
		t.Error("the helper was asked")
	}
}
