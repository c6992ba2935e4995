package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
)

// Apart runs programs of a fetch apart from this process: without its variables, with a home of
// their own, as another user where there can be one. Where there is none, they may still read
// the files of this process's user.
type Apart struct {
	// Dir is where the folders of such programs are made.
	Dir string
	// Run runs a program in dir, a folder in Dir, which is all that it writes, and its home; env is
	// the rest of its environment.
	Run func(ctx context.Context, dir string, argv, env []string, out io.Writer) (stderr string, err error)
}

func (a *Apart) run(ctx context.Context, dir string, argv, env []string, out io.Writer) (string, error) {
	program, err := exec.LookPath(argv[0])
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return "", err
	}
	return a.Run(ctx, dir, append([]string{program}, argv[1:]...), env, out)
}

// remote returns the git apart that talks to a repository, with its address and the login there, as
// the settings of this machine have them. For HTTP it gets the settings for that address, for ssh
// and repositories of this machine a passage: close that.
func (g git) remote(ctx context.Context, apart *Apart, store, location string, login *loginHeader) (git, string, *loginHeader, error) {
	out, err := g.output(ctx, "", nil, "ls-remote", "--get-url", "--", location)
	u, parsed := url.Parse(strings.TrimSpace(string(out)))
	if err != nil {
		return g, "", nil, unreachable(location, err)
	}
	if parsed != nil || u.Scheme != "http" && u.Scheme != "https" {
		if g.passage, err = g.openPassage(ctx, strings.TrimSpace(string(out))); err != nil {
			return g, "", nil, err
		}
		g.apart, g.protocols = apart, "git"
		g.settings = append(slices.Clip(g.settings), [2]string{"url." + g.passage.address + ".insteadOf", passageName})
		return g, location, login, nil
	}
	if user := u.User; user != nil {
		u.User = nil
		if _, ok := user.Password(); ok {
			login = newLoginHeader(u.String(), user)
		} else {
			g.user = user
		}
	}
	out, err = g.output(ctx, "", nil, "config", "--null", "--type=path", "--get-urlmatch", "http", u.String())
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // 1: there are none
		return g, "", nil, internalGit(err)
	}
	for setting := range strings.SplitSeq(string(out), "\x00") {
		key, value, ok := strings.Cut(setting, "\n")
		if !ok {
			continue
		}
		g.settings = append(g.settings, [2]string{key, g.handOver(value, store)})
	}
	for _, line := range os.Environ() {
		if name, value, _ := strings.Cut(line, "="); certificates.MatchString(line) {
			g.environment = append(g.environment, name+"="+g.handOver(value, store))
		}
	}
	g.apart = apart
	return g, u.String(), login, nil
}

// maxHandedOver is how many bytes the files of one setting may have.
const maxHandedOver = 16 << 20

// handOver copies a file of certificates, keys or cookies, or the files of such a folder, into
// the store and returns the copy's path. Other values, and what cannot be read, it returns as they
// are: git tells what it misses.
func (g git) handOver(value, store string) string {
	if !filepath.IsAbs(value) {
		return value
	}
	left := int64(maxHandedOver)
	copied := func(from, to string) bool {
		info, err := os.Stat(from)
		if err != nil || !info.Mode().IsRegular() || info.Size() > left {
			return false
		}
		left -= info.Size()
		data, err := os.ReadFile(from)
		return err == nil && os.WriteFile(to, data, 0o600) == nil
	}
	to := filepath.Join(store, fmt.Sprintf("setting-%d", len(g.settings)+len(g.environment)))
	entries, err := os.ReadDir(value)
	if err == nil && os.Mkdir(to, 0o700) == nil {
		for _, entry := range entries {
			copied(filepath.Join(value, entry.Name()), filepath.Join(to, entry.Name()))
		}
		return to
	}
	if copied(value, to) {
		return to
	}
	return value
}

// credentials asks the credential helpers of this machine for a login, of a user if one is given;
// nil if they know none.
func (g git) credentials(ctx context.Context, location string, user *url.Userinfo) *url.Userinfo {
	u, err := url.Parse(location)
	if err != nil {
		return nil
	}
	u.User = user
	g.input = "url=" + u.String() + "\n\n"
	out, err := g.output(ctx, "", nil, "credential", "fill")
	if err != nil {
		return nil
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), "=")
		found[key] = value
	}
	return url.UserPassword(found["username"], found["password"])
}

func isDenied(err error) bool {
	e := toolmesh.AsError(err)
	return e != nil && e.Details["reason"] == reasonDenied
}
