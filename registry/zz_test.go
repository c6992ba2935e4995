package registry_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestZZ(t *testing.T) {
	body := []byte(`{"provider":"mcp","tools":["a.one"],"declared":[{}` + strings.Repeat(`,{}`, 340_000) + `]}`)
	var m0, m1 runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	begun := time.Now()
	var q registry.Request
	if err := codec.ParseBody(nil, body, &q); err != nil {
		t.Log(err)
	}
	took := time.Since(begun)
	runtime.GC()
	runtime.ReadMemStats(&m1)
	t.Logf("%d bytes: %v, %d MB kept, %d declared", len(body), took, (m1.HeapAlloc-m0.HeapAlloc)>>20, len(q.Declared))
	runtime.KeepAlive(q)
	begun = time.Now()
	g := subjects.Globs{strings.Repeat("*a", 500_000)}
	g.Match("weather.forecast.today_in_oslo")
	t.Logf("one glob of 1 MB, one id: %v", time.Since(begun))
	begun = time.Now()
	var many subjects.Globs
	for range 300_000 {
		many = append(many, "*")
	}
	json.Marshal(many)
	begun = time.Now()
	many.Match("weather.forecast.today_in_oslo")
	t.Logf("300,000 globs, one id: %v", time.Since(begun))
}
