package venv

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// uvVersion is the version that is installed where no uv is found.
const uvVersion = "0.13.8"

// uv finds the uv executable, or installs it below the store's folder from its wheel with the
// pip of some Python.
func (s *Store) uv(ctx context.Context, progress Progress) (string, error) {
	if s.uvPath != "" {
		if !isExecutable(s.uvPath) {
			return "", failed(nil, "", "the configured uv, %s, is not an executable file", s.uvPath)
		}
		return s.uvPath, nil
	}
	release, err := s.keys.take(ctx, "uv")
	if err != nil {
		return "", err
	}
	defer release()
	if isExecutable(s.foundUV) {
		return s.foundUV, nil
	}
	above, err := s.Interpreter(ctx)
	if err != nil {
		return "", err
	}
	folder := filepath.Join(s.dir, "uv-"+uvVersion)
	for _, bin := range append(filepath.SplitList(lookup(s.environ, "PATH")), filepath.Join(folder, "bin")) {
		file := filepath.Join(bin, "uv")
		if !filepath.IsAbs(file) || !isExecutable(file) {
			continue
		}
		// A shim of another tool may exist and do nothing, and ours may be damaged.
		if out, _, err := s.run(ctx, above, "", file, "--version"); err == nil && strings.HasPrefix(string(out), "uv ") {
			s.foundUV = file
			return file, nil
		}
	}
	progress.report("uv", "running", 5)
	var said string
	var last error
	for i := range s.interpreters(ctx) {
		if said, last = s.installUV(ctx, i.Path, folder); last == nil {
			progress.report("uv", "done", 15)
			return filepath.Join(folder, "bin", "uv"), nil
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		s.log.Warn("uv could not be installed with this interpreter", slog.String("python", i.Path), slog.String("error", last.Error()))
	}
	return "", failed(last, said, "the index has dependencies, which need uv, and uv %s cannot be installed; "+
		"install uv and put it on the agent's PATH, or make pip able to reach a package index", uvVersion)
}

func (s *Store) installUV(ctx context.Context, python, folder string) (string, error) {
	beside, err := os.MkdirTemp(s.dir, "new-uv-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(beside) //nolint:errcheck // gone after the rename
	_, said, err := s.run(ctx, python, s.dir, python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile",
		"--disable-pip-version-check", "--target", beside, "uv=="+uvVersion)
	if err != nil {
		return said, err
	}
	if err := errors.Join(os.RemoveAll(folder), os.Chmod(beside, 0o755)); err != nil { //nolint:gosec // other users run it
		return "", err
	}
	return "", os.Rename(beside, folder)
}

// Variables of this machine that uv gets, by name or prefix.
var (
	machineVariables = []string{
		"PATH", "LANG", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
	}
	uvVariables = []string{
		"UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX", "UV_INSECURE_HOST", "UV_KEYRING_PROVIDER",
		"UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE_NEWER", "UV_PRERELEASE", "UV_RESOLUTION", "UV_OFFLINE",
		"UV_HTTP_TIMEOUT", "UV_HTTP_CONNECT_TIMEOUT", "UV_HTTP_RETRIES", "UV_REQUEST_TIMEOUT", "UV_CONCURRENT_DOWNLOADS", "UV_CONCURRENT_BUILDS", "UV_CONCURRENT_INSTALLS",
	}
	uvFamilies = []string{"LC_", "UV_INDEX_"} // UV_INDEX_ has names and passwords of indexes, which builds do not get
)

// step is one execution of uv.
type step struct {
	role  Role
	apart bool     // the cache is removed with the step, as downloads are of one index alone
	dir   string   // working directory
	write []string // folders that it can write
	read  []string // other folders that it can read
	login logins
}

// runUV runs uv confined, with a home and a temporary folder that are removed afterwards. keep
// takes files out of that folder first; nil for none.
func (s *Store) runUV(ctx context.Context, i Interpreter, uv string, st step, keep func(tmp string) error, args ...string) (stdout []byte, said string, err error) {
	if uv, err = filepath.EvalSymlinks(uv); err != nil { // a step sees only the last folder of its path
		return nil, "", err
	}
	tmp, err := os.MkdirTemp(s.dir, "new-tmp-")
	if err != nil {
		return nil, "", err
	}
	defer deep.RemoveAll(tmp) //nolint:errcheck // swept at the next start
	home := filepath.Join(tmp, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, "", err
	}
	env := append(among(s.environ, slices.Concat(machineVariables, uvVariables), uvFamilies), s.uvEnv()...)
	job := Job{Interpreter: i.Path, Dir: st.dir, Tmp: tmp, Write: st.write, Argv: append([]string{uv}, args...)}
	if st.role == Builder || st.apart || len(st.login) > 0 { // downloads with a login are of one index alone
		env = append(env, "UV_CACHE_DIR="+filepath.Join(tmp, "cache"))
	} else {
		job.Keep = s.cache()
		env = append(env, "UV_CACHE_DIR="+job.Keep)
	}
	var own []string // settings and credentials of the agent, where no code of a package runs
	if st.role != Builder {
		own = s.environ
	}
	files, err := st.login.files(tmp, own)
	if err != nil {
		return nil, "", err
	}
	env = append(env, files...)
	if st.role == Builder {
		proxied, stop, err := newIndexProxy(env)
		if err != nil {
			return nil, "", err
		}
		defer stop()
		env = proxied
	}
	job.Env = append(env, "TMPDIR="+tmp, "HOME="+home)
	job.Read = slices.Concat(st.read, readBy(env), []string{filepath.Dir(uv)})
	stdout, said, err = s.confine(ctx, st.role, job)
	said = st.login.redact(said)
	if err == nil && keep != nil {
		err = keep(tmp)
	}
	return stdout, said, err
}

// cache is the cache folder of packagers. It has packages of the package indexes in the agent's
// settings, never of an address that an index names.
func (s *Store) cache() string { return filepath.Join(cmp.Or(s.shared, s.dir), "packages") }

// readBy returns the folders of this machine that uv's settings name.
func readBy(env []string) (folders []string) {
	for _, name := range []string{
		"UV_FIND_LINKS", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL",
		"UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_OVERRIDE", "SSL_CERT_FILE", "SSL_CERT_DIR",
	} {
		value := lookup(env, name)
		for _, one := range append(strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }), value) {
			one = strings.TrimPrefix(one, "file://")
			if info, err := os.Stat(one); err == nil && filepath.IsAbs(one) {
				if !info.IsDir() {
					one = filepath.Dir(one)
				}
				folders = append(folders, one)
			}
		}
	}
	return folders
}

// uvEnv are variables for uv in addition to the environment: the system's certificates, and the
// user's settings of pip where uv's own are not set. Files are copied, not linked: a file
// shared by environments could be changed in all of them.
func (s *Store) uvEnv() []string {
	env := []string{
		"UV_LINK_MODE=copy",
		"UV_SYSTEM_CERTS=true", "UV_NATIVE_TLS=true",
		"UV_PYTHON_DOWNLOADS=never", "UV_NO_PROGRESS=true", "NO_COLOR=1",
		"PYC_INVALIDATION_MODE=UNCHECKED_HASH",
		"VIRTUAL_ENV=",
	}
	for _, pair := range [][2]string{
		{"PIP_INDEX_URL", "UV_DEFAULT_INDEX"}, {"PIP_EXTRA_INDEX_URL", "UV_INDEX"},
		{"PIP_NO_INDEX", "UV_NO_INDEX"}, {"PIP_CERT", "SSL_CERT_FILE"}, {"PIP_FIND_LINKS", "UV_FIND_LINKS"},
	} {
		value := lookup(s.environ, pair[0])
		if pair[1] == "UV_FIND_LINKS" { // pip ignores a missing folder, uv fails
			value = strings.Join(slices.DeleteFunc(strings.Fields(value), func(one string) bool { return !strings.Contains(one, "://") && !isDir(one) }), ",")
		}
		set := lookup(s.environ, pair[1]) != "" || pair[0] == "PIP_INDEX_URL" && lookup(s.environ, "UV_INDEX_URL") != ""
		if value != "" && !set {
			env = append(env, pair[1]+"="+value)
		}
	}
	return env
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}
