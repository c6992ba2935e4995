package attacks_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// report is written by testdata/installs/probe.py.
type report struct {
	Case, Where, PIDNS string
	UID, PID           int
	Argv               []string
	Read               map[string]string
	Wrote              []string
	Processes          int
}

// author is the server of indexes' authors, and the package index of the agent's
// settings. It remembers every request.
type author struct {
	port     int    // of the package index and of reports, at 127.0.0.1
	host     string // of the authors: another address, because logins are bound to a host
	password string // of the agent's package index
	git      string // folder of repositories

	mu       sync.Mutex
	now      string   // id of the case under installation
	asked    []string // requests, decoded: method, address, user, head of the body
	reports  []report
	packages map[string]map[string][]byte // by name: files
}

var names = regexp.MustCompile(`[-_.]+`)

// normal returns the normal form of a package's name (PEP 503).
func normal(name string) string { return strings.ToLower(names.ReplaceAllString(name, "-")) }

// publish adds a file of a package.
func (a *author) publish(name, file string, data []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.packages[normal(name)] == nil {
		a.packages[normal(name)] = map[string][]byte{}
	}
	a.packages[normal(name)][file] = data
}

// newAuthor starts the server. These are its addresses:
//
//	/own/simple/NAME/      the agent's package index, which takes its password
//	/c/CASE/simple/NAME/   the author's, with the same packages
//	/c/CASE/files/FILE     a file of any package
//	/private/CASE/FILE     the same, for CASE's token as user or password
//	/git/NAME, /private/CASE/git/NAME  repositories
//	/probe                 takes reports
func newAuthor(t *testing.T, password string, token func(id string) string) *author {
	t.Helper()
	a := &author{password: password, git: filepath.Join(t.TempDir(), "git"), packages: map[string]map[string][]byte{}}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.serve(w, r, token) })
	own := httptest.NewServer(handler)
	t.Cleanup(own.Close)
	at, err := url.Parse(own.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(at.Port(), &a.port); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skipf("this machine has one loopback address: %v", err)
	}
	theirs := httptest.NewUnstartedServer(handler)
	_ = theirs.Listener.Close()
	theirs.Listener = listener
	theirs.Start()
	t.Cleanup(theirs.Close)
	a.host = listener.Addr().String()
	return a
}

func (a *author) serve(w http.ResponseWriter, r *http.Request, token func(id string) string) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	user, password, _ := r.BasicAuth()
	if r.URL.Path == "/probe" {
		var one report
		if json.Unmarshal(body, &one) == nil {
			a.mu.Lock()
			a.reports = append(a.reports, one)
			a.mu.Unlock()
		}
		return
	}
	where, err := url.QueryUnescape(r.RequestURI)
	if err != nil {
		where = r.RequestURI
	}
	shown := user
	if strings.HasPrefix(r.URL.Path, "/private/") {
		shown = "…" // here a token is no leak
	}
	a.mu.Lock()
	a.asked = append(a.asked, fmt.Sprintf("%s: %s %s user=%s head=%.200s", a.now, r.Method, where, shown, body))
	a.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "own" {
		if user != "agent" || password != a.password {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		if len(parts) > 2 && parts[2] == "broken" {
			http.Error(w, "broken", http.StatusForbidden)
			return
		}
	}
	if parts[0] == "private" && len(parts) > 2 {
		if is := token(parts[1]); user != is && password != is {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		parts = parts[2:]
	}
	switch {
	case parts[0] == "git":
		r.Body = io.NopCloser(bytes.NewReader(body))
		backend, err := exec.Command("git", "--exec-path").Output()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		root := r.URL.Path[:strings.Index(r.URL.Path, "/git/")+len("/git")]
		(&cgi.Handler{
			Path: filepath.Join(strings.TrimSpace(string(backend)), "git-http-backend"), Root: root, Stderr: io.Discard, // not ours, which go test reads until all have closed it
			Env: []string{"GIT_PROJECT_ROOT=" + a.git, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
		}).ServeHTTP(w, r)
	case slices.Contains(parts, "simple"):
		a.mu.Lock()
		files := maps.Clone(a.packages[parts[len(parts)-1]])
		a.mu.Unlock()
		if len(files) == 0 {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		for _, name := range slices.Sorted(maps.Keys(files)) {
			fmt.Fprintf(w, "<a href=\"%s/files/%s#sha256=%x\">%s</a>\n", r.URL.Path[:strings.Index(r.URL.Path, "/simple/")], name, sha256.Sum256(files[name]), name)
		}
	default:
		name := parts[len(parts)-1]
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, files := range a.packages {
			if data, ok := files[name]; ok {
				http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
				return
			}
		}
		http.NotFound(w, r)
	}
}

// during sets the case under installation.
func (a *author) during(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = id
}

// took returns the requests and reports so far.
func (a *author) took() ([]string, []report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked), slices.Clone(a.reports)
}

// wheel makes a wheel of files, with more lines of METADATA.
func wheel(name string, files map[string]string, metadata ...string) (file string, data []byte) {
	all := maps.Clone(files)
	if all == nil {
		all = map[string]string{}
	}
	escaped := strings.ReplaceAll(normal(name), "-", "_")
	info := escaped + "-1.dist-info/"
	all[info+"METADATA"] = "Metadata-Version: 2.2\nName: " + name + "\nVersion: 1\n" + strings.Join(metadata, "")
	all[info+"WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
	if all[info+"RECORD"] == "" {
		var record string
		for _, path := range slices.Sorted(maps.Keys(all)) {
			if path != info+"RECORD" {
				record += path + ",,\n"
			}
		}
		all[info+"RECORD"] = record
		all[info+"RECORD"] += info + "RECORD,,\n"
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		w, err := z.Create(path)
		if err == nil {
			_, err = io.WriteString(w, all[path])
		}
		if err != nil {
			panic(err) // a buffer does not fail
		}
	}
	_ = z.Close()
	return escaped + "-1-py3-none-any.whl", b.Bytes()
}

// sdist makes a source distribution whose backend is the text of a module.
func sdist(name, backend string, more ...string) (file string, data []byte) {
	escaped := strings.ReplaceAll(normal(name), "-", "_")
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, one := range [][2]string{
		{"PKG-INFO", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1\n"},
		{"pyproject.toml", project(name, more...)},
		{"b.py", backend},
	} {
		_ = w.WriteHeader(&tar.Header{Name: escaped + "-1/" + one[0], Mode: 0o644, Size: int64(len(one[1])), Typeflag: tar.TypeReg})
		_, _ = io.WriteString(w, one[1])
	}
	_ = w.Close()
	_ = z.Close()
	return escaped + "-1.tar.gz", b.Bytes()
}

// project returns a pyproject.toml whose backend is the module b next to it.
func project(name string, more ...string) string {
	return "[project]\nname = \"" + name + "\"\nversion = \"1\"\n" + strings.Join(more, "") +
		"[build-system]\nrequires = []\nbuild-backend = \"b\"\nbackend-path = [\".\"]\n"
}

// backend returns a module that runs hook, and builds a wheel of one module.
func backend(name, module, hook string, requires ...string) string {
	escaped := strings.ReplaceAll(normal(name), "-", "_")
	metadata := "Metadata-Version: 2.2\nName: " + name + "\nVersion: 1\n"
	for _, one := range requires {
		metadata += "Requires-Dist: " + one + "\n"
	}
	return fmt.Sprintf(`import os, zipfile

HERE = os.path.dirname(os.path.abspath(__file__))


def build_wheel(folder, config=None, metadata=None, editable=False):
    hook()
    name = %[1]q + "-1-py3-none-any.whl"
    info = %[1]q + "-1.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        if editable:
            wheel.writestr(%[1]q + ".pth", HERE)
        else:
            wheel.writestr(%[2]q + "/__init__.py", "VALUE = 'built'\n")
        wheel.writestr(info + "METADATA", %[3]q)
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(info + "RECORD", "")
    return name


def build_editable(folder, config=None, metadata=None):
    return build_wheel(folder, editable=True)


def hook():
    try:
%[4]s
    except Exception:
        pass
`, escaped, module, metadata, indent(8, "pass\n"+hook))
}

func indent(by int, text string) string {
	pad := strings.Repeat(" ", by)
	return pad + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+pad)
}

// repository makes a bare git repository of a folder, which the server serves under name.
func (a *author) repository(t *testing.T, name, work string) {
	t.Helper()
	gitIn(t, work, "init", "-q", "-b", "main", ".")
	gitIn(t, work, "add", "-A")
	gitIn(t, work, "commit", "-q", "-m", "one")
	gitIn(t, work, "clone", "-q", "--bare", work, filepath.Join(a.git, name))
}

func gitIn(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(environ(dir), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
