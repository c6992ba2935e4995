package tool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/toolmesh/toolmesh"
)

// Sandbox is the level of isolation of a worker. Empty: the node's default.
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

// ResultCheck decides about a result that does not fit the output schema. Empty:
// [ResultWarn].
type ResultCheck string

// The checks of results.
const (
	ResultOff    ResultCheck = "off"
	ResultWarn   ResultCheck = "warn"   // reported in the log, in the tool's description, and next to the result
	ResultStrict ResultCheck = "strict" // the call fails
)

// oneOf is the one check of a closed set; it names the allowed values.
func oneOf[T ~string](key string, value T, allowed []T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	names := strings.Trim(strings.ReplaceAll(fmt.Sprint(allowed), " ", ", "), "[]")
	return fmt.Errorf("%s is %q, but must be one of %s", key, string(value), names)
}

var (
	laneScopes = []LaneScope{LaneBatch, LaneSession, LaneNode, LaneMesh}
	checks     = []ResultCheck{ResultOff, ResultWarn, ResultStrict}
)

// ParseIsolation returns the isolation named text, or an error that names the allowed ones.
func ParseIsolation(text string) (toolmesh.Isolation, error) {
	v := toolmesh.Isolation(text)
	return v, oneOf("isolation", v, toolmesh.Isolations())
}

// ParseSandbox returns the sandbox level named text, or an error that names the allowed ones.
func ParseSandbox(text string) (Sandbox, error) {
	return Sandbox(text), oneOf("sandbox", Sandbox(text), Sandboxes())
}

// ParseResultCheck returns the check of results named text, or an error that names the allowed ones.
func ParseResultCheck(text string) (ResultCheck, error) {
	return ResultCheck(text), oneOf("results", ResultCheck(text), checks)
}

// ParseLaneScope returns the lane scope named text, or an error that names the allowed ones.
func ParseLaneScope(text string) (LaneScope, error) {
	return LaneScope(text), oneOf("lane_scope", LaneScope(text), laneScopes)
}

// ResourceKey names the resource of a call; calls with equal keys do not overlap within the
// lane scope. The zero value is the default: ["global"], and for a parallel_safe tool no key in
// its batch and ["safe", id] in a wider scope.
type ResourceKey struct {
	// Parts are the parts of the key; {name} is replaced by the argument name.
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
	return MarshalPlain(k.Parts)
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

// placeholder is how a part of a resource key names a parameter.
var placeholder = regexp.MustCompile(`\{([^{}]+)\}`)

// placeholders returns the names of the parameters that the key refers to.
func (k ResourceKey) placeholders() []string {
	var names []string
	for _, part := range k.Parts {
		for _, match := range placeholder.FindAllStringSubmatch(part, -1) {
			names = append(names, match[1])
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
		if strings.ContainsAny(placeholder.ReplaceAllString(part, ""), "{}") {
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

// sizeText is a size as [ParseSize] reads it: a number without an exponent, and a unit.
var sizeText = regexp.MustCompile(`(?i)^\s*\+?([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})\s*([kmgt]i?b|b)?\s*$`)

// ParseSize reads a text such as "200MB" or "1.5 GiB", without regard to case.
func ParseSize(text string) (Size, error) {
	if m := sizeText.FindStringSubmatch(text); m != nil {
		n, _ := new(big.Rat).SetString(m[1])
		for _, u := range sizeUnits {
			if strings.EqualFold(u.name, m[2]) {
				n.Mul(n, new(big.Rat).SetInt64(u.factor))
			}
		}
		if whole := new(big.Int).Quo(n.Num(), n.Denom()); whole.IsInt64() {
			return Size(whole.Int64()), nil
		}
	}
	return 0, fmt.Errorf("size %q must be a number with a unit, such as 200MB or 64KiB", text)
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

// UnmarshalText reads the forms of [ParseSize].
func (s *Size) UnmarshalText(text []byte) error {
	v, err := ParseSize(string(text))
	*s = v
	return err
}

// Limits bound one call. Zero means none of the tool's own: the node's defaults
// hold, see [Limits.Within].
type Limits struct {
	CPUTime   time.Duration `json:"cpu_time,omitzero"`   // processor time of the call
	Memory    Size          `json:"memory,omitzero"`     // memory of the worker
	Pids      int           `json:"pids,omitzero"`       // processes and threads
	OpenFiles int           `json:"open_files,omitzero"` // open files
	TempFiles Size          `json:"temp_files,omitzero"` // temporary files of the worker
	Output    Size          `json:"output,omitzero"`     // encoded result, or one item of a stream
}

// Within returns the limits in effect for a tool's declared ones: undeclared fields are those of
// standard, and no field exceeds that of most. Zero fields of standard and most are ignored.
func (l Limits) Within(standard, most Limits) Limits {
	return Limits{
		CPUTime:   within(l.CPUTime, standard.CPUTime, most.CPUTime),
		Memory:    within(l.Memory, standard.Memory, most.Memory),
		Pids:      within(l.Pids, standard.Pids, most.Pids),
		OpenFiles: within(l.OpenFiles, standard.OpenFiles, most.OpenFiles),
		TempFiles: within(l.TempFiles, standard.TempFiles, most.TempFiles),
		Output:    within(l.Output, standard.Output, most.Output),
	}
}

func within[T cmp.Ordered](declared, standard, most T) (limit T) {
	var none T
	if limit = cmp.Or(declared, standard); most > none {
		limit = min(limit, most)
	}
	return limit
}

// IsZero says that nothing is limited.
func (l Limits) IsZero() bool { return l == Limits{} }

type plainLimits Limits // without methods

// MarshalJSON writes durations and sizes as text.
func (l Limits) MarshalJSON() ([]byte, error) { return jsonv2.Marshal(plainLimits(l), durations) }

// UnmarshalJSON reads the form of MarshalJSON.
func (l *Limits) UnmarshalJSON(data []byte) error {
	return jsonv2.Unmarshal(data, (*plainLimits)(l), durations)
}

// Check returns the fault of limits, nil without one.
func (l Limits) Check() error {
	if l.CPUTime < 0 || l.Memory < 0 || l.Pids < 0 || l.OpenFiles < 0 || l.TempFiles < 0 || l.Output < 0 {
		return fmt.Errorf("limits must not be negative")
	}
	return nil
}

// durations are Go duration text in JSON.
var durations = jsonv2.JoinOptions(
	jsonv2.WithMarshalers(jsonv2.MarshalFunc(func(d time.Duration) ([]byte, error) { return json.Marshal(d.String()) })),
	jsonv2.WithUnmarshalers(jsonv2.UnmarshalFunc(func(data []byte, d *time.Duration) error {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		v, err := time.ParseDuration(text)
		*d = min(v, toolmesh.MaxTime)
		return err
	})))

// Annotations say how a tool behaves and how it wants to be run. The zero value
// declares nothing. ParallelSafe, ReadOnly and ResourceKey say which calls of a batch may
// overlap, and with LaneScope which calls of a session, a node or the mesh.
type Annotations struct {
	Streaming    bool               `json:"streaming,omitzero"`     // the tool yields items
	Idempotent   bool               `json:"idempotent,omitzero"`    // running it twice is as good as once
	ParallelSafe bool               `json:"parallel_safe,omitzero"` // calls may overlap within a batch
	Alone        bool               `json:"-"`                      // parallel_safe is declared false: its calls overlap with no other, even if the caller of a batch allows it
	ReadOnly     bool               `json:"read_only,omitzero"`     // only reads its resource, and shares the key with other readers
	Collect      bool               `json:"collect,omitzero"`       // a unary call of a streaming tool returns the list of all items, not the last
	ResourceKey  ResourceKey        `json:"resource_key,omitzero"`  // the resource of a call
	LaneScope    LaneScope          `json:"lane_scope,omitzero"`    // where the key counts; empty: the batch
	Timeout      time.Duration      `json:"timeout,omitzero"`       // the tool's total time; 0: none declared
	CacheTTL     time.Duration      `json:"cache_ttl,omitzero"`     // how long a result may be served again; 0: never
	CacheShared  bool               `json:"cache_shared,omitzero"`  // a result may be served to other sessions, too
	Isolation    toolmesh.Isolation `json:"isolation,omitzero"`     // empty: warm
	Sandbox      Sandbox            `json:"sandbox,omitzero"`       // empty: the node's default
	Concurrency  int                `json:"concurrency,omitzero"`   // calls of the index at once on one node; 0: as many as the node runs
	Limits       Limits             `json:"limits,omitzero"`        // of one call
	Results      ResultCheck        `json:"results,omitzero"`       // against the output schema; empty: warn
}

type plainAnnotations Annotations // without methods

// annotationsJSON tells parallel_safe = false from nothing declared.
type annotationsJSON struct {
	plainAnnotations
	ParallelSafe *bool `json:"parallel_safe,omitzero"`
}

// MarshalJSON writes only declared fields, durations as Go duration text.
func (a Annotations) MarshalJSON() ([]byte, error) {
	w := annotationsJSON{plainAnnotations: plainAnnotations(a)}
	if a.ParallelSafe || a.Alone {
		w.ParallelSafe = &a.ParallelSafe
	}
	return jsonv2.Marshal(w, durations)
}

// UnmarshalJSON reads the form of MarshalJSON. It ignores unknown keys (a newer node may
// have written them) and refuses unknown values of a known key: the error names the
// allowed ones.
func (a *Annotations) UnmarshalJSON(data []byte) error {
	var w annotationsJSON
	if err := jsonv2.Unmarshal(data, &w, durations); err != nil {
		return err
	}
	v := Annotations(w.plainAnnotations)
	if w.ParallelSafe != nil {
		v.ParallelSafe, v.Alone = *w.ParallelSafe, !*w.ParallelSafe
	}
	if err := v.check(); err != nil {
		return err
	}
	*a = v
	return nil
}

// check refuses values outside their closed sets and negative numbers.
func (a Annotations) check() error {
	for _, err := range []error{
		optional("isolation", a.Isolation, toolmesh.Isolations()),
		optional("sandbox", a.Sandbox, Sandboxes()), optional("lane_scope", a.LaneScope, laneScopes), optional("results", a.Results, checks), a.ResourceKey.Check(),
	} {
		if err != nil {
			return err
		}
	}
	for key, negative := range map[string]bool{"timeout": a.Timeout < 0, "cache_ttl": a.CacheTTL < 0, "concurrency": a.Concurrency < 0} {
		if negative {
			return fmt.Errorf("%s must not be negative", key)
		}
	}
	return a.Limits.Check()
}

// optional is [oneOf] for a value that may be absent.
func optional[T ~string](key string, value T, allowed []T) error {
	if value == "" {
		return nil
	}
	return oneOf(key, value, allowed)
}
