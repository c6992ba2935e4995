package tool_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

func TestCanonical(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{\"b\": [1, {\"d\":1,\"c\":2}],\n\t\"a\":\"\\u0041\\/\\u00e9\"}": `{"a":"A/é","b":[1,{"c":2,"d":1}]}`,
		`{"n":[1.0,1,1e0,-0,12345678901234567890.10]}`:                    `{"n":[1.0,1,1e0,-0,12345678901234567890.10]}`,
		`{"😀":1,"￿":2,"":3}`:                                              `{"":3,"😀":1,"￿":2}`, // RFC 8785: by UTF-16
		`[]`:                                                              `[]`,
	} {
		given := json.RawMessage(text)
		got, err := tool.Canonical(given)
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
		if string(given) != text {
			t.Errorf("%s has become %s", text, given)
		}
	}
	for _, text := range []string{``, `{`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `["\ud800"]`, "[\"\xff\"]", `{} {}`} {
		if got, err := tool.Canonical([]byte(text)); err == nil {
			t.Errorf("%s: %s, want an error", text, got)
		}
	}
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	if _, err := tool.Canonical([]byte(deep)); err == nil {
		t.Error("20,000 levels: want an error")
	}
}

// A tool that yields items cannot be cached. The registry's records are read all the same: an older
// node may have written one.
func TestCacheTTLOfAStreamIsRefused(t *testing.T) {
	t.Parallel()
	d := &tool.Descriptor{ID: "a.b", Name: "b", Source: tool.SourceGo, Annotations: tool.Annotations{CacheTTL: time.Minute, CacheShared: true}}
	if err := d.Check(); err != nil {
		t.Error(err)
	}
	data, err := json.Marshal(d)
	if err != nil || !strings.Contains(string(data), `"cache_shared":true`) {
		t.Errorf("%s %v", data, err)
	}
	d.Annotations.Streaming = true
	if err := d.Check(); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "cache_ttl") {
		t.Errorf("error is %v", err)
	}
	data, err = json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var back tool.Descriptor
	if err := json.Unmarshal(data, &back); err != nil || !back.Annotations.Streaming || back.Annotations.CacheTTL != time.Minute {
		t.Errorf("%s is read as %+v, %v", data, back.Annotations, err)
	}
}
