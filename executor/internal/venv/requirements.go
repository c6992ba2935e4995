package venv

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deep"
)

// reader reads the declaration of an index, before any tool does. It stays in the index's
// folder and refuses everything that it does not know or that is outside.
type reader struct {
	root    *os.Root // the index's folder; nil for a single file
	vars    map[string]string
	allowed func(option, value string) bool // the agent's own settings have the same value
	d       *declared
	left    int64 // bytes that may still be read

	read     map[string]bool     // requirements files and packages, by path
	projects map[string]*project // by folder; nil for a folder without one
}

// Bounds on dependency files.
const (
	maxDependencyBytes = 4 << 20
	maxDependencyFiles = 200
)

// declaration reads pyproject.toml, else setup.py, else requirements.txt. A pyproject.toml
// without a project, only with settings of tools like a linter, does not count.
func (r *reader) declaration() error {
	p, err := r.readProject(".")
	if err != nil {
		return err
	}
	switch {
	case p != nil && p.Project != nil:
		r.d.python = p.Project.RequiresPython
		if slices.Contains(p.Project.Dynamic, "dependencies") {
			r.d.file, r.d.builds = p.file, true
			break
		}
		names, err := p.each(p.Project.Dependencies, func(q requirement) error {
			r.d.file = p.file
			r.d.requirements = append(r.d.requirements, q)
			return r.project(q.path)
		})
		if err == nil {
			err = p.sources(names)
		}
		if err != nil {
			return err
		}
	case p != nil && p.Tool.Poetry != nil:
		for name, value := range p.Tool.Poetry.Dependencies {
			if name == "python" {
				r.d.python, _ = value.(string)
			} else {
				r.d.file, r.d.builds = p.file, true
			}
		}
	case r.has("setup.py"):
		r.d.file, r.d.builds = "setup.py", true
	case r.has("requirements.txt"):
		const name = "requirements.txt"
		if err := r.requirements(name, &r.d.requirements); err != nil {
			return refusal(name, 0, name, err)
		}
		if len(r.d.requirements) > 0 {
			r.d.file = name
		}
	}
	if r.d.file == "" {
		return nil
	}
	if p != nil && r.d.builds {
		if err := errors.Join(p.sources(nil), p.checkBuild()); err != nil {
			return err
		}
	}
	return r.settings(p)
}

func (r *reader) has(name string) bool {
	_, err := r.root.Lstat(name)
	return err == nil
}

// settings refuses settings of uv in the index's folder that would change the packages.
func (r *reader) settings(p *project) error {
	why := errors.New("this setting of uv changes which packages are installed: write versions and addresses in the requirements; where packages come from is a setting of the agent")
	var all map[string]any
	data, err := r.file("uv.toml")
	if err == nil {
		err = deep.UnmarshalTOML(data, &all)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if key := r.setting(all); err != nil || key != "" {
		return refusal("uv.toml", 0, key, cmp.Or(err, why))
	}
	if p != nil {
		if key := r.setting(p.Tool.UV); key != "" {
			return p.refuse(key, why)
		}
	}
	return nil
}

// reasonDependency and reasonBuilds are the details.reason of a refused declaration, and of one
// that needs a build where builds are not allowed.
const (
	reasonDependency = "dependency"
	reasonBuilds     = "builds"
)

// refusal makes an error of the refused word, its file and line, and why. An error about another file is returned as it is.
func refusal(file string, line int, word string, err error) error {
	if typed := new(toolmesh.Error); errors.As(err, &typed) {
		return err
	}
	if line > 0 {
		file = fmt.Sprintf("%s line %d", file, line)
	}
	if word = redact(word); len(word) > 300 {
		word = strings.ToValidUTF8(word[:300], "") + "…"
	}
	return failed(nil, "", "%s: %q is not accepted: %v", file, word, err).WithDetail("reason", reasonDependency)
}

// file reads a file of the tree. A missing file is fs.ErrNotExist.
func (r *reader) file(name string) ([]byte, error) {
	info, err := r.root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", name)
	}
	if err != nil {
		return nil, err
	}
	f, err := r.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, r.left+1))
	if r.left -= int64(len(data)); err == nil && (r.left < 0 || len(r.read)+len(r.projects) > maxDependencyFiles) {
		err = fmt.Errorf("the dependencies are declared in more than %d files or %d MB", maxDependencyFiles, maxDependencyBytes>>20)
	}
	return data, err
}

// requirements appends a requirements file, and the files that it includes, to the list to.
func (r *reader) requirements(name string, to *[]requirement) error {
	key := fmt.Sprint(name, to == &r.d.constraints)
	if r.read[key] {
		return nil
	}
	r.read[key] = true
	data, err := r.file(name)
	if err != nil {
		return fmt.Errorf("it cannot be read in the index's folder: %w", err)
	}
	for _, line := range logical(data) {
		if err := r.requirement(name, line, to); err != nil {
			return refusal(name, line.number, line.text, err)
		}
	}
	return nil
}

// requirement reads a line of a requirements file.
func (r *reader) requirement(name string, line line, to *[]requirement) error {
	if !clean(line.text) {
		return errControl
	}
	m := optionPattern.FindStringSubmatch(line.text)
	option, value := m[1], strings.Trim(strings.TrimSpace(m[2]), `"'`)
	switch option {
	case "-e", "--editable": // an installed index does not change
		line.text = value
	case "-r", "--requirement", "-c", "--constraint":
		if isAddress(value) || path.IsAbs(value) || strings.Contains(value, "${") {
			return errors.New("only files in the index's folder are read: copy it there and write its path")
		}
		if strings.HasPrefix(strings.TrimLeft(option, "-"), "c") {
			to = &r.d.constraints
		}
		return r.requirements(path.Join(path.Dir(name), value), to)
	case "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--trusted-host":
		if !r.allowed(option, value) {
			return errors.New("where packages come from is a setting of the agent, not of an index: " +
				"leave it out, or have the operator set UV_DEFAULT_INDEX, UV_INDEX or UV_FIND_LINKS for the agents")
		}
		return nil
	case "--prefer-binary", "--use-feature": // the default here, and a setting of pip itself
		return nil
	case "--pre":
		r.d.args = append(r.d.args, "--prerelease=allow")
		return nil
	case "--require-hashes":
		r.d.hashed = true
		return nil
	case "--no-binary", "--only-binary":
		for one := range strings.SplitSeq(value, ",") {
			if one != ":all:" && one != ":none:" && !wholeName.MatchString(one) {
				return errors.New("it names no package")
			}
			r.d.args = append(r.d.args, option+"="+one)
		}
		return nil
	}
	if strings.HasPrefix(line.text, "-") {
		return errors.New("this option is not supported: leave it out")
	}
	q, err := r.line(line.text)
	if err == nil {
		*to = append(*to, q)
	}
	return err
}

// optionPattern splits a line that may be an option.
var (
	optionPattern = regexp.MustCompile(`^(--[^\s=]*|-[^-]|)\s*=?(.*)$`)
	hashOfLine    = regexp.MustCompile(`--hash[= ]\s*["']?((?:sha256|sha384|sha512):[0-9A-Fa-f]+)["']?(?:\s|$)`)
)

var errControl = errors.New("it contains a control character or is not UTF-8")

// line parses a line of a requirements file: a requirement with its options.
func (r *reader) line(text string) (requirement, error) {
	text, options, has := strings.Cut(text, " -")
	q, err := r.parse(text, ".")
	if err != nil {
		return q, err
	}
	options = "-" + options
	for _, m := range hashOfLine.FindAllStringSubmatch(options, -1) {
		q.hashes = append(q.hashes, strings.ToLower(m[1]))
	}
	if rest := strings.TrimSpace(hashOfLine.ReplaceAllString(options, "")); has && rest != "" {
		option, _, _ := strings.Cut(strings.Fields(rest)[0], "=")
		return q, fmt.Errorf("its option %s is not supported: write hashes as --hash=sha256:DIGEST and leave other options out", redact(option))
	}
	if len(q.hashes) > 0 && !q.oneFile() {
		return q, errors.New("a hash needs exactly one version (==1.2.3), a wheel or an archive")
	}
	return q, r.project(q.path)
}

// oneFile reports whether a requirement names exactly one version, a wheel or an archive.
func (q requirement) oneFile() bool {
	if q.path == "" && q.url == "" {
		return release(q.write("")) != "" && !strings.Contains(q.spec, "*")
	}
	return archive.MatchString(withoutFragment(q.path + q.url))
}
