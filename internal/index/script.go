package index

import (
	"io/fs"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh/internal/deep"
)

// findScript returns the one .py file of a folder if its dependencies are in a comment (PEP 723).
func findScript(fsys fs.FS) string {
	names, err := fs.Glob(fsys, "*.py")
	if err != nil || len(names) != 1 {
		return ""
	}
	data, err := readBounded(fsys, names[0])
	if err != nil || !scriptBegin.MatchString(pythonText(data)) {
		return ""
	}
	return names[0]
}

// A block and its content. A block that is never closed is none, as the PEP says,
// and the last line of the comment that can close it does.
var (
	scriptBegin = regexp.MustCompile(`(?m)^# /// script$`)
	scriptBlock = regexp.MustCompile(`(?m)^# /// script\n((?:#(?: .*)?\n)+)# ///$`)
	commentMark = regexp.MustCompile(`(?m)^# ?`)
)

// scriptExample is the smallest block, for messages.
const scriptExample = "# /// script, # dependencies = [], # ///, each on a line of its own"

// pythonText is a source file with the line breaks that Python sees.
func pythonText(data []byte) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(string(data), "\ufeff"))
}

// A dependency is given to the resolver on a line of its own, where a dash would
// make an option of it.
var requirement = regexp.MustCompile(`^[A-Za-z0-9]`)

// moduleName matches a file's stem that an import can find.
var moduleName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)

func loadScript(data []byte, file string) (*Manifest, error) {
	bad := func(format string, args ...any) error {
		return failed(reasonManifest, "%s: "+format, append([]any{file}, args...)...).WithDetail("file", file)
	}
	stem := strings.TrimSuffix(file, ".py")
	switch {
	case !utf8.Valid(data):
		return nil, bad("it is not UTF-8; save it as UTF-8")
	case !moduleName.MatchString(stem) || strings.HasPrefix(stem, "__"):
		return nil, bad("a file of this name cannot be imported; call it by up to 64 letters, digits and _")
	}
	text := pythonText(data)
	blocks := scriptBlock.FindAllStringSubmatch(text, -1)
	switch len(blocks) {
	case 1:
	case 0:
		return nil, bad("its script block is never closed, or empty: %s", scriptExample)
	default:
		return nil, bad("it has %d script blocks; a file may have one", len(blocks))
	}
	var top map[string]any
	if err := deep.UnmarshalTOML([]byte(commentMark.ReplaceAllString(blocks[0][1], "")), &top); err != nil {
		return nil, bad("its script block cannot be read: %s (lines are counted in the block)", tomlText(err))
	}
	r := &reader{table: "tool.toolmesh", tool: "tool.toolmesh.tool", full: func(name string) string {
		if strings.HasPrefix(name, stem+".") {
			return name
		}
		return stem + "." + name
	}}
	m := &Manifest{Convention: file, Dependencies: file, script: true}
	r.requirements(m, top)
	s := r.ownTable(top["tool"])
	r.scriptTools(m, s, functionsOf(text), stem)
	tables := r.toolTables(m, s.values)
	r.index(m, s)
	r.tools(m, tables)
	return r.done(m, file)
}

// ownTable returns the table [tool.toolmesh] of a file that has others' too.
func (r *reader) ownTable(tools any) *section {
	all, _ := tools.(map[string]any)
	s := &section{reader: r, name: r.table, known: []string{"tool"}}
	take(&section{reader: r, name: "tool", values: all}, "toolmesh", "a table", &s.values)
	return s
}

// requirements reads the keys of the block itself.
func (r *reader) requirements(m *Manifest, top map[string]any) {
	s := &section{reader: r, values: top, known: []string{"tool"}}
	s.text("requires-python", &m.Python)
	s.list("dependencies", &m.Requirements)
	for _, one := range m.Requirements {
		if !requirement.MatchString(one) || strings.ContainsAny(one, "\r\n\x00") {
			r.problem("dependencies", "has %q, which is not a requirement: write a package's name, and a version if need be (\"rich>=13\")", one)
		}
	}
	s.close()
}

// scriptTools names the tools: those that are listed, else every public function.
func (r *reader) scriptTools(m *Manifest, s *section, names []string, stem string) {
	var listed []string
	if s.list("tools", &listed); s.values["tools"] != nil {
		names = listed
	} else if len(names) == 0 {
		r.problem("the file", "defines no function whose name does not begin with _")
		return
	}
	for i, name := range names {
		names[i] = strings.TrimPrefix(name, stem+".")
	}
	r.toolNames(s, names, func(name string) string {
		if strings.Contains(name, ".") || badToolName("m."+name) != "" {
			return "which is not a function of the file: write its name alone"
		}
		return ""
	})
	for _, name := range names {
		m.declare(stem+"."+name, Tool{Function: stem + "." + name})
	}
}
