package gateway_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

type tree struct {
	Value int    `json:"value"`
	Left  *tree  `json:"left,omitempty"`
	Data  string `json:"data,omitempty"`
	// A property may be named like a keyword whose value is data.
	Default *tree `json:"default,omitempty"`
}

type forest struct {
	Tree *tree `json:"tree,omitempty"`
}

// Each tool is an operation with its schemas, every status of a call is documented, and all that refers to
// something refers to what is there.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	if _, err := r.host.Handle("tree", host.Func(func(_ context.Context, in tree) (tree, error) { return in, nil })); err != nil {
		t.Fatal(err)
	}
	if _, err := r.host.Handle("forest", host.Func(func(_ context.Context, in forest) (int, error) { return 1, nil })); err != nil {
		t.Fatal(err)
	}
	var info map[string]any
	meshtest.Until(t, "the tree is served", func() bool {
		a := r.do(t, "GET", "/v1/tools/lab.tree", "", nil)
		_ = json.Unmarshal([]byte(a.body), &info)
		return a.status == 200 && r.do(t, "GET", "/v1/tools/lab.forest", "", nil).status == 200
	})
	a := r.do(t, "GET", "/openapi.json", "", nil)
	var doc map[string]any
	if a.decode(t, 200, &doc); doc["openapi"] != "3.1.0" || a.header.Get("ETag") == "" {
		t.Errorf("%v %v", doc["openapi"], a.header)
	}
	at := func(path ...string) (node any) {
		node = doc
		for _, part := range path {
			m, _ := node.(map[string]any)
			node = m[part]
		}
		return node
	}
	if paths := at("paths").(map[string]any); len(paths) != 7 {
		t.Errorf("paths %v", paths)
	}
	post := []string{"paths", "/v1/tools/lab.add", "post"}
	under := func(more ...string) any { return at(append(post[:3:3], more...)...) }
	if under("operationId") != "lab-add" {
		t.Errorf("%v", under("operationId"))
	}
	var add struct {
		In  json.RawMessage `json:"input_schema"`
		Out json.RawMessage `json:"output_schema"`
	}
	r.do(t, "GET", "/v1/tools/lab.add", "", nil).decode(t, 200, &add)
	if !strings.Contains(a.body, `"schema":`+string(add.In)) || !strings.Contains(a.body, `"schema":`+string(add.Out)) {
		t.Errorf("the schemas of lab.add, %s and %s, are not there as they are", add.In, add.Out)
	}
	for _, code := range toolmesh.Codes() {
		if under("responses", strconv.Itoa(code.Number())) == nil {
			t.Errorf("no status %d of %s", code.Number(), code)
		}
	}
	for _, status := range []int{200, 202, http.StatusUnauthorized, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType} {
		if under("responses", strconv.Itoa(status)) == nil {
			t.Errorf("no status %d", status)
		}
	}
	if at("paths", "/v1/tools/lab.count", "post", "responses", "200", "content", "text/event-stream") == nil {
		t.Error("lab.count does not stream")
	}
	for name, want := range map[string]bool{"lab.tree": true, "lab.forest": false} {
		if got := at("paths", "/v1/tools/"+name, "post", "requestBody", "required"); got != want {
			t.Errorf("the body of %s is required: %v", name, got)
		}
	}
	refs := 0
	var look func(node any)
	look = func(node any) {
		switch v := node.(type) {
		case []any:
			for _, one := range v {
				look(one)
			}
		case map[string]any:
			for word, one := range v {
				if ref, ok := one.(string); ok && word == "$ref" {
					refs++
					parts := strings.Split(strings.TrimPrefix(ref, "#/"), "/")
					for i := range parts {
						parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(parts[i])
					}
					if at(parts...) == nil {
						t.Errorf("%s refers to nothing", ref)
					}
				}
				look(one)
			}
		}
	}
	if look(doc); refs < 20 || !strings.Contains(a.body, `"lab-tree_arguments.`) && strings.Contains(string(mustJSON(t, info["input_schema"])), "$ref") {
		t.Errorf("%d references, %s", refs, mustJSON(t, info["input_schema"]))
	}
	for query, want := range map[string]int{"?tools=lab.a*": 1, "?tools=lab.*": 7, "?tools=other.*": 0, "?tools=lab.add,lab.count": 2} {
		var some struct{ Paths map[string]any }
		if r.do(t, "GET", "/openapi.json"+query, "", as(r.token)).decode(t, 200, &some); len(some.Paths) != want {
			t.Errorf("%s: %d operations", query, len(some.Paths))
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
