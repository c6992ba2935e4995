package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// A cut value is JSON of about the requested size, and starts as the original does.
func TestCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 1000)
	for name, c := range map[string]struct {
		value any
		drop  bool
		want  string
	}{
		"a text":                      {long, false, `"` + strings.Repeat("a", 94) + `…"`},
		"a text that is escaped":      {strings.Repeat("\n", 1000), false, `"` + strings.Repeat(`\n`, 47) + `…"`},
		"a list":                      {[]any{"one", long, "three"}, false, `["one"]`},
		"a list of one":               {[]any{long}, false, `["` + strings.Repeat("a", 94) + `…"]`},
		"an object":                   {map[string]any{"id": 7, "text": long}, false, `{"id":7,"text":"` + strings.Repeat("a", 79) + `…"}`},
		"an object of many":           {map[string]any{"a": long[:60], "b": long[:61], "c": 1}, true, `{"a":"` + long[:60] + `","c":1}`},
		"what is nested too deeply":   {json.RawMessage(strings.Repeat("[", 200) + strings.Repeat("]", 200)), false, strings.Repeat("[", 200) + strings.Repeat("]", 200)},
		"what is small":               {[]any{1, "x", nil}, false, `[1,"x",null]`},
		"a number longer than may be": {json.RawMessage(strings.Repeat("1", 200)), false, strings.Repeat("1", 200)},
	} {
		raw, err := json.Marshal(c.value)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(cut(raw, 100, c.drop, cutDepth)); got != c.want {
			t.Errorf("%s: %d bytes %s", name, len(got), got)
		}
	}
}

// A list that is no content, or that is cut, takes no more memory than the list itself, wherever the list is.
func TestListsOfManyItems(t *testing.T) {
	for item, around := range map[string][2]string{
		"{}": {}, "0": {},
		"{} ": {`{"type":"text","text":"","content":`, "}"}, // as in results of MCP's sampling
		" {}": {`{"type":"text","text":"","_meta":{"of":`, "}}"},
		" 0":  {`{"type":"resource","resource":{"uri":"a:b","text":"","_meta":{"of":`, "}}}"},
		"0 ":  {`{"type":"text","text":"","structuredContent":`, "}"},
	} {
		list := json.RawMessage(around[0] + "[" + strings.Repeat(item+",", 1<<20) + item + "]" + around[1])
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if contentBlocks(list) != nil {
			t.Errorf("a list of %s counts as content", item)
		}
		cut(list, 25_000, false, cutDepth)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("a list of %d KiB takes %d KiB", len(list)>>10, took>>10)
		}
	}
}

// An object of many members is read as far as there is room for them.
func TestObjectsOfManyMembers(t *testing.T) {
	var object strings.Builder
	for i := range 1 << 19 {
		fmt.Fprintf(&object, `,"%d":0`, i)
	}
	value := json.RawMessage("{" + object.String()[1:] + "}")
	for _, drop := range []bool{false, true} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		part := cut(value, 25_000, drop, cutDepth)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 || drop != (len(part) <= 25_000) || !json.Valid(part) {
			t.Errorf("drop %v: %d bytes of %d KiB take %d KiB", drop, len(part), len(value)>>10, took>>10)
		}
	}
}

// Links to files are added without a tree of all values: a megabyte of empty lists would take thirty.
func TestLinksToFilesTakeNoTree(t *testing.T) {
	const file = `{"name":"a b","$file":"x/y","digest":"d","size":3,"href":"/old","type":"text/plain"}`
	many := strings.Repeat("[],", 100_000)
	want := `{"b":[` + many + `{"name":"a b","$file":"x/y","digest":"d","size":3,"type":"text/plain","href":"/v1/files/x%2Fy?digest=d&name=a+b&type=text%2Fplain"}],"a":1.50}`
	var got json.RawMessage
	made := testing.AllocsPerRun(1, func() { got = withHrefs(json.RawMessage(`{"b": [` + many + file + `], "a":1.50}`)) })
	if string(got) != want {
		t.Errorf("the result is %.200s…%s", got, got[max(0, len(got)-300):])
	}
	if made > 1000 {
		t.Errorf("%v allocations", made)
	}
	for given, want := range map[string]string{
		`[{"href":"//author/","$file":"x","digest":"d"}]`:              `[{"$file":"x","digest":"d","href":"/v1/files/x?digest=d"}]`,
		`[{"href":"a","b":[{"href":"c"}]},{"$file":"x","digest":"d"}]`: `[{"b":[{"href":"c"}],"href":"a"},{"$file":"x","digest":"d","href":"/v1/files/x?digest=d"}]`,
		`{"href":{"$file":"x","digest":"d"}}`:                          `{"href":{"$file":"x","digest":"d","href":"/v1/files/x?digest=d"}}`,
		`["\ud800",{"$file":"x","digest":"d"}]`:                        `["�",{"$file":"x","digest":"d","href":"/v1/files/x?digest=d"}]`,
	} {
		if got := withHrefs(json.RawMessage(given)); string(got) != want {
			t.Errorf("%s becomes %s", given, got)
		}
	}
	for _, other := range []string{`{"$file":1,"digest":"d"}`, `{"$file":"x","inner":{"digest":"d"}}`, `["$file","digest"]`, `{"$file":`} {
		if got := withHrefs(json.RawMessage(other)); bytes.Contains(got, []byte("href")) {
			t.Errorf("%s becomes %s", other, got)
		}
	}
}

// A document keeps schemas as text while it is written: values have thirty times the size.
func TestADocumentKeepsSchemasAsText(t *testing.T) {
	schema := json.RawMessage(`{"$defs":{"a":{"examples":[` + strings.Repeat("[],", 300_000) + `1]}},"$ref":"#/$defs/a"}`)
	schemas := make(object)
	heap := func() int64 {
		var is runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&is)
		return int64(is.HeapAlloc)
	}
	before := heap()
	placed(schema, "tool", schemas)
	if kept := heap() - before; kept > 5<<20 {
		t.Errorf("a schema of %d bytes keeps %d", len(schema), kept)
	}
	if len(schemas) != 2 {
		t.Errorf("the document has %d schemas", len(schemas))
	}
}
