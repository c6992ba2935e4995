package index

import (
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh/subjects"
)

// Kind is the kind of a source.
type Kind string

// The kinds of sources.
const (
	KindFolder Kind = "folder" // a folder on this machine
	KindFile   Kind = "file"   // a single .py file on this machine
	KindGit    Kind = "git"    // a git repository
)

// Source is a parsed SOURCE of `mesh install`. Its exported fields and its text
// hold no credentials; only [Fetch] uses those of the URL. The zero value is not a
// source.
type Source struct {
	Kind Kind
	// Location is an absolute path, or the repository's address without user
	// information other than an ssh user: a URL, or user@host:path as typed.
	Location string
	// Rev is the revision in the text (URL@rev), "" without one.
	Rev string
	// Name is the default name of the index: the last path element as a token.
	Name subjects.IndexName

	login *url.Userinfo // a pointer, so that no formatting verb follows it
}

var (
	ownerRepo = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?/[A-Za-z0-9_.-]+$`)
	scpLike   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:.+$`)
	notToken  = regexp.MustCompile(`[^A-Za-z0-9_-]+`)
)

// Parse reads a SOURCE: ./dir, /dir, ./tool.py, owner/repo (GitHub, never a
// folder), a URL (https, http, ssh, file) or git@host:path; the git forms take
// @rev at their end. It touches no file: whether the source exists is found by
// [Fetch]. A relative path is taken from the working folder.
func Parse(text string) (Source, error) {
	if text == "" {
		return Source{}, failed(reasonSource, "the source is empty; give a folder (./dir), a repository (owner/repo) or a URL")
	}
	if !plain(text) {
		return Source{}, errNotPlain
	}
	switch {
	case isPath(text):
		return parsePath(text)
	case strings.Contains(text, "://"):
		return parseURL(text)
	case strings.HasPrefix(text, "-"):
		return Source{}, failed(reasonSource, "the source %q looks like an option", text)
	}
	if base, rev, ok := splitRev(text, strings.Index(text, ":")+1); ok && scpLike.MatchString(base) {
		// Not rewritten as a URL: its path begins in the user's home, a URL's at the root.
		return gitSource(base, rev, nil), nil
	}
	if base, rev, ok := splitRev(text, 0); ok && ownerRepo.MatchString(base) {
		return gitSource("https://github.com/"+strings.TrimSuffix(base, ".git"), rev, nil), nil
	}
	if strings.HasSuffix(text, ".py") || !strings.Contains(text, "/") {
		return Source{}, failed(reasonSource, "%q is not a source; a folder or file of this machine begins with ./ or /: write ./%s", shown(text), shown(text))
	}
	return Source{}, failed(reasonSource, "%q is not a source; give ./dir, /dir, owner/repo[@rev], a URL or git@host:path", shown(text))
}

var errNotPlain = failed(reasonSource, "the source is longer than 4096 bytes, not UTF-8, or has control characters")

// plain reports whether a text can be shown and stored as a source.
func plain(text string) bool {
	return len(text) <= 4096 && utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// shown is an invalid source's text without possible credentials.
func shown(text string) string {
	if i := strings.Index(text, ":"); i >= 0 && strings.Contains(text[i:], "@") {
		return scheme.FindString(text) + "…" + text[strings.LastIndex(text, "@"):]
	}
	return text
}

var scheme = regexp.MustCompile(`^[a-zA-Z]+:/+`)

func isPath(text string) bool {
	return text == "." || text == ".." || strings.HasPrefix(text, "/") ||
		strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../")
}

func parsePath(text string) (Source, error) {
	abs, err := filepath.Abs(text)
	if err != nil {
		return Source{}, failed(reasonSource, "the path %q cannot be made absolute: %w", text, err)
	}
	if !plain(abs) { // the working folder may be anything
		return Source{}, errNotPlain
	}
	s := Source{Kind: KindFolder, Location: abs}
	base := filepath.Base(abs)
	if strings.HasSuffix(base, ".py") && !strings.HasSuffix(text, "/") {
		s.Kind = KindFile
		base = strings.TrimSuffix(base, ".py")
	}
	s.Name = token(base)
	return s, nil
}

// splitRev cuts @rev off the end, looking from byte from on. ok is false for an
// empty or dangerous revision.
func splitRev(text string, from int) (base, rev string, ok bool) {
	i := strings.LastIndexByte(text, '@')
	if i < max(from, 1) {
		return text, "", true
	}
	rev = text[i+1:]
	return text[:i], rev, validRev(rev) == nil
}

// validRev refuses a text that git could read as an option or a range.
func validRev(rev string) error {
	bad := rev == "" || len(rev) > 256 || strings.HasPrefix(rev, "-") || strings.HasPrefix(rev, "/") ||
		strings.Contains(rev, "..") || strings.Contains(rev, "@{") || strings.ContainsAny(rev, " ~^:?*[\\") ||
		strings.ContainsFunc(rev, func(r rune) bool { return r < ' ' || r == 0x7f })
	if bad {
		return failed(reasonRevision, "%q is not a revision: give a branch, a tag or a commit", rev)
	}
	return nil
}

func parseURL(text string) (Source, error) {
	bad := func(what string) (Source, error) {
		return Source{}, failed(reasonSource, "the URL %s %s", userInfo.ReplaceAllString(text, "$1…@"), what)
	}
	scheme, rest, _ := strings.Cut(text, "://")
	host := strings.IndexByte(rest, '/')
	if host < 0 {
		return bad("names no repository")
	}
	// The user information may hold an @, the path may end with @rev.
	base, rev, ok := splitRev(rest, host+1)
	if !ok {
		return bad("ends with @ and no usable revision")
	}
	u, err := url.Parse(scheme + "://" + base)
	if err != nil {
		return bad("cannot be read as a URL") // the error's text repeats the URL
	}
	_, password := u.User.Password()
	switch login := u.User; {
	case u.RawQuery != "" || u.Fragment != "":
		return bad("has a query or a fragment; give the repository's own URL")
	case strings.Trim(u.Path, "/") == "":
		return bad("names no repository")
	case u.Scheme == "https" || u.Scheme == "http":
		if u.Host == "" {
			return bad("names no host")
		}
		u.User = nil
		return gitSource(u.String(), rev, login), nil
	case u.Scheme == "ssh":
		if u.Hostname() == "" || strings.HasPrefix(u.Hostname(), "-") || strings.HasPrefix(login.Username(), "-") {
			return bad("names no usable host")
		}
		if password {
			return bad("has a password, which ssh does not take from a URL; use a key")
		}
		return gitSource(u.String(), rev, nil), nil
	case u.Scheme == "file":
		if u.Host != "" && u.Host != "localhost" {
			return bad("names a host; a file URL has three slashes")
		}
		u.Host, u.User = "", nil
		return gitSource(u.String(), rev, nil), nil
	}
	return bad("has a scheme that is not supported; use https, http, ssh or file")
}

// userInfo finds the user information of a text that may not even be a URL: a password may
// have slashes, which stand for the end of the host.
var userInfo = regexp.MustCompile(`^([^/]*://)(?:[^/]*@|[^/@]*:[^/@]*[^0-9/@][^/@]*/.*@)`)

// gitSource finishes a git source.
func gitSource(location, rev string, login *url.Userinfo) Source {
	name := path.Base(strings.TrimRight(location, "/"))
	name = strings.TrimSuffix(name[strings.LastIndexByte(name, ':')+1:], ".git")
	if unescaped, err := url.PathUnescape(name); err == nil {
		name = unescaped
	}
	return Source{Kind: KindGit, Location: location, Rev: rev, Name: token(name), login: login}
}

// token makes a name usable as one token; "" if nothing of it is.
func token(name string) subjects.IndexName {
	t := strings.Trim(notToken.ReplaceAllString(name, "-"), "-")
	if len(t) > 64 {
		t = strings.TrimRight(t[:64], "-")
	}
	if strings.HasPrefix(t, "x--") { // reserved for encoded names
		t = strings.TrimLeft(t[1:], "-")
	}
	return subjects.IndexName(t)
}

// Identity is equal for two installs of the same source at any revision: the location without
// a closing ".git" or slash.
func (s Source) Identity() string {
	if s.Kind != KindGit {
		return string(s.Kind) + ":" + s.Location
	}
	return "git:" + strings.TrimSuffix(strings.TrimRight(s.Location, "/"), ".git")
}

// String is the source as it may be shown and stored, the revision included.
func (s Source) String() string {
	if s.Rev != "" {
		return s.Location + "@" + s.Rev
	}
	return s.Location
}
