package index

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/BurntSushi/toml"

	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const tomlFile = "tools.toml"

// maxTools bounds the tools of one index.
const maxTools = 20_000

// tomlLoader reads our own convention.
type tomlLoader struct{}

func (tomlLoader) find(fsys fs.FS) string { return firstFile(fsys, tomlFile) }

func (tomlLoader) load(fsys fs.FS, file string) (*Manifest, error) {
	data, err := readBounded(fsys, file)
	if err != nil {
		return nil, err
	}
	return parseTOML(data)
}

// parseTOML reads a tools.toml. What would silently lose its meaning is an
// error (a wrong type, an override for a tool that is not declared); what other
// readers of the file may use is a warning (an unknown key).
func parseTOML(data []byte) (*Manifest, error) {
	var top map[string]any
	if err := toml.Unmarshal(data, &top); err != nil {
		return nil, failed(reasonManifest, "tools.toml cannot be read: %s", tomlText(err)).WithDetail("file", tomlFile)
	}
	index, ok := top["index"].(map[string]any)
	if !ok {
		keys := slices.Sorted(maps.Keys(top))
		has := "it is empty"
		if len(keys) > 0 {
			has = "it has " + some(keys, 5)
		}
		return nil, failed(reasonManifest, "tools.toml has no [index] table (%s): it is another program's format; ours is %s", has, example).
			WithDetail("file", tomlFile)
	}
	r := &reader{table: "index", tool: "tool"}
	m := &Manifest{Convention: tomlFile, overrides: map[string]overrides{}}
	s := &section{reader: r, name: r.table, values: index}
	table := r.toolTable(top)
	commands := r.commands(table)
	m.Tools = s.list("tools")
	if s.values["tools"] == nil && len(commands) > 0 {
		m.Tools = []string{}
	} else {
		r.toolNames(s, m.Tools, commands)
	}
	r.addCommands(m, commands)
	m.Python, _ = s.text("python")
	r.index(m, s)
	r.tools(m, "", table, 0)
	for _, key := range slices.Sorted(maps.Keys(top)) {
		if key != "index" && key != "tool" {
			r.unknown("", key, []string{"index", "tool"})
		}
	}
	return r.done(m, tomlFile)
}

// reader collects every problem of a file, not the first alone. It reads the
// tables of [index] and [tool], whatever a convention calls them.
type reader struct {
	table string                   // the name of the index's table: "index"
	tool  string                   // the name of the table of tools: "tool"
	full  func(name string) string // a tool's name, of what the author wrote; nil: the same

	problems []string
	warnings []string
}

// done ends the reading of a file: with the manifest, or with all its problems.
func (r *reader) done(m *Manifest, file string) (*Manifest, error) {
	if len(r.problems) > 0 {
		text := r.problems[0]
		if more := len(r.problems) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
		return nil, failed(reasonManifest, "%s: %s", file, text).WithDetail("file", file).WithDetail("errors", r.problems)
	}
	m.Warnings = append(m.Warnings, r.warnings...)
	return m, nil
}

// toolTable returns the table of tools that stands in another one.
func (r *reader) toolTable(in map[string]any) map[string]any {
	tools, ok := in["tool"]
	if !ok {
		return nil
	}
	table, ok := tools.(map[string]any)
	if !ok {
		r.problem(r.tool, "must be a table of tools: [%s.\"module.function\"]", r.tool)
	}
	return table
}

// named returns the full name of a tool that the author may have shortened.
func (r *reader) named(name string) string {
	if r.full != nil {
		return r.full(name)
	}
	return name
}

func (r *reader) problem(key, format string, args ...any) {
	r.problems = append(r.problems, key+" "+fmt.Sprintf(format, args...))
}

func (r *reader) unknown(table, key string, known []string) {
	text := fmt.Sprintf("unknown key %q", key)
	if table != "" {
		text += " in [" + table + "]"
	}
	if near := tool.Nearest(key, known, 1); len(near) > 0 {
		text += fmt.Sprintf("; did you mean %q?", near[0])
	}
	r.warnings = append(r.warnings, text)
}

// section is one table, which knows which of its keys were asked for.
type section struct {
	*reader
	name   string
	values map[string]any
	known  []string
}

// take returns the value of a key. ok is false where it is absent or of another
// type, which is a problem then; want names the type.
func take[T any](s *section, key, want string) (v T, ok bool) {
	s.known = append(s.known, key)
	raw, has := s.values[key]
	if !has {
		return v, false
	}
	if v, ok = raw.(T); !ok {
		s.problem(s.key(key), "must be %s, not %s", want, typeName(raw))
	}
	return v, ok
}

func (s *section) key(key string) string {
	if s.name == "" {
		return key
	}
	return "[" + s.name + "] " + key
}

// close warns of the keys that nobody asked for.
func (s *section) close() {
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if !slices.Contains(s.known, key) {
			s.unknown(s.name, key, s.known)
		}
	}
}

func (s *section) text(key string) (string, bool) { return take[string](s, key, "a text") }

func (s *section) boolean(key string) *bool {
	if v, ok := take[bool](s, key, "true or false"); ok {
		return &v
	}
	return nil
}

func (s *section) count(key string) int {
	v, ok := take[int64](s, key, "a whole number")
	if ok && (v < 1 || v > math.MaxInt32) {
		s.problem(s.key(key), "must be a number from 1 on, not %d", v)
		return 0
	}
	return int(v)
}

func (s *section) duration(key string) *time.Duration {
	text, ok := take[string](s, key, `a duration text such as "2s" or "5m"`)
	if !ok {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		s.problem(s.key(key), `must be a duration such as "2s" or "5m", not %q`, text)
		return nil
	}
	return &d
}

func (s *section) size(key string) tool.Size {
	text, ok := take[string](s, key, `a size text such as "200MB"`)
	if !ok {
		return 0
	}
	v, err := tool.ParseSize(text)
	if err != nil || v <= 0 {
		s.problem(s.key(key), `must be a size such as "200MB" or "10KB", not %q`, text)
		return 0
	}
	return v
}

// list returns a list of texts.
func (s *section) list(key string) []string {
	raw, ok := take[[]any](s, key, "a list of texts")
	if !ok {
		return nil
	}
	texts := make([]string, 0, len(raw))
	for i, item := range raw {
		text, ok := item.(string)
		if !ok {
			s.problem(s.key(key), "must be a list of texts, but item %d is %s", i+1, typeName(item))
			return nil
		}
		texts = append(texts, text)
	}
	return texts
}

// parsed reads a text of a closed set.
func parsed[T any](s *section, key string, parse func(string) (T, error)) *T {
	text, ok := s.text(key)
	if !ok {
		return nil
	}
	v, err := parse(text)
	if err != nil {
		s.problem("["+s.name+"]", "%v", err)
		return nil
	}
	return &v
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

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// index reads the keys of an index's table that all conventions share. The
// names of the tools are known by then.
func (r *reader) index(m *Manifest, s *section) {
	m.Description, _ = s.text("description")
	if name, ok := s.text("name"); ok {
		m.Name = subjects.IndexName(name)
		if token(name) != m.Name || name == "" {
			r.problem(s.key("name"), "must be up to 64 of A-Z a-z 0-9 _ -, not %q", name)
		}
	}
	m.Init = s.list("init")
	if m.Init != nil && (len(m.Init) == 0 || m.Init[0] == "") {
		r.problem(s.key("init"), "must name a command: init = [\"python\", \"setup_data.py\"]")
	}
	m.Concurrency = s.count("concurrency")
	r.env(s, m)
	m.defaults = r.override(s, false)
	if m.defaults.isolation != nil {
		m.Isolation = *m.defaults.isolation
	}
	if m.defaults.sandbox != nil {
		m.Sandbox = *m.defaults.sandbox
	}
	s.close()
}

// toolNames checks the names of functions; those of commands have been checked.
func (r *reader) toolNames(s *section, names []string, commands map[string]map[string]any) {
	if len(names) == 0 {
		if _, ok := s.values["tools"].([]any); ok || s.values["tools"] == nil {
			r.problem(s.key("tools"), "must list at least one tool, each as \"module.function\"")
		}
		return
	}
	if len(names) > maxTools {
		r.problem(s.key("tools"), "lists %d tools; at most %d are possible", len(names), maxTools)
		return
	}
	seen := places{}
	for _, name := range names {
		if _, ok := commands[name]; ok {
		} else if why := badToolName(name); why != "" {
			r.problem(s.key("tools"), "has %q, %s", name, why)
		}
		if why := seen.again(name); why != "" {
			r.problem(s.key("tools"), "lists %q %s", name, why)
		}
	}
}

// places are the items of a list of tools that have been seen.
type places map[string]int

// again notes the next item, and says where it stood before; "" if it did not.
func (p places) again(name string) string {
	p[""]++ // no tool is called so: it counts
	if first, twice := p[name]; twice && name != "" {
		return fmt.Sprintf("twice, as items %d and %d", first, p[""])
	}
	if name != "" {
		p[name] = p[""]
	}
	return ""
}

// badToolName says what is wrong with a tool's name, "" if nothing is.
func badToolName(name string) string {
	parts := strings.Split(name, ".")
	if len(name) > 512 {
		return "which is longer than 512 bytes"
	}
	if len(parts) < 2 {
		return "which has no module: write module.function"
	}
	for _, part := range parts {
		for i, c := range part {
			if c != '_' && !unicode.IsLetter(c) && (i == 0 || !unicode.IsDigit(c)) {
				return fmt.Sprintf("whose part %q is no Python name: write module.function", part)
			}
		}
		if part == "" {
			return "which has an empty part: write module.function"
		}
	}
	return ""
}

func (r *reader) env(s *section, m *Manifest) {
	tables, ok := take[[]map[string]any](s, "env", "tables, each written [["+r.table+".env]]")
	if !ok {
		return
	}
	seen := map[string]bool{}
	for i, values := range tables {
		e := &section{reader: r, name: fmt.Sprintf("%s.env %d", r.table, i+1), values: values}
		var v EnvVar
		v.Name, _ = e.text("name")
		if required := e.boolean("required"); required != nil {
			v.Required = *required
		}
		if secret := e.boolean("secret"); secret != nil {
			v.Secret = *secret
		}
		v.Description, _ = e.text("description")
		v.Tools = e.list("tools")
		e.close()
		if err := CheckVariable(v.Name); err != nil {
			r.problem(e.key("name"), "%s", err.Error())
		} else if seen[v.Name] {
			r.problem(e.key("name"), "declares %s a second time", v.Name)
		}
		seen[v.Name] = true
		for i, name := range v.Tools {
			if v.Tools[i] = r.named(name); !slices.Contains(m.Tools, v.Tools[i]) {
				r.problem(e.key("tools"), "names %q, which is not in [%s] tools%s", name, r.table, suggest(name, m.Tools))
			}
		}
		m.Env = append(m.Env, v)
	}
}

// CheckVariable refuses what cannot be a variable of an index's tools.
func CheckVariable(name string) error {
	switch {
	case !envName.MatchString(name):
		return fmt.Errorf("must be the name of a variable, not %q", name)
	case ofNode(name):
		return fmt.Errorf("%s is given to every tool by its node", name)
	}
	return nil
}

// ofNode reports whether a variable is one that every tool gets from its node.
func ofNode(name string) bool {
	return name == "PATH" || name == "HOME" || name == "LANG" || name == "TMPDIR"
}

func suggest(name string, among []string) string {
	if near := tool.Nearest(name, among, 1); len(near) > 0 {
		return fmt.Sprintf("; did you mean %q?", near[0])
	}
	return ""
}

// tools reads the [tool.…] tables. A name written without quotes arrives as
// nested tables and is put together again.
func (r *reader) tools(m *Manifest, prefix string, table map[string]any, depth int) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		written := key
		if prefix != "" {
			written = prefix + "." + key
		}
		name := r.named(written)
		values, ok := table[key].(map[string]any)
		declared := slices.Contains(m.Tools, name)
		switch {
		case declared && ok:
			if _, twice := m.overrides[name]; twice {
				r.problem("["+r.tool+"."+written+"]", "is written twice, with and without quotes")
			}
			s := &section{reader: r, name: r.tool + "." + written, values: values}
			if m.commands[name] != nil {
				s.known = append(s.known, commandKeys...)
			}
			m.overrides[name] = r.override(s, true)
			s.close()
		case ok && depth < maxNested && r.beginsTool(m, written):
			r.tools(m, written, values, depth+1)
		default:
			r.problem("["+r.tool+"."+written+"]", "is for a tool that [%s] tools does not list%s", r.table, suggest(name, m.Tools))
		}
	}
}

// maxNested is how many parts of a tool's name may be written as tables of
// their own.
const maxNested = 8

func (r *reader) beginsTool(m *Manifest, name string) bool {
	return slices.ContainsFunc(m.Tools, func(t string) bool { return strings.HasPrefix(t, name+".") })
}

// override reads the keys that [index] and [tool] share.
func (r *reader) override(s *section, ofTool bool) overrides {
	var o overrides
	if ofTool { // [index] has a description and a metadata of its own
		if text, ok := s.text("description"); ok {
			o.description = &text
		}
	}
	if table, ok := take[map[string]any](s, "metadata", "a table: metadata = { key = \"value\" }"); ok {
		o.metadata = r.metadata(s, table)
	}
	o.timeout = s.duration("timeout")
	o.idempotent = s.boolean("idempotent")
	o.parallelSafe = s.boolean("parallel_safe")
	o.readOnly = s.boolean("read_only")
	o.cacheTTL = s.duration("cache_ttl")
	o.collect = s.boolean("collect")
	o.laneScope = parsed(s, "lane_scope", tool.ParseLaneScope)
	o.isolation = parsed(s, "isolation", tool.ParseIsolation)
	o.affinity = parsed(s, "affinity", tool.ParseAffinity)
	o.sandbox = parsed(s, "sandbox", tool.ParseSandbox)
	o.resourceKey = r.resourceKey(s)
	if table, ok := take[map[string]any](s, "limits", `a table: limits = { memory = "200MB" }`); ok {
		l := &section{reader: r, name: s.name + ".limits", values: table}
		var limits tool.Limits
		if d := l.duration("cpu_time"); d != nil {
			limits.CPUTime = *d
		}
		limits.Memory, limits.Output = l.size("memory"), l.size("output")
		limits.Pids, limits.OpenFiles = l.count("pids"), l.count("open_files")
		l.close()
		o.limits = &limits
	}
	return o
}

func (r *reader) resourceKey(s *section) *tool.ResourceKey {
	if text, ok := s.values["resource_key"].(string); ok {
		s.known = append(s.known, "resource_key")
		key := tool.ParseResourceKey(text)
		return r.checkedKey(s, key)
	}
	parts := s.list("resource_key")
	if parts == nil {
		return nil
	}
	if len(parts) == 0 {
		r.problem(s.key("resource_key"), `must not be empty; leave it out for the default`)
		return nil
	}
	return r.checkedKey(s, tool.ResourceKey{Parts: parts})
}

func (r *reader) checkedKey(s *section, key tool.ResourceKey) *tool.ResourceKey {
	if err := key.Check(); err != nil {
		r.problem("["+s.name+"]", "%v", err)
		return nil
	}
	return &key
}

// metadata turns TOML values into what JSON has.
func (r *reader) metadata(s *section, table map[string]any) map[string]any {
	v, err := jsonValue(table)
	if err != nil {
		r.problem(s.key("metadata"), "%v", err)
		return nil
	}
	object, _ := v.(map[string]any)
	return object
}

func jsonValue(v any) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, child := range v {
			converted, err := jsonValue(child)
			if err != nil {
				return nil, err
			}
			out[key] = converted
		}
		return out, nil
	case []map[string]any:
		out := make([]any, 0, len(v))
		for _, child := range v {
			converted, err := jsonValue(child)
			if err != nil {
				return nil, err
			}
			out = append(out, converted)
		}
		return out, nil
	case []any:
		out := make([]any, 0, len(v))
		for _, child := range v {
			converted, err := jsonValue(child)
			if err != nil {
				return nil, err
			}
			out = append(out, converted)
		}
		return out, nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("has a number that JSON does not have (nan or inf)")
		}
		return v, nil
	case time.Time:
		return dateText(v), nil
	case int64:
		return json.Number(fmt.Sprint(v)), nil
	default:
		return v, nil
	}
}

// dateText writes a TOML date or time as the author did: the TOML reader marks
// those without a zone by the name of their location.
func dateText(t time.Time) string {
	switch t.Location().String() {
	case "datetime-local":
		return t.Format("2006-01-02T15:04:05.999999999")
	case "date-local":
		return t.Format("2006-01-02")
	case "time-local":
		return t.Format("15:04:05.999999999")
	default:
		return t.Format(time.RFC3339Nano)
	}
}
