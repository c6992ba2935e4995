package index

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// git runs the git command. No shell is involved, no hook runs, git never asks,
// and the transports are those of allowed.
type git struct {
	command  string
	progress func(step string, percent int)
	input    string // standard input of the next run
}

// allowed are the transports: ext:: and other helpers run commands.
const allowed = "https:http:ssh:file"

// Bounds on what git may answer.
const (
	maxRefs   = 64 << 20 // bytes of a list of references or files
	maxStderr = 8 << 10
)

// located are the variables that would point git at another repository, those
// of `git rev-parse --local-env-vars` that locate something.
var located = []string{
	"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_OBJECT_DIRECTORY", "GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE",
	"GIT_GRAFT_FILE", "GIT_INDEX_FILE", "GIT_REPLACE_REF_BASE", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_COMMON_DIR",
	"GIT_NAMESPACE", "GIT_EXTERNAL_DIFF", "GIT_TRACE", "GIT_TRACE_CURL", "GIT_TRACE_PACKET", "GIT_CURL_VERBOSE",
}

// run runs git in dir and returns its standard output. On failure the error is
// a *gitError, or the context's.
func (g git) run(ctx context.Context, dir string, login *loginHeader, step string, args ...string) ([]byte, error) {
	hardened := []string{
		"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.autocrlf=false", "-c", "core.symlinks=true",
		"-c", "core.protectNTFS=true", "-c", "core.protectHFS=true", "-c", "protocol.ext.allow=never",
		"-c", "fetch.recurseSubmodules=false", "-c", "submodule.recurse=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
		"-c", "advice.detachedHead=false", "-c", "core.quotePath=false", "-c", "color.ui=false",
	}
	cmd := exec.CommandContext(ctx, g.command, append(hardened, args...)...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(g.input)
	cmd.Env = slices.DeleteFunc(cmd.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(located, name)
	})
	cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GCM_INTERACTIVE=never",
		"GIT_ALLOW_PROTOCOL="+allowed, "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C", "LANGUAGE=")
	if !slices.ContainsFunc(cmd.Env, func(kv string) bool {
		return strings.HasPrefix(kv, "GIT_SSH_COMMAND=") || strings.HasPrefix(kv, "GIT_SSH=")
	}) {
		cmd.Env = append(cmd.Env, "GIT_SSH_COMMAND=ssh -oBatchMode=yes -oConnectTimeout=20")
	}
	cmd.Env = login.addTo(cmd.Env)
	var out limitedBuffer
	out.left = maxRefs
	errs := &progressWriter{step: step, report: g.progress}
	cmd.Stdout, cmd.Stderr = &out, errs
	endWholeGroup(cmd)
	cmd.WaitDelay = 2 * time.Second
	err := cmd.Run()
	switch {
	case err == nil:
		return out.Bytes(), nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist) && cmd.Process == nil:
		return nil, failed(reasonGitMissing, "git is needed for this source and was not found; install git on this machine, or install the index from one that has it")
	case out.full:
		return nil, failed(reasonTooLarge, "git answered more than %d MB", maxRefs>>20)
	}
	return nil, &gitError{stderr: login.redact(errs.tail()), cause: err}
}

// gitError is a git that ended with a failure.
type gitError struct {
	stderr string
	cause  error
}

func (e *gitError) Error() string { return "git: " + e.reason() }
func (e *gitError) Unwrap() error { return e.cause }

// reason is the line of stderr that says most. Where git only says that another
// program did not let it read, it is what that program said.
func (e *gitError) reason() string {
	lines := strings.Split(strings.TrimSpace(e.stderr), "\n")
	if at := slices.Index(lines, "fatal: Could not read from remote repository."); at > 0 {
		if said := saidBySSH(lines[:at]); said != "" {
			return said
		}
	}
	for _, prefix := range []string{"fatal: ", "error: ", "remote: "} {
		for _, line := range lines {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok && text != "" {
				return text
			}
		}
	}
	if last := lines[len(lines)-1]; last != "" {
		return last
	}
	return e.cause.Error()
}

// mostSaid bounds the lines of another program that are passed on: its last ones
// say why it gave up.
const mostSaid = 3

// saidBySSH is what ssh has said of its failure: not its warnings, which it also
// gives where it succeeds, nor the frames that it draws around them.
func saidBySSH(lines []string) string {
	var said []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "Warning: ") || strings.HasPrefix(line, "@") {
			continue
		}
		if strings.HasPrefix(line, "fatal: ") || strings.HasPrefix(line, "remote: ") {
			return "" // git's own word is the better one
		}
		said = append(said, line)
	}
	return strings.Join(said[max(0, len(said)-mostSaid):], "; ")
}

// dubious is what git says of a repository of another user, which it does not read.
const dubious = "dubious ownership"

// trusting is the command that git itself names for a repository of another user.
var trusting = regexp.MustCompile(`git config --global --add safe\.directory \S+`)

// unreachable turns a failure to talk to a repository into our error.
func unreachable(location string, err error) error {
	var ge *gitError
	if !errors.As(err, &ge) {
		return err
	}
	reason, hint := reasonUnreachable, "check the address and the network"
	for _, sign := range []string{"Authentication failed", "could not read Username", "could not read Password", "Permission denied", "Host key verification failed", "HTTP 403", "error: 403", "error: 401", "terminal prompts disabled"} {
		if strings.Contains(ge.stderr, sign) {
			reason, hint = reasonDenied, "a private repository needs credentials that git finds without asking (an ssh key, a credential helper, or a token in the URL)"
		}
	}
	if reason == reasonUnreachable {
		for _, sign := range []string{"not found", "does not exist", "does not appear to be a git repository"} {
			if strings.Contains(strings.ToLower(ge.stderr), sign) {
				hint = "check the address; a private repository also needs credentials"
			}
		}
	}
	switch {
	case strings.Contains(ge.stderr, "Host key verification failed"):
		hint = "ssh has to know the host: connect to it once, or put its key into known_hosts"
	case strings.Contains(ge.stderr, dubious):
		hint = "it belongs to another user than the one that runs git"
		if command := trusting.FindString(ge.stderr); command != "" {
			hint += "; to trust it all the same: " + command
		}
	}
	return failed(reason, "the repository %s cannot be read: %s; %s", location, ge.reason(), hint).
		WithDetail("stderr", ge.stderr).WithDetail("repository", location)
}

// root says whether dir is the top of a git work tree.
func (g git) root(ctx context.Context, dir string) (bool, error) {
	out, err := g.run(ctx, dir, nil, "resolve", "rev-parse", "--show-toplevel")
	var ge *gitError
	if errors.As(err, &ge) {
		if strings.Contains(ge.stderr, dubious) {
			return false, unreachable(dir, err)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	top, err := filepath.EvalSymlinks(strings.TrimRight(string(out), "\n"))
	if err != nil {
		return false, nil
	}
	real, err := filepath.EvalSymlinks(dir)
	return err == nil && top == real, nil
}

// list returns the files of a folder inside a work tree that are tracked or not
// ignored. It fails where there is no work tree or no git.
func (g git) list(ctx context.Context, dir string) ([]string, error) {
	out, err := g.run(ctx, dir, nil, "copy", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range splitZero(out) {
		names = append(names, strings.TrimSuffix(name, "/")) // a repository inside the folder
	}
	return names, nil
}

func splitZero(data []byte) []string {
	text := strings.TrimSuffix(string(data), "\x00")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\x00")
}

var (
	fullCommit  = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
	shortCommit = regexp.MustCompile(`^[0-9a-f]{4,63}$`)
)

// remoteRefs are the references of a repository: name to commit.
type remoteRefs struct {
	commits map[string]string
	names   []string // in the server's order, refs/heads/… and refs/tags/… only
}

// fetch brings one revision of a repository into dest.
func (g git) fetch(ctx context.Context, location string, login *url.Userinfo, rev, dest string, limits Limits) (*Tree, error) {
	header := newLoginHeader(location, login)
	g.progress("resolve", -1)
	refs, err := g.refs(ctx, location, header)
	if err != nil {
		return nil, err
	}
	if len(refs.commits) == 0 {
		return nil, failed(reasonRevision, "the repository %s is empty", location).WithDetail("repository", location)
	}
	ref, err := refs.find(rev, location)
	if err != nil {
		return nil, err
	}
	store, err := os.MkdirTemp(filepath.Dir(dest), ".fetch-*")
	if err != nil {
		return nil, failed(reasonFolder, "no temporary folder: %w", err)
	}
	defer os.RemoveAll(store)
	if _, err := g.run(ctx, store, nil, "fetch", "init", "-q", "--bare", "--template=", "."); err != nil {
		return nil, internalGit(err)
	}
	commit, err := g.bring(ctx, store, location, header, ref, rev, refs)
	if err != nil {
		return nil, err
	}
	tree := &Tree{Dir: dest, Revision: commit, Rev: rev}
	if err := g.checkout(ctx, store, commit, tree, limits); err != nil {
		return nil, err
	}
	return tree, nil
}

// refs asks the repository for its references.
func (g git) refs(ctx context.Context, location string, header *loginHeader) (*remoteRefs, error) {
	out, err := g.run(ctx, "", header, "resolve", "ls-remote", "-q", "--", location)
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
		if strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/") {
			r.names = append(r.names, name)
		}
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
		return "", failed(reasonRevision, "the repository %s has no default branch; name a revision (--rev), such as %s", location, some(r.short(), 5)).
			WithDetail("near", r.short()[:min(5, len(r.names))])
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

func (r *remoteRefs) short() []string {
	var names []string
	for _, name := range r.names {
		names = append(names, strings.TrimPrefix(strings.TrimPrefix(name, "refs/heads/"), "refs/tags/"))
	}
	return names
}

func (r *remoteRefs) unknown(rev, location string) error {
	names := r.short()
	near := tool.Nearest(rev, names, 5)
	text := "did you mean " + strings.Join(near, ", ") + "?"
	if len(near) == 0 {
		near = names[:min(5, len(names))]
		text = "it has " + some(names, 5)
	}
	return failed(reasonRevision, "the repository %s has no revision %q; %s", location, rev, text).
		WithDetail("revision", rev).WithDetail("near", near)
}

// bring fetches the objects of one revision and returns its commit: shallow if
// the server allows it, else everything.
func (g git) bring(ctx context.Context, store, location string, header *loginHeader, ref, rev string, refs *remoteRefs) (string, error) {
	g.progress("fetch", 0)
	want := ref
	if want == "" {
		want = rev
		for _, commit := range refs.commits { // a tip: no need to search for it
			if strings.HasPrefix(commit, rev) {
				want = commit
				break
			}
		}
	}
	if ref != "" || fullCommit.MatchString(want) {
		_, err := g.run(ctx, store, header, "fetch", "fetch", "--progress", "--depth=1", "--no-tags", "--no-recurse-submodules",
			"--no-write-commit-graph", "--", location, want)
		if err == nil {
			if commit, err := g.commit(ctx, store, "FETCH_HEAD"); err == nil && (ref != "" || strings.HasPrefix(commit, rev)) {
				return g.unambiguous(ctx, store, location, header, ref, rev, commit)
			}
		}
		var ge *gitError
		if err != nil && !errors.As(err, &ge) {
			return "", err
		}
	}
	if err := g.everything(ctx, store, location, header); err != nil {
		return "", err
	}
	if ref == "HEAD" {
		want = refs.commits[ref]
	}
	commit, err := g.commit(ctx, store, want)
	if err != nil {
		var ge *gitError
		if !errors.As(err, &ge) {
			return "", err
		}
		if strings.Contains(ge.stderr, "ambiguous") {
			return "", failed(reasonRevision, "the commit %q of %s is ambiguous; give more of its digits", rev, location).WithDetail("revision", rev)
		}
		return "", refs.unknown(rev, location)
	}
	return commit, nil
}

// unambiguous makes sure that a short commit that is the beginning of one tip
// is not the beginning of another commit too.
func (g git) unambiguous(ctx context.Context, store, location string, header *loginHeader, ref, rev, commit string) (string, error) {
	if ref != "" || len(rev) >= 12 { // 12 digits are as good as unique
		return commit, nil
	}
	if err := g.everything(ctx, store, location, header); err != nil {
		return "", err
	}
	if _, err := g.commit(ctx, store, rev); err != nil {
		var ge *gitError
		if !errors.As(err, &ge) {
			return "", err
		}
		return "", failed(reasonRevision, "the commit %q of %s is ambiguous; give more of its digits", rev, location).WithDetail("revision", rev)
	}
	return commit, nil
}

func (g git) everything(ctx context.Context, store, location string, header *loginHeader) error {
	args := []string{"fetch", "--progress", "--no-recurse-submodules", "--no-write-commit-graph"}
	if _, err := os.Stat(filepath.Join(store, "shallow")); err == nil {
		args = append(args, "--unshallow")
	}
	args = append(args, "--", location, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
	if _, err := g.run(ctx, store, header, "fetch", args...); err != nil {
		return unreachable(location, err)
	}
	return nil
}

// commit resolves a name in the local store to a full commit.
func (g git) commit(ctx context.Context, store, name string) (string, error) {
	out, err := g.run(ctx, store, nil, "fetch", "rev-parse", "--verify", "--end-of-options", name+"^{commit}")
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(out))
	if !fullCommit.MatchString(commit) {
		return "", &gitError{stderr: "rev-parse answered " + strconv.Quote(commit), cause: errors.New("no commit")}
	}
	return commit, nil
}

// checkout writes the files of a commit into the tree's folder. The list is
// checked before anything is written.
func (g git) checkout(ctx context.Context, store, commit string, tree *Tree, limits Limits) error {
	g.progress("checkout", 0)
	out, err := g.run(ctx, store, nil, "checkout", "ls-tree", "-r", "-z", "-l", "--full-tree", commit)
	if err != nil {
		return internalGit(err)
	}
	var total int64
	var links []string
	for _, line := range splitZero(out) {
		meta, name, ok := strings.Cut(line, "\t")
		fields := strings.Fields(meta) // mode, type, object, size
		if !ok || len(fields) != 4 {
			return failed(reasonUnsafe, "git listed %q, which is not understood", line)
		}
		if fields[1] == "commit" {
			tree.Warnings = append(tree.Warnings, "the submodule "+name+" was left out: submodules are not fetched")
			continue
		}
		if err := checkName(name); err != nil {
			return err
		}
		size, err := strconv.ParseInt(fields[3], 10, 64)
		if err != nil {
			return failed(reasonUnsafe, "git listed %q, which is not understood", line)
		}
		if total += size; total > limits.Bytes {
			return tooLarge(limits)
		}
		if skipped(name) {
			continue
		}
		if fields[0] == "120000" {
			links = append(links, name)
		}
		if tree.Files = append(tree.Files, name); len(tree.Files) > limits.Files {
			return (&copier{limits: limits}).tooMany()
		}
	}
	if len(tree.Files) == 0 {
		return failed(reasonFolder, "the revision %s has no files", commit)
	}
	slices.Sort(tree.Files)
	if _, err := g.run(ctx, store, nil, "checkout", "read-tree", commit); err != nil {
		return internalGit(err)
	}
	// checkout-index runs neither hooks nor anything else of the repository, and
	// refuses to write through symbolic links.
	g.input = strings.Join(tree.Files, "\x00") + "\x00"
	if _, err := g.run(ctx, tree.Dir, nil, "checkout", "--git-dir="+store, "--work-tree="+tree.Dir,
		"checkout-index", "--quiet", "-z", "--stdin"); err != nil {
		return internalGit(err)
	}
	root, err := os.OpenRoot(tree.Dir)
	if err != nil {
		return failed(reasonFolder, "%s cannot be read: %w", tree.Dir, err)
	}
	defer root.Close()
	for _, name := range links {
		target, err := root.Readlink(name)
		if err != nil {
			return failed(reasonUnsafe, "the symbolic link %s cannot be read: %w", name, err)
		}
		if _, err := checkLink(name, target); err != nil {
			return err
		}
	}
	g.progress("checkout", 100)
	return nil
}

func internalGit(err error) error {
	var ge *gitError
	if !errors.As(err, &ge) {
		return err
	}
	return toolmesh.Errorf(toolmesh.CodeInstallFailed, "git failed: %s", ge.reason()).
		WithDetail("reason", "git_failed").WithDetail("stderr", ge.stderr)
}

// loginHeader passes credentials to git in its environment, as a header for one
// server: never in its arguments, which every process of the machine can read.
type loginHeader struct {
	base    string
	header  string
	secrets []string
}

func newLoginHeader(location string, login *url.Userinfo) *loginHeader {
	u, err := url.Parse(location)
	if login == nil || err != nil {
		return nil
	}
	password, _ := login.Password()
	pair := base64.StdEncoding.EncodeToString([]byte(login.Username() + ":" + password))
	h := &loginHeader{base: u.Scheme + "://" + u.Host + "/", header: "Authorization: Basic " + pair, secrets: []string{pair}}
	for _, s := range []string{password, url.QueryEscape(password), url.PathEscape(password)} {
		if s != "" {
			h.secrets = append(h.secrets, s)
		}
	}
	if password == "" { // a token in the user's place
		h.secrets = append(h.secrets, login.Username())
	}
	return h
}

func (h *loginHeader) addTo(env []string) []string {
	if h == nil {
		return env
	}
	count := 0
	env = slices.DeleteFunc(env, func(kv string) bool {
		value, ok := strings.CutPrefix(kv, "GIT_CONFIG_COUNT=")
		if ok {
			count, _ = strconv.Atoi(value)
		}
		return ok
	})
	n := strconv.Itoa(count)
	return append(env, "GIT_CONFIG_COUNT="+strconv.Itoa(count+1),
		"GIT_CONFIG_KEY_"+n+"=http."+h.base+".extraHeader", "GIT_CONFIG_VALUE_"+n+"="+h.header)
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

// limitedBuffer refuses to grow without end.
type limitedBuffer struct {
	bytes.Buffer
	left int
	full bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		b.full = true
		return 0, io.ErrShortWrite
	}
	return b.Buffer.Write(p)
}

var percentage = regexp.MustCompile(`^(?:remote: )?(?:Receiving objects|Resolving deltas|Updating files): +(\d+)%`)

// progressWriter keeps the end of git's standard error and reports percentages.
type progressWriter struct {
	step   string
	report func(step string, percent int)
	line   []byte
	kept   []byte
}

func (w *progressWriter) Write(p []byte) (int, error) {
	for _, c := range p {
		if c != '\r' && c != '\n' {
			if len(w.line) < 1024 {
				w.line = append(w.line, c)
			}
			continue
		}
		w.endLine()
	}
	return len(p), nil
}

func (w *progressWriter) endLine() {
	if m := percentage.FindSubmatch(w.line); m != nil {
		if n, err := strconv.Atoi(string(m[1])); err == nil {
			w.report(w.step, n)
		}
	} else if len(w.line) > 0 {
		w.kept = append(append(w.kept, w.line...), '\n')
		if over := len(w.kept) - maxStderr; over > 0 {
			w.kept = append(w.kept[:0], w.kept[over:]...)
		}
	}
	w.line = w.line[:0]
}

func (w *progressWriter) tail() string {
	w.endLine()
	return strings.ToValidUTF8(string(w.kept), "?")
}
