package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// pinned is the one file that only keeps modules in go.mod and is never built.
const pinned = "deps_pin.go"

// model is the source tree on disk: read once, used by every test.
type model struct {
	root     string // of the module
	packages []source
	parsed   map[string]*ast.File // Go files of the module, tests included, by slash path
	fset     *token.FileSet
	err      error
}

var read = sync.OnceValue(readHouse)

func house(t *testing.T) *model {
	t.Helper()
	m := read()
	if m.err != nil {
		t.Fatal(m.err)
	}
	return m
}

// listed is the part of go list's answer that the tests use.
type listed struct {
	ImportPath     string
	Name           string
	Dir            string
	GoFiles        []string
	CgoFiles       []string
	IgnoredGoFiles []string
	TestGoFiles    []string
	XTestGoFiles   []string
	Deps           []string
	Module         *struct{ Path string }
}

func readHouse() *model {
	m := &model{parsed: make(map[string]*ast.File), fset: token.NewFileSet()}
	m.err = m.read()
	return m
}

func (m *model) read() error {
	out, err := run("", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	m.root = strings.TrimSpace(string(out))
	out, err = run(m.root, "go", "list", "-deps", "-json=ImportPath,Name,Dir,GoFiles,CgoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles,Deps,Module", "./...")
	if err != nil {
		return err
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read go list: %w", err)
		}
		if l.Module == nil || l.Module.Path != module {
			continue
		}
		if err := m.add(l); err != nil {
			return err
		}
	}
	if len(m.packages) == 0 {
		return errors.New("go list names no package of this module")
	}
	return m.watchFolders()
}

// watchFolders reads every folder, so that the go command's test cache notices a new package or
// file: it does not see the reads of go list and git.
func (m *model) watchFolders() error {
	return filepath.WalkDir(m.root, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && name != m.root && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" || d.Name() == "bin") {
			return fs.SkipDir
		}
		return err
	})
}

func (m *model) add(l listed) error {
	p := source{folder: strings.TrimPrefix(strings.TrimPrefix(l.ImportPath, module), "/"), name: l.Name, deps: l.Deps}
	for _, f := range slices.Concat(l.GoFiles, l.CgoFiles, l.IgnoredGoFiles, l.TestGoFiles, l.XTestGoFiles) {
		if f == pinned {
			continue
		}
		file, err := parser.ParseFile(m.fset, filepath.Join(l.Dir, f), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name := f
		if p.folder != "" {
			name = p.folder + "/" + f
		}
		m.parsed[name] = file
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		p.files = append(p.files, f)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(p.imports, imported) {
				p.imports = append(p.imports, imported)
			}
		}
	}
	m.packages = append(m.packages, p)
	return nil
}

// run executes a command in dir and returns its standard output.
func run(dir, name string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out, nil
}

// committed returns the files that git tracks or would track, by slash path.
func (m *model) committed(t *testing.T) []string {
	t.Helper()
	out, err := run(m.root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		t.Skipf("needs a git checkout: %v", err)
	}
	var files []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if name == "" {
			continue
		}
		// A file that was deleted and not yet committed is still listed.
		if info, err := os.Lstat(filepath.Join(m.root, filepath.FromSlash(name))); err == nil && info.Mode().IsRegular() {
			files = append(files, name)
		}
	}
	return files
}
