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

// kinds read the texts of settings, by the tag "is" of their fields. The error says which texts a setting takes.
// session, node, address, gateway and files take the empty text, too, for variables that are set but empty.
var kinds = map[string]func(text string) (any, error){
	"level":   func(text string) (any, error) { return word("debug", "info", "warn", "error")(strings.ToLower(text)) },
	"format":  word("text", "json"),
	"policy":  word("open", "strict"),
	"storage": word("file", "memory"),
	"sandbox": word(tool.Sandboxes()...),
	"count":   number(1, math.MaxInt),
	"held":    number(0, math.MaxInt),
	"copies":  number(1, 5), // JetStream's own bound
	"timeout": func(text string) (any, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Millisecond { // no work is done in less
			err = errors.New(`want a duration from 1ms on, such as "90s" or "1h30m"`)
		}
		return min(d, toolmesh.MaxTime), err
	},
	"renew": func(text string) (any, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d < 10*time.Second || d%time.Second != 0 { // clients take seconds to connect
			err = errors.New(`want a duration of whole seconds from 10s on, such as "90s" or "1h"`)
		}
		return d, err
	},
	"room": func(text string) (any, error) { // less is full with one large chunk, more overflows the broker's sums
		size, err := tool.ParseSize(text)
		if err != nil || size < 1e6 || size > 1e15 {
			err = errors.New(`want a size from 1MB to 1000TB, such as "200MB"`)
		}
		return size, err
	},
	"quota": func(text string) (any, error) { // no item of a stream fits into less
		size, err := tool.ParseSize(text)
		if err != nil || size < 1e3 {
			err = errors.New(`want a size from 1KB on, such as "200MB"`)
		}
		return size, err
	},
	"session": func(text string) (any, error) {
		if text == "" {
			return string(subjects.DefaultSession), nil
		}
		_, err := subjects.SessionKey(subjects.SessionID(text))
		return name(text, err)
	},
	"node": func(text string) (any, error) {
		if text == "" {
			return text, nil
		}
		_, err := subjects.NodeKey(subjects.NodeID(text))
		return name(text, err)
	},
	"address": func(text string) (any, error) { return address(text, "127.0.0.1:9464 or :9464") },
	"gateway": func(text string) (any, error) {
		if text == GatewayOff {
			return text, nil
		}
		return address(text, "127.0.0.1:8420, or off")
	},
	"files": func(text string) (any, error) {
		if cert, key, _ := strings.Cut(text, ","); text != "" && (cert == "" || key == "") {
			return nil, errors.New("want two files, the certificate's and the key's, with a comma between them")
		}
		return text, nil
	},
	"labels": func(text string) (any, error) { return ParseLabels(text) },
	"limits": func(text string) (any, error) { return parseLimits(text) },
	"names":  parseNames,
}

func word[W ~string](among ...W) func(string) (any, error) {
	words := make([]string, len(among))
	for i, one := range among {
		words[i] = string(one)
	}
	last := len(words) - 1
	return func(text string) (any, error) {
		if !slices.Contains(words, text) {
			return nil, fmt.Errorf("want %s or %s", strings.Join(words[:last], ", "), words[last])
		}
		return text, nil
	}
}

func number(least, most int) func(string) (any, error) {
	return func(text string) (any, error) { return whole(text, least, most) }
}

func whole(text string, least, most int) (int, error) {
	n, err := strconv.Atoi(text)
	switch {
	case err == nil && n >= least && n <= most:
		return n, nil
	case most == math.MaxInt:
		return 0, fmt.Errorf("want a whole number from %d on", least)
	}
	return 0, fmt.Errorf("want a whole number from %d to %d", least, most)
}

// name returns a name, unless it can be part of no subject.
func name(text string, bad error) (any, error) {
	if bad != nil {
		return nil, errors.New("want a name in UTF-8")
	}
	return text, nil
}

// address reads HOST:PORT; an empty host is every address of the machine.
func address(text, such string) (any, error) {
	_, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil && text != "" {
		return nil, errors.New("want HOST:PORT with a port from 0 to 65535, such as " + such)
	}
	return text, nil
}

// ParseLabels reads k=v,k=v and ignores white space around the parts.
func ParseLabels(text string) (registry.Labels, error) {
	labels := make(registry.Labels)
	return labels, eachPair(text, func(name, value string) error {
		if name == "" || value == "" || !utf8.ValidString(name+"="+value) {
			return errors.New("want k=v,k=v in UTF-8")
		}
		labels[name] = value
		return nil
	})
}

// eachPair passes the pairs of k=v,k=v to take and refuses repeated names. It ignores white space
// around the parts.
func eachPair(text string, take func(name, value string) error) error {
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
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

// parseNames reads the names of variables: NAME,NAME, or none. They are not nil.
func parseNames(text string) (any, error) {
	names := []string{}
	for name := range strings.SplitSeq(text, ",") {
		switch name = strings.TrimSpace(name); {
		case name == "" || strings.EqualFold(name, "none"):
		case strings.ContainsAny(name, "= \x00"):
			return nil, fmt.Errorf("%q is not the name of a variable: want NAME,NAME, or none", name)
		case strings.HasPrefix(strings.ToUpper(name), prefix): // tools get a name in either case
			return nil, fmt.Errorf("%s is the agent's own setting, which tools do not get", name)
		default:
			names = append(names, name)
		}
	}
	return names, nil
}

// Limits are those of a call.
type Limits struct {
	limits  tool.Limits
	percent int // of the memory; 0: limits has the size
}

// leastFiles is the number of files that a starting worker opens.
const leastFiles = 256

// parseLimits reads any of memory=SIZE or memory=N%, pids=N, open_files=N and temp_files=SIZE, comma-separated.
func parseLimits(text string) (l Limits, err error) {
	err = eachPair(text, func(name, value string) error {
		want, err := "", error(nil)
		switch name {
		case "memory":
			want = `a size from 1MB on, such as "2GB", or 1% to 100% of the machine's`
			if number, ok := strings.CutSuffix(value, "%"); ok {
				l.percent, err = whole(number, 1, 100)
			} else {
				l.limits.Memory, err = sizeFrom(value)
			}
		case "temp_files":
			want = `a size from 1MB on, such as "2GB"`
			l.limits.TempFiles, err = sizeFrom(value)
		case "pids":
			want = "a whole number from 1 on"
			l.limits.Pids, err = whole(value, 1, math.MaxInt)
		case "open_files":
			want = fmt.Sprintf("a whole number from %d on", leastFiles)
			l.limits.OpenFiles, err = whole(value, leastFiles, math.MaxInt)
		default:
			return fmt.Errorf("want memory, pids, open_files and temp_files, as in memory=2GB,pids=100, and not %q", name)
		}
		if err != nil {
			return fmt.Errorf("want for %s %s", name, want)
		}
		return nil
	})
	return l, err
}

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

// String returns the text that is read as these limits.
func (l Limits) String() string {
	data, _ := l.limits.MarshalJSON() // one object of names, sizes and numbers
	text := strings.NewReplacer("{", "", "}", "", `"`, "", ":", "=").Replace(string(data))
	if l.percent > 0 {
		text = strings.TrimSuffix(fmt.Sprintf("memory=%d%%,%s", l.percent, text), ",")
	}
	return text
}
