package index

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deep"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Manifest is an index's description of itself, in any convention. It is
// immutable once loaded.
type Manifest struct {
	// Convention is the kind of manifest: the name of its file.
	Convention string
	// Name is the index's own wish for its name, "" without one.
	Name subjects.IndexName
	// Description is a text for people.
	Description string
	// Tools are the declared tools in the author's order: module.function, or
	// the name that the convention lets the author give.
	Tools []string
	// Python says which versions will do, as a requires-python text (">=3.10");
	// "" without one.
	Python string
	// Dependencies is the file that declares them: pyproject.toml, setup.py,
	// requirements.txt, the script itself, or "" for none.
	Dependencies string
	// Requirements are the dependencies of a script, each a requirement as pip
	// writes it. Meaningful only where Dependencies is the script.
	Requirements []string
	// Init is a command to run once after installing, as its arguments.
	Init []string
	// Env are the declared environment variables.
	Env []EnvVar
	// Paths are the folders that the tools are to have, beyond their own.
	Paths []Folder
	// Concurrency is how many calls of the whole index one node runs at once; 0:
	// the node's slots.
	Concurrency int
	// Warnings are texts for people, e.g. an unknown key.
	Warnings []string

	tools  map[string]Tool // by name
	script bool            // the dependencies are the manifest's own
}

// Tool is a declared tool. Its annotations replace those of the code.
type Tool struct {
	tool.Annotations
	// Function is the Python function behind it, as module.function; empty for a command, and for a
	// tool that is refused.
	Function string
	// Command is the program behind it; nil for a function.
	Command *Command
	// Refused is the fault of its declaration; empty for a tool that can be served.
	Refused string

	description string
	metadata    map[string]any
	ownTTL      bool // cache_ttl is said of this tool, not of all
}

// Tool returns a declared tool.
func (m *Manifest) Tool(name string) Tool { return m.tools[name] }

// declare adds a tool, or declares it anew.
func (m *Manifest) declare(name string, t Tool) {
	if m.tools == nil {
		m.tools = map[string]Tool{}
	}
	if !m.lists(name) {
		m.Tools = append(m.Tools, name)
	}
	m.tools[name] = t
}

func (m *Manifest) lists(name string) bool {
	_, ok := m.tools[name]
	return ok
}

// IsScript reports whether the index is a single file, whose dependencies are
// Requirements and nothing next to it.
func (m *Manifest) IsScript() bool { return m.script }

// EnvVar is an environment variable that an index declares.
type EnvVar struct {
	Name        string   `json:"name"`
	Required    bool     `json:"required"`
	Secret      bool     `json:"secret"`
	Description string   `json:"description,omitempty"`
	Tools       []string `json:"tools,omitempty"` // the tools that need it; empty: all
}

// Folder is a folder that an index's tools are to have: absolute, or below ~/, their home.
type Folder struct {
	Path  string `json:"path"`
	Write bool   `json:"write,omitempty"`
}

// maxPath is the longest path that a system takes, in bytes.
const maxPath = 4096

// Check returns the fault of a path's text, nil without one.
func (p Folder) Check() error {
	below, home := strings.CutPrefix(p.Path, "~/")
	switch {
	case !filepath.IsAbs(p.Path) && !home, home && !filepath.IsLocal(below):
		return fmt.Errorf("must be an absolute path, or one below ~/, not %q", p.Path)
	case !utf8.ValidString(p.Path) || strings.ContainsRune(p.Path, 0):
		return fmt.Errorf("must be UTF-8 text, not %q", p.Path)
	case len(p.Path) > maxPath:
		return fmt.Errorf("must be at most %d bytes long", maxPath)
	}
	return nil
}

// ParseFolder reads DIR, DIR:ro or DIR:rw.
func ParseFolder(text string) (Folder, error) {
	path, write := strings.CutSuffix(text, ":rw")
	p := Folder{Path: strings.TrimSuffix(path, ":ro"), Write: write}
	return p, p.Check()
}

// Descriptor completes the description of a tool by its code with the manifest, which wins. ref's
// name becomes the first part of the id. An undeclared name, a resource key with an unknown
// parameter and a schema that does not compile are install_failed. Such a tool is described all the
// same if it can be: without its key, and if need be without all of its annotations.
func (m *Manifest) Descriptor(ref tool.IndexRef, name string, code tool.Descriptor) (d *tool.Descriptor, err error) {
	if !m.lists(name) {
		return nil, failed(reasonManifest, "%s does not declare the tool %q", m.Convention, name)
	}
	own, streaming := m.Tool(name), code.Annotations.Streaming
	d = &code
	d.ID, d.Name, d.Index = subjects.ToolID(string(ref.Name)+"."+name), name, &ref
	d.Description, d.Source = cmp.Or(own.description, d.Description), cmp.Or(d.Source, tool.SourceImport)
	d.Annotations = own.Annotations
	d.Annotations.Streaming = streaming
	if streaming && !own.ownTTL {
		d.Annotations.CacheTTL = 0 // a declaration for all tools applies to those that can have it
	}
	if len(own.metadata) > 0 {
		d.Metadata, _ = json.Marshal(own.metadata) // it was written as JSON when it was read
	}
	if v, err := tool.Compile(d.InputSchema); err == nil {
		d.Warnings = slices.Concat(d.Warnings, v.Warnings())
	}
	if err = check(d); err == nil {
		return d, nil
	}
	d.Annotations.ResourceKey = tool.ResourceKey{}
	if check(d) != nil {
		d.Annotations = tool.Annotations{Streaming: streaming}
	}
	if check(d) != nil {
		d = nil
	}
	return d, err
}

// check returns the fault of a descriptor in words for the index's author.
func check(d *tool.Descriptor) error {
	err := d.Check()
	if err == nil {
		return nil
	}
	e := failed(reasonManifest, "%w", err)
	e.Message = strings.TrimPrefix(toolmesh.AsError(err).Message, fmt.Sprintf("tool %q: ", d.ID))
	return e
}

// EnvOf returns the variables that a tool gets: those for all tools and its own.
func (m *Manifest) EnvOf(name string) []EnvVar {
	var vars []EnvVar
	for _, v := range m.Env {
		if len(v.Tools) == 0 || slices.Contains(v.Tools, name) {
			vars = append(vars, v)
		}
	}
	return vars
}

// loaders are the supported conventions, in the order in which a folder is checked for
// them: our own files come before those of an earlier program, and those before files with
// another main purpose. find returns the name of the manifest in an index's folder, "" without one.
var loaders = []struct {
	find func(fsys fs.FS) string
	load func(data []byte, file string) (*Manifest, error)
}{
	{findTOML, loadTOML},
	{findLegacy, loadLegacy},
	{findEntries, loadEntries},
	{findScript, loadScript},
	// The MCP server loader's seat: last, its manifest names no Python.
}

// ofManifest reports whether a file of an index's folder may be part of the manifest: no
// other file is read to load it.
func ofManifest(name string) bool {
	return strings.HasSuffix(name, ".py") || slices.Contains([]string{"tools.toml", "TOOLS.yml", "TOOLS.yaml", "pyproject.toml", "requirements.txt"}, name)
}

// Load reads the manifest of the index in a folder. All errors are
// install_failed.
func Load(dir string) (*Manifest, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, failed(reasonFolder, "the folder of the index cannot be read: %w", err)
	}
	defer root.Close()
	return LoadFS(root.FS())
}

// LoadFS is [Load] for a file system.
func LoadFS(fsys fs.FS) (*Manifest, error) {
	for _, l := range loaders {
		file := l.find(fsys)
		if file == "" {
			continue
		}
		data, err := readBounded(fsys, file)
		if err != nil {
			return nil, err
		}
		m, err := l.load(data, file)
		if err == nil {
			err = m.finish(fsys)
		}
		if err != nil {
			return nil, err
		}
		return m, nil
	}
	return nil, failed(reasonConvention, "this is no index: there is no tools.toml, TOOLS.yml, pyproject.toml with entry points toolmesh.tools, "+
		"or single .py file with a PEP 723 block (# /// script); write a tools.toml: %s", example)
}

// example is an example of a tools.toml, for messages.
const example = "[index] with tools = [\"module.function\"]"

// maxVariables bounds the variables of an index: each tool is asked for its own among them.
const maxVariables = 1000

// maxKinds bounds the kinds of workers of an index: one of each kind is ready on every node.
const maxKinds = 64

// kind are the declarations that tools in one worker share.
type kind struct {
	toolmesh.Isolation
	tool.Sandbox
	tool.Limits
}

// finish adds the parts that conventions share: dependencies and Python version.
func (m *Manifest) finish(fsys fs.FS) error {
	kinds := map[kind]bool{}
	for _, t := range m.tools {
		kinds[kind{t.Isolation, t.Sandbox, t.Limits}] = true
	}
	if len(kinds) > maxKinds {
		return failed(reasonManifest, "%s declares %d different combinations of isolation, sandbox and limits; at most %d are possible, as each has workers of its own", m.Convention, len(kinds), maxKinds)
	}
	if len(m.Env) > maxVariables {
		return failed(reasonManifest, "%s declares %d variables; at most %d are possible", m.Convention, len(m.Env), maxVariables)
	}
	if m.script {
		return nil
	}
	m.Dependencies = firstFile(fsys, "pyproject.toml", "setup.py", "requirements.txt")
	if m.Dependencies != "pyproject.toml" {
		return nil
	}
	data, err := readBounded(fsys, m.Dependencies)
	if err != nil {
		return err
	}
	project, err := readProject(data)
	if err != nil {
		return err
	}
	if own := project.Project.RequiresPython; own != "" {
		if m.Python != "" && m.Python != own {
			m.Warnings = append(m.Warnings, fmt.Sprintf("python = %q is not used: pyproject.toml says requires-python = %q", m.Python, own))
		}
		m.Python = own
	}
	return nil
}

type pyproject struct {
	Project struct {
		Description    any            `toml:"description"`
		RequiresPython string         `toml:"requires-python"`
		EntryPoints    map[string]any `toml:"entry-points"`
	} `toml:"project"`
	Tool map[string]any `toml:"tool"`
}

func readProject(data []byte) (*pyproject, error) {
	p := new(pyproject)
	if err := deep.UnmarshalTOML(data, p); err != nil {
		return nil, failed(reasonManifest, "pyproject.toml cannot be read: %s", tomlText(err)).WithDetail("file", "pyproject.toml")
	}
	return p, nil
}

// maxManifest bounds every file that is read to know an index.
const maxManifest = 1 << 20

// readBegin reads a file, of a larger one as much as shows that it is.
func readBegin(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxManifest+1))
}

func readBounded(fsys fs.FS, name string) ([]byte, error) {
	data, err := readBegin(fsys, name)
	if err != nil {
		return nil, failed(reasonManifest, "%s cannot be read: %w", name, err).WithDetail("file", name)
	}
	if len(data) > maxManifest {
		return nil, failed(reasonTooLarge, "%s is larger than 1 MB", name).WithDetail("file", name)
	}
	return data, nil
}

func firstFile(fsys fs.FS, names ...string) string {
	for _, name := range names {
		if info, err := fs.Stat(fsys, name); err == nil && info.Mode().IsRegular() {
			return name
		}
	}
	return ""
}

// tomlText is the message of a TOML error with its place, on one line.
func tomlText(err error) string {
	var parse toml.ParseError
	if errors.As(err, &parse) {
		return fmt.Sprintf("line %d: %s", parse.Position.Line, parse.Message)
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
