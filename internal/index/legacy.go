package index

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/toolmesh/toolmesh/tool"
)

// legacyLoader reads the manifest that older indexes have: TOOLS.yml.
type legacyLoader struct{}

func (legacyLoader) find(fsys fs.FS) string { return firstFile(fsys, "TOOLS.yml", "TOOLS.yaml") }

func (legacyLoader) load(fsys fs.FS, file string) (*Manifest, error) {
	data, err := readBounded(fsys, file)
	if err != nil {
		return nil, err
	}
	return parseLegacy(data, file)
}

// legacyExample is what a TOOLS.yml looks like, for messages.
const legacyExample = "tools: [\"module.function\"]"

// parseLegacy reads a TOOLS.yml: description, tools, and env_vars, which maps
// variables to the tools that use them. Its readers never held an index to the
// variables, so none is required.
func parseLegacy(data []byte, file string) (*Manifest, error) {
	bad := func(format string, args ...any) error {
		return failed(reasonManifest, "%s %s", file, fmt.Sprintf(format, args...)).WithDetail("file", file)
	}
	top, err := oneDocument(data)
	switch {
	case err != nil:
		return nil, bad("cannot be read: %s", strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: "))
	case top == nil:
		return nil, bad("is empty; it needs a list of tools: %s", legacyExample)
	case top.Kind != yaml.MappingNode:
		return nil, bad("is %s, not a mapping with a list of tools: %s", yamlName(top), legacyExample)
	}
	l := &legacy{reader: reader{table: file, tool: "tool"}, left: maxNodes, m: &Manifest{Convention: file, overrides: map[string]overrides{}}}
	l.top(top)
	if l.left <= 0 {
		return nil, failed(reasonTooLarge, "%s says more than %d things once its aliases are followed", file, maxNodes).WithDetail("file", file)
	}
	return l.done(l.m, file)
}

// maxNodes bounds the values of a TOOLS.yml, those that aliases repeat included.
const maxNodes = 200_000

// oneDocument parses the one document of a file, nil for an empty file.
func oneDocument(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("there are several documents in it, or something after the first; keep one")
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil, nil
	}
	return doc.Content[0], nil
}

// legacy is a TOOLS.yml being read.
type legacy struct {
	reader
	left int // values that may still be looked at
	m    *Manifest
}

// see follows an alias and counts what is looked at; nil when it is enough.
func (l *legacy) see(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if l.left--; l.left <= 0 {
		return nil
	}
	return n
}

func (l *legacy) top(top *yaml.Node) {
	seen := map[string]bool{}
	var vars *yaml.Node
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i].Value, l.see(top.Content[i+1])
		if value == nil {
			return
		}
		if seen[key] {
			l.problem(key, "is written twice")
			continue
		}
		seen[key] = true
		switch key {
		case "description":
			l.m.Description = l.scalar(key, value)
		case "tools":
			l.m.Tools = l.list(key, value)
		case "env_vars":
			vars = value
		default:
			l.unknown("", key, []string{"description", "tools", "env_vars"})
		}
	}
	l.names()
	if vars != nil {
		l.vars(vars)
	}
}

func (l *legacy) names() {
	if len(l.m.Tools) == 0 && len(l.problems) == 0 {
		l.problem("tools", "must list at least one tool: %s", legacyExample)
	}
	if len(l.m.Tools) > maxTools {
		l.problem("tools", "lists %d tools; at most %d are possible", len(l.m.Tools), maxTools)
		return
	}
	seen := places{}
	for _, name := range l.m.Tools {
		if why := badToolName(name); why != "" {
			l.problem("tools", "has %q, %s", name, why)
		}
		if why := seen.again(name); why != "" {
			l.problem("tools", "lists %q %s", name, why)
		}
	}
}

// scalar returns a text, a number or a truth value as it is written, "" for null.
func (l *legacy) scalar(key string, n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		l.problem(key, "must be a text, not %s", yamlName(n))
		return ""
	}
	if n.Tag == "!!null" {
		return ""
	}
	return n.Value
}

// list returns a list of texts; one text is a list of one, null is none.
func (l *legacy) list(key string, n *yaml.Node) []string {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return nil
	case n.Kind == yaml.ScalarNode:
		return []string{n.Value}
	case n.Kind != yaml.SequenceNode:
		l.problem(key, "must be a list, not %s", yamlName(n))
		return nil
	}
	var texts []string
	for i, item := range n.Content {
		if item = l.see(item); item == nil {
			return nil
		}
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			l.problem(key, "must be a list of texts, but item %d is %s", i+1, yamlName(item))
			return nil
		}
		texts = append(texts, item.Value)
	}
	return texts
}

// vars reads env_vars: a list of variables, each a name or a mapping of the name
// to the tools that use it; or one such mapping.
func (l *legacy) vars(n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		l.varMap(n)
	case yaml.SequenceNode:
		for i, item := range n.Content {
			item = l.see(item)
			switch {
			case item == nil:
				return
			case item.Kind == yaml.ScalarNode && item.Tag != "!!null":
				l.add(item.Value, nil)
			case item.Kind == yaml.MappingNode:
				l.varMap(item)
			default:
				l.problem("env_vars", "must be a list of variables, but item %d is %s", i+1, yamlName(item))
			}
		}
	default:
		if n.Tag != "!!null" {
			l.problem("env_vars", "must be a list of variables, each with its tools, not %s", yamlName(n))
		}
	}
}

func (l *legacy) varMap(n *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		value := l.see(n.Content[i+1])
		if value == nil {
			return
		}
		l.add(n.Content[i].Value, l.list("env_vars "+n.Content[i].Value, value))
	}
}

// add declares a variable; a second time adds tools to it.
func (l *legacy) add(name string, tools []string) {
	switch {
	case !envName.MatchString(name):
		l.problem("env_vars", "has %q, which is no name of a variable", name)
		return
	case ofNode(name):
		l.problem("env_vars", "has %s, which is given to every tool by its node", name)
		return
	}
	var known []string
	for _, t := range tools {
		if slices.Contains(l.m.Tools, t) {
			known = append(known, t)
			continue
		}
		text := fmt.Sprintf("env_vars %s names %q, which is not in tools", name, t)
		if near := tool.Nearest(t, l.m.Tools, 1); len(near) > 0 {
			text += fmt.Sprintf("; did you mean %q?", near[0])
		}
		l.warnings = append(l.warnings, text)
	}
	for i := range l.m.Env {
		if v := &l.m.Env[i]; v.Name == name {
			if len(known) == 0 || len(v.Tools) == 0 {
				v.Tools = nil
			} else {
				v.Tools = slices.Compact(slices.Sorted(slices.Values(append(v.Tools, known...))))
			}
			return
		}
	}
	if len(l.m.Env) >= maxTools {
		l.problem("env_vars", "has more than %d variables", maxTools)
		return
	}
	l.m.Env = append(l.m.Env, EnvVar{Name: name, Tools: known})
}

func yamlName(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "empty"
	case n.Tag == "!!int", n.Tag == "!!float":
		return "a number"
	default:
		return "a text"
	}
}
