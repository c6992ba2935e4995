package venv

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// requirement is one parsed requirement; uv gets these fields alone.
type requirement struct {
	name   string // empty for a path or an address alone
	extras string // "[a,b]"
	spec   string // the versions of a release: ">=1,<2"
	url    string // an address without credentials
	path   string // a file or folder of the tree, relative to it
	marker string
	hashes []string // "sha256:…"
	login  bool     // url had a variable in its user information
}

// write returns the requirement as one line of a file for uv; tree is the source folder.
func (r requirement) write(tree string) string {
	place := r.url
	if r.path != "" {
		place = fileURL(path.Join(tree, r.path))
	}
	line := r.name + r.extras + r.spec
	switch {
	case place != "" && r.name != "":
		line += " @ " + place
	case place != "":
		line = place + r.extras
	}
	if r.marker != "" {
		line += " ; " + r.marker
	}
	for _, hash := range r.hashes {
		line += " --hash=" + hash
	}
	return line
}

const (
	nameText  = `[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`
	clauseOf  = `(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+`
	extrasOf  = `\[\s*(?:` + nameText + `(?:\s*,\s*` + nameText + `)*)?\s*\]`
	variables = `\$\{([A-Za-z_][A-Za-z0-9_]*)\}`
)

var (
	namePattern   = regexp.MustCompile(`^(` + nameText + `)\s*(` + extrasOf + `)?\s*(.*)$`)
	wholeName     = regexp.MustCompile(`^` + nameText + `$`)
	specPattern   = regexp.MustCompile(`^` + clauseOf + `(?:\s*,\s*` + clauseOf + `)*\s*,?$`)
	extrasAtEnd   = regexp.MustCompile(extrasOf + `$`)
	markerPattern = regexp.MustCompile(`^[A-Za-z0-9_.<>=!~'"()+*, -]+$`)
	schemePattern = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*):`)
	hostPattern   = regexp.MustCompile(`^(?:[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?$`)
	addressRest   = regexp.MustCompile(`^[A-Za-z0-9._~:/?#@!&()*+,=%-]*$`)
	secretQuery   = regexp.MustCompile(`(?i)[?&][^=&]*(?:token|passw|secret|api_?key|signature)[^=&]*=`)
	pathPattern   = regexp.MustCompile(`^[\pL\pN_.+/ =,()!-]+$`)
	hashPattern   = regexp.MustCompile(`^(sha256|sha384|sha512)[:=]([0-9A-Fa-f]+)$`)
	archive       = regexp.MustCompile(`(?i)\.(?:whl|zip|tgz|tar\.(?:gz|bz2|xz|zst))$`)
	variable      = regexp.MustCompile(variables)
	anyVariable   = regexp.MustCompile(`\$\{[^}]*\}?`)
	addressParts  = regexp.MustCompile(`^[^:]*://([^/?#]*@)?([^/?#]*)([^#]*)#?(.*)$`)
	revision      = regexp.MustCompile(`@[^@]*$`)
	projectRoot   = regexp.MustCompile(`^(?:file:/*)?\$\{PROJECT_ROOT\}/`)
)

// schemes are the accepted schemes of addresses. Builds have no keys for ssh.
var schemes = []string{"https", "http", "git+https", "git+http"}

// wayOfLogins tells how to replace a credential in an address.
const wayOfLogins = `declare a secret variable in [[index.env]] of the manifest, write https://${NAME}@host/… and install with --env NAME`

// parse reads one requirement in the syntax of PEP 508 and pip, without options. Its paths are
// relative to base, a folder of the tree.
func (r *reader) parse(text, base string) (requirement, error) {
	var q requirement
	text = strings.TrimSpace(text)
	if !clean(text) {
		return q, errControl
	}
	place := text
	if m := namePattern.FindStringSubmatch(text); m != nil && (strings.HasPrefix(m[3], "@") || !isPlace(text)) {
		q.name, q.extras = m[1], squeezed(m[2])
		at, has := strings.CutPrefix(m[3], "@")
		if !has {
			return q, q.versions(m[3])
		}
		place = strings.TrimSpace(at)
	} else if !isPlace(text) {
		return q, errNoRequirement
	}
	separator := ";"
	if strings.Contains(place, "://") {
		separator = " ;" // an address may contain ";"
		place = strings.Replace(strings.ReplaceAll(place, "\t", " "), "; ", " ;", 1)
	}
	place, marker, has := strings.Cut(place, separator)
	if err := q.mark(marker, has); err != nil {
		return q, err
	}
	place = strings.TrimSpace(place)
	if place = projectRoot.ReplaceAllString(place, "./"); isAddress(place) {
		return q, r.address(&q, place)
	}
	if q.name == "" {
		if extras := extrasAtEnd.FindString(place); extras != "" {
			q.extras, place = squeezed(extras), strings.TrimSuffix(place, extras)
		}
	}
	var err error
	q.path, err = r.within(place, base)
	return q, err
}

var errNoRequirement = errors.New("this is not a requirement: write a package's name, and a version if needed (\"rich>=13\")")

// versions reads the text behind the name of a release.
func (q *requirement) versions(text string) error {
	spec, marker, has := strings.Cut(text, ";")
	if spec = strings.TrimSpace(spec); strings.HasPrefix(spec, "(") && strings.HasSuffix(spec, ")") {
		spec = strings.TrimSpace(spec[1 : len(spec)-1])
	}
	if spec != "" && !specPattern.MatchString(spec) {
		return errNoRequirement
	}
	q.spec = strings.TrimSuffix(squeezed(spec), ",")
	return q.mark(marker, has)
}

// isPlace reports whether a requirement without " @ " is a path or an address.
func isPlace(text string) bool {
	head, _, _ := strings.Cut(text, ";")
	head = strings.TrimSpace(extrasAtEnd.ReplaceAllString(strings.TrimSpace(head), ""))
	return strings.HasPrefix(head, ".") || strings.ContainsAny(head, `/\$`) || schemePattern.MatchString(head) || archive.MatchString(head)
}

func isAddress(place string) bool {
	return schemePattern.MatchString(place) && !strings.HasPrefix(strings.ToLower(place), "file:")
}

func (q *requirement) mark(marker string, has bool) error {
	q.marker = strings.Join(strings.Fields(marker), " ")
	if has && (!markerPattern.MatchString(q.marker) || strings.Contains(q.marker, " -") || strings.HasPrefix(q.marker, "-")) {
		return fmt.Errorf("the text behind its semicolon is not an environment marker")
	}
	return nil
}

// within returns a path relative to the tree, or why it does not lie there. It follows
// links that stay in the tree.
func (r *reader) within(place, base string) (string, error) {
	if found := anyVariable.FindString(place); found != "" {
		return "", fmt.Errorf("%s is not expanded: variables are allowed only in the user information of an address", found)
	}
	place, err := pathOf(place)
	if err != nil {
		return "", err
	}
	if r.root == nil {
		return "", fmt.Errorf("a single file has no packages next to it: make the index a folder with a tools.toml")
	}
	inside := path.Join(base, place)
	if place == "" || path.IsAbs(place) || inside == ".." || strings.HasPrefix(inside, "../") {
		return "", fmt.Errorf("it leads out of the index's folder: copy the file or folder into the index and write its path there (./lib)")
	}
	if !pathPattern.MatchString(inside) || strings.Contains(inside, " -") {
		return "", fmt.Errorf("it contains a character that is not allowed in a path of a requirement")
	}
	if _, err := r.root.Stat(inside); err != nil {
		return "", fmt.Errorf("it cannot be found in the index's folder, or leads out of it: %w", err)
	}
	return inside, nil
}

// address parses an address and keeps its credentials apart.
func (r *reader) address(q *requirement, text string) error {
	scheme, _, ok := strings.Cut(text, "://")
	if scheme = strings.ToLower(scheme); !ok || !slices.Contains(schemes, scheme) {
		return fmt.Errorf("addresses of this kind are not accepted: write one that begins with %s://", strings.Join(schemes, "://, "))
	}
	m := addressParts.FindStringSubmatch(text)
	user, host, rest, fragment := strings.TrimSuffix(m[1], "@"), m[2], m[3], m[4]
	if found := anyVariable.FindString(host + rest + fragment); found != "" {
		return fmt.Errorf("%s is not expanded: variables are allowed only in the user information of an address", found)
	}
	if secretQuery.MatchString(rest) {
		return fmt.Errorf("it contains a credential: %s", wayOfLogins)
	}
	if !hostPattern.MatchString(host) || !addressRest.MatchString(rest) || strings.Contains(rest, "@-") {
		return fmt.Errorf("it is not an address")
	}
	git := strings.HasPrefix(scheme, "git+")
	for part := range strings.SplitSeq(fragment, "&") {
		key, value, _ := strings.Cut(part, "=")
		switch {
		case part == "":
		case key == "egg" && q.name == "":
			if m := namePattern.FindStringSubmatch(value); m != nil && m[3] == "" {
				q.name, q.extras = m[1], squeezed(m[2])
			}
		case key == "egg":
		case key == "subdirectory" && pathPattern.MatchString(value) && !strings.Contains(value, " ") && !path.IsAbs(value) && !slices.Contains(strings.Split(value, "/"), ".."):
			rest += "#subdirectory=" + value
		case hashPattern.MatchString(part) && !git:
			q.hashes = append(q.hashes, strings.ToLower(strings.Replace(part, "=", ":", 1)))
		default:
			return fmt.Errorf("%q in it is not supported: an address may end in #subdirectory=DIR or #sha256=DIGEST", redact(part))
		}
	}
	if q.url = scheme + "://" + host + rest; user == "" {
		return nil
	}
	where := scheme + "://" + host
	if git { // for this repository alone
		where += revision.ReplaceAllString(withoutFragment(rest), "")
	}
	q.login = true
	one, err := newLogin(where, user, r.vars)
	if err == nil {
		r.d.logins, err = r.d.logins.with(one)
	}
	return err
}

// clean reports whether a text is UTF-8 without control characters.
func clean(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return r == unicode.ReplacementChar || r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) || unicode.Is(unicode.Cf, r)
	})
}

// squeezed is a text without white space.
func squeezed(text string) string { return strings.Join(strings.Fields(text), "") }

// normalized is the normalized form of a package's name.
func normalized(name string) string {
	return strings.ToLower(separator.ReplaceAllString(name, "-"))
}
