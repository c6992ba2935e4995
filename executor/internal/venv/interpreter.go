package venv

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"deps.dev/util/semver"

	"github.com/toolmesh/toolmesh"
)

// oldest is the first minor version of Python 3 that the worker runs on.
const oldest = 10

// newest is the last minor version N for which the name python3.N is tried.
const newest = 19

// Interpreter is a real Python executable, never a shim or a link in a venv.
type Interpreter struct {
	Path     string `json:"path"`
	Version  string `json:"version"` // 3.12.1
	CacheTag string `json:"cache_tag"`
	Platform string `json:"platform"` // sysconfig.get_platform()
	Libc     string `json:"libc"`     // the C library and its version, where Python knows
	Stamp    string `json:"stamp"`    // of its file, when it was asked
}

// unchanged reports whether the interpreter's file is the one that was asked.
func (i Interpreter) unchanged() bool { return i.Stamp != "" && i.Stamp == stampOf(i.Path) }

// stampOf is the size and modification time of a program; empty if the file is not a
// program.
func stampOf(file string) string {
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return ""
	}
	return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
}

// Minor is the version up to the minor number: 3.12.
func (i Interpreter) Minor() string {
	parts := strings.SplitN(i.Version, ".", 3)
	return parts[0] + "." + parts[1]
}

const probe = `import sys, sysconfig, json, os, platform
exe = getattr(sys, "_base_executable", None) or sys.executable
json.dump({"path": os.path.realpath(exe), "version": "%d.%d.%d" % sys.version_info[:3],
  "cache_tag": sys.implementation.cache_tag, "platform": sysconfig.get_platform(),
  "libc": " ".join(platform.libc_ver())}, sys.stdout)`

// loose are clauses of a constraint that PEP 440 does not have: a bare version covers all versions
// below it, 3.12 is 3.12.anything. Of Poetry, "^3.11" means ">=3.11,<4" and "~3.11" ">=3.11,<3.12".
var loose = regexp.MustCompile(`^([=^~]?)\s*(\d+)(\.\d+)?((?:\.\d+)*)(?:\.\*)?$`)

// maxConstraint bounds the work of comparing an author's text with many versions.
const maxConstraint = 500

// constraint is a list of clauses that must all hold.
type constraint []*semver.Constraint

// parseConstraint reads a constraint on Python of a pyproject.toml: clauses joined by commas.
func parseConstraint(text string) (all constraint, err error) {
	if len(text) > maxConstraint {
		return nil, fmt.Errorf("it has more than %d characters", maxConstraint)
	}
	for clause := range strings.SplitSeq(strings.ReplaceAll(text, "===", "=="), ",") {
		clauses := []string{strings.TrimSpace(clause)}
		if m := loose.FindStringSubmatch(clauses[0]); m != nil {
			version := m[2] + m[3] + m[4]
			switch m[1] {
			case "^":
				clauses = []string{">=" + version, "==" + m[2] + ".*"}
			case "~":
				clauses = []string{">=" + version, "==" + m[2] + m[3] + ".*"}
			default:
				clauses[0] = "==" + version + ".*"
			}
		} else if strings.ContainsAny(clause, "<>") {
			clauses[0] = strings.TrimSuffix(clauses[0], ".*") // as setuptools takes it
		}
		for _, one := range clauses {
			parsed, err := semver.PyPI.ParseConstraint(strings.TrimPrefix(one, "*"))
			if err != nil {
				return nil, err
			}
			all = append(all, parsed)
		}
	}
	return all, nil
}

func (c constraint) allows(version string) bool {
	return !slices.ContainsFunc(c, func(one *semver.Constraint) bool { return !one.Match(version) })
}

// lower is the lowest minor version of Python 3 with a release that the constraint allows.
func (c constraint) lower() int {
	for minor := oldest; minor <= newest; minor++ {
		for patch := range 50 {
			if c.allows(fmt.Sprintf("3.%d.%d", minor, patch)) {
				return minor
			}
		}
	}
	return oldest
}

// find returns the first interpreter that meets a constraint. python3 of PATH is the first
// candidate.
func (s *Store) find(ctx context.Context, constraint string) (Interpreter, error) {
	wanted, err := parseConstraint(constraint)
	if err != nil {
		return Interpreter{}, failed(nil, "", "the Python version %.200q cannot be parsed: %w; write for example \">=3.11\"", constraint, err)
	}
	var found []string
	for i := range s.interpreters(ctx) {
		if wanted.allows(i.Version) {
			return i, nil
		}
		found = append(found, i.Version)
	}
	if ctx.Err() != nil {
		return Interpreter{}, toolmesh.AsError(ctx.Err()).WithOrigin(toolmesh.OriginAgent)
	}
	slices.Sort(found)
	return Interpreter{}, failed(nil, "", "interpreter not available: the index needs Python %s (found %s); install one and put it on the agent's PATH",
		cmp.Or(constraint, "3.10 or newer"), cmp.Or(strings.Join(slices.Compact(found), ", "), "none")).WithDetail("python", constraint)
}

// interpreters yields the interpreters of this machine that can be used until ctx ends, the
// preferred ones first.
func (s *Store) interpreters(ctx context.Context) iter.Seq[Interpreter] {
	return func(yield func(Interpreter) bool) {
		seen := map[string]bool{}
		for _, candidate := range s.candidates() {
			if i := s.probe(ctx, candidate); i != nil && !seen[i.Path] {
				seen[i.Path] = true
				if !yield(*i) {
					return
				}
			}
		}
	}
}

// Interpreter is the path of the first interpreter that can be used. The error is install_failed.
func (s *Store) Interpreter(ctx context.Context) (string, error) {
	i, err := s.find(ctx, "")
	return i.Path, err
}

// candidates lists files that may be interpreters, the preferred ones first.
func (s *Store) candidates() (files []string) {
	names := []string{"python3"}
	for minor := newest; minor >= oldest; minor-- {
		names = append(names, fmt.Sprintf("python3.%d", minor))
	}
	for _, name := range append(names, "python") {
		for _, folder := range filepath.SplitList(lookup(s.environ, "PATH")) {
			if file := filepath.Join(folder, name); filepath.IsAbs(file) && isExecutable(file) {
				files = append(files, file)
				break
			}
		}
	}
	patterns := []string{"/usr/local/bin/python3", "/usr/bin/python3"}
	if home := lookup(s.environ, "HOME"); home != "" {
		patterns = append(patterns,
			filepath.Join(home, ".pyenv/versions/3.*/bin/python3"),
			filepath.Join(home, ".local/share/uv/python/*/bin/python3"))
	}
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern)
		slices.Reverse(found) // they are sorted: the newest first
		files = append(files, found...)
	}
	return files
}

// probe runs a candidate and reads its version and platform; nil if it cannot be used, or ctx has
// ended.
func (s *Store) probe(ctx context.Context, candidate string) *Interpreter {
	s.probing.Lock()
	defer s.probing.Unlock()
	if i, ok := s.probed[candidate]; ok && (i == nil || i.unchanged()) {
		return i
	}
	bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	// Without site, which takes longer than all the rest, and may run code of packages.
	out, _, err := s.run(bounded, candidate, "", candidate, "-I", "-S", "-c", probe)
	if ctx.Err() != nil {
		return nil
	}
	i := new(Interpreter)
	if err == nil {
		err = json.Unmarshal(out, i)
	}
	i.Stamp = stampOf(i.Path)
	var minor, patch int
	if n, _ := fmt.Sscanf(i.Version, "3.%d.%d", &minor, &patch); err == nil && (n < 2 || minor < oldest || i.Stamp == "") {
		err = fmt.Errorf("its version %q is not supported", i.Version)
	}
	if err != nil {
		s.log.Debug("interpreter cannot be used", slog.String("path", candidate), slog.String("error", err.Error()))
		i = nil
	}
	s.probed[candidate] = i
	return i
}

func isExecutable(file string) bool { return stampOf(file) != "" }

// lookup reads a variable of a list like os.Environ's; the last one counts.
func lookup(environ []string, name string) string {
	for _, one := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(one, name+"="); ok {
			return value
		}
	}
	return ""
}
