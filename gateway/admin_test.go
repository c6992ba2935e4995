package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/gateway"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// as is the header of a token.
func as(token string) headers { return headers{"Authorization": "Bearer " + token} }

func (a answer) decode(t *testing.T, status int, into any) {
	t.Helper()
	if a.status != status || json.Unmarshal([]byte(a.body), into) != nil {
		t.Fatalf("%d instead of %d: %s", a.status, status, a.body)
	}
}

// A call that runs is shown and cancelled by its id; one that does not is not_found.
func TestCallIsShownAndCancelledByItsID(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	a := r.open(t, t.Context(), "POST", "/v1/tools/lab.count", `{"n":1,"wait":true}`, headers{"Accept": "text/event-stream"})
	defer a.Body.Close()
	<-r.ran
	rpc := a.Header.Get("Mesh-Rpc-Id")
	if got := r.do(t, "GET", "/v1/calls/"+rpc, "", nil); got.status != 200 || got.body != `{"node":"n1","rpc_id":"`+rpc+`","state":"running","tool":"lab.count"}`+"\n" {
		t.Errorf("%d %s", got.status, got.body)
	}
	// Another session does not see it.
	if got := r.do(t, "GET", "/v1/calls/"+rpc, "", as(r.token)); got.status != 404 || got.problem(t)["code"] != "not_found" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := r.do(t, "DELETE", "/v1/calls/"+rpc, "", nil); got.status != 200 || got.body != `{"cancelled":true}`+"\n" {
		t.Errorf("%d %s", got.status, got.body)
	}
	<-r.ended
	for _, method := range []string{"GET", "DELETE"} {
		meshtest.Until(t, "the call has ended", func() bool {
			got := r.do(t, method, "/v1/calls/"+rpc, "", nil)
			return got.status == 404 && got.problem(t)["code"] == "not_found"
		})
	}
}

// A task submitted with Prefer: respond-async is at its Location and runs once per key.
func TestTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	async := headers{"Prefer": "respond-async", "Idempotency-Key": "k1"}
	var submitted, again struct{ ID string }
	a := r.do(t, "POST", "/v1/tools/Lab-Add", `{"a":2,"b":"3"}`, async)
	a.decode(t, http.StatusAccepted, &submitted)
	if a.header.Get("Location") != "/v1/tasks/"+submitted.ID || a.header.Get("Preference-Applied") != "respond-async" || a.header.Get("Mesh-Changed") != "/b" {
		t.Errorf("%v %s", a.header, a.body)
	}
	if r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":"3"}`, async).decode(t, http.StatusAccepted, &again); again != submitted {
		t.Errorf("the key again: %v, %v", submitted, again)
	}
	var task struct {
		ID, Tool, State string
		Result          json.RawMessage
	}
	meshtest.Until(t, "the task has ended", func() bool {
		r.do(t, "GET", a.header.Get("Location"), "", nil).decode(t, http.StatusOK, &task)
		return task.State == "succeeded"
	})
	if task.ID != submitted.ID || task.Tool != "lab.add" || string(task.Result) != "5" || len(r.ran) != 1 {
		t.Errorf("%+v, run %d times", task, len(r.ran))
	}
	<-r.ran
	var list struct{ Tasks []struct{ ID, State string } }
	if r.do(t, "GET", "/v1/tasks", "", nil).decode(t, http.StatusOK, &list); len(list.Tasks) != 1 || list.Tasks[0].ID != submitted.ID {
		t.Errorf("%+v", list)
	}
	if got := r.do(t, "GET", "/v1/tasks?state=failed", "", nil); got.body != `{"tasks":[]}`+"\n" {
		t.Errorf("failed ones: %d %s", got.status, got.body)
	}
	// One that runs is cancelled.
	r.do(t, "POST", "/v1/tools/lab.wait", "", headers{"Prefer": "respond-async"}).decode(t, http.StatusAccepted, &submitted)
	<-r.ran
	r.do(t, "DELETE", "/v1/tasks/"+submitted.ID, "", nil).decode(t, http.StatusOK, &task)
	if <-r.ended; task.ID != submitted.ID {
		t.Errorf("%+v", task)
	}
	meshtest.Until(t, "the task is cancelled", func() bool {
		r.do(t, "GET", "/v1/tasks/"+submitted.ID, "", nil).decode(t, http.StatusOK, &task)
		return task.State == "cancelled"
	})
	for what, c := range map[string]struct {
		method, path, body string
		status             int
		code               string
	}{
		"no such task":       {"GET", "/v1/tasks/task_1", "", 404, "not_found"},
		"no such task (2)":   {"DELETE", "/v1/tasks/%2e%2e", "", 404, "not_found"},
		"no such state":      {"GET", "/v1/tasks?state=lost", "", 400, "invalid_request"},
		"no such tool":       {"POST", "/v1/tools/lab.ad", "{}", 404, "tool_not_found"},
		"arguments, no JSON": {"POST", "/v1/tools/lab.add", "{", 422, "invalid_arguments"},
		"wrong arguments":    {"POST", "/v1/tools/lab.add", `{"a":[],"b":1}`, 422, "invalid_arguments"},
		"missing arguments":  {"POST", "/v1/tools/lab.add", `{"a":1}`, 422, "invalid_arguments"},
	} {
		if got := r.do(t, c.method, c.path, c.body, headers{"Prefer": "respond-async"}); got.status != c.status || got.problem(t)["code"] != c.code {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
	}
}

// Nodes and sessions are listed for an administrator alone, as the broker has it; indexes for all, as far as
// they can list tools.
func TestAdministration(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var nodes struct {
		Nodes []struct {
			ID, State string
			InFlight  *int `json:"in_flight"`
			Indexes   []string
		}
	}
	r.do(t, "GET", "/v1/nodes", "", as(r.admin)).decode(t, 200, &nodes)
	found := false
	for _, n := range nodes.Nodes {
		found = found || n.ID == "n1" && n.State == "serving" && n.InFlight != nil && len(n.Indexes) == 1
	}
	if !found {
		t.Errorf("%+v", nodes)
	}
	var sessions struct {
		Sessions []struct{ ID, State string }
	}
	if r.do(t, "GET", "/v1/sessions", "", as(r.admin)).decode(t, 200, &sessions); len(sessions.Sessions) != 1 || sessions.Sessions[0].ID != "mine" {
		t.Errorf("%+v", sessions)
	}
	for _, h := range []headers{as(r.admin), as(r.token), nil} {
		var indexes struct{ Indexes *[]struct{ Name string } }
		if r.do(t, "GET", "/v1/indexes", "", h).decode(t, 200, &indexes); indexes.Indexes == nil {
			t.Errorf("no indexes for %v", h)
		}
	}
	for _, h := range []headers{as(r.token), nil} {
		for _, path := range []string{"/v1/nodes", "/v1/sessions"} {
			if got := r.do(t, "GET", path, "", h); got.status != 403 || got.problem(t)["code"] != "permission_denied" || !strings.Contains(got.body, "keys/admin.nk") {
				t.Errorf("%s: %d %s", path, got.status, got.body)
			}
		}
		if got := r.do(t, "POST", "/v1/indexes", `{"source":"owner/repo"}`, h); got.status != 403 || got.problem(t)["code"] != "permission_denied" || !strings.Contains(got.body, "keys/admin.nk") {
			t.Errorf("install: %d %s", got.status, got.body)
		}
	}
	for body, want := range map[string]int{`{"source":"owner/repo"}`: 503, `{"source":"./tools"}`: 400, `{}`: 400, `[`: 400, ``: 400} {
		if got := r.do(t, "POST", "/v1/indexes", body, as(r.admin)); got.status != want || !strings.Contains(got.body, `"code"`) {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

// Changes in the mesh arrive as events, and a token's streams of them are bounded.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	a := r.open(t, ctx, "GET", "/v1/events", "", as(r.admin))
	defer a.Body.Close()
	lines := bufio.NewReader(a.Body)
	next := func(name, kind, id string) {
		t.Helper()
		for {
			e := nextEvent(t, lines)
			var h struct {
				Kind, ID string
				At       time.Time
			}
			if json.Unmarshal([]byte(e.data), &h) != nil || h.At.IsZero() {
				t.Fatalf("%+v", e)
			}
			if e.name == name && h.Kind == kind && h.ID == id {
				return
			}
		}
	}
	// A constant flow of ended calls does not suppress events of tools.
	busy := r.As(t, access.Node)
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				_ = busy.Publish("mesh.evt.call.default", []byte(`{"time":"2026-11-26T06:00:00Z","rpc_id":"rpc_0","status":"ok"}`))
			}
		}
	}()
	defer func() { <-stopped }()
	defer sync.OnceFunc(func() { close(ended) })()
	begun := time.Now()
	if _, err := r.host.Handle("new", host.Func(func(context.Context, noArgs) (int, error) { return 1, nil })); err != nil {
		t.Fatal(err)
	}
	next("tools", "added", "lab.new")
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	stop, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.host.Stop(stop); err != nil {
		t.Fatal(err)
	}
	next("tools", "removed", "lab.new")
	// The node goes, too; its last state may be heard before that.
	next("nodes", "removed", "n1")
	nc := r.As(t, access.Node)
	if err := nc.Publish("mesh.evt.call.default", []byte(`{"time":"2026-11-26T06:00:00Z","rpc_id":"rpc_1","status":"error","code":"busy"}`)); err != nil {
		t.Fatal(err)
	}
	next("calls", "busy", "rpc_1")
	for range 15 {
		more := r.open(t, ctx, "GET", "/v1/events", "", as(r.admin))
		defer more.Body.Close()
	}
	if got := r.do(t, "GET", "/v1/events", "", as(r.admin)); got.status != 429 || got.header.Get("Retry-After") == "" {
		t.Errorf("one more: %d %s", got.status, got.body)
	}
}

// narrowed makes a token of the session "mine", and returns the header that sends it.
func (r *rig) narrowed(t *testing.T, record registry.TokenRecord) headers {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token.nk")
	public, err := access.CreateSessionKey(file)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b := testmesh.Bus(t, r.As(t, access.Node), nil)
	record.ID, record.Session, record.Epoch, record.Key, record.Created = "tok_0123456789abcdef", "mine", meshtest.Epoch, public, time.Now()
	if err := testmesh.Store(t, b).CreateToken(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	h := as(string(seed))
	meshtest.Until(t, "the token is let in", func() bool { return r.do(t, "GET", "/v1/tools", "", h).status == 200 })
	return h
}

// A narrowed token lists, finds and calls its own tools alone, also in batches, and no more often than it may.
func TestNarrowedToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	h := r.narrowed(t, registry.TokenRecord{Tools: subjects.Globs{"lab.add", "lab.fail"}, Rate: "3/h"})
	var list struct{ Tools []struct{ ID string } }
	if r.do(t, "GET", "/v1/tools", "", h).decode(t, 200, &list); len(list.Tools) != 2 || list.Tools[0].ID != "lab.add" || list.Tools[1].ID != "lab.fail" {
		t.Errorf("%+v", list)
	}
	for _, path := range []string{"/v1/tools?q=add+count+wait", "/v1/search?q=add+count+wait"} {
		if r.do(t, "GET", path, "", h).decode(t, 200, &list); len(list.Tools) != 1 || list.Tools[0].ID != "lab.add" {
			t.Errorf("%s: %+v", path, list)
		}
	}
	// Suggestions for an unknown tool are limited to the token's own, on each path.
	if a := r.do(t, "POST", "/v1/tool-calls", `{"provider":"gemini","calls":[{"name":"lab.wai","args":{}}]}`, h); a.status != 200 || strings.Contains(a.body, `"lab.wait"`) || !strings.Contains(a.body, "tool_not_found") {
		t.Errorf("%d %s", a.status, a.body)
	}
	for name, want := range map[string]string{"lab.ad": `"nearest":["lab.add"]`, "lab.wai": `"nearest":["lab.fail"]`} {
		if a := r.do(t, "GET", "/v1/tools/"+name, "", h); a.status != 404 || !strings.Contains(a.body, want) || strings.Contains(a.body, "lab.wait") {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for path, want := range map[string]int{"/v1/tools/lab.add": 200, "/v1/tools/lab.wait": 404} {
		if a := r.do(t, "GET", path, "", h); a.status != want {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := r.do(t, "GET", "/v1/indexes", "", h); !strings.Contains(a.body, `"lab.add"`) || strings.Contains(a.body, `"lab.wait"`) {
		t.Errorf("indexes: %d %s", a.status, a.body)
	}
	var doc struct{ Paths map[string]any }
	if r.do(t, "GET", "/openapi.json", "", h).decode(t, 200, &doc); len(doc.Paths) != 2 {
		t.Errorf("%v", doc)
	}
	if a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":3}`, h); a.status != 200 || a.body != "5" {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, path := range []string{"/v1/tasks"} {
		if a := r.do(t, "GET", path, "", h); a.status != 403 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	// It may make the calls of its rate at once: a batch, or those of a model's turn.
	const batch = `{"calls":[{"tool":"lab.add","args":{"a":2,"b":3}},{"tool":"lab.add","args":{"a":2,"b":3}}]}`
	if a := r.do(t, "POST", "/v1/calls:batch", batch, h); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":3}`, h)
	if after, _ := strconv.Atoi(a.header.Get("Retry-After")); a.status != 429 || a.problem(t)["code"] != "busy" || after < 2 || after > 1200 {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	if a := r.do(t, "POST", "/v1/calls:batch", `{"calls":[{"tool":"lab.add"},{"tool":"lab.add"},{"tool":"lab.add"},{"tool":"lab.add"}]}`, h); a.status != 413 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":3}`, as(r.token)); a.status != 200 {
		t.Errorf("another token of the session: %d %s", a.status, a.body)
	}
}

// A token's rate and its other restrictions hold for a token that the gateway did not know at first, and the
// rate also after the token's connection was idle.
func TestRestrictionsAreNotLost(t *testing.T) {
	t.Parallel()
	var knows atomic.Bool
	r := newRig(t, func(o *gateway.Options) {
		view := o.KeyOf
		o.Idle = time.Millisecond
		o.KeyOf = func(public string) (registry.Key, bool) {
			if !knows.Load() { // as before the gateway has read the registry
				return registry.Key{}, false
			}
			return view(public)
		}
	})
	knows.Store(true)
	h := r.narrowed(t, registry.TokenRecord{Tools: subjects.Globs{"lab.add"}, Rate: "2/h"})
	h["Mesh-Session"] = "mine"
	status := func(path string) int { return r.do(t, "GET", path, "", h).status }
	call := func() int { return r.do(t, "POST", "/v1/tools/lab.add", `{"a":2,"b":3}`, h).status }
	knows.Store(false)
	meshtest.Until(t, "the gateway does not know the token", func() bool { return status("/v1/tools/lab.wait") == 200 })
	uses := r.open(t, t.Context(), "GET", "/v1/events", "", h)
	defer uses.Body.Close()
	knows.Store(true)
	meshtest.Until(t, "the token in use is restricted", func() bool { return status("/v1/tools/lab.wait") == 404 })
	for i, want := range []int{200, 200, 429} {
		if got := call(); got != want {
			t.Errorf("call %d: status %d, want %d", i, got, want)
		}
	}
	meshtest.Until(t, "the token's link was idle", func() bool { return r.g.Links() == 0 })
	if got := call(); got != 429 {
		t.Errorf("a call of a new link: status %d", got)
	}
}

// Attempts of a holder of a token for one tool to run another one.
func TestNarrowedTokenRunsNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	token := r.narrowed(t, registry.TokenRecord{Tools: subjects.Globs{"lab.add"}})
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	call := func(name, args string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `","arguments":` + args + `,` + meta + `}}`
	}
	modern := func(name string) headers {
		return headers{"Mcp-Method": "tools/call", "Mcp-Name": name, "Mcp-Protocol-Version": "2026-07-28"}
	}
	for name, c := range map[string]struct {
		method, path, body string
		more               headers
		says               string
	}{
		"by its id":             {"POST", "/v1/tools/lab.wait", `{}`, nil, "permission_denied"},
		"by a provider's name":  {"POST", "/v1/tools/lab-wait", `{}`, nil, "permission_denied"},
		"by a mangled name":     {"POST", "/v1/tools/Lab_WAIT", `{}`, nil, "permission_denied"},
		"as a stream":           {"POST", "/v1/tools/lab.count", `{"n":1}`, headers{"Accept": "text/event-stream"}, "permission_denied"},
		"as a task":             {"POST", "/v1/tools/lab.wait", `{}`, headers{"Prefer": "respond-async"}, "permission_denied"},
		"its own tool as one":   {"POST", "/v1/tools/lab.add", `{"a":1,"b":1}`, headers{"Prefer": "respond-async"}, "permission_denied"},
		"its own, mangled":      {"POST", "/v1/tools/Lab_ADD", `{"a":20000,"b":"30001"}`, nil, "50001"},
		"in a batch":            {"POST", "/v1/calls:batch", `{"calls":[{"tool":"lab.add","args":{"a":2,"b":3}},{"tool":"lab.wait"}]}`, nil, `"result":5},{`},
		"in a parallel batch":   {"POST", "/v1/calls:batch", `{"parallel":true,"calls":[{"tool":"lab.wait"},{"tool":"lab.count","args":{"n":1}}]}`, nil, "permission_denied"},
		"as a model's call":     {"POST", "/v1/tool-calls", `{"provider":"anthropic","calls":[{"id":"a","name":"lab-wait","input":{}}]}`, nil, `"is_error":true`},
		"for another session":   {"POST", "/v1/tools/lab.wait", `{}`, headers{"Mesh-Session": "default"}, "permission_denied"},
		"over MCP":              {"POST", "/mcp", call("lab-wait", `{}`), modern("lab-wait"), "unknown tool"},
		"over MCP by its id":    {"POST", "/mcp", call("lab.wait", `{}`), modern("lab.wait"), "unknown tool"},
		"over a view of it":     {"POST", "/mcp?tools=lab.wait&prefix=off", call("wait", `{}`), modern("wait"), "unknown tool"},
		"over call_tool":        {"POST", "/mcp?search=1", call("call_tool", `{"name":"lab-wait"}`), modern("call_tool"), "unknown tool"},
		"over another's MCP":    {"POST", "/mcp/default", call("lab-wait", `{}`), modern("lab-wait"), "session"},
		"its own tool over MCP": {"POST", "/mcp", call("lab-add", `{"a":2,"b":3}`), modern("lab-add"), `{"result":5}`},
	} {
		h := headers{"Content-Type": "application/json"}
		maps.Copy(h, token)
		maps.Copy(h, c.more)
		if c.path != "" && strings.HasPrefix(c.path, "/mcp") {
			h["Accept"] = "application/json, text/event-stream"
		}
		if a := r.do(t, c.method, c.path, c.body, h); !strings.Contains(a.body, c.says) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	close(r.ran)
	for name := range r.ran {
		if name != "add" {
			t.Errorf("%s ran", name)
		}
	}
}
