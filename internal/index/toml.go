package index

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deep"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Bounds on the tools of one index, and on a tool's name in bytes.
const (
	maxTools    = 20_000
	maxToolName = 512
)

func findTOML(fsys fs.FS) string { return firstFile(fsys, "tools.toml") }

// loadTOML reads a tools.toml, our own convention. A mistake that would lose its meaning silently is
// an error (a wrong type, an override for an undeclared tool); an unknown key, which other readers of
// the file may use, is a warning.
func loadTOML(data []byte, file string) (*Manifest, error) {
	var top map[string]any
	if err := deep.UnmarshalTOML(data, &top); err != nil {
		return nil, failed(reasonManifest, "%s cannot be read: %s", file, tomlText(err)).WithDetail("file", file)
	}
	index, ok := top["index"].(map[string]any)
	if !ok {
		has := "it is empty"
		if len(top) > 0 {
			has = "it has " + some(slices.Sorted(maps.Keys(top)), 5)
		}
		return nil, failed(reasonManifest, "%s has no [index] table (%s): it is another program's format; ours is %s", file, has, example).
			WithDetail("file", file)
	}
	r := &reader{table: "index", tool: "tool"}
	m := &Manifest{Convention: file}
	s := &section{reader: r, name: r.table, values: index}
	names := r.listTools(m, s)
	tables := r.toolTables(m, top)
	commands := maps.Clone(tables)
	maps.DeleteFunc(commands, func(_ string, values map[string]any) bool { return !isCommand(values) })
	if s.values["tools"] != nil || len(commands) == 0 {
		r.toolNames(s, names, func(name string) string {
			if commands[name] != nil {
				return ""
			}
			return badToolName(name)
		})
	}
	r.addCommands(m, commands)
	s.text("python", &m.Python)
	r.index(m, s)
	r.tools(m, tables)
	(&section{reader: r, values: top, known: []string{"index", "tool"}}).close()
	return r.done(m, file)
}

// reader reads the tables of [index] and [tool], under the names of each convention, and
// collects all problems of a file.
type reader struct {
	table string                   // the name of the index's table: "index"
	tool  string                   // the name of the table of tools: "tool"
	full  func(name string) string // a tool's full name, by the written one; nil: the same

	defaults  Tool // the declaration for all tools
	problems  notes
	warnings  notes
	suggested int            // names that were looked for among others
	variables map[string]int // their places in the manifest
}

// maxNotes bounds the problems and the warnings of a file that are shown, and the suggestions;
// maxNote bounds the bytes of one.
const (
	maxNotes = 20
	maxNote  = 1000
)

// notes are the first of a file's problems or warnings.
type notes struct {
	first []string
	more  int
}

func (n *notes) add(text string) {
	if len(n.first) == maxNotes {
		n.more++
		return
	}
	if len(text) > maxNote { // a text may be as long as the file
		text = strings.ToValidUTF8(text[:maxNote], "") + "…"
	}
	n.first = append(n.first, text)
}

// done ends the reading of a file: with the manifest, or with all its problems.
func (r *reader) done(m *Manifest, file string) (*Manifest, error) {
	if all := r.problems.first; len(all) > 0 {
		text := all[0]
		if more := len(all) - 1 + r.problems.more; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
		return nil, failed(reasonManifest, "%s: %s", file, text).WithDetail("file", file).WithDetail("errors", all)
	}
	m.Warnings = append(m.Warnings, r.warnings.first...)
	if more := r.warnings.more; more > 0 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("%s: %d more warnings like these", file, more))
	}
	return m, nil
}

// named returns the full name of a tool that the author may have shortened.
func (r *reader) named(name string) string {
	if r.full != nil {
		return r.full(name)
	}
	return name
}

func (r *reader) problem(key, format string, args ...any) {
	r.problems.add(key + " " + fmt.Sprintf(format, args...))
}

// suggest names similar keys. Each search takes time for all the names, so an author of many wrong
// ones gets a few.
func (r *reader) suggest(name string, among []string) string {
	if r.suggested++; r.suggested > maxNotes {
		return ""
	}
	if near := tool.Nearest(name, among, 1); len(near) > 0 {
		return fmt.Sprintf("; did you mean %q?", near[0])
	}
	return ""
}

// section is one table, with the keys that were read.
type section struct {
	*reader
	name   string
	values map[string]any
	known  []string
}

// take puts the value of a key into to, and reports whether there is one of the type. Another
// type is a problem, and want names the right one.
func take[T any](s *section, key, want string, to *T) bool {
	s.known = append(s.known, key)
	raw, has := s.values[key]
	if !has {
		return false
	}
	v, ok := raw.(T)
	if !ok {
		s.problem(s.key(key), "must be %s, not %s", want, typeName(raw))
		return false
	}
	*to = v
	return true
}

// parsed is take for a text that is parsed.
func parsed[T any](s *section, key, want string, parse func(text string) (T, error), to *T) {
	var text string
	if !take(s, key, want, &text) {
		return
	}
	v, err := parse(text)
	if err != nil {
		s.problem(s.key(key), "must be %s, not %q: %v", want, text, err)
		return
	}
	*to = v
}

func (s *section) key(key string) string {
	if s.name == "" {
		return key
	}
	return "[" + s.name + "] " + key
}

// close warns of the keys that were not read.
func (s *section) close() {
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if slices.Contains(s.known, key) {
			continue
		}
		text := fmt.Sprintf("unknown key %q", key)
		if s.name != "" {
			text += " in [" + s.name + "]"
		}
		s.warnings.add(text + s.suggest(key, s.known))
	}
}

func (s *section) text(key string, to *string) bool { return take(s, key, "a text", to) }

func (s *section) boolean(key string, to *bool) { take(s, key, "true or false", to) }

func (s *section) count(key string, to *int) {
	var v int64
	switch ok := take(s, key, "a whole number", &v); {
	case ok && (v < 1 || v > math.MaxInt32):
		s.problem(s.key(key), "must be a number from 1 on, not %d", v)
	case ok:
		*to = int(v)
	}
}

func (s *section) duration(key string, to *time.Duration) {
	aboveZero(s, key, `a duration text such as "2s" or "5m"`, time.ParseDuration, to)
	*to = min(*to, toolmesh.MaxTime)
}

func (s *section) size(key string, to *tool.Size) {
	aboveZero(s, key, `a size text such as "200MB" or "10KB"`, tool.ParseSize, to)
}

func aboveZero[T time.Duration | tool.Size](s *section, key, want string, parse func(text string) (T, error), to *T) {
	parsed(s, key, want, func(text string) (T, error) {
		v, err := parse(text)
		if err == nil && v <= 0 {
			err = errors.New("it is not above zero")
		}
		return v, err
	}, to)
}

func (s *section) list(key string, to *[]string) bool {
	var raw []any
	if !take(s, key, "a list of texts", &raw) {
		return false
	}
	texts := make([]string, len(raw))
	for i, item := range raw {
		text, ok := item.(string)
		if !ok {
			s.problem(s.key(key), "must be a list of texts, but item %d is %s", i+1, typeName(item))
			return false
		}
		texts[i] = text
	}
	*to = texts
	return true
}

func typeName(v any) string {
	switch v.(type) {
	case string:
		return "a text"
	case int, int64:
		return "a whole number"
	case float64:
		return "a fraction"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	case []map[string]any:
		return "a list of tables"
	case map[string]any:
		return "a table"
	case time.Time:
		return "a date"
	default:
		return fmt.Sprintf("a %T", v)
	}
}

// index reads the keys of an index's table that all conventions share. The
// names of the tools are known by then.
func (r *reader) index(m *Manifest, s *section) {
	s.text("description", &m.Description)
	var name string
	if s.text("name", &name) {
		m.Name = subjects.IndexName(name)
		if token(name) != m.Name || name == "" {
			r.problem(s.key("name"), "must be up to 64 of A-Z a-z 0-9 _ -, not %q", name)
		}
	}
	if s.list("init", &m.Init) && (len(m.Init) == 0 || m.Init[0] == "") {
		r.problem(s.key("init"), "must name a command: init = [\"python\", \"setup_data.py\"]")
	}
	if strings.ContainsRune(strings.Join(m.Init, ""), 0) {
		r.problem(s.key("init"), "has a NUL in it, which no program can be given")
	}
	r.paths(s, m)
	s.count("concurrency", &m.Concurrency)
	r.defaults.Concurrency = m.Concurrency
	r.env(s, m)
	r.declared(s, &r.defaults)
	r.shared(m, s)
	s.close()
}

// maxShared bounds the bytes that the declarations for all tools take in the descriptions of the tools.
const maxShared = 16 << 20

// shared refuses declarations for all tools that are long, as each tool has them.
func (r *reader) shared(m *Manifest, s *section) {
	for key, value := range map[string]any{"metadata": r.defaults.metadata, "resource_key": r.defaults.ResourceKey.Parts} {
		if data, _ := json.Marshal(value); len(data)*len(m.Tools) > maxShared { // without JSON it is a problem already
			r.problem(s.key(key), "takes %d bytes in each of %d tools; all may take %d MB: write it for the tools that need it", len(data), len(m.Tools), maxShared>>20)
		}
	}
}

// listTools declares the functions that an index's table lists, and returns their names.
func (r *reader) listTools(m *Manifest, s *section) (names []string) {
	s.list("tools", &names)
	for _, name := range names {
		m.declare(name, Tool{Function: name})
	}
	return names
}

// toolNames checks the names of an index's tools; bad returns the fault of one.
func (r *reader) toolNames(s *section, names []string, bad func(name string) string) {
	if items, ok := s.values["tools"].([]any); len(names) == 0 && (s.values["tools"] == nil || ok && len(items) == 0) {
		r.problem(s.key("tools"), "must list at least one tool by the name of its function")
	}
	if len(names) > maxTools {
		r.problem(s.key("tools"), "lists %d tools; at most %d are possible", len(names), maxTools)
		return
	}
	seen := map[string]int{}
	for i, name := range names {
		if why := bad(name); why != "" {
			r.problem(s.key("tools"), "has %q, %s", name, why)
		}
		if first, twice := seen[name]; twice {
			r.problem(s.key("tools"), "lists %q twice, as items %d and %d", name, first+1, i+1)
		}
		seen[name] = i
	}
}

// badToolName is the fault of a tool's name, "" without one.
func badToolName(name string) string {
	parts := strings.Split(name, ".")
	if len(name) > maxToolName {
		return "which is longer than 512 bytes"
	}
	if len(parts) < 2 {
		return "which has no module: write module.function"
	}
	for _, part := range parts {
		if part == "" {
			return "which has an empty part: write module.function"
		}
		for i, c := range part {
			if c != '_' && !unicode.IsLetter(c) && (i == 0 || !unicode.IsDigit(c)) {
				return fmt.Sprintf("whose part %q is not a Python name: write module.function", part)
			}
		}
	}
	return ""
}

// tables calls see with each table of a list.
func (s *section) tables(key, want string, see func(one *section)) {
	var items []any
	if tables, ok := s.values[key].([]map[string]any); ok {
		s.known = append(s.known, key)
		for _, one := range tables {
			items = append(items, one)
		}
	} else {
		take(s, key, want, &items)
	}
	for i, item := range items {
		values, ok := item.(map[string]any)
		if !ok {
			s.problem(s.key(key), "must be %s, but item %d is %s", want, i+1, typeName(item))
			return
		}
		one := &section{reader: s.reader, name: fmt.Sprintf("%s.%s %d", s.name, key, i+1), values: values}
		see(one)
		one.close()
	}
}

func (r *reader) env(s *section, m *Manifest) {
	s.tables("env", "tables, each written [["+r.table+".env]]", func(e *section) {
		var v EnvVar
		e.text("name", &v.Name)
		e.boolean("required", &v.Required)
		e.boolean("secret", &v.Secret)
		e.text("description", &v.Description)
		e.list("tools", &v.Tools)
		if err := CheckVariable(v.Name); err != nil {
			r.problem(e.key("name"), "%s", err.Error())
		} else if _, again := r.variable(m, v.Name); again {
			r.problem(e.key("name"), "declares %s a second time", v.Name)
		}
		for i, name := range v.Tools {
			if v.Tools[i] = r.named(name); !m.lists(v.Tools[i]) {
				r.problem(e.key("tools"), "names %q, which is not in [%s] tools%s", name, r.table, r.suggest(name, m.Tools))
			}
		}
		m.Env = append(m.Env, v)
	})
}

// variable is the place of a variable in the manifest, or the next one, and reports whether it was there.
func (r *reader) variable(m *Manifest, name string) (at int, again bool) {
	if r.variables == nil {
		r.variables = map[string]int{}
	}
	if at, again = r.variables[name]; !again {
		at = len(m.Env)
		r.variables[name] = at
	}
	return at, again
}

func (r *reader) paths(s *section, m *Manifest) {
	s.tables("paths", `a list of tables: paths = [{path = "/data", write = true}]`, func(one *section) {
		var p Folder
		one.text("path", &p.Path)
		one.boolean("write", &p.Write)
		if err := p.Check(); err != nil {
			r.problem(one.key("path"), "%s", err.Error())
		}
		m.Paths = append(m.Paths, p)
	})
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckVariable refuses a name that cannot be a variable of an index's tools.
func CheckVariable(name string) error {
	if !envName.MatchString(name) {
		return fmt.Errorf("must be the name of a variable, not %q", name)
	}
	if slices.Contains([]string{"PATH", "HOME", "LANG", "TMPDIR"}, name) {
		return fmt.Errorf("%s is given to every tool by its node", name)
	}
	return nil
}

// toolTables returns the tables of tools in another table, by the written names.
func (r *reader) toolTables(m *Manifest, in map[string]any) map[string]map[string]any {
	found := map[string]map[string]any{}
	if table, ok := in["tool"].(map[string]any); ok {
		r.toolTablesBelow(m, found, "", table)
	} else if in["tool"] != nil {
		r.problem(r.tool, "must be a table of tools: [%s.\"module.function\"]", r.tool)
	}
	return found
}

// toolTablesBelow joins the names that were written without quotes, which arrive as nested
// tables.
func (r *reader) toolTablesBelow(m *Manifest, found map[string]map[string]any, prefix string, table map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		name := prefix + key
		values, ok := table[key].(map[string]any)
		switch {
		case !ok:
			r.unlisted(m, name)
		case isCommand(values), m.lists(r.named(name)), !onlyTables(values), len(name) > maxToolName:
			if found[name] != nil {
				r.problem("["+r.tool+"."+name+"]", "is written twice, with and without quotes")
			}
			found[name] = values
		default:
			r.toolTablesBelow(m, found, name+".", values)
		}
	}
}

func onlyTables(values map[string]any) bool {
	for _, value := range values {
		if _, ok := value.(map[string]any); !ok {
			return false
		}
	}
	return len(values) > 0
}

func (r *reader) unlisted(m *Manifest, name string) {
	r.problem("["+r.tool+"."+name+"]", "is for a tool that [%s] tools does not list%s", r.table, r.suggest(r.named(name), m.Tools))
}

// tools reads the tables of tools, each in addition to the index's table for all.
func (r *reader) tools(m *Manifest, tables map[string]map[string]any) {
	for name, t := range m.tools {
		t.Annotations, t.metadata = r.defaults.Annotations, r.defaults.metadata
		m.tools[name] = t
	}
	for _, written := range slices.Sorted(maps.Keys(tables)) {
		name := r.named(written)
		if !m.lists(name) {
			r.unlisted(m, written)
			continue
		}
		t := m.tools[name]
		s := &section{reader: r, name: r.tool + "." + written, values: tables[written]}
		if t.Command != nil {
			s.known = append(s.known, commandKeys...)
		}
		s.text("description", &t.description)
		r.declared(s, &t)
		_, t.ownTTL = tables[written]["cache_ttl"]
		s.close()
		m.tools[name] = t
	}
}

// declared reads the keys that [index] and [tool] share.
func (r *reader) declared(s *section, d *Tool) {
	var table map[string]any
	if take(s, "metadata", "a table: metadata = { key = \"value\" }", &table) {
		d.metadata = maps.Clone(d.metadata)
		if d.metadata == nil {
			d.metadata = map[string]any{}
		}
		datesAsTexts(table)
		if _, err := json.Marshal(table); err != nil {
			r.problem(s.key("metadata"), "has a value that JSON cannot express, such as nan or inf: %v", err)
		}
		maps.Copy(d.metadata, table)
	}
	s.duration("timeout", &d.Timeout)
	s.boolean("idempotent", &d.Idempotent)
	if take(s, "parallel_safe", "true or false", &d.ParallelSafe) {
		d.Alone = !d.ParallelSafe
	}
	s.boolean("read_only", &d.ReadOnly)
	s.duration("cache_ttl", &d.CacheTTL)
	s.boolean("cache_shared", &d.CacheShared)
	s.boolean("collect", &d.Collect)
	parsed(s, "results", "a check", tool.ParseResultCheck, &d.Results)
	parsed(s, "lane_scope", "a scope", tool.ParseLaneScope, &d.LaneScope)
	parsed(s, "isolation", "an isolation", tool.ParseIsolation, &d.Isolation)
	parsed(s, "sandbox", "a level", tool.ParseSandbox, &d.Sandbox)
	r.resourceKey(s, &d.ResourceKey)
	if take(s, "limits", `a table: limits = { memory = "200MB" }`, &table) {
		l := &section{reader: r, name: s.name + ".limits", values: table}
		l.duration("cpu_time", &d.Limits.CPUTime)
		l.size("memory", &d.Limits.Memory)
		l.size("temp_files", &d.Limits.TempFiles)
		l.size("output", &d.Limits.Output)
		l.count("pids", &d.Limits.Pids)
		l.count("open_files", &d.Limits.OpenFiles)
		l.close()
	}
}

func (r *reader) resourceKey(s *section, to *tool.ResourceKey) {
	var key tool.ResourceKey
	if text, ok := s.values["resource_key"].(string); ok {
		s.known = append(s.known, "resource_key")
		key = tool.ParseResourceKey(text)
	} else if !s.list("resource_key", &key.Parts) {
		return
	}
	if key.IsZero() {
		r.problem(s.key("resource_key"), "must not be empty; leave it out for the default")
	} else if err := key.Check(); err != nil {
		r.problem("["+s.name+"]", "%v", err)
	} else {
		*to = key
	}
}

// datesAsTexts writes the dates and times below a TOML value as their author did:
// the TOML reader marks those without a zone by the name of their location.
func datesAsTexts(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, child := range v {
			v[key] = datesAsTexts(child)
		}
	case []map[string]any:
		for _, child := range v {
			datesAsTexts(child)
		}
	case []any:
		for i, child := range v {
			v[i] = datesAsTexts(child)
		}
	case time.Time:
		layout, local := localLayouts[v.Location().String()]
		if !local {
			layout = time.RFC3339Nano
		}
		return v.Format(layout)
	}
	return v
}

var localLayouts = map[string]string{
	"datetime-local": "2006-01-02T15:04:05.999999999", "date-local": time.DateOnly, "time-local": "15:04:05.999999999",
}
