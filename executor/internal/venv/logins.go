package venv

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh/executor/internal/output"
)

// login is a credential for one address, of an index's declared variables.
type login struct {
	address        string // https://host of files, git+https://host/path of one repository
	text           string // as it is declared, without values: oauth2:${LAB_TOKEN}
	user, password string
	secrets        []string // the values of its variables
}

// logins are the credentials of an index's dependencies. Their values reach uv and git through
// files of one step, never through an address, an argument or a variable.
type logins []login

// loginNote begins a comment of a lock that names the variables of an address.
const loginNote = "# login "

var literalPart = regexp.MustCompile(`^[A-Za-z0-9._~%!-]*$`)

// newLogin reads the user information of an address, as it is declared.
func newLogin(address, text string, vars map[string]string) (login, error) {
	l := login{address: address, text: text}
	parts := strings.SplitN(text, ":", 2)
	for n, to := range []*string{&l.user, &l.password}[:len(parts)] {
		if m := variable.FindStringSubmatch(parts[n]); m != nil && m[0] == parts[n] {
			value := vars[m[1]]
			if value == "" || !clean(value) || strings.Contains(value, "\t") {
				return l, fmt.Errorf("the index has no value for the variable %s, or one with a control character: declare it in [[index.env]] of the manifest and install with --env %s", m[1], m[1])
			}
			*to, l.secrets = value, append(l.secrets, value)
			continue
		}
		decoded, err := url.PathUnescape(parts[n])
		if err != nil || !clean(decoded) || !literalPart.MatchString(parts[n]) {
			return l, fmt.Errorf("its user information cannot be read: %s", wayOfLogins)
		}
		*to = decoded
	}
	if len(l.secrets) == 0 {
		return l, fmt.Errorf("it contains a credential: %s", wayOfLogins)
	}
	return l, nil
}

func (l login) git() bool { return strings.HasPrefix(l.address, "git+") }

// host is the host name that netrc has for an address.
func (l login) host() string {
	if u, err := url.Parse(l.address); err == nil {
		return u.Hostname()
	}
	return ""
}

// with adds a login. Two for one host or repository are refused: uv and git use only one.
func (l logins) with(one login) (logins, error) {
	for _, other := range l {
		same := other.address == one.address || !other.git() && !one.git() && other.host() == one.host()
		if same && (other.user != one.user || other.password != one.password) {
			return l, fmt.Errorf("%s has another login in another requirement: an index has one for each host, and for each git repository", one.address)
		}
		if other.address == one.address {
			return l, nil
		}
	}
	return append(slices.Clip(l), one), nil
}

// notes are the comments of a lock from which [Lock.logins] reads them.
func (l logins) notes() string {
	lines := make([]string, len(l))
	for i, one := range l {
		lines[i] = loginNote + one.address + ": " + one.text + "\n"
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// logins are the credentials that a lock needs, with the values of vars.
func (l Lock) logins(vars map[string]string) (all logins, err error) {
	for line := range strings.Lines(string(l.Requirements)) {
		note, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), loginNote)
		if !ok {
			continue
		}
		address, text, _ := strings.Cut(note, ": ")
		one, err := newLogin(address, text, vars)
		if err == nil {
			all, err = all.with(one)
		}
		if err != nil {
			return nil, failed(nil, "", "the dependencies need a login for %s: %s", redact(address), err).WithDetail("reason", reasonDependency)
		}
	}
	return all, nil
}

// files writes the credentials into dir, a folder of one step, and returns the variables that
// lead uv and git to them. environ names the agent's own credentials and settings of uv; steps
// of another user cannot read those files, so they are copied. It is empty where code of an index runs.
func (l logins) files(dir string, environ []string) (env []string, err error) {
	var netrc, git strings.Builder
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace
	for _, one := range l {
		if one.git() {
			fmt.Fprintf(&git, "[http \"%s\"]\n\textraHeader = \"Authorization: Basic %s\"\n", quote(strings.TrimPrefix(one.address, "git+")), one.basic())
		} else {
			fmt.Fprintf(&netrc, "machine %s login \"%s\" password \"%s\"\n", one.host(), quote(one.user), quote(one.password))
		}
	}
	for _, file := range []struct{ variable, name, text string }{
		{"NETRC", "netrc", netrc.String()}, {"UV_CONFIG_FILE", "uv.toml", ""}, {"GIT_CONFIG_VALUE_0", "gitconfig", git.String()},
	} {
		if own := lookup(environ, file.variable); own != "" && file.name != "gitconfig" { // git's is a value, not a file
			data, err := os.ReadFile(own) //nolint:gosec // of the operator
			if err != nil {
				return nil, failed(err, "", "the file that %s names cannot be read", file.variable)
			}
			file.text += string(data)
		}
		if path := filepath.Join(dir, file.name); file.text != "" {
			if err := os.WriteFile(path, []byte(file.text), 0o600); err != nil {
				return nil, err
			}
			env = append(env, file.variable+"="+path)
		}
	}
	if git.Len() > 0 {
		env = append(env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=include.path")
	}
	return env, nil
}

func (l login) basic() string {
	return base64.StdEncoding.EncodeToString([]byte(l.user + ":" + l.password))
}

// redact removes the values from a text for people, and everything that [redact] removes.
func (l logins) redact(text string) string {
	var secrets []string
	for _, one := range l {
		secrets = append(append(secrets, one.basic()), one.secrets...)
	}
	return redact(output.NewRedactor(secrets).Text(text))
}

var (
	userInformation = regexp.MustCompile(`(://)[^\s/@'"]*(?:@[^\s/@'"]*)*@`)
	variableAlone   = regexp.MustCompile(`^://` + variables + `@$`)
	secretValue     = regexp.MustCompile(secretQuery.String() + `[^&\s'"]*`)
)

// redact removes user information and tokens of addresses from a text.
func redact(text string) string {
	text = userInformation.ReplaceAllStringFunc(text, func(found string) string {
		if variableAlone.MatchString(found) {
			return found
		}
		return "://***@"
	})
	return secretValue.ReplaceAllStringFunc(text, func(found string) string {
		return found[:strings.Index(found, "=")+1] + "***"
	})
}
