package settings

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh/subjects"
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

// Copies is how many copies of a stream there are; 0 if that was not set.
type Copies int

// mostCopies is JetStream's own bound.
const mostCopies = 5

// UnmarshalText reads a whole number from 1 to 5.
func (c *Copies) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 || n > mostCopies {
		return fmt.Errorf("want a whole number from 1 to %d", mostCopies)
	}
	*c = Copies(n)
	return nil
}

func (c Copies) String() string { return Count(c).String() }

// Timeout is the longest that something may take.
type Timeout time.Duration

// UnmarshalText reads a duration from 1ms on, below which nothing is done in time.
func (t *Timeout) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d < time.Millisecond {
		return fmt.Errorf(`want a duration from 1ms on, such as "90s" or "1h30m"`)
	}
	*t = Timeout(d)
	return nil
}

func (t Timeout) String() string { return time.Duration(t).String() }

// Room is how much a stream may hold; 0 if that was not set.
type Room int64

// A stream of less than leastRoom is full with one large chunk; mostRoom leaves
// the broker's sums of such numbers below what they can be.
const (
	leastRoom = 1e6
	mostRoom  = 1e15
)

// UnmarshalText reads a size from 1MB to 1000TB.
func (r *Room) UnmarshalText(text []byte) error {
	size, err := tool.ParseSize(string(text))
	if err != nil || size < leastRoom || size > mostRoom {
		return fmt.Errorf(`want a size from %s to %s, such as "200MB"`, tool.Size(leastRoom), tool.Size(mostRoom))
	}
	*r = Room(size)
	return nil
}

func (r Room) String() string {
	if r == 0 {
		return ""
	}
	return tool.Size(r).String()
}

// Quota is how much one of many may use.
type Quota int64

// UnmarshalText reads a size from 1KB on: no item of a stream fits into less.
func (q *Quota) UnmarshalText(text []byte) error {
	size, err := tool.ParseSize(string(text))
	if err != nil || size < 1e3 {
		return fmt.Errorf(`want a size from 1KB on, such as "200MB"`)
	}
	*q = Quota(size)
	return nil
}

func (q Quota) String() string { return tool.Size(q).String() }

// SessionName names a session.
type SessionName string

// UnmarshalText reads a name that can be a session's. None at all is the default
// session, for variables that are there and empty.
func (n *SessionName) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*n = DefaultSession
		return nil
	}
	if _, err := subjects.SessionKey(subjects.SessionID(text)); err != nil {
		return fmt.Errorf("want a name in UTF-8")
	}
	*n = SessionName(text)
	return nil
}

func (n SessionName) String() string { return string(n) }

// NodeName is a node's id, empty if none was set.
type NodeName string

// UnmarshalText reads a name that can be a node's.
func (n *NodeName) UnmarshalText(text []byte) error {
	if _, err := subjects.NodeKey(subjects.NodeID(text)); err != nil && len(text) > 0 {
		return fmt.Errorf("want a name in UTF-8")
	}
	*n = NodeName(text)
	return nil
}

func (n NodeName) String() string { return string(n) }

// DefaultSession is where calls are that name no session.
const DefaultSession SessionName = "default"

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
		if !ok || name == "" || value == "" || !utf8.ValidString(part) {
			return fmt.Errorf("want k=v,k=v in UTF-8")
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
