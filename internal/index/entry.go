package index

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// entryGroup is the group of entry points that are tools.
const entryGroup = "toolmesh.tools"

// findEntries finds a Python project that names its tools as entry points.
func findEntries(fsys fs.FS) string {
	// A file that cannot be read names no tools: the next reader of it says why.
	data, err := readBounded(fsys, firstFile(fsys, "pyproject.toml"))
	if err != nil {
		return ""
	}
	project, err := readProject(data)
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

// loadEntries reads the entry points, and [tool.toolmesh] for everything else. A tool's
// name is its entry's. An entry that is not a function does not affect the others, and
// neither does one whose function is missing.
func loadEntries(data []byte, file string) (*Manifest, error) {
	project, err := readProject(data)
	if err != nil {
		return nil, err
	}
	r := &reader{table: "tool.toolmesh", tool: "tool.toolmesh.tool"}
	m := &Manifest{Convention: file}
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
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		function, why := entryFunction(name, entries[name])
		if why == "" {
			m.declare(name, Tool{Function: function})
			continue
		}
		wrong = append(wrong, why)
		if badEntryName(name) { // no tool can be listed
			r.warnings.add(group + " has " + why)
			continue
		}
		m.declare(name, Tool{Refused: "its entry point is " + why})
	}
	if len(wrong) == len(entries) { // nothing can be served
		for _, why := range wrong {
			r.problem(group, "has %s", why)
		}
	}
	s := r.ownTable(project.Tool)
	tables := r.toolTables(m, s.values)
	r.index(m, s)
	r.tools(m, tables)
	if text, ok := project.Project.Description.(string); ok && m.Description == "" {
		m.Description = text
	}
	return r.done(m, file)
}

// badEntryName reports whether an entry's name cannot be a tool's.
func badEntryName(name string) bool { return !commandName.MatchString(name) || len(name) > 512 }

// entryFunction reads an entry, name = "module:function", as module.function; why is its
// fault.
func entryFunction(name string, entry any) (function, why string) {
	value, ok := entry.(string)
	if !ok {
		return "", fmt.Sprintf("%s = %s, not a text: write %s = \"module:function\"", name, typeName(entry), name)
	}
	module, attribute, ok := strings.Cut(strings.TrimSpace(value), ":")
	module, attribute = strings.TrimSpace(module), strings.TrimSpace(attribute)
	function = module + "." + attribute
	switch {
	case !ok:
		why = "which names no function: write module:function"
	case strings.Contains(attribute, "["):
		why = "which asks for extras: list their packages in dependencies"
	case strings.Contains(attribute, "."):
		why = "which is not a function of its module: write module:function"
	default:
		why = badToolName(function)
	}
	if why == "" && badEntryName(name) {
		why = "whose name cannot be a tool's: write letters, digits, _ and -, in parts of at most 64 with dots between"
	}
	if why != "" {
		return "", fmt.Sprintf("%s = %q, %s", name, value, why)
	}
	return function, ""
}
