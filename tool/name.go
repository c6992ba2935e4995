package tool

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// maxProviderName is the shortest limit that a provider sets for a tool's name.
const maxProviderName = 64

// hashDigits are the lengths of the hash suffix of a provider name, in hex
// digits: a name that is not alone in its set takes the next longer one. At the
// last length two ids share a name only if SHA-256 collides.
var hashDigits = []int{8, 16, 40}

// first is a beginning that every provider takes, foreign what not every one takes.
var (
	first   = regexp.MustCompile(`^[A-Za-z_]`)
	foreign = regexp.MustCompile(`[^A-Za-z0-9_-]`)
)

// ProviderName returns the name of a tool as model providers take it, by its
// full id alone: dots become dashes ("weather.forecast.today" is
// "weather-forecast-today"). It always matches ^[A-Za-z_][A-Za-z0-9_-]{0,63}$.
// A name that loses characters on the way, because they are outside this
// alphabet or beyond its length, ends in a hash of the id. The same id has the
// same name everywhere and for ever.
//
// Two ids may still share a name ("a.b-c" and "a.b.c"): to show several
// tools to one model, use [Names].
func ProviderName(id subjects.ToolID) string { return providerName(id, 0) }

// providerName is the name with a hash of at least the given level (0: only if
// it needs one).
func providerName(id subjects.ToolID, level int) string {
	dashed := strings.ReplaceAll(string(id), ".", "-")
	name := foreign.ReplaceAllString(dashed, "_")
	lossy := name != dashed
	if name == "" || !first.MatchString(name) {
		name = "_" + name // every provider takes this beginning; a resolver never guesses, it looks up
	}
	if level == 0 && (lossy || len(name) > maxProviderName) {
		level = 1
	}
	if level == 0 {
		return name
	}
	sum := sha256.Sum256([]byte(id))
	suffix := "-" + hex.EncodeToString(sum[:])[:hashDigits[level-1]]
	return name[:min(len(name), maxProviderName-len(suffix))] + suffix
}

// Names gives each tool of a set a name that every provider takes, and finds
// the tool of a name again. It is immutable: any number of goroutines may use it.
//
// A tool is called by its [ProviderName] unless another one of the set would
// have the same; then all of these end in a hash of their ids. So the names
// depend on which tools are in the set, and not on their order.
type Names struct {
	byID   map[subjects.ToolID]string
	byName map[string]subjects.ToolID
	shared map[string][]subjects.ToolID // plain names that several tools would have
	sorted []string
}

// NewNames makes the names of a set of full ids. An id that is there twice
// counts once.
func NewNames(ids []subjects.ToolID) *Names {
	n := &Names{
		byID: make(map[subjects.ToolID]string, len(ids)), byName: make(map[string]subjects.ToolID, len(ids)),
		shared: map[string][]subjects.ToolID{},
	}
	levels := make(map[subjects.ToolID]int, len(ids))
	for _, id := range ids {
		levels[id] = 0
	}
	for {
		groups := make(map[string][]subjects.ToolID, len(levels))
		for id, level := range levels {
			name := providerName(id, level)
			groups[name] = append(groups[name], id)
		}
		collided := false
		for name, group := range groups {
			if len(group) == 1 {
				continue
			}
			slices.Sort(group)
			n.shared[name] = group
			for _, id := range group {
				if levels[id] < len(hashDigits) {
					levels[id]++
					collided = true
				}
			}
		}
		if collided {
			continue
		}
		for name, group := range groups {
			n.byID[group[0]] = name
			n.byName[name] = group[0]
			n.sorted = append(n.sorted, name)
		}
		slices.Sort(n.sorted)
		return n
	}
}

// Name returns a tool's name in the set, and for a tool that is not in it its
// [ProviderName].
func (n *Names) Name(id subjects.ToolID) string {
	if name, ok := n.byID[id]; ok {
		return name
	}
	return ProviderName(id)
}

// Resolve returns the tool of a name that this set gave out. The full id of one
// of its tools is taken too, if it has a dot: no name does. Anything else is
// tool_not_found with details.nearest; a name that two tools would have without
// their hashes is tool_not_found too, and says which ones: nothing is guessed.
func (n *Names) Resolve(name string) (subjects.ToolID, error) {
	if id, ok := n.byName[name]; ok {
		return id, nil
	}
	if id := subjects.ToolID(name); strings.Contains(name, ".") {
		if _, ok := n.byID[id]; ok {
			return id, nil
		}
	}
	if ids := n.shared[name]; len(ids) > 0 {
		texts, names := make([]string, len(ids)), make([]string, len(ids))
		for i, id := range ids {
			texts[i], names[i] = string(id), n.byID[id]
		}
		return "", toolmesh.Errorf(toolmesh.CodeToolNotFound, "%q may be %s; say which, by %s",
			name, strings.Join(texts, " or "), strings.Join(names, " or ")).
			WithStarted(toolmesh.StartedNo).WithDetail("nearest", names)
	}
	near, hint := append([]string{}, Nearest(name, n.sorted, 3)...), ""
	if len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %q?", near[0])
	}
	return "", toolmesh.Errorf(toolmesh.CodeToolNotFound, "no tool has the name %q%s", name, hint).
		WithStarted(toolmesh.StartedNo).WithDetail("nearest", near)
}

// All yields the names and their tools in the order of the names.
func (n *Names) All() iter.Seq2[string, subjects.ToolID] {
	return func(yield func(string, subjects.ToolID) bool) {
		for _, name := range n.sorted {
			if !yield(name, n.byName[name]) {
				return
			}
		}
	}
}
