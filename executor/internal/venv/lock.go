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

// foreign reports whether a lock has anything but releases of a package index: an address,
// or a part of its index.
func (l Lock) foreign() bool {
	return slices.ContainsFunc(packages(l.Requirements), func(p lockLine) bool { return p.at != "" })
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

// declared has the dependencies that a source declares.
type declared struct {
	file   string // the file that says it, for messages; empty: there are none
	python string // requires-python
	builds bool   // its build backend alone knows the requirements
	hashed bool   // --require-hashes

	requirements, constraints []requirement
	logins                    logins
	args                      []string // of uv
}

// Lock resolves the dependencies that sourceDir declares, for every platform and
// every Python that the constraint allows, with the hashes of every file. What is
// declared is read first, and refused where it names anything outside of sourceDir but
// releases and addresses. Where nothing is declared it runs nothing, and the lock has no
// requirements.
//
// progress may be nil. Errors are install_failed.
func (s *Store) Lock(ctx context.Context, sourceDir string, o LockOptions, progress Progress) (Lock, error) {
	return s.lock(ctx, sourceDir, o, progress, (*reader).declaration)
}

// LockRequirements resolves requirements that no file of their own declares, as
// [Store.Lock] does. name is what declares them, for messages.
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
		if sourceDir != "" { // else it is a single file
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

// resolve makes the lock of declared dependencies.
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
	work, err := s.workFolder()
	if err != nil {
		return Lock{}, err
	}
	defer deep.RemoveAll(work) //nolint:errcheck // swept at the next start
	// What lies in the index's folder may require addresses.
	addresses, paths := d.places()
	tree, st := sourceDir, step{dir: work, apart: addresses || paths, login: d.logins}
	if d.builds || paths {
		// A build backend writes next to its sources, and its files there are not the index's.
		// What was written for uv stays the agent's.
		tree = filepath.Join(work, "tree")
		if err := os.CopyFS(tree, os.DirFS(sourceDir)); err != nil {
			return Lock{}, err
		}
	}
	asked, err := d.write(work, tree)
	if err != nil {
		return Lock{}, err
	}
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
		run := func(build bool) (err error) {
			args := slices.Concat([]string{"pip", "compile"}, asked, []string{"--no-sources", "--universal", "--generate-hashes",
				"--no-header", "--no-annotate", "--quiet", "--python", interpreter.Path, "--python-version", version}, d.args)
			// With the argument the variable has no effect.
			for _, file := range strings.Fields(lookup(s.environ, "UV_CONSTRAINT")) {
				args = append(args, "--constraints", file)
			}
			if st.role, st.write = Packager, nil; !build {
				args = append(args, "--no-build")
			} else if st.role = Builder; tree != sourceDir {
				st.write = []string{tree}
			}
			out, said, err = s.runUV(ctx, interpreter, uv, st, nil, args...)
			said = strings.ReplaceAll(said, cmp.Or(tree, work), ".")
			return err
		}
		err = errBuilds
		if !d.builds {
			err = run(false)
		}
		if err != nil && ctx.Err() == nil && !o.NoBuild {
			progress.report("builds", "running", 25)
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
			toBuild := slices.DeleteFunc(packages(out), func(p lockLine) bool { return p.at == "" || p.wheel() })
			if o.NoBuild && len(toBuild) > 0 {
				return Lock{}, builds(namesOf(toBuild)...)
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
	if names := withoutWheel(said); o.NoBuild && len(names) > 0 {
		return Lock{}, builds(names...)
	}
	return Lock{}, failed(err, said, "the dependencies in %s cannot be resolved", d.file)
}

// unbuilt finds in what uv says the packages that it may not build.
var unbuilt = regexp.MustCompile("(?:Building source distributions|Wheels are required) for `([^`]+)`(?: is disabled| because building)")

// withoutWheel are the packages that uv says it may not build, with or without versions.
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
	return failed(nil, "", "these must be built from source, which runs code of theirs: %s", strings.Join(names, ", ")).
		WithDetail("reason", reasonBuilds).WithDetail("builds", names)
}

// errBuilds stands for the failure of a resolution without builds that was not tried.
var errBuilds = errors.New("it builds packages")

// places reports whether something comes from an address that the index names, or from its
// folder.
func (d declared) places() (addresses, paths bool) {
	for _, q := range slices.Concat(d.requirements, d.constraints) {
		addresses, paths = addresses || q.url != "", paths || q.path != ""
	}
	return addresses, paths
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
	return []string{source, "--constraints", filepath.Join(work, "constraints.in")}, nil
}
