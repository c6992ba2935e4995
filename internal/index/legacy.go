package index

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

func findLegacy(fsys fs.FS) string { return firstFile(fsys, "TOOLS.yml", "TOOLS.yaml") }

// legacyExample is an example of a TOOLS.yml, for messages.
const legacyExample = "tools: [\"module.function\"]"

// loadLegacy reads the manifest that older indexes have, TOOLS.yml: description, tools, and
// env_vars, which maps variables to the tools that use them. Its readers never held an index to the
// variables, so none is required.
func loadLegacy(data []byte, file string) (*Manifest, error) {
	var top map[string]any
	var root yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	err := documents.Decode(&root)
	if err == nil {
		err = checkMappings(&root)
	}
	if err == nil {
		err = root.Decode(&top)
	}
	if err == nil && !errors.Is(documents.Decode(new(yaml.Node)), io.EOF) {
		err = errors.New("there are several documents in it, or something after the first; keep one")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		text := strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: ")
		return nil, failed(reasonManifest, "%s cannot be read as a mapping with a list of tools (%s): %s", file, legacyExample, text).WithDetail("file", file)
	}
	maps.DeleteFunc(top, func(_ string, value any) bool { return value == nil })
	if text, ok := top["tools"].(string); ok {
		top["tools"] = []any{text}
	}
	r := &reader{table: file, tool: "tool"}
	s := &section{reader: r, values: top, known: []string{"env_vars"}}
	m := &Manifest{Convention: file}
	s.text("description", &m.Description)
	r.toolNames(s, r.listTools(m, s), badToolName)
	r.legacyVars(m, top["env_vars"])
	for at, v := range m.Env {
		m.Env[at].Tools = slices.Compact(slices.Sorted(slices.Values(v.Tools)))
	}
	s.close()
	return r.done(m, file)
}

// maxKeys bounds the keys of one mapping, each of which the library compares with all others.
const maxKeys = 1000

// checkMappings refuses mappings that take long to read.
func checkMappings(n *yaml.Node) error {
	seen := map[string]bool{}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if seen[child.Value] && child.Kind == yaml.ScalarNode {
				return fmt.Errorf("line %d: the key %q is written twice", child.Line, child.Value)
			}
			if seen[child.Value] = true; i/2 == maxKeys {
				return fmt.Errorf("line %d: a mapping has more than %d keys", child.Line, maxKeys)
			}
		}
		if err := checkMappings(child); err != nil {
			return err
		}
	}
	return nil
}

// legacyVars reads env_vars: a list of variables, each a name or a mapping of the
// name to the tools that use it; or one such mapping. A variable that is there
// again is used by more tools.
func (r *reader) legacyVars(m *Manifest, value any) {
	switch value := value.(type) {
	case nil:
	case string:
		r.legacyVar(m, value, nil)
	case []any:
		for _, item := range value {
			r.legacyVars(m, item)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			r.legacyVar(m, name, value[name])
		}
	default:
		r.problem("env_vars", "must be a list of variables, each with its tools, but has %s", typeName(value))
	}
}

func (r *reader) legacyVar(m *Manifest, name string, tools any) {
	if err := CheckVariable(name); err != nil {
		r.problem("env_vars", "%s", err.Error())
		return
	}
	items, many := tools.([]any)
	if !many && tools != nil {
		items = []any{tools}
	}
	var known []string
	for _, item := range items {
		if t := fmt.Sprint(item); m.lists(t) {
			known = append(known, t)
		} else {
			r.warnings.add(fmt.Sprintf("env_vars %s names %q, which is not in tools%s", name, t, r.suggest(t, m.Tools)))
		}
	}
	at, again := r.variable(m, name)
	if !again {
		m.Env = append(m.Env, EnvVar{Name: name, Tools: known})
		return
	}
	v := &m.Env[at]
	if len(known) == 0 || len(v.Tools) == 0 {
		v.Tools = nil // all
	} else {
		v.Tools = append(v.Tools, known...)
	}
}
