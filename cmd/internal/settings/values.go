package settings

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// The kinds of settings. The zero value of each means unset. UnmarshalText reads a variable or a
// flag.
type (
	// Level is a log level.
	Level string
	// Format is the form of log lines.
	Format string
	// SessionPolicy says which sessions exist.
	SessionPolicy string
	// Storage is the place of chunks: file or memory.
	Storage string
	// Sandbox is a sandbox level.
	Sandbox string
	// Count is a number from 1 on.
	Count int
	// Held is the max number of held calls; 0: none.
	Held int
	// Copies is the number of copies of a stream.
	Copies int
	// Timeout is a max duration.
	Timeout time.Duration
	// Renew is an interval between renewals.
	Renew time.Duration
	// Room is the max bytes of a stream.
	Room int64
	// Quota is the max bytes of one user of a store.
	Quota int64
	// SessionName names a session.
	SessionName string
	// NodeName is a node's id.
	NodeName string
	// Address is an address to listen on.
	Address string
	// GatewayAddress is an address to listen on, or off.
	GatewayAddress string
	// CertAndKey names two files.
	CertAndKey string
	// Labels are a node's labels.
	Labels map[string]string
	// Limits are those of a call.
	Limits struct {
		limits  tool.Limits
		percent int // of the memory; 0: limits has the size
	}
)

// DefaultSession is the session of calls without one.
const DefaultSession SessionName = "default"

// UnmarshalText reads debug, info, warn or error.
func (l *Level) UnmarshalText(text []byte) error {
	return choose(l, strings.ToLower(string(text)), "debug", "info", "warn", "error")
}

// UnmarshalText reads text or json.
func (f *Format) UnmarshalText(text []byte) error { return choose(f, string(text), "text", "json") }

// UnmarshalText reads open or strict.
func (p *SessionPolicy) UnmarshalText(text []byte) error {
	return choose(p, string(text), "open", "strict")
}

// UnmarshalText reads file or memory.
func (s *Storage) UnmarshalText(text []byte) error { return choose(s, string(text), "file", "memory") }

// UnmarshalText reads none, guard, strict or offline.
func (s *Sandbox) UnmarshalText(text []byte) error {
	return choose(s, string(text), tool.Sandboxes()...)
}

func choose[T, W ~string](into *T, text string, among ...W) error {
	if last := len(among) - 1; !slices.Contains(among, W(text)) {
		words := make([]string, last)
		for i := range words {
			words[i] = string(among[i])
		}
		return fmt.Errorf("want %s or %s", strings.Join(words, ", "), among[last])
	}
	*into = T(text)
	return nil
}

// mostCopies is JetStream's own bound.
const mostCopies = 5

// UnmarshalText reads a whole number from 1 on.
func (c *Count) UnmarshalText(text []byte) error { return whole(c, text, 1, math.MaxInt) }

// UnmarshalText reads a whole number from 0 on.
func (h *Held) UnmarshalText(text []byte) error { return whole(h, text, 0, math.MaxInt) }

// UnmarshalText reads a whole number from 1 to 5.
func (c *Copies) UnmarshalText(text []byte) error { return whole(c, text, 1, mostCopies) }

func whole[T ~int](into *T, text []byte, least, most int) error {
	n, err := strconv.Atoi(string(text))
	switch {
	case err == nil && n >= least && n <= most:
		*into = T(n)
		return nil
	case most == math.MaxInt:
		return fmt.Errorf("want a whole number from %d on", least)
	}
	return fmt.Errorf("want a whole number from %d to %d", least, most)
}

// UnmarshalText reads a duration of at least 1ms: no work is done in less.
func (t *Timeout) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d < time.Millisecond {
		return fmt.Errorf(`want a duration from 1ms on, such as "90s" or "1h30m"`)
	}
	*t = Timeout(min(d, toolmesh.MaxTime))
	return nil
}

func (t Timeout) String() string { return time.Duration(t).String() }

// leastRenew leaves time for clients that take seconds to connect.
const leastRenew = 10 * time.Second

// UnmarshalText reads a duration of whole seconds from 10s on.
func (r *Renew) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d < leastRenew || d%time.Second != 0 {
		return fmt.Errorf(`want a duration of whole seconds from %v on, such as "90s" or "1h"`, leastRenew)
	}
	*r = Renew(d)
	return nil
}

func (r Renew) String() string { return time.Duration(r).String() }

// A stream of less than leastRoom is full with one large chunk; mostRoom keeps the broker's sums
// from overflowing.
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

func (r Room) String() string { return tool.Size(r).String() }

// UnmarshalText reads a size of at least 1KB: no item of a stream fits into less.
func (q *Quota) UnmarshalText(text []byte) error {
	size, err := tool.ParseSize(string(text))
	if err != nil || size < 1e3 {
		return fmt.Errorf(`want a size from 1KB on, such as "200MB"`)
	}
	*q = Quota(size)
	return nil
}

func (q Quota) String() string { return tool.Size(q).String() }

// UnmarshalText reads the name of a session. The empty text is the default session, for variables
// that are set but empty.
func (n *SessionName) UnmarshalText(text []byte) error {
	if _, err := subjects.SessionKey(subjects.SessionID(text)); err != nil && len(text) > 0 {
		return fmt.Errorf("want a name in UTF-8")
	}
	*n = SessionName(text)
	if *n == "" {
		*n = DefaultSession
	}
	return nil
}

// UnmarshalText reads a node's id.
func (n *NodeName) UnmarshalText(text []byte) error {
	if _, err := subjects.NodeKey(subjects.NodeID(text)); err != nil && len(text) > 0 {
		return fmt.Errorf("want a name in UTF-8")
	}
	*n = NodeName(text)
	return nil
}

// UnmarshalText reads HOST:PORT; an empty host is every address of the machine. The empty text is
// no address, for variables that are set but empty.
func (a *Address) UnmarshalText(text []byte) error {
	_, port, err := net.SplitHostPort(string(text))
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil && len(text) > 0 {
		return errors.New("want HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9464 or :9464")
	}
	*a = Address(text)
	return nil
}

// UnmarshalText reads an Address, or off.
func (a *GatewayAddress) UnmarshalText(text []byte) error {
	if string(text) == GatewayOff {
		*a = GatewayOff
		return nil
	}
	var address Address
	if err := address.UnmarshalText(text); err != nil {
		return errors.New("want HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:8420, or off")
	}
	*a = GatewayAddress(address)
	return nil
}

// UnmarshalText reads two files with a comma between them.
func (c *CertAndKey) UnmarshalText(text []byte) error {
	if cert, key, ok := strings.Cut(string(text), ","); len(text) > 0 && (!ok || cert == "" || key == "") {
		return errors.New("want two files, the certificate's and the key's, with a comma between them")
	}
	*c = CertAndKey(text)
	return nil
}

// UnmarshalText reads k=v,k=v and ignores white space around the parts.
func (l *Labels) UnmarshalText(text []byte) error {
	labels := make(Labels)
	*l = labels
	return eachPair(text, func(name, value string) error {
		if name == "" || value == "" || !utf8.ValidString(name+"="+value) {
			return errors.New("want k=v,k=v in UTF-8")
		}
		labels[name] = value
		return nil
	})
}

// eachPair passes the pairs of k=v,k=v to take and refuses repeated names. It ignores white space
// around the parts.
func eachPair(text []byte, take func(name, value string) error) error {
	seen := map[string]bool{}
	for part := range strings.SplitSeq(string(text), ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if seen[name] {
			return fmt.Errorf("%s is given twice", name)
		}
		seen[name] = true
		if err := take(name, value); err != nil {
			return err
		}
	}
	return nil
}

// Vars are names of variables; not nil once read.
type Vars []string

// UnmarshalText reads NAME,NAME, or none.
func (n *Vars) UnmarshalText(text []byte) error {
	names := Vars{}
	for name := range strings.SplitSeq(string(text), ",") {
		switch name = strings.TrimSpace(name); {
		case name == "" || strings.EqualFold(name, "none"):
		case strings.ContainsAny(name, "= \x00"):
			return fmt.Errorf("%q is no name of a variable: want NAME,NAME, or none", name)
		case strings.HasPrefix(strings.ToUpper(name), "MESH_"): // tools get a name in either case
			return fmt.Errorf("%s is the agent's own setting, which tools do not get", name)
		default:
			names = append(names, name)
		}
	}
	*n = names
	return nil
}

// String returns the text that UnmarshalText reads.
func (n Vars) String() string { return strings.Join(n, ",") }

// String returns the text that UnmarshalText reads, sorted.
func (l Labels) String() string { return registry.Labels(l).String() }

// UnmarshalText reads any of memory=SIZE or memory=N%, pids=N, open_files=N and temp_files=SIZE,
// comma-separated.
func (l *Limits) UnmarshalText(text []byte) error {
	*l = Limits{}
	return eachPair(text, func(name, value string) error {
		want, err := "", error(nil)
		switch name {
		case "memory":
			want = `a size from 1MB on, such as "2GB", or 1% to 100% of the machine's`
			if number, ok := strings.CutSuffix(value, "%"); ok {
				err = whole(&l.percent, []byte(number), 1, 100)
			} else {
				l.limits.Memory, err = sizeFrom(value)
			}
		case "temp_files":
			want = `a size from 1MB on, such as "2GB"`
			l.limits.TempFiles, err = sizeFrom(value)
		case "pids":
			want = "a whole number from 1 on"
			err = whole(&l.limits.Pids, []byte(value), 1, math.MaxInt)
		case "open_files":
			want = fmt.Sprintf("a whole number from %d on", leastFiles)
			err = whole(&l.limits.OpenFiles, []byte(value), leastFiles, math.MaxInt)
		default:
			return fmt.Errorf("want memory, pids, open_files and temp_files, as in memory=2GB,pids=100, and not %q", name)
		}
		if err != nil {
			return fmt.Errorf("want for %s %s", name, want)
		}
		return nil
	})
}

// leastFiles is the number of files that a starting worker opens.
const leastFiles = 256

func sizeFrom(text string) (tool.Size, error) {
	size, err := tool.ParseSize(text)
	if err == nil && size < 1e6 {
		err = strconv.ErrRange
	}
	return size, err
}

// Of returns the limits; share turns percents of the memory into a size.
func (l Limits) Of(share func(percent int) tool.Size) tool.Limits {
	if l.percent > 0 {
		l.limits.Memory = share(l.percent)
	}
	return l.limits
}

// String returns the text that UnmarshalText reads.
func (l Limits) String() string {
	var parts []string
	part := func(name string, value any, there bool) {
		if there {
			parts = append(parts, fmt.Sprintf("%s=%v", name, value))
		}
	}
	part("memory", fmt.Sprintf("%d%%", l.percent), l.percent > 0)
	part("memory", l.limits.Memory, l.limits.Memory > 0)
	part("pids", l.limits.Pids, l.limits.Pids > 0)
	part("open_files", l.limits.OpenFiles, l.limits.OpenFiles > 0)
	part("temp_files", l.limits.TempFiles, l.limits.TempFiles > 0)
	return strings.Join(parts, ",")
}
