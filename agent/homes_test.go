package agent_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

const keepingTools = `
import os, time
from toolmesh import mesh
kept = {}
def put(key: str, value: str) -> int:
    kept[key] = value
    return os.getpid()
def get(key: str) -> str:
    return kept[key]
loose = get
def wait(path: str) -> str:
    with open(path) as gate:
        gate.read()
    return "done"
def items(key: str):
    yield kept[key]
    yield kept[key]
def rest(key: str, more: str) -> str:
    return kept[key] + more
def pid() -> int:
    return os.getpid()
def through(key: str) -> str:
    return mesh.call("keep.t.get", {"key": key})
def many(key: str, size: int) -> int:
    kept[key] = "x" * size
    return len(kept[key])
`

const keepingIndex = `
[index]
tools = ["t.put", "t.get", "t.loose", "t.items", "t.rest", "t.pid", "t.through", "t.wait", "t.many"]
isolation = "session"

[tool."t.through"]
isolation = "warm"

[tool."t.loose"]
isolation = "warm"
`

// keepers are agents that serve the same index; its tools keep state in globals.
type keepers struct {
	s      *meshtest.Server
	nc     *nats.Conn
	c      *client.Client
	repo   string
	agents map[subjects.NodeID]*agent.Agent
	ways   map[subjects.NodeID]*meshtest.Proxy // to the broker
}

func openKeepers(t *testing.T, names ...subjects.NodeID) *keepers {
	t.Helper()
	k := &keepers{s: meshtest.Broker(t), agents: map[subjects.NodeID]*agent.Agent{}, ways: map[subjects.NodeID]*meshtest.Proxy{}}
	for _, name := range names {
		k.ways[name] = meshtest.NewProxy(t, k.s)
		k.agents[name] = startOn(t, k.ways[name].Connect(t), name, t.TempDir(), func(o *agent.Options) { o.Labels = map[string]string{"name": string(name)} })
	}
	k.nc = k.s.Connect(t)
	k.c = newClient(t, k.nc, nil)
	k.repo = repository(t, "keep", map[string]string{"tools.toml": keepingIndex, "t.py": keepingTools})
	install(t, k.nc, map[string]any{"source": k.repo})
	k.served(t, names...)
	return k
}

// served waits until these nodes serve the index, and no others.
func (k *keepers) served(t *testing.T, nodes ...subjects.NodeID) {
	t.Helper()
	slices.Sort(nodes)
	meshtest.Until(t, fmt.Sprintf("%v serve the index", nodes), func() bool {
		all, err := k.c.List(t.Context())
		for _, one := range all {
			slices.Sort(one.Nodes)
			if one.State != "serving" || !slices.Equal(one.Nodes, nodes) {
				return false
			}
		}
		return err == nil && len(all) == 9
	})
}

func toolOf(name string) subjects.ToolID { return subjects.ToolID("keep.t." + name) }

// plain is a call of a client that knows NATS alone.
func (k *keepers) plain(t *testing.T, session, name string, args any) (body string, code string) {
	t.Helper()
	data, _ := json.Marshal(args)
	m, err := k.nc.Request("tools."+session+".keep.t."+name, data, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return string(m.Data), m.Header.Get("Mesh-Error-Code")
}

type m = map[string]any

// put has a session keep a value, and returns the node that its worker is on.
func (k *keepers) put(t *testing.T, session subjects.SessionID, key string) subjects.NodeID {
	t.Helper()
	r, err := k.c.In(session).Call(t.Context(), toolOf("put"), m{"key": key, "value": "v-" + key})
	if err != nil {
		t.Fatal(err)
	}
	return r.Node
}

// gone expects that one call is told that the session's worker is gone, and that the next
// ones share a new worker. A call that was sent to a node before that is known to be cut off
// hears that the node is lost.
func (k *keepers) gone(t *testing.T, session subjects.SessionID) {
	t.Helper()
	call := func(name string, args m) (*client.Result, error) {
		for {
			r, err := k.c.In(session).Call(t.Context(), toolOf(name), args)
			if toolmesh.CodeOf(err) != toolmesh.CodeNodeLost {
				return r, err
			}
		}
	}
	_, err := call("get", m{"key": "a"})
	e := toolmesh.AsError(err)
	if e.Code != toolmesh.CodeUnavailable || e.Started != toolmesh.StartedNo || e.Details["reason"] != "session_worker_unavailable" {
		t.Errorf("the first call after the worker was lost: got %v %v %v", err, e.Started, e.Details)
	}
	for n := range 4 {
		if _, err := call("put", m{"key": "b", "value": "w"}); err != nil {
			t.Errorf("call %d after that: %v", n, err)
		}
		if r, err := call("get", m{"key": "b"}); err != nil || string(r.Value) != `"w"` {
			t.Errorf("call %d after that: got %+v, %v", n, r, err)
		}
	}
}

// A session's worker is on one node, whichever one its calls are brought to, and in any form.
func TestASessionsWorkerIsOnOneNode(t *testing.T) {
	t.Parallel()
	k := openKeepers(t, "one", "two")
	at := map[subjects.NodeID]bool{}
	for n := range 6 {
		at[k.put(t, subjects.SessionID(fmt.Sprintf("spread-%d", n)), "a")] = true
	}
	if len(at) != 2 {
		t.Logf("all sessions are on %v: possible, and rare", at)
	}
	s := subjects.SessionID("s")
	home := k.put(t, s, "a")
	in := k.c.In(s)
	const times = 12
	for range times {
		if body, code := k.plain(t, "s", "get", m{"key": "a"}); body != `"v-a"` {
			t.Fatalf("a plain client: got %s %s", code, body)
		}
		r, err := in.Call(t.Context(), toolOf("get"), m{"key": "a"})
		if err != nil || string(r.Value) != `"v-a"` || r.Node != home {
			t.Fatalf("a call: got %+v, %v, want it of node %s", r, err, home)
		}
		if r, err = in.Call(t.Context(), toolOf("get"), m{"key": "a"}, client.ViaQueue()); err != nil || r.Node != home {
			t.Fatalf("by the queue group: got %+v, %v, want it of node %s", r, err, home)
		}
		if r, err = in.Call(t.Context(), toolOf("loose"), m{"key": "a"}, client.WithIsolation(toolmesh.IsolationSession)); err != nil || r.Node != home {
			t.Fatalf("a call that asks for the isolation: got %+v, %v", r, err)
		}
		if r, err = in.Call(t.Context(), toolOf("through"), m{"key": "a"}); err != nil || string(r.Value) != `"v-a"` {
			t.Fatalf("a call that a tool makes: got %+v, %v", r, err)
		}
		var items []string
		for chunk, err := range in.Stream(t.Context(), toolOf("items"), m{"key": "a"}) {
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, string(chunk.Data))
		}
		if fmt.Sprint(items) != `["v-a" "v-a"]` {
			t.Fatalf("a stream: got %s", items)
		}
	}
	var calls []client.BatchCall
	for range times {
		calls = append(calls, client.BatchCall{Tool: toolOf("get"), Args: m{"key": "a"}})
	}
	for range 3 {
		results, err := in.Batch(t.Context(), calls)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Err != nil || string(r.Value) != `"v-a"` {
				t.Fatalf("a batch: got %+v", r)
			}
		}
	}
	for n := range times {
		body := fmt.Sprintf(`{"type":"rpc_tool_call","rpc_id":"e-%d","tool_id":"keep.t.rest","args":["a","12"]}`, n)
		got, err := k.nc.Request("tools.s.keep.t.rest", []byte(body), time.Minute)
		var answer struct{ Result string }
		if err != nil || json.Unmarshal(got.Data, &answer) != nil || answer.Result != "v-a12" {
			t.Fatalf("an envelope with arguments by position: got %s, %v", got.Data, err)
		}
	}
	for n := range 4 {
		task, err := in.Submit(t.Context(), toolOf("get"), m{"key": "a"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := task.Wait(t.Context()); err != nil || string(r.Value) != `"v-a"` {
			t.Fatalf("task %d: got %+v, %v", n, r, err)
		}
	}
	const large = 3 << 20
	r, err := in.Call(t.Context(), toolOf("many"), m{"key": "big", "size": large})
	if err != nil || string(r.Value) != fmt.Sprint(large) {
		t.Fatalf("got %v, %v", r, err)
	}
	for range times {
		if r, err = in.Call(t.Context(), toolOf("get"), m{"key": "big"}); err != nil || len(r.Value) != large+2 {
			t.Fatalf("a large result: %v", err)
		}
		if _, err = in.Call(t.Context(), toolOf("put"), m{"key": "big", "value": string(r.Value[1 : large+1])}); err != nil {
			t.Fatalf("large arguments: %v", err)
		}
	}
}

// The state of a session's worker is lost with its node, and one call gets an error that says so.
func TestTheNodeOfASessionsWorkerLeaves(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(t *testing.T, k *keepers, home, other subjects.NodeID){
		"it stops": func(t *testing.T, k *keepers, home, _ subjects.NodeID) { stop(t, k.agents[home]) },
		"it is cut off": func(t *testing.T, k *keepers, home, _ subjects.NodeID) {
			k.ways[home].Cut(true)
			t.Cleanup(k.ways[home].Heal)
		},
		"it is frozen": func(t *testing.T, k *keepers, home, _ subjects.NodeID) {
			k.ways[home].Blackhole()
			t.Cleanup(k.ways[home].Heal)
		},
		"its index moves": func(t *testing.T, k *keepers, _, other subjects.NodeID) {
			if failure := adminOf(t, k.nc, other, "install", m{"source": k.repo, "on": m{"name": other}}); failure != nil {
				t.Fatal(failure)
			}
			k.served(t, other)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := openKeepers(t, "one", "two")
			home, other := k.put(t, "s", "a"), subjects.NodeID("one")
			if home == other {
				other = "two"
			}
			leave(t, k, home, other)
			k.gone(t, "s")
		})
	}
}

// A worker is not used again for a session that had another node in between: its state is old.
func TestASessionsWorkerComesBack(t *testing.T) {
	t.Parallel()
	k := openKeepers(t, "one", "two")
	home := k.put(t, "s", "a")
	k.ways[home].Cut(true)
	k.gone(t, "s")
	k.ways[home].Heal()
	k.served(t, "one", "two")
	if body, code := k.plain(t, "s", "get", m{"key": "b"}); body != `"w"` {
		t.Errorf("while the first node is back: got %s %s", code, body)
	}
	for name, a := range k.agents {
		if name != home {
			stop(t, a)
		}
	}
	k.gone(t, "s")
	if body, code := k.plain(t, "s", "get", m{"key": "a"}); code != "tool_error" {
		t.Errorf("the first node's old worker answers: %s", body)
	}
}

// The workers of sessions end with the revision of their index.
func TestSessionsOfAnUpgradedIndex(t *testing.T) {
	t.Parallel()
	k := openKeepers(t, "one")
	k.put(t, "s", "a")
	testmesh.Commit(t, strings.TrimPrefix(k.repo, "file://"), map[string]string{"t.py": keepingTools + "\n# another\n"})
	install(t, k.nc, m{"source": k.repo})
	k.gone(t, "s")
}
