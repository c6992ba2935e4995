package venv

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deep"
)

// Lock is the resolution of declared dependencies: the same on every node.
type Lock struct {
	// Requirements is a requirements file with exact versions, markers and
	// hashes; empty when nothing is declared.
	Requirements []byte
	// Python is the constraint on the interpreter; empty means any that works.
	Python string
}

// foreign reports whether a lock has packages that are not releases of a package index: of an
// address, or of the index's folder.
func (l Lock) foreign() bool {
	return slices.ContainsFunc(packages(l.Requirements), func(p lockLine) bool { return p.at != "" })
}

// LockOptions configure [Store.Lock]. The zero value is usable.
type LockOptions struct {
	// Python is a version constraint like ">=3.11" for sources that declare none. Defaults to
	// any version.
	Python string
	// Vars are the values of the variables that the index declares; logins of its dependencies
	// may name them.
	Vars map[string]string
	// NoBuild refuses dependencies that must be built, which runs code of packages, with
	// details.reason "builds".
	NoBuild bool
}

// declared are the dependencies that a source declares.
type declared struct {
	file   string // the declaring file, for messages; empty if nothing is declared
	python string // requires-python
	builds bool   // only its build backend knows the requirements
	hashed bool   // --require-hashes

	requirements, constraints []requirement
	logins                    logins
	args                      []string // of uv
}

// Lock resolves the dependencies that sourceDir declares, for every platform and
// every Python that the constraint allows, with the hashes of every file. It first
// reads the declaration, and refuses everything outside of sourceDir except releases
// and addresses. Without a declaration it runs nothing, and the lock has no
// requirements.
//
// progress may be nil. Errors are install_failed.
func (s *Store) Lock(ctx context.Context, sourceDir string, o LockOptions, progress Progress) (Lock, error) {
	return s.lock(ctx, sourceDir, o, progress, (*reader).declaration)
}

// LockRequirements resolves requirements that stand in no file of their own, as [Store.Lock]
// does. name is their origin, for messages.
func (s *Store) LockRequirements(ctx context.Context, name string, requirements []string, o LockOptions, progress Progress) (Lock, error) {
	return s.lock(ctx, "", o, progress, func(r *reader) error {
		for _, text := range requirements {
			q, err := r.parse(text, ".")
			if err != nil {
				return refusal(name, 0, text, err)
			}
			r.d.file = name
			r.d.requirements = append(r.d.requirements, q)
		}
		return nil
	})
}

// lock resolves the dependencies that read finds.
func (s *Store) lock(ctx context.Context, sourceDir string, o LockOptions, progress Progress, read func(*reader) error) (Lock, error) {
	return do(ctx, s, "the dependencies cannot be read", func(ctx context.Context) (_ Lock, err error) {
		r := s.reader(o.Vars)
		if sourceDir != "" { // empty for a single file
			if r.root, err = os.OpenRoot(sourceDir); err != nil {
				return Lock{}, err
			}
			defer r.root.Close() //nolint:errcheck // only read
		}
		if err = read(r); err != nil {
			return Lock{}, err
		}
		return s.resolve(ctx, sourceDir, o, *r.d, progress)
	})
}

func (s *Store) reader(vars map[string]string) *reader {
	return &reader{vars: vars, allowed: s.allows, d: &declared{}, left: maxDependencyBytes, read: map[string]bool{}, projects: map[string]*project{}}
}

// publicIndex is the Python Package Index, which files may name. Its packages are fetched from
// the agent's index all the same.
const publicIndex = "https://pypi" + ".org/simple"

// allows reports whether the agent's own settings of where packages come from have the value of
// an option of a requirements file. The public package index always counts as the agent's.
func (s *Store) allows(option, value string) bool {
	if option == "--no-index" {
		return cmp.Or(lookup(s.environ, "UV_NO_INDEX"), lookup(s.environ, "PIP_NO_INDEX")) != ""
	}
	value = strings.TrimRight(value, "/")
	for _, name := range []string{
		"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL",
		"UV_FIND_LINKS", "PIP_FIND_LINKS", "UV_INSECURE_HOST", "PIP_TRUSTED_HOST",
	} {
		for _, one := range strings.FieldsFunc(lookup(s.environ, name), func(r rune) bool { return r == ',' || r == ' ' }) {
			if before, after, named := strings.Cut(one, "="); named && !strings.ContainsAny(before, ":/") {
				one = after // an index with a name
			}
			if value != "" && strings.TrimRight(userInformation.ReplaceAllString(one, "$1"), "/") == value {
				return true
			}
		}
	}
	return value == publicIndex
}

// resolve makes the lock of declared dependencies.
func (s *Store) resolve(ctx context.Context, sourceDir string, o LockOptions, d declared, progress Progress) (Lock, error) {
	python := cmp.Or(d.python, o.Python) // requires-python comes before the manifest's
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
	// uv runs in a folder without files of the index: it finds no settings and no project.
	work, err := s.workFolder()
	if err != nil {
		return Lock{}, err
	}
	defer deep.RemoveAll(work) //nolint:errcheck // swept at the next start
	all := slices.Concat(d.requirements, d.constraints)
	paths := slices.ContainsFunc(all, func(q requirement) bool { return q.path != "" })
	addresses := paths || slices.ContainsFunc(all, func(q requirement) bool { return q.url != "" }) // packages of the index may require some
	tree, st := sourceDir, step{dir: work, apart: addresses, login: d.logins}
	if d.builds || paths {
		// A build backend writes next to its sources; those files are not the index's. The files
		// written for uv stay the agent's.
		tree = filepath.Join(work, "tree")
		if err := os.CopyFS(tree, os.DirFS(sourceDir)); err != nil {
			return Lock{}, err
		}
	}
	asked, err := d.write(work, tree)
	if err != nil {
		return Lock{}, err
	}
	args := slices.Concat([]string{"pip", "compile"}, asked, []string{"--no-sources", "--universal", "--generate-hashes",
		"--no-header", "--no-annotate", "--quiet", "--python", interpreter.Path}, d.args)
	// uv ignores the variable where the argument is set.
	for _, file := range strings.Fields(lookup(s.environ, "UV_CONSTRAINT")) {
		args = append(args, "--constraints", file)
	}
	var out []byte
	var said string
	run := func(version string, build bool) (err error) {
		more := []string{"--python-version", version}
		if st.role, st.write = Packager, nil; !build {
			more = append(more, "--no-build")
		} else if st.role = Builder; tree != sourceDir {
			st.write = []string{tree}
		}
		out, said, err = s.runUV(ctx, interpreter, uv, st, nil, slices.Concat(args, more)...)
		said = strings.ReplaceAll(said, cmp.Or(tree, work), ".")
		return err
	}
	// First for every Python that the constraint allows, as other nodes may have other ones.
	// Some packages then have no matching version.
	wanted, _ := parseConstraint(python)
	tries := slices.Compact([]string{fmt.Sprintf("3.%d", wanted.lower()), interpreter.Minor()})
	for n, version := range tries {
		if !d.builds {
			err = run(version, false)
		}
		if (d.builds || err != nil) && ctx.Err() == nil && !o.NoBuild {
			progress.report("builds", "running", 25)
			err = run(version, true)
		}
		if err == nil {
			if n > 0 || python == "" {
				python = strings.TrimPrefix(python+",>="+version, ",")
			}
			break
		}
	}
	if ctx.Err() != nil {
		return Lock{}, ctx.Err()
	}
	if err != nil {
		if names := withoutWheel(said); o.NoBuild && len(names) > 0 {
			return Lock{}, builds(names...)
		}
		return Lock{}, failed(err, said, "the dependencies in %s cannot be resolved", d.file)
	}
	lock := packages(out)
	if err := hold(lock, all, tree, d.hashed); err != nil {
		return Lock{}, refusal(d.file, 0, "--require-hashes", err)
	}
	notes, err := placed(lock, tree, sourceDir)
	if err != nil {
		return Lock{}, failed(err, "", "a dependency of those in %s is refused: every dependency must be a release, an address or a path in the index", d.file).WithDetail("reason", reasonDependency)
	}
	toBuild := slices.DeleteFunc(slices.Clone(lock), func(p lockLine) bool { return p.at == "" || p.wheel() })
	if o.NoBuild && len(toBuild) > 0 {
		return Lock{}, builds(namesOf(toBuild)...)
	}
	progress.report("lock", "done", 50)
	return Lock{Requirements: []byte(textOf(lock) + notes + d.logins.notes()), Python: python}, nil
}

// unbuilt finds the packages that uv may not build in its output.
var unbuilt = regexp.MustCompile("(?:Building source distributions|Wheels are required) for `([^`]+)`(?: is disabled| because building)")

// withoutWheel returns the packages that uv may not build, by its output, with or without versions.
func withoutWheel(said string) (names []string) {
	for _, found := range unbuilt.FindAllStringSubmatch(said, -1) {
		names = append(names, found[1])
	}
	return names
}

// builds is the failure of a resolution or an installation that would run code of packages.
func builds(names ...string) *toolmesh.Error {
	slices.Sort(names)
	names = slices.Compact(names)
	return failed(nil, "", "these packages must be built from source, which runs their code: %s", strings.Join(names, ", ")).
		WithDetail("reason", reasonBuilds).WithDetail("builds", names)
}

// write writes the declaration for uv, which finds the source in tree, and returns uv's
// arguments for it.
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
	return []string{source, "--constraints", filepath.Join(work, "constraints.in")}, nil
}
