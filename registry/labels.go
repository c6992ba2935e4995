package registry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Labels are the labels of a node, or those that a node must have to serve an index.
type Labels map[string]string

// Check returns an error for a name or a value that is empty, begins or ends with white space,
// is not UTF-8, or has a separator of [Labels.String].
func (l Labels) Check() error {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		switch text := name + "=" + l[name]; {
		case name == "":
			return errors.New("a label has no name: write name=value")
		case l[name] == "":
			return fmt.Errorf("the label %q has no value: write name=value", name)
		case !utf8.ValidString(text):
			return fmt.Errorf("the label %q is not UTF-8", text)
		case strings.ContainsAny(name, "=,") || strings.Contains(l[name], ","):
			return fmt.Errorf("the label %q has a comma, or its name an equals sign", text)
		case strings.TrimSpace(name) != name || strings.TrimSpace(l[name]) != l[name]:
			return fmt.Errorf("the label %q has white space around its name or its value", text)
		}
	}
	return nil
}

// String returns k=v,k=v, sorted; empty for none.
func (l Labels) String() string {
	parts := make([]string, 0, len(l))
	for _, name := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, name+"="+l[name])
	}
	return strings.Join(parts, ",")
}

// Placed reports whether an index is for nodes with these labels: they include all labels of the
// index, with the same values. An index without labels is for every node.
func (r IndexRecord) Placed(labels map[string]string) bool {
	for name, value := range r.On {
		if has, ok := labels[name]; !ok || has != value {
			return false
		}
	}
	return true
}
