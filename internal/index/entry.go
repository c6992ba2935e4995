package index

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// entryGroup is the group of entry points that are tools.
const entryGroup = "toolmesh.tools"

// entryLoader reads a Python project that names its tools as entry points.
type entryLoader struct{}

func (entryLoader) find(fsys fs.FS) string {
	if firstFile(fsys, "pyproject.toml") == "" {
		return ""
	}
	// A file that cannot be read names no tools: who else wants it says why.
	project, err := readProject(fsys)
	if err != nil || project.Project.EntryPoints[entryGroup] == nil && !unquoted(project) {
		return ""
	}
	return "pyproject.toml"
}

// unquoted reports whether the group is written without its quotes, which makes
// two tables of it.
func unquoted(project *pyproject) bool {
	table, ok := project.Project.EntryPoints["toolmesh"].(map[string]any)
	_, nested := table["tools"].(map[string]any)
	return ok && nested
}

// load reads the entry points, and [tool.toolmesh] for everything else. A tool's
// name is its entry's.
func (entryLoader) load(fsys fs.FS, file string) (*Manifest, error) {
	project, err := readProject(fsys)
	if err != nil {
		return nil, err
	}
	r := &reader{table: "tool.toolmesh", tool: "tool.toolmesh.tool"}
	m := &Manifest{Convention: file, overrides: map[string]overrides{}, functions: map[string]string{}}
	const group = `[project.entry-points."` + entryGroup + `"]`
	entries, ok := project.Project.EntryPoints[entryGroup].(map[string]any)
	switch {
	case project.Project.EntryPoints[entryGroup] == nil:
		r.problem(group, "must be written with the quotes")
	case !ok:
		r.problem(group, "must be a table: name = \"module:function\"")
	case len(entries) == 0:
		r.problem(group, "names no tool: write name = \"module:function\"")
	case len(entries) > maxTools:
		r.problem(group, "names %d tools; at most %d are possible", len(entries), maxTools)
		entries = nil
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		value, ok := entries[name].(string)
		if !ok {
			r.problem(group, "has %s = %s, not a text: write %s = \"module:function\"", name, typeName(entries[name]), name)
			continue
		}
		function, why := entryFunction(value)
		if why == "" && (!commandName.MatchString(name) || len(name) > 512) {
			why = "whose name is no tool's: write letters, digits, _ and -, in parts of at most 64 with dots between"
		}
		if why != "" {
			r.problem(group, "has %s = %q, %s", name, value, why)
			continue
		}
		m.Tools = append(m.Tools, name)
		m.functions[name] = function
	}
	table := map[string]any{}
	if own, has := project.Tool["toolmesh"]; has {
		if table, ok = own.(map[string]any); !ok {
			r.problem("[tool.toolmesh]", "must be a table, not %s", typeName(own))
		}
	}
	s := &section{reader: r, name: r.table, values: table, known: []string{"tool"}}
	r.index(m, s)
	r.tools(m, "", r.toolTable(table), 0)
	if text, ok := project.Project.Description.(string); ok && m.Description == "" {
		m.Description = text
	}
	return r.done(m, file)
}

// entryFunction reads module:function as module.function; why says what is wrong
// with it.
func entryFunction(value string) (function, why string) {
	module, attribute, ok := strings.Cut(strings.TrimSpace(value), ":")
	module, attribute = strings.TrimSpace(module), strings.TrimSpace(attribute)
	switch {
	case !ok:
		return "", "which names no function: write module:function"
	case strings.Contains(attribute, "["):
		return "", "which asks for extras: list their packages in dependencies"
	case strings.Contains(attribute, "."):
		return "", "which is not a function of its module: write module:function"
	}
	function = module + "." + attribute
	return function, badToolName(function)
}
