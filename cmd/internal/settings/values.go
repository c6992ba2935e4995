package settings

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/toolmesh/toolmesh/tool"
)

// Level is a log level that may be left to the program.
type Level struct {
	level slog.Level
	set   bool
}

// UnmarshalText reads debug, info, warn or error.
func (l *Level) UnmarshalText(text []byte) error {
	switch strings.ToLower(string(text)) {
	case "debug", "info", "warn", "error":
		l.set = true
		return l.level.UnmarshalText(text)
	}
	return fmt.Errorf("want debug, info, warn or error")
}

// String returns what UnmarshalText reads, empty if nothing was set.
func (l Level) String() string {
	if !l.set {
		return ""
	}
	return strings.ToLower(l.level.String())
}

// Format is the form of log lines.
type Format string

// UnmarshalText reads text or json.
func (f *Format) UnmarshalText(text []byte) error { return choose(f, text, "text", "json") }

func (f Format) String() string { return string(f) }

// SessionPolicy says which sessions exist.
type SessionPolicy string

// UnmarshalText reads open or strict.
func (p *SessionPolicy) UnmarshalText(text []byte) error { return choose(p, text, "open", "strict") }

func (p SessionPolicy) String() string { return string(p) }

// Storage is where chunks are kept.
type Storage string

// UnmarshalText reads file or memory.
func (s *Storage) UnmarshalText(text []byte) error { return choose(s, text, "file", "memory") }

func (s Storage) String() string { return string(s) }

// Sandbox is a sandbox level, empty if none was set.
type Sandbox string

// UnmarshalText reads a level of [tool.ParseSandbox].
func (s *Sandbox) UnmarshalText(text []byte) error {
	level, err := tool.ParseSandbox(string(text))
	if err != nil {
		return fmt.Errorf("want none, guard, strict or offline")
	}
	*s = Sandbox(level)
	return nil
}

func (s Sandbox) String() string { return string(s) }

func choose[T ~string](into *T, text []byte, among ...string) error {
	if !slices.Contains(among, string(text)) {
		return fmt.Errorf("want %s", strings.Join(among, " or "))
	}
	*into = T(text)
	return nil
}

// Count is a number from 1 on; 0 if none was set.
type Count int

// UnmarshalText reads a whole number from 1 on.
func (c *Count) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 {
		return fmt.Errorf("want a whole number from 1 on")
	}
	*c = Count(n)
	return nil
}

func (c Count) String() string {
	if c == 0 {
		return ""
	}
	return strconv.Itoa(int(c))
}

// Labels are a node's labels.
type Labels map[string]string

// UnmarshalText reads k=v,k=v; white space around the parts does not count.
func (l *Labels) UnmarshalText(text []byte) error {
	labels := make(Labels)
	for part := range strings.SplitSeq(string(text), ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || name == "" || value == "" {
			return fmt.Errorf("want k=v,k=v")
		}
		if _, twice := labels[name]; twice {
			return fmt.Errorf("the label %q is given twice", name)
		}
		labels[name] = value
	}
	*l = labels
	return nil
}

// String returns what UnmarshalText reads, sorted.
func (l Labels) String() string {
	parts := make([]string, 0, len(l))
	for _, name := range slices.SortedFunc(maps.Keys(l), cmp.Compare[string]) {
		parts = append(parts, name+"="+l[name])
	}
	return strings.Join(parts, ",")
}
