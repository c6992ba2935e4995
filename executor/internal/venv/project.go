package venv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// pyproject are the parts of a pyproject.toml that decide which packages are installed.
type pyproject struct {
	Project *struct {
		Name           string              `toml:"name"`
		Dependencies   []string            `toml:"dependencies"`
		Optional       map[string][]string `toml:"optional-dependencies"`
		RequiresPython string              `toml:"requires-python"`
		Dynamic        []string            `toml:"dynamic"`
	} `toml:"project"`
	Build struct {
		Requires []string `toml:"requires"`
		Path     []string `toml:"backend-path"`
	} `toml:"build-system"`
	Tool struct {
		Poetry *struct {
			Dependencies map[string]any `toml:"dependencies"`
		} `toml:"poetry"`
		UV map[string]any `toml:"uv"`
	} `toml:"tool"`
}

// readProject reads the pyproject.toml of a folder of the tree; nil if there is none, or no folder.
func (r *reader) readProject(dir string) (*project, error) {
	if p, ok := r.projects[dir]; ok {
		return p, nil
	}
	p := &project{reader: r, dir: dir, file: path.Join(dir, "pyproject.toml")}
	var err error
	if p.data, err = r.file(p.file); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		r.projects[dir] = nil
		return nil, nil //nolint:nilnil // there need not be one
	}
	if err == nil {
		err = deep.UnmarshalTOML(p.data, &p.pyproject)
	}
	if err != nil {
		return nil, failed(err, "", "%s cannot be read", p.file).WithDetail("reason", reasonDependency)
	}
	r.projects[dir] = p
	return p, nil
}

// project is the pyproject.toml of a folder of the tree.
type project struct {
	pyproject

	*reader

	dir, file string
	data      []byte
}

// refuse returns an error about a word of the file, at the last line that contains it.
func (p *project) refuse(word string, err error) error {
	line := 0
	if n := bytes.LastIndex(p.data, []byte(word)); n >= 0 {
		line = bytes.Count(p.data[:n], []byte("\n")) + 1
	}
	return refusal(p.file, line, word, err)
}

// project checks a package of the tree that others require by path: a folder, or a file, whose
// content is not read; empty for none. uv reads and builds it by itself.
func (r *reader) project(dir string) error {
	if dir == "" || r.read["project "+dir] {
		return nil
	}
	r.read["project "+dir] = true
	p, err := r.readProject(dir)
	if err != nil || p == nil {
		return err
	}
	var declares []string
	if p.Project != nil {
		declares = slices.Concat(append(slices.Collect(maps.Values(p.Project.Optional)), p.Project.Dependencies)...)
	}
	names, err := p.check(declares, "write the package's name here, and its path in [tool.uv.sources]")
	if err == nil {
		err = p.sources(names)
	}
	if err == nil {
		err = p.checkBuild()
	}
	return err
}

// each parses requirements of the project, hands them to take, and returns their names.
func (p *project) each(texts []string, take func(requirement) error) (names map[string]bool, err error) {
	names = map[string]bool{}
	for _, text := range texts {
		q, err := p.parse(text, p.dir)
		if err == nil {
			err = take(q)
		}
		if err != nil {
			return nil, p.refuse(text, err)
		}
		names[normalized(q.name)] = true
	}
	return names, nil
}

// check reads requirements that uv reads by itself: releases, and addresses without
// credentials.
func (p *project) check(declares []string, way string) (map[string]bool, error) {
	return p.each(declares, func(q requirement) error {
		if q.path != "" {
			return errors.New("a path is not accepted here: " + way)
		}
		if q.login {
			return errors.New("a login is not accepted here: write the requirement in the index's own declaration, and its name alone here")
		}
		return nil
	})
}

// checkBuild reads the requirements of the project's build.
func (p *project) checkBuild() error {
	for _, one := range p.Build.Path {
		if _, err := p.within(one, p.dir); err != nil {
			return p.refuse(one, err)
		}
	}
	names, err := p.check(p.Build.Requires, "a build takes packages of a package index")
	for name := range table(p.Tool.UV["sources"]) {
		if err == nil && names[normalized(name)] { // uv would take it from a package index
			err = p.refuse(name, errors.New("a build installs releases of a package index only: leave it out of build-system.requires or of [tool.uv.sources]"))
		}
	}
	return err
}

// sources reads [tool.uv.sources] of a project for the names that it declares, nil for all:
// packages of the tree. They become constraints, so that none of these names is looked up in a
// package index by any requirement.
func (p *project) sources(names map[string]bool) error {
	root, err := p.workspace()
	if err != nil {
		return err
	}
	own := table(p.Tool.UV["sources"])
	for _, from := range slices.Compact([]*project{root, p}) { // a member has those of its workspace, too
		if from == nil {
			continue
		}
		all := table(from.Tool.UV["sources"])
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if own[name] != nil && from != p || names != nil && !names[normalized(name)] {
				continue
			}
			for _, one := range tables(all[name]) {
				if err := from.source(root, name, one); err != nil {
					return from.refuse(name, err)
				}
			}
		}
	}
	return nil
}

// source takes one entry of [tool.uv.sources].
func (p *project) source(root *project, name string, entry map[string]any) error {
	if entry["group"] != nil {
		return nil // a development group
	}
	q := requirement{name: name}
	marker, _ := entry["marker"].(string)
	err := q.mark(marker, marker != "")
	switch place, _ := entry["path"].(string); {
	case err != nil:
	case !wholeName.MatchString(name):
		err = errors.New("it is not a package's name")
	case place != "":
		q.path, err = p.within(place, p.dir)
	case entry["workspace"] == true:
		q.path, err = root.member(name)
	default:
		err = errors.New("its source in [tool.uv.sources] is not a path in the index: write the address in the requirement itself (name @ git+https://host/path)")
	}
	if err == nil {
		p.d.constraints = append(p.d.constraints, q)
		err = p.project(q.path)
	}
	return err
}

// workspace is the project that declares the workspace of this one, maybe itself; nil without
// a workspace.
func (p *project) workspace() (*project, error) {
	for dir := p.dir; ; dir = path.Dir(dir) {
		above, err := p.readProject(dir)
		if err != nil {
			return nil, err
		}
		if above != nil && above.Tool.UV["workspace"] != nil {
			return above, nil
		}
		if dir == "." {
			return nil, nil //nolint:nilnil // there need not be one
		}
	}
}

func (p *project) member(name string) (string, error) {
	if p == nil {
		return "", errors.New("its source is a workspace, but none is declared")
	}
	patterns, _ := table(p.Tool.UV["workspace"])["members"].([]any)
	for _, one := range append([]any{"."}, patterns...) {
		pattern, _ := one.(string)
		if pattern = path.Join(p.dir, pattern); strings.Contains(pattern, "**") || !fs.ValidPath(pattern) {
			return "", fmt.Errorf("the workspace's member %q is neither a folder nor a simple pattern in the index's folder", pattern)
		}
		found, err := fs.Glob(p.root.FS(), pattern)
		if err != nil {
			return "", fmt.Errorf("the workspace's member %q: %w", pattern, err)
		}
		for _, dir := range found {
			member, err := p.readProject(dir)
			if err != nil {
				return "", err
			}
			if member != nil && member.Project != nil && normalized(member.Project.Name) == normalized(name) {
				return p.within("./"+dir, ".")
			}
		}
	}
	return "", errors.New("no member of the workspace has this name")
}

// changing are settings of uv, outside of any standard, that change which packages are installed.
var changing = []string{
	"index", "index-url", "extra-index-url", "find-links", "no-index", "index-strategy", "keyring-provider", "allow-insecure-host", "torch-backend",
	"override-dependencies", "constraint-dependencies", "exclude-dependencies", "build-constraint-dependencies", "dependency-metadata",
	"config-settings", "config-settings-package", "extra-build-dependencies", "extra-build-variables",
	"no-build-isolation", "no-build-isolation-package", "no-binary", "no-binary-package", "no-build", "no-build-package", "only-binary",
	"prerelease", "resolution", "exclude-newer", "exclude-newer-package",
	"constraint", "override", "build-constraint", "extra", "all-extras", "no-deps", "require-hashes", "no-sources",
}

// setting returns the first of them that the agent's own settings do not have; empty without any.
func (r *reader) setting(settings map[string]any) string {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		value := settings[key]
		if key == "pip" {
			if found := r.setting(table(value)); found != "" {
				return found
			}
		}
		if slices.Contains(changing, key) && value != false && !r.says(key, value) {
			return key
		}
	}
	return ""
}

// says reports whether the agent's own settings have the same value.
func (r *reader) says(key string, value any) bool {
	if text, ok := value.(string); ok {
		return r.allowed("--"+key, text)
	}
	return key == "index" && !slices.ContainsFunc(tables(value), func(index map[string]any) bool {
		address, _ := index["url"].(string)
		return index["explicit"] != true && !r.allowed("--index-url", address)
	})
}

func table(value any) map[string]any {
	one, _ := value.(map[string]any)
	return one
}

// tables returns a table, or the tables of a list.
func tables(value any) []map[string]any {
	switch value := value.(type) {
	case []map[string]any:
		return value
	case []any:
		var all []map[string]any
		for _, one := range value {
			all = append(all, table(one))
		}
		return all
	}
	return []map[string]any{table(value)}
}
