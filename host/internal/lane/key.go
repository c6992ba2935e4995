package lane

import (
	"bytes"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// maxDepth bounds the depth of a path in the queue: a deeper path counts as its prefix, which
// overlaps with more.
const maxDepth = 64

// Key is the place of a call in a tree. Two calls overlap where the place of one is that of the
// other or lies above it, unless both only read. The zero value is the root, with which all
// overlap.
type Key struct {
	Place []string `json:"place,omitempty"` // the path from the root
	Read  bool     `json:"read,omitempty"`  // a call with the key only reads
}

// MaxKey bounds the text of a key, in bytes.
const MaxKey = 8192

// Check refuses a key that is too long: invalid_arguments, of a call that has not begun.
func (k Key) Check() *toolmesh.Error {
	size := 0
	for _, step := range k.Place {
		size += len(step)
	}
	if size <= MaxKey {
		return nil
	}
	return toolmesh.Errorf(toolmesh.CodeInvalidArguments, "the resource key of the call has %d bytes, at most %d are possible: it is made of the arguments that the tool's resource_key names", size, MaxKey).
		WithStarted(toolmesh.StartedNo).WithOrigin(toolmesh.OriginAgent)
}

// Overlap reports whether calls of two keys must not run at the same time.
func Overlap(a, b Key) bool {
	if a.Read && b.Read {
		return false
	}
	n := min(len(a.Place), len(b.Place))
	return slices.Equal(a.Place[:n], b.Place[:n])
}

// Rule makes the keys of a tool's calls. It does not change.
type Rule struct {
	read     bool
	prefix   []string // of every key
	parts    []string // other than the path
	path     string
	defaults map[string]json.RawMessage
	constant *Key // of all calls; nil if a part names a parameter
	text     string
}

// Text is equal for rules that make equal keys of equal calls.
func (r *Rule) Text() string { return r.text }

// RuleOf returns the rule of a tool; nil is an unknown tool. It alone decides which calls may
// overlap. Calls of an unsafe tool, and of one whose host computes the key in code, run alone:
// their key is the root. independent means that the caller of a batch vouches for its calls: only
// a tool that is declared unsafe is then unsafe.
//
// Calls of a tool without a key overlap with each other in a batch; in a wider lane scope they
// share a key. A part of a declared key is its text with the arguments filled in, a text for
// itself and any other value as JSON. The last part that names a parameter, or else the last
// part, is a path: "a/../b" is "b", and a path overlaps with all below it. A parameter without an
// argument counts with its default; without a default, the key covers all of the other parts.
func RuleOf(d *tool.Descriptor, independent bool) *Rule {
	if d == nil {
		d = &tool.Descriptor{}
	}
	a := &d.Annotations
	if a.Alone || a.ResourceKey.Dynamic || !a.ParallelSafe && !independent {
		return &Rule{constant: &Key{}}
	}
	parts := a.ResourceKey.Parts
	r := &Rule{read: a.ReadOnly, text: strconv.FormatBool(a.ReadOnly) + " " + strings.Join(parts, "\x00")}
	if len(parts) == 0 {
		inBatch := a.LaneScope == "" || a.LaneScope == tool.LaneBatch
		r.constant = &Key{Place: []string{"2", "safe", string(d.ID)}, Read: r.read || inBatch}
		return r
	}
	hierarchy, constant := len(parts)-1, true
	for i, part := range parts {
		if placeholder.MatchString(part) {
			hierarchy, constant = i, false
		}
	}
	// The number of parts and the position of the path come first, so that keys of different
	// shapes share nothing.
	r.prefix = []string{strconv.Itoa(len(parts)) + "." + strconv.Itoa(hierarchy)}
	for i, part := range parts {
		if i != hierarchy {
			r.parts = append(r.parts, part)
		}
	}
	r.path = parts[hierarchy]
	var schema struct {
		Properties map[string]struct {
			Default json.RawMessage `json:"default"`
		} `json:"properties"`
	}
	_ = json.Unmarshal(d.InputSchema, &schema)
	r.defaults = make(map[string]json.RawMessage)
	for name, p := range schema.Properties {
		if p.Default != nil {
			r.defaults[name] = p.Default
		}
	}
	if constant {
		r.constant = new(r.Key(nil))
	}
	return r
}

// Key returns the key of a call. args is the arguments object, which has not been
// checked against the schema.
func (r *Rule) Key(args json.RawMessage) Key {
	if r.constant != nil {
		return *r.constant
	}
	k := Key{Read: r.read, Place: append(make([]string, 0, len(r.prefix)+len(r.parts)+4), r.prefix...)}
	var given map[string]json.RawMessage
	_ = json.Unmarshal(args, &given) // arguments that are no object fail in the call
	for _, part := range r.parts {
		text, ok := r.fill(part, given)
		if !ok {
			return k
		}
		k.Place = append(k.Place, text)
	}
	if text, ok := r.fill(r.path, given); ok {
		k.Place = append(k.Place, segments(text)...)
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
		return []string{root} // the target of ".." is unknown here: it may be anywhere
	}
	steps := append([]string{root}, strings.Split(clean, "/")...)
	return steps[:min(len(steps), maxDepth)]
}

var placeholder = regexp.MustCompile(`\{([^{}]+)\}`)

// fill puts arguments into a part; ok is false where one is missing.
func (r *Rule) fill(part string, given map[string]json.RawMessage) (text string, ok bool) {
	ok = true
	text = placeholder.ReplaceAllStringFunc(part, func(name string) string {
		name = name[1 : len(name)-1]
		value, found := given[name]
		if !found {
			value, found = r.defaults[name]
		}
		ok = ok && found
		return plain(value)
	})
	return text, ok
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
