package lane

import (
	"bytes"
	"encoding/json"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/toolmesh/toolmesh/tool"
)

// maxDepth is how deep a path may be for the queue to look at all of it: what is
// below counts as what is there, which overlaps with more.
const maxDepth = 64

// Key is what a call touches: a place in a tree. Two calls overlap where the place of
// one is that of the other or lies above it, unless both only read. The zero value is
// the root, with which all overlaps.
type Key struct {
	place []string
	read  bool
}

// KeyOf returns the key of a call of a tool. An unsafe tool, and one whose host
// computes the key in code, is alone: its key is the root. A part of a declared key is
// text as it stands with the arguments in it, a text for itself and any other value as
// JSON; the last part that names a parameter, or the last of all, is a path: "a/../b"
// is "b", and what is below a folder overlaps with it. A parameter without an argument
// counts with its default, and without one the key is all that the other parts cover.
//
// args is the arguments object, which has not been checked against the schema.
func KeyOf(d *tool.Descriptor, args json.RawMessage) Key {
	a := &d.Annotations
	if !a.ParallelSafe || a.ResourceKey.Dynamic {
		return Key{}
	}
	parts := a.ResourceKey.Parts
	if len(parts) == 0 {
		return Key{place: []string{"2", "safe", string(d.ID)}, read: a.ReadOnly}
	}
	hierarchy := len(parts) - 1
	for i := hierarchy; i >= 0; i-- {
		if placeholder.MatchString(parts[i]) {
			hierarchy = i
			break
		}
	}
	values := arguments{schema: d.InputSchema, args: args}
	// The number of parts and the place of the path come first, so that keys of
	// different shapes share nothing.
	k := Key{read: a.ReadOnly, place: []string{strconv.Itoa(len(parts)) + "." + strconv.Itoa(hierarchy)}}
	whole := true
	for i, part := range parts {
		if i == hierarchy {
			continue
		}
		text, ok := values.fill(part)
		if whole = whole && ok; whole {
			k.place = append(k.place, text)
		}
	}
	if text, ok := values.fill(parts[hierarchy]); ok && whole {
		k.place = append(k.place, segments(text)...)
	}
	return k
}

// segments are the steps from the root of all paths, or from that of relative ones,
// to a path.
func segments(text string) []string {
	if text == "" {
		return []string{"="} // no path: path.Clean would have it be the folder
	}
	clean := path.Clean(text)
	root := "."
	if strings.HasPrefix(clean, "/") {
		root, clean = "/", clean[1:]
	}
	if clean == "" || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") {
		return []string{root} // where ".." leads, nobody here knows: it may be anywhere
	}
	steps := append([]string{root}, strings.Split(clean, "/")...)
	return steps[:min(len(steps), maxDepth)]
}

var placeholder = regexp.MustCompile(`\{([^{}]+)\}`)

// arguments reads the values of parameters, at most once.
type arguments struct {
	schema, args  json.RawMessage
	given, ofTool map[string]json.RawMessage
}

// fill puts arguments into a part; ok is false where one is missing.
func (a *arguments) fill(part string) (text string, ok bool) {
	ok = true
	text = placeholder.ReplaceAllStringFunc(part, func(name string) string {
		value, found := a.value(name[1 : len(name)-1])
		ok = ok && found
		return value
	})
	return text, ok
}

func (a *arguments) value(name string) (string, bool) {
	if a.given == nil {
		a.given, a.ofTool = map[string]json.RawMessage{}, map[string]json.RawMessage{}
		_ = json.Unmarshal(a.args, &a.given) // what is no object fails when it is called
		var schema struct {
			Properties map[string]struct {
				Default json.RawMessage `json:"default"`
			} `json:"properties"`
		}
		_ = json.Unmarshal(a.schema, &schema)
		for name, p := range schema.Properties {
			if p.Default != nil {
				a.ofTool[name] = p.Default
			}
		}
	}
	value, ok := a.given[name]
	if !ok {
		if value, ok = a.ofTool[name]; !ok {
			return "", false
		}
	}
	return plain(value), true
}

// plain is a value as a part of a key: equal values have equal texts.
func plain(value json.RawMessage) string {
	var text string
	if len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) == nil {
		return text
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return string(value)
	}
	if n, ok := v.(json.Number); ok {
		if f, err := n.Float64(); err == nil && f == float64(int64(f)) && f < 1<<53 && f > -1<<53 {
			return strconv.FormatInt(int64(f), 10) // 1.0 is 1
		}
	}
	sorted, err := tool.MarshalPlain(v)
	if err != nil {
		return string(value)
	}
	return string(sorted)
}
