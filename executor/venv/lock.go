package venv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/sandbox"
)

// Lock is what declared dependencies were resolved to: the same on every node.
type Lock struct {
	// Requirements is a requirements file with exact versions, markers and
	// hashes; empty when nothing is declared.
	Requirements []byte
	// Python is the constraint on the interpreter; empty means any that works.
	Python string
}

// foreign reports whether a lock has anything but releases of a package index: an address,
// or a part of its index.
func (l Lock) foreign() bool {
	return slices.ContainsFunc(logical(l.Requirements), func(line line) bool { return release(line.text) == "" })
}

// LockOptions configure [Store.Lock]. The zero value is usable.
type LockOptions struct {
	// Python is a version constraint like ">=3.11", which counts where the source declares
	// none. Defaults to any version.
	Python string
	// Vars are the values of the variables that the index declares, which logins of its
	// dependencies may name.
	Vars map[string]string
	// NoBuild refuses what can be installed by running code of packages alone, with
	// details.reason "builds".
	NoBuild bool
}

// declared is what a source says of its dependencies.
type declared struct {
	file   string // the file that says it, for messages; empty: there are none
	python string // requires-python
	builds bool   // its build backend alone knows the requirements
	hashed bool   // --require-hashes

	requirements, constraints []requirement
	logins                    logins
	args                      []string // of uv
}

// blank reports whether a requirements file has comments and empty lines alone.
func blank(data []byte) bool { return len(logical(data)) == 0 }

// Lock resolves the dependencies that sourceDir declares, for every platform and
// every Python that the constraint allows, with the hashes of every file. What is
// declared is read first, and refused where it names anything outside of sourceDir but
// releases and addresses. Where nothing is declared it runs nothing, and the lock has no
// requirements.
//
// progress may be nil. Errors are install_failed.
func (s *Store) Lock(ctx context.Context, sourceDir string, o LockOptions, progress Progress) (lock Lock, err error) {
	err = s.do(ctx, "the dependencies cannot be read", func(ctx context.Context) error {
		r, err := s.reader(sourceDir, o)
		if err != nil {
			return err
		}
		defer r.root.Close() //nolint:errcheck // only read
		if err = r.declaration(); err == nil {
			lock, err = s.resolve(ctx, sourceDir, o, *r.d, progress)
		}
		return err
	})
	return lock, err
}

// LockRequirements resolves requirements that no file of their own declares, as
// [Store.Lock] does. name is what declares them, for messages.
func (s *Store) LockRequirements(ctx context.Context, name string, requirements []string, o LockOptions, progress Progress) (lock Lock, err error) {
	err = s.do(ctx, "the dependencies cannot be read", func(ctx context.Context) error {
		r, err := s.reader("", o)
		if err != nil {
			return err
		}
		for _, text := range requirements {
			q, err := r.parse(text, ".")
			if err != nil {
				return refusal(name, 0, text, err)
			}
			r.d.file = name
			r.d.requirements = append(r.d.requirements, q)
		}
		lock, err = s.resolve(ctx, "", o, *r.d, progress)
		return err
	})
	return lock, err
}

// reader makes a reader of an index's folder; none: of a single file.
func (s *Store) reader(sourceDir string, o LockOptions) (r *reader, err error) {
	r = &reader{
		vars: o.Vars, allowed: s.allows, d: &declared{}, left: maxDependencyBytes, read: map[string]bool{}, projects: map[string]*project{},
	}
	if sourceDir != "" {
		r.root, err = os.OpenRoot(sourceDir)
	}
	return r, err
}

// publicIndex is the Python Package Index, which files name that were made for it. What is
// fetched comes from the agent's index all the same.
const publicIndex = "https://pypi" + ".org/simple"

// allows reports whether the agent's own settings say what an option of a requirements
// file says. The public package index is always meant by the agent's.
func (s *Store) allows(option, value string) bool {
	var names []string
	switch option {
	case "-i", "--index-url", "--extra-index-url", "--default-index":
		names = []string{"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"}
		if strings.TrimRight(value, "/") == publicIndex {
			return true
		}
	case "-f", "--find-links":
		names = []string{"UV_FIND_LINKS", "PIP_FIND_LINKS"}
	case "--trusted-host":
		names = []string{"UV_INSECURE_HOST", "PIP_TRUSTED_HOST"}
	case "--no-index":
		return cmp.Or(lookup(s.environ, "UV_NO_INDEX"), lookup(s.environ, "PIP_NO_INDEX")) != ""
	}
	for _, name := range names {
		for _, one := range strings.FieldsFunc(lookup(s.environ, name), func(r rune) bool { return r == ',' || r == ' ' }) {
			if n := strings.Index(one, "="); n >= 0 && !strings.ContainsAny(one[:n], ":/") {
				one = one[n+1:] // an index with a name
			}
			if value != "" && strings.TrimRight(userInformation.ReplaceAllString(one, "$1"), "/") == strings.TrimRight(value, "/") {
				return true
			}
		}
	}
	return false
}

// resolve makes the lock of what was read.
func (s *Store) resolve(ctx context.Context, sourceDir string, o LockOptions, d declared, progress Progress) (Lock, error) {
	python := cmp.Or(d.python, o.Python) // the manifest's counts only where there is no requires-python
	if d.file == "" {
		return Lock{Python: python}, nil
	}
	if d.builds && o.NoBuild {
		return Lock{}, builds(d.file)
	}
	progress.report("interpreter", "running", 0)
	interpreter, err := s.find(ctx, python)
	if err != nil {
		return Lock{}, err
	}
	uv, err := s.uv(ctx, progress)
	if err != nil {
		return Lock{}, err
	}
	progress.report("lock", "running", 20)
	// uv runs where nothing of the index lies: it finds no settings and no project.
	work, err := os.MkdirTemp(s.dir, "new-lock-")
	if err != nil {
		return Lock{}, err
	}
	defer sandbox.RemoveAll(work)                 //nolint:errcheck // swept at the next start
	if err := os.Chmod(work, 0o755); err != nil { //nolint:gosec // other users read it
		return Lock{}, err
	}
	tree := sourceDir
	apart := sync.OnceValue(func() error {
		if sourceDir == "" {
			return nil
		}
		// A build backend writes beside its sources, and what it leaves there is not the index's.
		tree = filepath.Join(work, "tree")
		return os.CopyFS(tree, os.DirFS(sourceDir))
	})
	// First for every Python that the constraint allows, so that other nodes
	// may have other ones; some packages then have no version left.
	wanted, _ := parseConstraint(python)
	tries := []string{fmt.Sprintf("3.%d", max(wanted.lower(), oldest))}
	if own := interpreter.Minor(); own != tries[0] {
		tries = append(tries, own)
	}
	var said string
	for n, version := range tries {
		var out []byte
		run := func(build bool) error {
			asked, err := d.write(work, tree)
			if err != nil {
				return err
			}
			args := slices.Concat([]string{"pip", "compile"}, asked, []string{"--no-sources", "--universal", "--generate-hashes",
				"--no-header", "--no-annotate", "--quiet", "--python", interpreter.Path, "--python-version", version}, d.args)
			for _, file := range strings.Fields(lookup(s.environ, "UV_CONSTRAINT")) {
				args = append(args, "--constraints", file)
			}
			// What was written for uv stays the agent's: a build changes its copy of the source alone.
			st := step{role: Packager, apart: d.addresses() || d.paths(), dir: work, login: d.logins} // what lies there may require addresses
			if build {
				st.role = Builder
				if tree != "" {
					st.write = []string{tree}
				}
			} else {
				args = append(args, "--no-build")
			}
			out, said, err = s.runUV(ctx, interpreter, uv, st, nil, args...)
			said = strings.ReplaceAll(said, cmp.Or(tree, work), ".")
			return err
		}
		if d.builds || d.paths() {
			if err := apart(); err != nil {
				return Lock{}, err
			}
		}
		err = errBuilds
		if !d.builds {
			err = run(false)
		}
		if err != nil && ctx.Err() == nil && !o.NoBuild {
			progress.report("builds", "running", 25)
			if err := apart(); err != nil {
				return Lock{}, err
			}
			err = run(true)
		}
		if err == nil {
			if n > 0 || python == "" {
				python = strings.TrimPrefix(python+",>="+version, ",")
			}
			if out, err = hold(out, slices.Concat(d.requirements, d.constraints), tree, d.hashed); err != nil {
				return Lock{}, refusal(d.file, 0, "--require-hashes", err)
			}
			if out, err = notePaths(out, tree, sourceDir); err != nil {
				return Lock{}, failed(err, "", "the dependencies in %s require what no index may have", d.file).WithDetail("reason", reasonDependency)
			}
			if toBuild := toBuild(out); o.NoBuild && len(toBuild) > 0 {
				return Lock{}, builds(toBuild...)
			}
			for _, note := range d.logins.notes() {
				out = append(out, note...)
			}
			progress.report("lock", "done", 50)
			return Lock{Requirements: out, Python: python}, nil
		}
		if ctx.Err() != nil {
			return Lock{}, ctx.Err()
		}
	}
	if names := unbuilt.FindAllStringSubmatch(said, -1); o.NoBuild && names != nil {
		var all []string
		for _, one := range names {
			all = append(all, one[1])
		}
		return Lock{}, builds(all...)
	}
	return Lock{}, failed(err, said, "the dependencies in %s cannot be resolved", d.file)
}

// unbuilt finds in what uv says the packages that it may not build.
var unbuilt = regexp.MustCompile("(?:Building source distributions|Wheels are required) for `([^`]+)`(?: is disabled| because building)")

// toBuild names what of a lock has to be built wherever it is installed.
func toBuild(lock []byte) (names []string) {
	for _, line := range logical(lock) {
		name, place, _ := cutPlace(line.text)
		if release(line.text) == "" && !strings.HasSuffix(strings.ToLower(withoutFragment(place)), ".whl") {
			names = append(names, cmp.Or(strings.TrimSuffix(name, " @ "), place))
		}
	}
	return names
}

// builds is the failure of what would have to run code of packages.
func builds(names ...string) *toolmesh.Error {
	slices.Sort(names)
	names = slices.Compact(names)
	return failed(nil, "", "these must be built from source, which runs code of theirs: %s", strings.Join(names, ", ")).
		WithDetail("reason", reasonBuilds).WithDetail("builds", names)
}

// errBuilds stands for the failure of what was not tried, as it builds something.
var errBuilds = errors.New("it builds packages")

// addresses reports whether something comes from an address that the index names.
func (d declared) addresses() bool {
	return slices.ContainsFunc(slices.Concat(d.requirements, d.constraints), func(q requirement) bool { return q.url != "" })
}

// paths reports whether something comes from the index's folder.
func (d declared) paths() bool {
	return slices.ContainsFunc(slices.Concat(d.requirements, d.constraints), func(q requirement) bool { return q.path != "" })
}

// write writes what was read for uv, which finds the source in tree, and returns the
// arguments that name it.
func (d declared) write(work, tree string) (args []string, err error) {
	for name, list := range map[string][]requirement{"requirements.in": d.requirements, "constraints.in": d.constraints} {
		var text strings.Builder
		for _, q := range list {
			text.WriteString(q.write(tree) + "\n")
		}
		if err := os.WriteFile(filepath.Join(work, name), []byte(text.String()), 0o644); err != nil { //nolint:gosec // it has no credentials
			return nil, err
		}
	}
	source := filepath.Join(work, "requirements.in")
	if d.builds {
		source = filepath.Join(tree, d.file)
	}
	if len(d.constraints) == 0 {
		return []string{source}, nil // and the constraints of the agent's settings
	}
	return []string{source, "--constraints", filepath.Join(work, "constraints.in")}, nil
}
