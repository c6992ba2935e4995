package tool_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

func forecast() *tool.Descriptor {
	return &tool.Descriptor{
		ID: "weather.forecast.daily", Name: "forecast.daily", Description: "The weather of the next days, <b>& more</b>.",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"},"big":{"default":12345678901234567890.10}},"additionalProperties":false}`),
		OutputSchema: json.RawMessage(`{"type":"object"}`),
		Positional:   []string{"city", "big"},
		Annotations: tool.Annotations{
			Idempotent: true, ParallelSafe: true, Timeout: 2 * time.Second, CacheTTL: 5 * time.Minute,
			ResourceKey: tool.ResourceKey{Parts: []string{"city", "{city}"}}, LaneScope: tool.LaneSession,
			Isolation: toolmesh.IsolationFork, Sandbox: tool.SandboxGuard, Concurrency: 3,
			Limits: tool.Limits{CPUTime: time.Second, Memory: 200e6, Pids: 40, OpenFiles: 128, Output: 10 << 10},
		},
		Metadata: json.RawMessage(`{"team":"sky"}`), Source: tool.SourceImport, Warnings: []string{"w"},
		Index: &tool.IndexRef{Name: "weather", Revision: "abc"},
	}
}

func TestDescriptorJSON(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(&tool.Descriptor{ID: "echo", Name: "echo", Source: tool.SourceGo})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"echo","name":"echo","description":"","input_schema":{"type":"object"},"annotations":{},"metadata":{},"source":"go","warnings":[]}`
	if string(data) != want {
		t.Errorf("the smallest descriptor is\n%s, want\n%s", data, want)
	}
	d := forecast()
	data, err = json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"annotations":{"idempotent":true,"resource_key":["city","{city}"],"lane_scope":"session","timeout":"2s","cache_ttl":"5m0s",` +
			`"isolation":"fork","sandbox":"guard","concurrency":3,"limits":{"cpu_time":"1s","memory":"200MB","pids":40,"open_files":128,"output":"10KiB"},"parallel_safe":true}`,
		`"default":12345678901234567890.10`, `"index":{"name":"weather","revision":"abc"}`, `"positional":["city","big"]`,
	} {
		if !strings.Contains(string(data), part) {
			t.Errorf("the JSON lacks %s:\n%s", part, data)
		}
	}
	var back tool.Descriptor
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, &back); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
}

// A tool that declares parallel_safe = false is told from one that declares nothing.
func TestParallelSafeFalseIsKept(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]tool.Annotations{
		`{}`: {}, `{"parallel_safe":true}`: {ParallelSafe: true}, `{"idempotent":true,"parallel_safe":false}`: {Idempotent: true, Alone: true},
	} {
		var got tool.Annotations
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", text, diff)
		}
		if data, err := json.Marshal(want); err != nil || string(data) != text {
			t.Errorf("%s: written as %s, %v", text, data, err)
		}
	}
}

func TestDescriptorEncodeDecode(t *testing.T) {
	t.Parallel()
	d := forecast()
	data, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := d.Digest()
	if err != nil {
		t.Fatal(err)
	}
	got, err := tool.Decode(data, digest)
	if err != nil {
		t.Fatal(err)
	}
	got.Index = d.Index
	if diff := cmp.Diff(d, got); diff != "" {
		t.Errorf("Decode(Encode) (-want +got):\n%s", diff)
	}
	// A node of a later version may write more, and its digest covers that.
	later := append(bytes.TrimSuffix(data, []byte("}")), `,"later":1}`...)
	text, err := tool.Canonical(later)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	if got, err := tool.Decode(later, hex.EncodeToString(sum[:])); err != nil || got.ID != d.ID {
		t.Errorf("a descriptor with a field of a later version: %v", err)
	}
	if _, err := tool.Decode([]byte(strings.Replace(string(data), "sky", "sea", 1)), digest); toolmesh.CodeOf(err) != toolmesh.CodeProtocolError {
		t.Errorf("a changed descriptor decodes with %v, want protocol_error", err)
	}
	if _, err := tool.Decode([]byte(`[]`), ""); toolmesh.CodeOf(err) != toolmesh.CodeProtocolError {
		t.Errorf("a list decodes with %v, want protocol_error", err)
	}
}

func TestDescriptorDigest(t *testing.T) {
	t.Parallel()
	digest := func(change func(*tool.Descriptor)) string {
		d := forecast()
		change(d)
		s, err := d.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	base := digest(func(*tool.Descriptor) {})
	// Pinned: a change here makes every stored descriptor unreadable by its digest.
	if want := "5d9fdb073799d46b1a1ec43625c875b7ba287719393affe670a678236a90215a"; base != want {
		t.Errorf("digest is %s, want %s", base, want)
	}
	for name, change := range map[string]func(*tool.Descriptor){
		"key order and space": func(d *tool.Descriptor) {
			d.InputSchema = json.RawMessage(`{ "additionalProperties" : false,
			 "properties":{"big":{"default":12345678901234567890.10},"city":{"type":"\u0073tring"}},"type":"object"}`)
		},
		"revision":       func(d *tool.Descriptor) { d.Index = &tool.IndexRef{Name: "weather", Revision: "def"} },
		"no index":       func(d *tool.Descriptor) { d.Index = nil },
		"empty warnings": func(d *tool.Descriptor) { d.Warnings = append([]string{}, d.Warnings...) },
	} {
		if got := digest(change); got != base {
			t.Errorf("%s changes the digest", name)
		}
	}
	for name, change := range map[string]func(*tool.Descriptor){
		"id":          func(d *tool.Descriptor) { d.ID = "weather.forecast.hourly" },
		"description": func(d *tool.Descriptor) { d.Description += "!" },
		"number": func(d *tool.Descriptor) {
			d.InputSchema = json.RawMessage(strings.Replace(string(d.InputSchema), "0.10", "0.1", 1))
		},
		"timeout":    func(d *tool.Descriptor) { d.Annotations.Timeout++ },
		"metadata":   func(d *tool.Descriptor) { d.Metadata = nil },
		"positional": func(d *tool.Descriptor) { d.Positional = []string{"big", "city"} },
	} {
		if digest(change) == base {
			t.Errorf("another %s has the same digest", name)
		}
	}
}

func TestDescriptorCheck(t *testing.T) {
	t.Parallel()
	if err := forecast().Check(); err != nil {
		t.Fatalf("Check: %v", err)
	}
	for message, change := range map[string]func(*tool.Descriptor){
		"invalid name":                   func(d *tool.Descriptor) { d.ID = "weather..daily" },
		"below the index":                func(d *tool.Descriptor) { d.Name = "daily" },
		"input_schema":                   func(d *tool.Descriptor) { d.InputSchema = json.RawMessage(`{"type":"x"}`) },
		"output_schema":                  func(d *tool.Descriptor) { d.OutputSchema = json.RawMessage(`{`) },
		"metadata must be a JSON object": func(d *tool.Descriptor) { d.Metadata = json.RawMessage(`[1]`) },
		"metadata.mcp cannot be read by MCP clients": func(d *tool.Descriptor) { d.Metadata = json.RawMessage(`{"mcp":{"icons":"x"}}`) },
		"readOnlyHint of type bool": func(d *tool.Descriptor) {
			d.Metadata = json.RawMessage(`{"mcp":{"annotations":{"readOnlyHint":"yes"}}}`)
		},
		"mcp._meta of type": func(d *tool.Descriptor) { d.Metadata = json.RawMessage(`{"mcp":{"_meta":"x"}}`) },
		"it is a list of capabilities": func(d *tool.Descriptor) {
			d.Metadata = json.RawMessage(`{"mcp":{"_meta":{"toolmesh/requires":"sampling"}}}`)
		},
		`"town" is not in the input schema`: func(d *tool.Descriptor) { d.Positional = []string{"town"} },
		"{town}":                            func(d *tool.Descriptor) { d.Annotations.ResourceKey.Parts = []string{"a{town}b"} },
		"unbalanced":                        func(d *tool.Descriptor) { d.Annotations.ResourceKey.Parts = []string{"{town"} },
		"warm, session, fork, fresh":        func(d *tool.Descriptor) { d.Annotations.Isolation = "cold" },
		"none, guard, strict, offline":      func(d *tool.Descriptor) { d.Annotations.Sandbox = "jail" },
		"batch, session, node, mesh":        func(d *tool.Descriptor) { d.Annotations.LaneScope = "wide" },
		"timeout must not be negative":      func(d *tool.Descriptor) { d.Annotations.Timeout = -1 },
		"import, static, go":                func(d *tool.Descriptor) { d.Source = "magic" },
	} {
		d := forecast()
		change(d)
		err := d.Check()
		if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), message) {
			t.Errorf("Check: %v, want invalid_request with %q", err, message)
		}
	}
}

// Readers in other languages have bounds: a descriptor beyond ours has no digest, so none is read from the store.
func TestDescriptorBeyondTheBoundsHasNoDigest(t *testing.T) {
	t.Parallel()
	for _, value := range []string{strings.Repeat("[", 400) + strings.Repeat("]", 400), strings.Repeat("1", 5000)} {
		d := forecast()
		d.Metadata = json.RawMessage(`{"x":` + value + `}`)
		if digest, err := d.Digest(); err == nil {
			t.Errorf("%.20s… has digest %s", value, digest)
		}
	}
}

func TestAnnotationsJSON(t *testing.T) {
	t.Parallel()
	var a tool.Annotations
	if err := json.Unmarshal([]byte(`{"resource_key":"dynamic","future":1}`), &a); err != nil || !a.ResourceKey.Dynamic {
		t.Errorf("dynamic: %+v, %v", a, err)
	}
	if data, err := json.Marshal(a); err != nil || string(data) != `{"resource_key":"dynamic"}` {
		t.Errorf("dynamic marshals to %s, %v", data, err)
	}
	if err := json.Unmarshal([]byte(`{"resource_key":"db"}`), &a); err != nil || !cmp.Equal(a.ResourceKey.Parts, []string{"db"}) {
		t.Errorf("text: %+v, %v", a, err)
	}
	// Fields are read as in frames: null declares nothing, of a repeated one the last counts, unknown ones say nothing.
	lax := `{"timeout":null,"limits":{"cpu_time":null},"concurrency":2,"concurrency":3,"later":{"a":1,"a":"\ud800"}}`
	if err := json.Unmarshal([]byte(lax), &a); err != nil || !cmp.Equal(a, tool.Annotations{Concurrency: 3}) {
		t.Errorf("%s: %+v, %v", lax, a, err)
	}
	if data, err := json.Marshal(tool.Annotations{ParallelSafe: true, Alone: true}); err != nil || string(data) != `{"parallel_safe":false}` {
		t.Errorf("the narrower of two declarations: %s, %v", data, err)
	}
	for data, message := range map[string]string{
		`{"isolation":"x"}`:      "must be one of warm, session, fork, fresh",
		`{"timeout":"2 apples"}`: "2 apples",
		`{"timeout":2}`:          "timeout",
		`{"resource_key":[1]}`:   "resource_key",
	} {
		if err := json.Unmarshal([]byte(data), &a); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v, want an error with %q", data, err, message)
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]tool.Size{
		"0": 0, "128": 128, "200MB": 200e6, "200 mb": 200e6, "64KiB": 64 << 10, "1.5GB": 15e8, "1TiB": 1 << 40, "7B": 7, "8191PB": -1,
		"": -1, "MB": -1, "-1KB": -1, "1e3": -1, "NaN": -1, "9223372036854775807KB": -1, "1,5GB": -1, "99999999999GB": -1, "0.0000001TB": 1e5,
		"1.005MB": 1_005_000, "1.GB": 1e9, ".5kb": 500, "010B": 10, "0x10": -1, "1/2MB": -1, "1_000": -1, "9223372036854775807": 1<<63 - 1,
	} {
		got, err := tool.ParseSize(text)
		if want < 0 {
			if err == nil {
				t.Errorf("ParseSize(%q) = %d, want an error", text, got)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
		if back, err := tool.ParseSize(got.String()); err != nil || back != got {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", got.String(), back, err, got)
		}
	}
}

func TestBind(t *testing.T) {
	t.Parallel()
	raw := func(list ...string) []json.RawMessage {
		var out []json.RawMessage
		for _, s := range list {
			out = append(out, json.RawMessage(s))
		}
		return out
	}
	for _, tt := range []struct {
		name, varargs string
		args          []json.RawMessage
		kwargs        string
		want, rest    string
		pointers      []string
	}{
		{"nothing", "", nil, ``, `{}`, ``, nil},
		{"kwargs as they came", "", nil, ` {"a" : 1.0} `, ` {"a" : 1.0} `, ``, nil},
		{"null kwargs", "", raw(`1`), `null`, `{"a":1}`, ``, nil},
		{"positions", "", raw(`1.0`, `{"x":null}`), `{}`, `{"a":1.0,"b":{"x":null}}`, ``, nil},
		{"both", "", raw(`1`), `{ "b" : 2 }`, `{"a":1,"b" : 2}`, ``, nil},
		{"explicit null", "", raw(`null`), ``, `{"a":null}`, ``, nil},
		{"too many", "", raw(`1`, `2`, `3`), ``, ``, ``, []string{""}},
		{"varargs", "rest", raw(`1`, `2`, `3`, `"x"`), ``, `{"a":1,"b":2}`, `[3,"x"]`, nil},
		{"given twice", "", raw(`1`), `{"a":2}`, ``, ``, []string{"/a"}},
		{"given twice in another spelling", "", raw(`1`), `{"\u0061":2}`, ``, ``, []string{"/a"}},
		{"kwargs no object", "", raw(`1`), `[1]`, ``, ``, []string{""}},
		{"repeated in kwargs", "", nil, `{"a":1,"a":2}`, ``, ``, []string{"/a"}},
		{"malformed", "", raw(`1,"c":2`), ``, ``, ``, []string{"/a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := &tool.Descriptor{ID: "x.y", Positional: []string{"a", "b"}, VarArgs: tt.varargs}
			object, rest, err := tool.Bind(d, tt.args, json.RawMessage(tt.kwargs))
			if diff := cmp.Diff(tt.pointers, pointers(t, err)); diff != "" {
				t.Fatalf("error %v: pointers (-want +got):\n%s", err, diff)
			}
			if string(object) != tt.want || string(rest) != tt.rest {
				t.Errorf("Bind = %s, %s, want %s, %s", object, rest, tt.want, tt.rest)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	ids := []string{"weather.forecast.daily", "weather.forecast.hourly", "billing.refund", "search", "files.read_text"}
	for name, want := range map[string][]string{
		"weather.forecast.dialy": {"weather.forecast.daily", "weather.forecast.hourly"},
		"Weather-Forecast-Daily": {"weather.forecast.daily", "weather.forecast.hourly"},
		"refund":                 {"billing.refund"},
		"refnud":                 {"billing.refund"},
		"serach":                 {"search"},
		"forecast":               {"weather.forecast.daily", "weather.forecast.hourly"},
		"files.read-text":        {"files.read_text"},
		"zebra":                  nil,
		"":                       nil,
	} {
		got := tool.Nearest(name, ids, 2)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Nearest(%q) (-want +got):\n%s", name, diff)
		}
	}
	if got := tool.Nearest(strings.Repeat("x", 1<<20), ids, 2); got != nil {
		t.Errorf("Nearest of a megabyte: %q", got)
	}
}

// A program in another language may write what it does not declare as null.
func TestAnnotationsOfNullAreUndeclared(t *testing.T) {
	t.Parallel()
	var a tool.Annotations
	const nulls = `{"streaming":null,"parallel_safe":null,"resource_key":null,"lane_scope":null,"timeout":null,"cache_ttl":null,"isolation":null,` +
		`"sandbox":null,"concurrency":null,"limits":{"cpu_time":null,"memory":null,"pids":null},"results":null,"new":1}`
	if err := json.Unmarshal([]byte(nulls), &a); err != nil || !reflect.DeepEqual(a, tool.Annotations{}) {
		t.Errorf("%+v, %v", a, err)
	}
	if err := json.Unmarshal([]byte(`{"limits":null}`), &a); err != nil || !a.Limits.IsZero() {
		t.Errorf("%+v, %v", a, err)
	}
	for _, bad := range []string{`{"timeout":2}`, `{"timeout":"soon"}`, `{"limits":{"memory":"much"}}`, `{"sandbox":"tight"}`, `{"concurrency":-1}`} {
		if err := json.Unmarshal([]byte(bad), &a); err == nil {
			t.Errorf("%s is read as %+v", bad, a)
		}
	}
}

// Declared limits replace the standard ones and never exceed the highest.
func TestLimitsWithin(t *testing.T) {
	t.Parallel()
	standard := tool.Limits{Memory: 1e9, Pids: 256, OpenFiles: 1024, TempFiles: 1e9}
	most := tool.Limits{Memory: 2e9, Pids: 100}
	for _, row := range []struct{ declared, want tool.Limits }{
		{tool.Limits{}, tool.Limits{Memory: 1e9, Pids: 100, OpenFiles: 1024, TempFiles: 1e9}},
		{
			tool.Limits{CPUTime: time.Second, Memory: 3e9, Pids: 99, OpenFiles: 4096, TempFiles: 5e9, Output: 1e3},
			tool.Limits{CPUTime: time.Second, Memory: 2e9, Pids: 99, OpenFiles: 4096, TempFiles: 5e9, Output: 1e3},
		},
		{tool.Limits{Memory: 1e6}, tool.Limits{Memory: 1e6, Pids: 100, OpenFiles: 1024, TempFiles: 1e9}},
	} {
		if got := row.declared.Within(standard, most); got != row.want {
			t.Errorf("%+v: got %+v, want %+v", row.declared, got, row.want)
		}
	}
	data, err := json.Marshal(standard)
	if want := `{"memory":"1GB","pids":256,"open_files":1024,"temp_files":"1GB"}`; err != nil || string(data) != want {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
}
