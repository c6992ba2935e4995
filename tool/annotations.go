package tool

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolmesh/toolmesh"
)

// Affinity says what becomes of a call whose session's worker is busy. Empty:
// [AffinityQueue].
type Affinity string

// The affinities.
const (
	// AffinityQueue waits for the session's worker, however long that takes: its
	// state is what the call is about.
	AffinityQueue Affinity = "strict-queue"
	// AffinityFail answers busy at once.
	AffinityFail Affinity = "strict-fail-fast"
	// AffinityHint takes another worker of the session, which has not seen what
	// the first has.
	AffinityHint Affinity = "hint"
)

// Sandbox says what a worker may touch. Empty: the node's default.
type Sandbox string

// The sandbox levels, from none to the tightest.
const (
	SandboxNone    Sandbox = "none"
	SandboxGuard   Sandbox = "guard"
	SandboxStrict  Sandbox = "strict"
	SandboxOffline Sandbox = "offline"
)

// Sandboxes lists the levels, from none to the tightest.
func Sandboxes() []Sandbox {
	return []Sandbox{SandboxNone, SandboxGuard, SandboxStrict, SandboxOffline}
}

// AtLeast reports whether s is level or tighter.
func (s Sandbox) AtLeast(level Sandbox) bool {
	return slices.Index(Sandboxes(), s) >= slices.Index(Sandboxes(), level)
}

// LaneScope says among which calls a resource key means the same resource.
// Empty: the batch.
type LaneScope string

// The lane scopes, from the narrowest to the widest.
const (
	LaneBatch   LaneScope = "batch"
	LaneSession LaneScope = "session"
	LaneNode    LaneScope = "node"
	LaneMesh    LaneScope = "mesh"
)

// oneOf is the one check of a closed set; it names the allowed values.
func oneOf[T ~string](key string, value T, allowed ...T) error {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	return fmt.Errorf("%s is %q, but must be one of %s", key, string(value), strings.Join(names, ", "))
}

// ParseIsolation returns the isolation named text, or an error that names the allowed ones.
func ParseIsolation(text string) (toolmesh.Isolation, error) {
	v := toolmesh.Isolation(text)
	return v, required("isolation", v, toolmesh.Isolations()...)
}

// ParseAffinity returns the affinity named text, or an error that names the allowed ones.
func ParseAffinity(text string) (Affinity, error) {
	v := Affinity(text)
	return v, required("affinity", v, AffinityQueue, AffinityFail, AffinityHint)
}

// ParseSandbox returns the sandbox level named text, or an error that names the allowed ones.
func ParseSandbox(text string) (Sandbox, error) {
	v := Sandbox(text)
	return v, required("sandbox", v, Sandboxes()...)
}

// ParseLaneScope returns the lane scope named text, or an error that names the allowed ones.
func ParseLaneScope(text string) (LaneScope, error) {
	v := LaneScope(text)
	return v, required("lane_scope", v, LaneBatch, LaneSession, LaneNode, LaneMesh)
}

func required[T ~string](key string, value T, allowed ...T) error {
	if value == "" {
		value = " "
	}
	return oneOf(key, value, allowed...)
}

// ResourceKey names what a call touches; calls with equal keys do not overlap
// within the lane scope. The zero value is the default: ["safe", name] of a
// parallel_safe tool, ["global"] of any other.
type ResourceKey struct {
	// Parts are the parts of the key; {name} stands for the argument name.
	Parts []string
	// Dynamic says that the host computes the key in code; Parts is empty then.
	Dynamic bool
}

// dynamicKey is the text form of a key that is computed in code.
const dynamicKey = "dynamic"

// ParseResourceKey reads the text form: "dynamic", or a key of one part.
func ParseResourceKey(text string) ResourceKey {
	if text == dynamicKey {
		return ResourceKey{Dynamic: true}
	}
	return ResourceKey{Parts: []string{text}}
}

// IsZero says that no key was declared.
func (k ResourceKey) IsZero() bool { return !k.Dynamic && len(k.Parts) == 0 }

// MarshalJSON writes a list of texts, or "dynamic".
func (k ResourceKey) MarshalJSON() ([]byte, error) {
	if k.Dynamic {
		return json.Marshal(dynamicKey)
	}
	return marshalPlain(k.Parts)
}

// UnmarshalJSON reads a list of texts, "dynamic", or one text (a list of one).
func (k *ResourceKey) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil && string(data) != "null" {
		*k = ParseResourceKey(text)
		return nil
	}
	var parts []string
	if err := json.Unmarshal(data, &parts); err != nil {
		return fmt.Errorf(`resource_key must be a list of texts or "dynamic": %w`, err)
	}
	*k = ResourceKey{Parts: parts}
	return nil
}

// placeholders returns the names of the parameters that the key refers to.
func (k ResourceKey) placeholders() []string {
	var names []string
	for _, part := range k.Parts {
		for {
			_, rest, ok := strings.Cut(part, "{")
			if !ok {
				break
			}
			name, after, ok := strings.Cut(rest, "}")
			if !ok {
				break
			}
			names = append(names, name)
			part = after
		}
	}
	return names
}

// Check refuses empty parts and braces that name no parameter.
func (k ResourceKey) Check() error {
	for _, part := range k.Parts {
		if part == "" {
			return fmt.Errorf("resource_key has an empty part")
		}
		open := false
		for _, r := range part {
			switch {
			case r == '{' && open, r == '}' && !open:
				return fmt.Errorf("resource_key part %q has unbalanced braces; a parameter is written {name}", part)
			case r == '{':
				open = true
			case r == '}':
				open = false
			}
		}
		if open || strings.Contains(part, "{}") {
			return fmt.Errorf("resource_key part %q has unbalanced or empty braces; a parameter is written {name}", part)
		}
	}
	return nil
}

// Size is a number of bytes. Its text has a unit: B, KB, MB, GB, TB are powers
// of 1000, KiB, MiB, GiB, TiB powers of 1024; a bare number counts bytes.
type Size int64

var sizeUnits = []struct {
	name   string
	factor int64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"KB", 1e3},
	{"B", 1},
}

// ParseSize reads a text such as "200MB" or "1.5 GiB", without regard to case.
func ParseSize(text string) (Size, error) {
	bad := fmt.Errorf("size %q must be a number with a unit, such as 200MB or 64KiB", text)
	number, factor := strings.TrimSpace(text), int64(1)
	for _, u := range sizeUnits {
		if n := len(number) - len(u.name); n > 0 && strings.EqualFold(number[n:], u.name) {
			number, factor = strings.TrimSpace(number[:n]), u.factor
			break
		}
	}
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		if n < 0 || n > (1<<63-1)/factor {
			return 0, bad
		}
		return Size(n * factor), nil
	}
	if strings.ContainsAny(number, "eExXpP_nN") { // no 1e3, 0x10, 1_000, NaN, Inf
		return 0, bad
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || f < 0 || f*float64(factor) >= 1<<63 {
		return 0, bad
	}
	return Size(f * float64(factor)), nil
}

// String returns the exact size with the largest unit that divides it.
func (s Size) String() string {
	best := sizeUnits[len(sizeUnits)-1]
	for _, u := range sizeUnits {
		if s != 0 && int64(s)%u.factor == 0 && u.factor > best.factor {
			best = u
		}
	}
	return strconv.FormatInt(int64(s)/best.factor, 10) + best.name
}

// MarshalText writes [Size.String].
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what [ParseSize] reads.
func (s *Size) UnmarshalText(text []byte) error {
	v, err := ParseSize(string(text))
	*s = v
	return err
}

// Limits bound one call. Zero means none of the tool's own; the node bounds the
// output in any case.
type Limits struct {
	CPUTime   time.Duration // processor time of the call
	Memory    Size          // memory of the worker
	Pids      int           // processes and threads
	OpenFiles int           // open files
	Output    Size          // encoded result, or one item of a stream
}

// IsZero says that nothing is limited.
func (l Limits) IsZero() bool { return l == Limits{} }

type limitsJSON struct {
	CPUTime   durationText `json:"cpu_time,omitzero"`
	Memory    Size         `json:"memory,omitzero"`
	Pids      int          `json:"pids,omitempty"`
	OpenFiles int          `json:"open_files,omitempty"`
	Output    Size         `json:"output,omitzero"`
}

// MarshalJSON writes durations and sizes as text.
func (l Limits) MarshalJSON() ([]byte, error) {
	return json.Marshal(limitsJSON{durationText(l.CPUTime), l.Memory, l.Pids, l.OpenFiles, l.Output})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (l *Limits) UnmarshalJSON(data []byte) error {
	var w limitsJSON
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	*l = Limits{time.Duration(w.CPUTime), w.Memory, w.Pids, w.OpenFiles, w.Output}
	return nil
}

func (l Limits) check() error {
	if l.CPUTime < 0 || l.Memory < 0 || l.Pids < 0 || l.OpenFiles < 0 || l.Output < 0 {
		return fmt.Errorf("limits must not be negative")
	}
	return nil
}

// durationText is a duration that is Go duration text in JSON.
type durationText time.Duration

func (d durationText) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *durationText) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = durationText(v)
	return err
}

// Annotations say how a tool behaves and how it wants to be run. The zero value
// declares nothing. ParallelSafe, ReadOnly, ResourceKey, LaneScope and CacheTTL are
// for batches, lanes and caches to come: nothing acts on them yet.
type Annotations struct {
	Streaming    bool               // the tool yields items
	Idempotent   bool               // running it twice is as good as once
	ParallelSafe bool               // calls may overlap within a batch
	ReadOnly     bool               // only reads what its resource key names, and shares the key with other readers
	Collect      bool               // a unary call of a streaming tool returns the list of all items, not the last
	ResourceKey  ResourceKey        // what a call touches
	LaneScope    LaneScope          // where the key counts; empty: the batch
	Timeout      time.Duration      // the tool's total time; 0: none declared
	CacheTTL     time.Duration      // how long a result may be served again; 0: never
	Isolation    toolmesh.Isolation // empty: warm
	Sandbox      Sandbox            // empty: the node's default
	Concurrency  int                // calls of the index at once on one node; 0: as many as the node runs
	Limits       Limits             // of one call
	Affinity     Affinity           // of isolation session; empty: strict-queue
}

type annotationsJSON struct {
	Streaming    bool               `json:"streaming,omitempty"`
	Idempotent   bool               `json:"idempotent,omitempty"`
	ParallelSafe bool               `json:"parallel_safe,omitempty"`
	ReadOnly     bool               `json:"read_only,omitempty"`
	Collect      bool               `json:"collect,omitempty"`
	ResourceKey  ResourceKey        `json:"resource_key,omitzero"`
	LaneScope    LaneScope          `json:"lane_scope,omitempty"`
	Timeout      durationText       `json:"timeout,omitzero"`
	CacheTTL     durationText       `json:"cache_ttl,omitzero"`
	Isolation    toolmesh.Isolation `json:"isolation,omitempty"`
	Sandbox      Sandbox            `json:"sandbox,omitempty"`
	Concurrency  int                `json:"concurrency,omitempty"`
	Limits       Limits             `json:"limits,omitzero"`
	Affinity     Affinity           `json:"affinity,omitempty"`
}

// MarshalJSON writes what is declared and nothing else, durations as Go
// duration text.
func (a Annotations) MarshalJSON() ([]byte, error) {
	return marshalPlain(annotationsJSON{
		a.Streaming, a.Idempotent, a.ParallelSafe, a.ReadOnly, a.Collect, a.ResourceKey, a.LaneScope,
		durationText(a.Timeout), durationText(a.CacheTTL), a.Isolation, a.Sandbox, a.Concurrency, a.Limits, a.Affinity,
	})
}

// UnmarshalJSON reads what MarshalJSON wrote. Unknown keys are ignored (a newer
// node may have written them), unknown values of a known key refused: the error
// names the allowed ones.
func (a *Annotations) UnmarshalJSON(data []byte) error {
	var w annotationsJSON
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	v := Annotations{
		w.Streaming, w.Idempotent, w.ParallelSafe, w.ReadOnly, w.Collect, w.ResourceKey, w.LaneScope,
		time.Duration(w.Timeout), time.Duration(w.CacheTTL), w.Isolation, w.Sandbox, w.Concurrency, w.Limits, w.Affinity,
	}
	if err := v.check(); err != nil {
		return err
	}
	*a = v
	return nil
}

// check refuses values outside their closed sets and negative numbers.
func (a Annotations) check() error {
	if err := oneOf("isolation", a.Isolation, toolmesh.Isolations()...); err != nil {
		return err
	}
	if err := oneOf("affinity", a.Affinity, AffinityQueue, AffinityFail, AffinityHint); err != nil {
		return err
	}
	if err := oneOf("sandbox", a.Sandbox, Sandboxes()...); err != nil {
		return err
	}
	if err := oneOf("lane_scope", a.LaneScope, LaneBatch, LaneSession, LaneNode, LaneMesh); err != nil {
		return err
	}
	if err := a.ResourceKey.Check(); err != nil {
		return err
	}
	if a.Timeout < 0 {
		return fmt.Errorf("timeout must not be negative")
	}
	if a.CacheTTL < 0 {
		return fmt.Errorf("cache_ttl must not be negative")
	}
	if a.Concurrency < 0 {
		return fmt.Errorf("concurrency must not be negative")
	}
	return a.Limits.check()
}
