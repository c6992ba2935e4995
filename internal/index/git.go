package index

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deep"
	"github.com/toolmesh/toolmesh/internal/wake"
	"github.com/toolmesh/toolmesh/tool"
)

// git runs the git command. No shell is involved, no hook runs, git never asks,
// and the transports are those of allowed.
type git struct {
	command string
	pin     *pin          // the repository's addresses; nil: git looks them up
	silence time.Duration // as in fetching

	protocols string // the allowed transports; empty: allowed

	apart       *Apart        // runs it; nil: this process does
	passage     *passage      // its way to the repository; nil: it has one of its own
	settings    [][2]string   // of git, beyond those that it finds itself
	environment []string      // beyond environ
	user        *url.Userinfo // that settings have in the address, without a password
	input       string        // for its standard input
}

// allowed are the transports. Others, such as ext::, run commands.
const allowed = "https:http:ssh:file"

// Bounds on git's answers.
const (
	maxRefs   = 64 << 20 // bytes of a list of references or files
	maxStderr = 8 << 10
)

// machineVariables, certificates and ownVariables are the variables of our environment for git, ssh,
// their helpers and proxies. They get no others, as the fetched repository influences what they do.
// A git apart gets those of the machine, and if it talks to a server those of certificates, with
// copies of their files.
var (
	machineVariables = regexp.MustCompile(`^(?i:PATH|TZ|LD_LIBRARY_PATH|(?:HTTP|HTTPS|ALL|NO)_PROXY)=|^GIT_(?:HTTP_|EXEC_PATH)`)
	certificates     = regexp.MustCompile(`^(?:GIT_SSL_|GIT_PROXY_SSL_|SSL_CERT_|CURL_CA_BUNDLE)`)
	ownVariables     = regexp.MustCompile(`^(?i:HOME|USER|LOGNAME|TMPDIR|SSH_AUTH_SOCK|SSH_AGENT_PID|XDG_(?:CONFIG_HOME|CACHE_HOME|RUNTIME_DIR)|` +
		`DBUS_SESSION_BUS_ADDRESS|KRB5CCNAME|KRB5_CONFIG)=|^GIT_(?:CONFIG_|SSH)`)
)

// environ returns git's part of an environment.
func (g git) environ(all []string) []string {
	return slices.DeleteFunc(all, func(line string) bool {
		own := g.apart == nil && (certificates.MatchString(line) || ownVariables.MatchString(line))
		return !own && !machineVariables.MatchString(line)
	})
}

func (g git) output(ctx context.Context, dir string, login *loginHeader, args ...string) ([]byte, error) {
	out := limitedBuffer{left: maxRefs}
	err := g.run(ctx, dir, login, &out, args...)
	if out.left < 0 {
		return nil, failed(reasonTooLarge, "git answered more than %d MB", maxRefs>>20)
	}
	return out.buf.Bytes(), err
}

// run runs git in dir, "" for no repository, with its standard output to out. The error of a
// failed git is a *gitError, else the context's.
func (g git) run(ctx context.Context, dir string, login *loginHeader, out io.Writer, args ...string) error {
	hardened := []string{
		"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.autocrlf=false", "-c", "core.symlinks=true",
		"-c", "core.protectNTFS=true", "-c", "core.protectHFS=true", "-c", "protocol.ext.allow=never", "-c", "http.followRedirects=false", // see landing
		"-c", "fetch.recurseSubmodules=false", "-c", "submodule.recurse=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
		"-c", "advice.detachedHead=false", "-c", "core.quotePath=false", "-c", "color.ui=false",
	}
	if g.silence > 0 {
		// A server that packs for long says so all the time, with a byte a second at least.
		hardened = append(hardened, "-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime="+strconv.Itoa(int(g.silence/time.Second)))
	}
	argv := slices.Concat([]string{g.command}, hardened, g.pin.settings(), args)
	env := append(append(g.environ(os.Environ()), g.environment...), "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GCM_INTERACTIVE=never",
		"GIT_ALLOW_PROTOCOL="+cmp.Or(g.protocols, allowed), "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "LC_ALL=C", "LANGUAGE=")
	for _, setting := range g.settings {
		env = withSetting(env, setting[0], setting[1])
	}
	if login != nil {
		env = withSetting(env, "http."+login.base+".extraHeader", login.header)
	}
	run := g.here
	if g.apart != nil {
		run, env = g.apart.run, append(env, "GIT_CONFIG_NOSYSTEM=1") // g.settings and the address have them already
	}
	said, err := run(ctx, cmp.Or(dir, "/"), argv, env, out) // no repository that we happen to be in has settings for it
	var own *toolmesh.Error                                 // of the way apart
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &own):
		return own.WithDetail("reason", reasonGit)
	case errors.Is(err, exec.ErrNotFound):
		return failed(reasonGitMissing, "git is needed for this source and was not found; install git on this machine, or install the index from one that has it")
	}
	said = g.passage.reason() + said
	return &gitError{stderr: login.redact(strings.ToValidUTF8(said[max(0, len(said)-maxStderr):], "?")), cause: err}
}

// here runs a program as this process, with env as its whole environment.
func (g git) here(ctx context.Context, dir string, argv, env []string, out io.Writer) (stderr string, err error) {
	var said tail
	cmd := grouped(ctx, dir, argv, env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(g.input), out, &said
	if err = cmd.Run(); errors.Is(err, os.ErrNotExist) && cmd.Process == nil {
		err = exec.ErrNotFound
	}
	return string(said), err
}

// grouped is a program with env as its whole environment. The programs that it starts, such as
// ssh, end with it at the end of ctx.
func grouped(ctx context.Context, dir string, argv, env []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, 2*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	return cmd
}

// gitError is a git that ended with a failure.
type gitError struct {
	stderr string
	cause  error
}

func (e *gitError) Error() string { return "git: " + e.reason() }
func (e *gitError) Unwrap() error { return e.cause }

// couldNotRead is git's message when another program, such as ssh, has failed.
const couldNotRead = "fatal: Could not read from remote repository."

// reason is the line of stderr that tells the cause: git's own, else the last lines of ssh
// without its warnings.
func (e *gitError) reason() string {
	text, _, _ := strings.Cut(e.stderr, couldNotRead)
	lines := strings.Split(text, "\n")
	for _, prefix := range []string{"fatal: ", "error: ", "remote: "} {
		for _, line := range lines {
			if said, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok {
				return said
			}
		}
	}
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return strings.TrimSpace(line) == "" || strings.HasPrefix(line, "Warning: ") || strings.HasPrefix(line, "@")
	})
	return cmp.Or(strings.Join(lines[max(0, len(lines)-3):], "; "), e.cause.Error())
}

// trusting is the command that git itself names for a repository of another user.
var trusting = regexp.MustCompile(`git config --global --add safe\.directory \S+`)

// gitFailure is a kind of failure to talk to a repository, by git's message.
type gitFailure struct {
	sign         *regexp.Regexp
	reason, hint string
}

// gitFailures are all kinds. The first that matches counts, and the last always matches.
var gitFailures = []gitFailure{
	{regexp.MustCompile(`Host key verification failed`), reasonDenied, "ssh has to know the host: connect to it once, or put its key into known_hosts"},
	{regexp.MustCompile(`dubious ownership`), reasonUnreachable, "it belongs to another user than the one that runs git"},
	{
		regexp.MustCompile(`Authentication failed|could not read (Username|Password)|Permission denied|HTTP 403|error: 40[13]|terminal prompts disabled`), reasonDenied,
		"a private repository needs credentials that git finds without asking (an ssh key, a credential helper, or a token in the URL)",
	},
	{regexp.MustCompile(`(?i)not found|does not exist|does not appear to be a git repository`), reasonUnreachable, "check the address; a private repository also needs credentials"},
	{regexp.MustCompile(``), reasonUnreachable, "check the address and the network"},
}

// unreachable turns a failure to talk to a repository into our error.
func unreachable(location string, err error) error {
	var ge *gitError
	if !errors.As(err, &ge) {
		return err
	}
	kind := gitFailures[slices.IndexFunc(gitFailures, func(f gitFailure) bool { return f.sign.MatchString(ge.stderr) })]
	if command := trusting.FindString(ge.stderr); command != "" {
		kind.hint += "; to trust it all the same: " + command
	}
	return failed(kind.reason, "the repository %s cannot be read: %s; %s", location, ge.reason(), kind.hint).
		WithDetail("stderr", ge.stderr).WithDetail("repository", location)
}

// list returns the files of a folder that are tracked or not ignored. If no work tree has any,
// the folder is read as that of an empty repository, which is made below temp.
func (g git) list(ctx context.Context, dir, temp string) ([]string, error) {
	g.protocols = "none" // else git would fetch missing objects from where the repository says
	list := []string{"ls-files", "-z", "--others", "--exclude-standard"}
	// The folder itself could look like a bare repository, with settings.
	out, err := g.output(ctx, dir, nil, slices.Concat([]string{"-c", "safe.bareRepository=explicit"}, list, []string{"--cached", "--", "."})...)
	var ge *gitError
	if errors.As(err, &ge) || err == nil && len(out) == 0 {
		store, err := g.newStore(ctx, temp)
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(store)
		if out, err = g.output(ctx, dir, nil, append([]string{"--git-dir=" + store, "--work-tree=."}, list...)...); err != nil {
			return nil, internalGit(err)
		}
	} else if err != nil {
		return nil, err
	}
	var names []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if name != "" {
			names = append(names, strings.TrimSuffix(name, "/")) // a repository inside the folder
		}
	}
	return names, nil
}

// newStore makes an empty repository without a work tree. Its attributes turn off those of a
// commit that leave out or change files.
func (g git) newStore(ctx context.Context, temp string) (string, error) {
	store, err := os.MkdirTemp(temp, ".fetch-*")
	if err != nil {
		return "", failed(reasonFolder, "no temporary folder: %w", err)
	}
	info := filepath.Join(store, "info")
	if _, err = g.output(ctx, store, nil, "init", "-q", "--bare", "--template=", "."); err != nil {
		err = internalGit(err)
	} else if err = errors.Join(os.MkdirAll(info, 0o700), os.WriteFile(filepath.Join(info, "attributes"), []byte("* -export-ignore -export-subst -filter\n"), 0o600)); err != nil {
		err = failed(reasonFolder, "the folder %s cannot be written: %w", store, err)
	}
	if err != nil {
		_ = os.RemoveAll(store)
	}
	return store, err
}

var (
	fullCommit  = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
	shortCommit = regexp.MustCompile(`^[0-9a-f]{4,63}$`)
)

// fetch brings one revision of a repository into dest.
func (g git) fetch(ctx context.Context, location string, login *url.Userinfo, rev, dest string, limits Limits, apart *Apart) (*Tree, error) {
	header := newLoginHeader(location, login)
	location, err := g.landing(ctx, location, header)
	if err != nil {
		return nil, err
	}
	temp := filepath.Dir(dest)
	if apart != nil {
		temp = apart.Dir
	}
	store, err := g.newStore(ctx, temp)
	if err != nil {
		return nil, err
	}
	defer deep.RemoveAll(store) //nolint:errcheck // leftovers of a killed process are swept
	remote, reader := g, g
	if apart != nil {
		if remote, location, header, err = g.remote(ctx, apart, store, location, header); err != nil {
			return nil, err
		}
		reader.apart = apart
	}
	defer remote.passage.close()
	refs, err := remote.refs(ctx, store, location, header)
	if remote.apart != nil && remote.passage == nil && isDenied(err) {
		if login := g.credentials(ctx, location, remote.user); login != nil {
			header = newLoginHeader(location, login)
			refs, err = remote.refs(ctx, store, location, header)
		}
	}
	if err != nil {
		return nil, err
	}
	ref, err := refs.find(rev, location)
	if err != nil {
		return nil, err
	}
	bounded, release := boundedBy(ctx, store, limits)
	found, err := remote.bring(bounded, store, location, header, ref, rev, refs)
	cause := context.Cause(bounded)
	release()
	if err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return nil, err
	}
	tree := &Tree{Dir: dest}
	err = reader.checkout(ctx, store, found, tree, limits)
	var ge *gitError
	switch {
	case errors.As(err, &ge) && strings.Contains(ge.stderr, "ambiguous"):
		return nil, failed(reasonRevision, "the commit %q of %s is ambiguous; give more of its digits", rev, location).WithDetail("revision", rev)
	case errors.As(err, &ge) && noCommit.MatchString(ge.stderr), err == nil && !fullCommit.MatchString(tree.Revision):
		return nil, refs.unknown(rev, location)
	}
	return tree, internalGit(err)
}

// maxHistory is how often the room of the largest source its repository may take on disk: a short
// commit needs the history. lookEvery is how often that is checked.
const (
	maxHistory = 4
	lookEvery  = 200 * time.Millisecond
)

// boundedBy returns a context that ends once a folder takes more room than a repository may. git has
// no such bound for a fetch. release ends the checks.
func boundedBy(ctx context.Context, dir string, limits Limits) (bounded context.Context, release func()) {
	bounded, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for wake.After(bounded, lookEvery) {
			size := int64(0)
			_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
				if err == nil && entry.Type().IsRegular() {
					if info, err := entry.Info(); err == nil { // else git has removed it
						size += info.Size()
					}
				}
				return nil
			})
			if size > maxHistory*limits.Bytes {
				cancel(failed(reasonTooLarge, "the repository has more than %d MB; install a branch, a tag or a full commit, which come without its history", maxHistory*limits.Bytes/1e6))
			}
		}
	})
	return bounded, func() { cancel(nil); looking.Wait() }
}

// noCommit matches the error of git archive for a name that it cannot archive.
var noCommit = regexp.MustCompile(`not a (?:valid object name|tree object)`)

// mostRedirects is how often an address may lead to another one.
const mostRedirects = 5

var errElsewhere = errors.New("redirected to another host")

// landing follows the redirects of a repository's address on its own host. git itself would
// follow them to another host, and send the credentials there. A silent server is an error
// here; any other failure is left to git, which explains it better.
func (g git) landing(ctx context.Context, location string, login *loginHeader) (string, error) {
	const ask = "/info/refs"
	u, err := url.Parse(location)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return location, nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(location, "/")+ask+"?service=git-upload-pack", nil)
	if err != nil {
		return location, nil
	}
	if login != nil {
		name, value, _ := strings.Cut(login.header, ": ")
		request.Header.Set(name, value)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: g.pin.dial, ForceAttemptHTTP2: true}
	client := http.Client{Timeout: g.silence, Transport: transport, CheckRedirect: func(next *http.Request, before []*http.Request) error {
		if !sameHost(before[0].URL, next.URL) || len(before) > mostRedirects {
			return errElsewhere
		}
		return nil
	}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if errors.Is(err, errElsewhere) {
		to, _ := response.Location()
		to.User, to.RawQuery, to.Fragment = nil, "", "" // it may repeat the credentials there
		return "", failed(reasonUnreachable, "%s sends to another host, %s: install from there if you trust it", location, login.redact(to.String())).
			WithDetail("repository", location)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() && ctx.Err() == nil {
		return "", failed(reasonTimeout, "the repository %s has not answered in %s: is the address right, and the way to it open? Then try again", location, g.silence).
			WithDetail("repository", location)
	}
	if err != nil {
		return location, nil
	}
	_ = response.Body.Close()
	found := response.Request.URL
	path, ok := strings.CutSuffix(found.Path, ask)
	if !ok || found == request.URL {
		return location, nil
	}
	return (&url.URL{Scheme: found.Scheme, Host: found.Host, Path: path}).String(), nil
}

// sameHost reports whether credentials for one address may go to another: the same
// host and port, or the standard ports of http and, behind it, of https.
func sameHost(from, to *url.URL) bool {
	upgrade := from.Scheme == "http" && to.Scheme == "https" && from.Port() == "" && to.Port() == ""
	return from.Hostname() == to.Hostname() && (upgrade || from.Scheme == to.Scheme && from.Port() == to.Port())
}

// remoteRefs are the references of a repository.
type remoteRefs struct {
	commits map[string]string // by full name
	names   []string          // of branches and tags, as people write them, in the server's order
}

// refs asks the repository for its references.
func (g git) refs(ctx context.Context, store, location string, header *loginHeader) (*remoteRefs, error) {
	out, err := g.output(ctx, store, header, "ls-remote", "-q", "--", g.passage.or(location))
	if err != nil {
		return nil, unreachable(location, err)
	}
	r := &remoteRefs{commits: map[string]string{}}
	for line := range strings.Lines(string(out)) {
		commit, name, ok := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		if !ok || !fullCommit.MatchString(commit) {
			continue
		}
		if base, peeled := strings.CutSuffix(name, "^{}"); peeled {
			r.commits[base] = commit // an annotated tag: the commit, not the tag
			continue
		}
		r.commits[name] = commit
		for _, prefix := range []string{"refs/heads/", "refs/tags/"} {
			if short, ok := strings.CutPrefix(name, prefix); ok {
				r.names = append(r.names, short)
			}
		}
	}
	if len(r.commits) == 0 {
		return nil, failed(reasonRevision, "the repository %s is empty", location).WithDetail("repository", location)
	}
	return r, nil
}

// find returns the reference that rev names, or "" when rev must be a commit.
// A tag goes before a branch of the same name, as git has it.
func (r *remoteRefs) find(rev, location string) (string, error) {
	if rev == "" {
		if _, ok := r.commits["HEAD"]; ok {
			return "HEAD", nil
		}
		return "", failed(reasonRevision, "the repository %s has no default branch; name a revision (--rev), such as %s", location, some(r.names, 5)).
			WithDetail("near", r.names[:min(5, len(r.names))])
	}
	for _, prefix := range []string{"", "refs/", "refs/tags/", "refs/heads/"} {
		if _, ok := r.commits[prefix+rev]; ok {
			return prefix + rev, nil
		}
	}
	if fullCommit.MatchString(rev) || shortCommit.MatchString(rev) {
		return "", nil
	}
	return "", r.unknown(rev, location)
}

func (r *remoteRefs) unknown(rev, location string) error {
	near := tool.Nearest(rev, r.names, 5)
	text := "did you mean " + strings.Join(near, ", ") + "?"
	if len(near) == 0 {
		near = r.names[:min(5, len(r.names))]
		text = "it has " + some(r.names, 5)
	}
	return failed(reasonRevision, "the repository %s has no revision %q; %s", location, rev, text).
		WithDetail("revision", rev).WithDetail("near", near)
}

// bring fetches the objects of one revision and returns its name there. A reference or a full
// commit is fetched alone if the server allows it; a short commit needs all objects to be unique.
func (g git) bring(ctx context.Context, store, location string, header *loginHeader, ref, rev string, refs *remoteRefs) (string, error) {
	fetch := []string{"fetch", "--quiet", "--no-recurse-submodules", "--no-write-commit-graph"}
	want := cmp.Or(ref, rev)
	var ge *gitError
	if ref != "" || fullCommit.MatchString(rev) {
		_, err := g.output(ctx, store, header, append(slices.Clone(fetch), "--depth=1", "--no-tags", "--", g.passage.or(location), want)...)
		if err == nil {
			want = "FETCH_HEAD"
		} else if !errors.As(err, &ge) {
			return "", err
		}
	}
	if want != "FETCH_HEAD" {
		if _, err := g.output(ctx, store, header, append(fetch, "--", g.passage.or(location), "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")...); err != nil {
			return "", unreachable(location, err)
		}
		switch ref {
		case "HEAD":
			want = refs.commits[ref]
		case "":
			want += "^{commit}" // a file's object may begin with its digits too
		}
	}
	return want, nil
}

// checkout writes the files of a commit into the tree's folder, and notes which one it is. git
// archive runs no hooks.
func (g git) checkout(ctx context.Context, store, commit string, tree *Tree, limits Limits) error {
	folder := "" // the last folder, if it has no file yet: submodules never have one
	var submodules []string
	pass := func(h *tar.Header) bool {
		if h.Typeflag == tar.TypeXGlobalHeader {
			tree.Revision = h.PAXRecords["comment"]
			return true
		}
		if folder != "" && !strings.HasPrefix(h.Name, folder) {
			submodules = append(submodules, strings.TrimSuffix(folder, "/"))
		}
		folder = ""
		if h.Typeflag == tar.TypeDir {
			folder = h.Name
			return true
		}
		return skipped(h.Name)
	}
	err := tree.fill(ctx, limits, pass, func(w io.Writer) error {
		return g.run(ctx, store, nil, w, "-c", "tar.umask=0022", "archive", "--format=tar", commit)
	})
	if folder != "" {
		submodules = append(submodules, strings.TrimSuffix(folder, "/"))
	}
	if len(submodules) > 0 {
		tree.Warnings = append(tree.Warnings, "submodules are not fetched, and were left out: "+some(submodules, namedInWarning))
	}
	return err
}

func internalGit(err error) error {
	var ge *gitError
	if !errors.As(err, &ge) {
		return err
	}
	return failed(reasonGit, "git failed: %s", ge.reason()).WithDetail("stderr", ge.stderr)
}

// loginHeader passes credentials to git in its environment, as a header for one server. Every
// process of the machine could read them in its arguments.
type loginHeader struct {
	base    string
	header  string
	secrets []string
}

// leastToken is the min length of a user name with a password that counts as a token.
const leastToken = 16

func newLoginHeader(location string, login *url.Userinfo) *loginHeader {
	u, err := url.Parse(location)
	if login == nil || err != nil {
		return nil
	}
	password, _ := login.Password()
	pair := base64.StdEncoding.EncodeToString([]byte(login.Username() + ":" + password))
	h := &loginHeader{base: u.Scheme + "://" + u.Host + "/", header: "Authorization: Basic " + pair, secrets: []string{pair}}
	all := []string{password}
	if user := login.Username(); password == "" || len(user) >= leastToken {
		all = append(all, user) // a token in the user's place
	}
	for _, one := range all {
		for _, s := range []string{one, url.QueryEscape(one), url.PathEscape(one)} {
			if s != "" {
				h.secrets = append(h.secrets, s)
			}
		}
	}
	return h
}

// withSetting adds a setting to those that an environment already has for git.
func withSetting(env []string, key, value string) []string {
	n := 0
	for _, kv := range env {
		if count, ok := strings.CutPrefix(kv, "GIT_CONFIG_COUNT="); ok {
			n, _ = strconv.Atoi(count)
		}
	}
	return append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", n+1), fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", n, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, value))
}

func (h *loginHeader) redact(text string) string {
	if h == nil {
		return text
	}
	for _, s := range h.secrets {
		text = strings.ReplaceAll(text, s, "…")
	}
	return text
}

// limitedBuffer refuses to grow without end. It does not embed the buffer, whose ReadFrom would read past the limit.
type limitedBuffer struct {
	buf  bytes.Buffer
	left int // below zero: it has refused
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, io.ErrShortWrite
	}
	return b.buf.Write(p)
}

// tail keeps the last bytes that are written.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	all := append(*t, p...)
	*t = all[max(0, len(all)-maxStderr):]
	return len(p), nil
}
