package batch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// waitTimeout bounds every wait for a signal: long, because machines are busy.
const waitTimeout = 60 * time.Second

// mesh is nodes that all serve the tools of a stage, and a caller.
type mesh struct {
	stage   *stage
	routers []*router.Router
	client  *client.Client
	nc      *nats.Conn // the caller's
}

// where is the common part of a [meshtest.Topology] and a [place].
type where interface {
	ServeOn(t testing.TB, i int, options ...nats.Option) *nats.Conn
	Call(t testing.TB, options ...nats.Option) *nats.Conn
}

// open starts n nodes.
func open(t *testing.T, at where, n int, opts router.Options) *mesh {
	t.Helper()
	m := &mesh{stage: newStage(), nc: at.Call(t)}
	for i := range n {
		o := opts
		o.Node = subjects.NodeID(fmt.Sprintf("node-%d", i))
		r, err := router.New(at.ServeOn(t, i), &o)
		if err != nil {
			t.Fatal(err)
		}
		m.routers = append(m.routers, r)
	}
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for _, r := range m.routers {
			closing.Go(func() { meshtest.End(t, r) })
		}
		closing.Wait()
	})
	for _, r := range m.routers {
		m.stage.serve(t, r)
	}
	var session subjects.SessionID
	if top, ok := at.(*meshtest.Topology); ok {
		session = top.Session // a session's key calls there alone
	}
	c := testmesh.Client(t, m.nc, &client.Options{Session: session})
	m.client = c
	for _, r := range m.routers {
		view, err := r.View(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, "every node knows all others and their tools", func() bool {
			route, _ := view.Route("s", "stage.keyed")
			ready := 0
			for _, node := range view.Nodes() {
				if node.Alive && slices.Contains(node.Features, codec.FeatureBatch) {
					ready++
				}
			}
			return len(route.Nodes) == n && ready == n
		})
	}
	return m
}

// stage has the tools of a test: a record of the calls that began and ended, in order, and doors
// that calls wait at.
type stage struct {
	mu     sync.Mutex
	events []string
	runs   map[string]int
	doors  map[string]chan struct{}
	begun  map[string]chan struct{}
}

func newStage() *stage {
	return &stage{runs: map[string]int{}, doors: map[string]chan struct{}{}, begun: map[string]chan struct{}{}}
}

type in struct {
	Name string `json:"name"`
	Path string `json:"path,omitempty"`
	Wait string `json:"wait,omitempty"` // for a door
	Fail bool   `json:"fail,omitempty"`
	Size int    `json:"size,omitempty"`
}

func (s *stage) door(doors map[string]chan struct{}, name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if doors[name] == nil {
		doors[name] = make(chan struct{}, 1000)
	}
	return doors[name]
}

// open lets n calls pass that wait at a door.
func (s *stage) open(name string, n int) {
	for range n {
		s.door(s.doors, name) <- struct{}{}
	}
}

// began waits for the next call of a name to begin.
func (s *stage) began(t *testing.T, name string) {
	t.Helper()
	select {
	case <-s.door(s.begun, name):
	case <-time.After(waitTimeout):
		t.Fatalf("no call %q has begun; so far: %v", name, s.log())
	}
}

func (s *stage) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

func (s *stage) ran(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[name]
}

func (s *stage) note(event, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event+name)
	if event == "+" {
		s.runs[name]++
	}
}

var errFailed = errors.New("it failed")

func (s *stage) do(ctx context.Context, a in) (string, error) {
	s.note("+", a.Name)
	defer s.note("-", a.Name)
	s.door(s.begun, a.Name) <- struct{}{}
	if a.Wait != "" {
		select {
		case <-s.door(s.doors, a.Wait):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	if a.Fail {
		return "", errFailed
	}
	return a.Name + strings.Repeat("x", a.Size), nil
}

func (s *stage) serve(t *testing.T, r *router.Router) {
	t.Helper()
	for name, a := range map[string]tool.Annotations{
		"unsafe": {},
		"alone":  {Alone: true},
		"locked": {ResourceKey: tool.ResourceKey{Parts: []string{"fs", "{path}"}}},
		"safe":   {ParallelSafe: true},
		"keyed":  {ParallelSafe: true, ResourceKey: tool.ResourceKey{Parts: []string{"fs", "{path}"}}},
		"reads":  {ParallelSafe: true, ReadOnly: true, ResourceKey: tool.ResourceKey{Parts: []string{"fs", "{path}"}}},
	} {
		if _, err := r.Handle("stage", name, host.Func(s.do), host.Annotate(a)); err != nil {
			t.Fatal(err)
		}
	}
}

// call is one call of a tool of the stage.
func call(name string, a in) client.BatchCall {
	return client.BatchCall{Tool: subjects.ToolID("stage." + name), Args: a}
}

// outcome is a batch's results in short.
func outcome(results []client.BatchResult) []string {
	var all []string
	for _, r := range results {
		if r.Err != nil {
			e := toolmesh.AsError(r.Err)
			all = append(all, fmt.Sprintf("%s started:%v", e.Code, e.Started == toolmesh.StartedYes))
		} else {
			all = append(all, string(r.Value))
		}
	}
	return all
}

// Results come in the order of the calls, whether these succeed or fail, on any topology and
// by any key; one that fails hurts no other.
func TestResultsInCallOrder(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		m := open(t, top, 3, router.Options{})
		if top.Session != "" {
			meshtest.Until(t, "the session may call", func() bool {
				_, err := m.client.Call(t.Context(), "stage.safe", in{Name: "first"})
				return err == nil
			})
		}
		for round := range 6 { // whichever node gets it, and whichever has its id
			results, err := m.client.Batch(t.Context(), []client.BatchCall{
				call("keyed", in{Name: "a", Path: "1"}), call("keyed", in{Name: "b", Path: "2", Fail: true}), call("nowhere", in{}),
				{Tool: "stage.keyed", Args: map[string]any{"name": 7}}, {Tool: "unsafe", Args: in{Name: "short"}}, {Tool: "stage.safe"},
				call("safe", in{Name: "c"}),
			}, client.WithRPCID(subjects.RPCID(fmt.Sprintf("batch_%s_%d", top.Name, round))))
			if err != nil {
				t.Fatal(err)
			}
			want := []string{
				`"a"`, "tool_error started:true", "tool_not_found started:false", "invalid_arguments started:false", `"short"`,
				"invalid_arguments started:false", `"c"`,
			}
			if diff := cmp.Diff(want, outcome(results)); diff != "" {
				t.Errorf("round %d:\n%s", round, diff)
			}
			for i, r := range results {
				if id := fmt.Sprintf("batch_%s_%d.%d", top.Name, round, i); string(r.RPCID) != id {
					t.Errorf("call %d has the id %q, want %q", i, r.RPCID, id)
				}
			}
			if e := toolmesh.AsError(results[1].Err); e.Message != "it failed" || e.Origin != toolmesh.OriginTool {
				t.Errorf("the failure arrives as %+v", e)
			}
		}
	})
}

func single(t *testing.T, n int, opts router.Options, options ...meshtest.Option) *mesh {
	t.Helper()
	broker := meshtest.Broker(t, options...)
	return open(t, &place{broker: broker}, n, opts)
}

// place is where a mesh is: a [meshtest.Topology], or one broker.
type place struct {
	broker *meshtest.Server
	node   func(t testing.TB, i int) *nats.Conn // nil: the broker itself
}

func (p *place) ServeOn(t testing.TB, i int, options ...nats.Option) *nats.Conn {
	t.Helper()
	if p.node != nil {
		return p.node(t, i)
	}
	return p.broker.Connect(t, options...)
}

func (p *place) Call(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return p.broker.Connect(t, options...)
}

// The contract of rath, rows K1 to K5 and K7 of the conformance table: calls of one key run in
// call order, those of several keys in parallel, an unsafe tool alone. If the caller vouches for
// its calls, only tools that are declared unsafe are.
func TestLanes(t *testing.T) {
	t.Parallel()
	independent := []client.CallOption{client.Parallel()}
	keyed := func(name, path string) client.BatchCall {
		return call("keyed", in{Name: name, Path: path, Wait: "door"})
	}
	waits := func(tool, name string) client.BatchCall { return call(tool, in{Name: name, Wait: "door", Path: "x"}) }
	for _, c := range []struct {
		name  string
		calls []client.BatchCall
		peak  int      // how many wait at the door at once
		order []string // of the calls that begin later
		opts  []client.CallOption
	}{
		{"one key", []client.BatchCall{keyed("a", "x"), keyed("b", "./x"), keyed("c", "y/../x")}, 1, []string{"+a", "-a", "+b", "-b", "+c", "-c"}, nil},
		{"several keys", []client.BatchCall{keyed("a", "1"), keyed("b", "2"), keyed("c", "3"), keyed("d", "4")}, 4, nil, nil},
		{"a folder and what is in it", []client.BatchCall{keyed("a", "/d/f"), keyed("b", "/d"), keyed("c", "/e")}, 2, nil, nil},
		{"a safe tool without a key", []client.BatchCall{waits("safe", "a"), waits("safe", "b"), waits("safe", "c")}, 3, nil, nil},
		{"a safe tool without a key and an unsafe one", []client.BatchCall{waits("safe", "a"), waits("unsafe", "b"), waits("safe", "c")}, 1,
			[]string{"+a", "-a", "+b", "-b", "+c", "-c"}, nil},
		{"independent", []client.BatchCall{waits("unsafe", "a"), waits("unsafe", "b"), waits("safe", "c"), waits("nowhere", "d"), keyed("e", "x")}, 4, nil, independent},
		{"independent, of one key", []client.BatchCall{waits("locked", "a"), waits("locked", "b"), waits("keyed", "c"), waits("unsafe", "d")}, 2, nil, independent},
		{"independent, declared unsafe", []client.BatchCall{waits("unsafe", "a"), waits("alone", "b"), waits("unsafe", "c")}, 1,
			[]string{"+a", "-a", "+b", "-b", "+c", "-c"}, independent},
		{"unsafe alone", []client.BatchCall{call("unsafe", in{Name: "a", Wait: "door"}), keyed("b", "1"), call("unsafe", in{Name: "c", Wait: "door"})}, 1,
			[]string{"+a", "-a", "+b", "-b", "+c", "-c"}, nil},
		{"readers", []client.BatchCall{call("reads", in{Name: "a", Path: "x", Wait: "door"}), call("reads", in{Name: "b", Path: "x", Wait: "door"}), keyed("c", "x")}, 2, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := single(t, 2, router.Options{})
			done := make(chan []client.BatchResult, 1)
			var since time.Time
			go func() {
				results, err := m.client.Batch(t.Context(), c.calls, c.opts...)
				if err != nil {
					t.Error(err)
				}
				done <- results
			}()
			meshtest.Until(t, "those that may run wait at the door", func() bool {
				if len(m.stage.log()) == c.peak && since.IsZero() {
					since = time.Now()
				}
				return !since.IsZero() && time.Since(since) > 50*time.Millisecond // a wait that can be told
			})
			m.stage.open("door", len(c.calls))
			results, ran := <-done, 0
			for i, r := range results {
				if c.calls[i].Tool == "stage.nowhere" {
					continue
				}
				if ran++; r.Err != nil {
					t.Errorf("call %d: %v", i, r.Err)
				}
			}
			events := m.stage.log()
			if len(events) != 2*ran {
				t.Errorf("%v", events)
			}
			if c.order != nil {
				if diff := cmp.Diff(c.order, events); diff != "" {
					t.Error(diff)
				}
			}
			if last := results[len(results)-1]; c.peak == 1 && last.LaneWait <= 0 {
				t.Errorf("the last call says that it waited %v", last.LaneWait)
			}
		})
	}
}

// request sends a batch as any NATS client can, and returns the answers until the one
// that is the batch's.
func (m *mesh) request(t *testing.T, header nats.Header, body string) (answers []*nats.Msg) {
	t.Helper()
	return m.requestTo(t, "mesh.batch.default", header, body)
}

func (m *mesh) requestTo(t *testing.T, subject string, header nats.Header, body string) (answers []*nats.Msg) {
	t.Helper()
	inbox := nats.NewInbox()
	sub, err := m.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := m.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: inbox, Header: header, Data: []byte(body)}); err != nil {
		t.Fatal(err)
	}
	for {
		answer, err := sub.NextMsg(waitTimeout)
		if err != nil {
			t.Fatalf("after %d answers: %v", len(answers), err)
		}
		if answer.Header.Get("Mesh-Keepalive") != "" {
			continue
		}
		answers = append(answers, answer)
		if header.Get("Mesh-Stream") != "inbox" || len(answer.Data) == 0 {
			return answers
		}
	}
}

var waited = regexp.MustCompile(`,"lane_wait_ms":[0-9]+`)

// A batch that is sent again, while it runs and when it is over, runs nothing twice,
// whichever node gets it.
func TestSentAgain(t *testing.T) {
	t.Parallel()
	m := single(t, 3, router.Options{})
	const body = `{"type":"rpc_batch_call","batch_id":"mine","requests":[
		{"index":0,"tool_id":"stage.unsafe","kwargs":{"name":"once","wait":"door"}},{"index":5,"tool_id":"stage.safe","kwargs":{"name":"also"}}]}`
	answers := make(chan string, 20)
	for range 10 {
		go func() { answers <- string(m.request(t, nil, body)[0].Data) }()
	}
	m.stage.began(t, "once")
	m.stage.open("door", 10)
	for range 10 {
		answers <- string(m.request(t, nil, body)[0].Data)
	}
	want := `{"type":"rpc_batch_response","batch_id":"mine","results":[{"index":0,"rpc_id":"mine.0","status":"ok","result":"once"},` +
		`{"index":5,"rpc_id":"mine.5","status":"ok","result":"also"}]}`
	for range 20 {
		got := <-answers
		got = waited.ReplaceAllString(got, "") // either call may have waited, on a busy machine
		if got != want {
			t.Errorf("got %s", got)
		}
	}
	if once, also := m.stage.ran("once"), m.stage.ran("also"); once != 1 || also != 1 {
		t.Errorf("run %d and %d times", once, also)
	}
	other := m.request(t, nil, strings.Replace(body, "also", "other", 1))[0]
	if code := other.Header.Get("Mesh-Error-Code"); code != "invalid_request" || m.stage.ran("other") != 0 {
		t.Errorf("another batch under the same id: %s %s", code, other.Data)
	}
}

// Each result comes as its call ends, then all of them, then an empty message.
func TestEachAsItEnds(t *testing.T) {
	t.Parallel()
	m := single(t, 3, router.Options{})
	for round := range 4 {
		body := fmt.Sprintf(`{"type":"rpc_batch_call","batch_id":%d,"requests":[
			{"tool_id":"stage.keyed","kwargs":{"name":"late","path":"1","wait":"door%[1]d"}},{"tool_id":"stage.keyed","kwargs":{"name":"soon","path":"2"}}]}`, round)
		inbox := nats.NewInbox()
		sub, err := m.nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.nc.PublishMsg(&nats.Msg{Subject: "mesh.batch.default", Reply: inbox, Header: nats.Header{"Mesh-Stream": {"inbox"}}, Data: []byte(body)}); err != nil {
			t.Fatal(err)
		}
		soon := fmt.Sprintf(`{"index":1,"rpc_id":"%d.1","status":"ok","result":"soon"}`, round)
		late := fmt.Sprintf(`{"index":0,"rpc_id":"%d.0","status":"ok","result":"late"}`, round)
		for i, want := range []string{soon, late, fmt.Sprintf(`{"type":"rpc_batch_response","batch_id":%d,"results":[%s,%s]}`, round, late, soon), ""} {
			answer, err := sub.NextMsg(waitTimeout)
			if err != nil {
				t.Fatalf("answer %d: %v", i, err)
			}
			if got := regexp.MustCompile(`"lane_wait_ms":\d+,`).ReplaceAllString(string(answer.Data), ""); got != want { // a busy machine lets calls wait
				t.Fatalf("answer %d: %s\nwant %s", i, got, want)
			}
			if id := answer.Header.Get("Mesh-Rpc-Id"); i < 2 && id != fmt.Sprintf("%d.%d", round, 1-i) {
				t.Errorf("answer %d is of %q", i, id)
			}
			if i == 0 {
				m.stage.open(fmt.Sprintf("door%d", round), 1) // the first has come before the second ended
			}
		}
		_ = sub.Unsubscribe()
	}
}

// A batch that cannot be is refused where it enters, whole, and nothing of it runs.
func TestBadBatches(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{})
	one := `{"tool_id":"stage.safe","kwargs":{"name":"never"}}`
	batchOf := func(requests ...string) string {
		return `{"type":"rpc_batch_call","batch_id":"b","requests":[` + strings.Join(requests, ",") + `]}`
	}
	for name, c := range map[string]struct {
		header nats.Header
		body   string
		code   string
		says   string
	}{
		"nothing":              {nil, batchOf(), "invalid_request", "no requests"},
		"too many":             {nil, batchOf(slices.Repeat([]string{`{}`}, 100_000)...), "payload_too_large", "at most 1000"},
		"an index twice":       {nil, batchOf(one, `{"index":0}`), "invalid_request", "index 0"},
		"no index":             {nil, batchOf(`{"index":-1}`), "invalid_request", "whole number"},
		"no object":            {nil, batchOf(one, `7`), "invalid_request", "requests[1]"},
		"no list":              {nil, `{"type":"rpc_batch_call","batch_id":"b","requests":{}}`, "invalid_request", "no list"},
		"no requests":          {nil, `{"type":"rpc_batch_call","batch_id":"b"}`, "invalid_request", "no list"},
		"no JSON":              {nil, `{`, "invalid_request", "rpc_batch_call"},
		"an empty body":        {nil, ``, "invalid_request", "rpc_batch_call"},
		"another type":         {nil, `{"type":"rpc_tool_call","requests":[` + one + `]}`, "invalid_request", "type"},
		"an id that is none":   {nil, `{"type":"rpc_batch_call","batch_id":[],"requests":[` + one + `]}`, "invalid_request", "batch_id"},
		"two ids":              {nats.Header{"Mesh-Rpc-Id": {"c"}}, batchOf(one), "invalid_request", "same id"},
		"a key":                {nats.Header{"Mesh-Idempotency-Key": {"k"}}, batchOf(one), "invalid_request", "idempotency key"},
		"a live stream":        {nats.Header{"Mesh-Stream": {"1"}}, batchOf(one), "invalid_request", "inbox"},
		"time that is up":      {nats.Header{"Mesh-Timeout-Ms": {"0"}}, batchOf(one), "deadline_exceeded", "time"},
		"a passed deadline":    {nats.Header{"Mesh-Deadline": {"1000"}}, batchOf(one), "deadline_exceeded", "deadline"},
		"too deep":             {nats.Header{"Mesh-Depth": {"100"}}, batchOf(one), "invalid_request", "deep"},
		"what is not known":    {nats.Header{"Mesh-Require": {"wings"}}, batchOf(one), "protocol_error", "wings"},
		"parallel is no word":  {nil, `{"type":"rpc_batch_call","parallel":1,"requests":[` + one + `]}`, "invalid_request", "true or false"},
		"another start's boot": {nats.Header{"Mesh-Boot": {"x"}}, batchOf(one), "node_lost", "restarted"},
	} {
		answer := m.request(t, c.header, c.body)[0]
		var body struct {
			Type   string `json:"type"`
			Status string `json:"status"`
			Error  struct {
				Code, Message string
				Started       *bool
			} `json:"error"`
		}
		if err := json.Unmarshal(answer.Data, &body); err != nil {
			t.Errorf("%s: %v: %s", name, err, answer.Data)
			continue
		}
		if answer.Header.Get("Mesh-Error-Code") != c.code || body.Error.Code != c.code || body.Type != "rpc_batch_response" || body.Status != "error" || !strings.Contains(body.Error.Message, c.says) {
			t.Errorf("%s: %s", name, answer.Data)
		}
		if started := body.Error.Started; c.code != "node_lost" && (started == nil || *started) {
			t.Errorf("%s: started is not false: %s", name, answer.Data)
		}
	}
	// The fault of one call does not affect the others.
	answer := m.request(t, nil, batchOf(`{"tool_id":7}`, `{"tool_id":"stage.safe","args":{}}`, `{"tool_id":"stage.safe","kwargs":[]}`,
		`{"tool_id":"stage.safe","timeout_ms":0}`, `{"tool_id":"stage.safe","args":[1,2,3,4,5,6,7]}`, `{"tool_id":"*"}`, `{"tool_id":"stage.safe","kwargs":{"name":"fine"}}`))[0]
	var body struct {
		Results []struct {
			Status string
			Error  struct{ Code string }
		}
	}
	if err := json.Unmarshal(answer.Data, &body); err != nil {
		t.Fatal(err)
	}
	var codes []string
	for _, r := range body.Results {
		codes = append(codes, r.Status+r.Error.Code)
	}
	want := []string{
		"errorinvalid_request", "errorinvalid_request", "errorinvalid_request", "errorinvalid_request", "errorinvalid_arguments", "errortool_not_found", "ok",
	}
	if diff := cmp.Diff(want, codes); diff != "" {
		t.Errorf("%s\n%s", diff, answer.Data)
	}
	if m.stage.ran("never") != 0 {
		t.Error("a call of a refused batch ran")
	}
	for name, calls := range map[string][]client.BatchCall{
		"nothing": nil, "too many": make([]client.BatchCall, 1001), "no JSON": {{Tool: "x", Args: make(chan int)}}, "a list": {{Tool: "x", Args: []int{1}}},
		"negative": {{Tool: "x", Timeout: -1}}, "broken": {{Tool: "x", Args: json.RawMessage(`{`)}},
	} {
		if _, err := m.client.Batch(t.Context(), calls); toolmesh.AsError(err).Origin != toolmesh.OriginCaller {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The headers of a batch hold for each of its calls, on the node that runs the batch and on others.
func TestHeadersOfABatchHoldForItsCalls(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{})
	asked := host.HandlerFunc(func(ctx context.Context, call *host.Call, sink host.Sink) error {
		return sink.Send(ctx, fmt.Appendf(nil, `"%s %v"`, call.Isolation, call.NoCache))
	})
	for i, r := range m.routers {
		if _, err := r.Handle(subjects.IndexName(fmt.Sprint("of", i)), "asked", asked); err != nil {
			t.Fatal(err)
		}
	}
	calls := []client.BatchCall{{Tool: "of0.asked"}, {Tool: "of1.asked"}}
	for _, c := range []struct {
		want    string
		options []client.CallOption
	}{
		{`[" false" " false"]`, nil},
		{`["fresh true" "fresh true"]`, []client.CallOption{client.WithIsolation(toolmesh.IsolationFresh), client.NoCache()}},
		{`[unavailable started:false unavailable started:false]`, []client.CallOption{client.WithRevision("of another time")}},
	} {
		results, err := m.client.Batch(t.Context(), calls, c.options...)
		if got := fmt.Sprint(outcome(results)); err != nil || got != c.want {
			t.Errorf("%s, want %s: %v", got, c.want, err)
		}
	}
}

// Timeouts of calls and of the batch: a call that still waits at its timeout has not started.
func TestTimeoutsOfBatchesAndCalls(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{})
	waits := in{Name: "holds", Path: "x", Wait: "never"}
	results, err := m.client.Batch(t.Context(), []client.BatchCall{
		{Tool: "stage.keyed", Args: waits, Timeout: 300 * time.Millisecond},
		{Tool: "stage.keyed", Args: in{Name: "behind", Path: "x"}, Timeout: time.Millisecond},
		{Tool: "stage.keyed", Args: in{Name: "beside", Path: "y"}},
		{Tool: "stage.keyed", Args: in{Name: "after", Path: "x"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"deadline_exceeded started:true", "deadline_exceeded started:false", `"beside"`, `"after"`}
	if diff := cmp.Diff(want, outcome(results)); diff != "" || m.stage.ran("behind") != 0 {
		t.Error(diff)
	}
	answer := m.request(t, nats.Header{"Mesh-Timeout-Ms": {"300"}}, `{"type":"rpc_batch_call","requests":[
		{"tool_id":"stage.unsafe","kwargs":{"name":"holds","wait":"never"}},{"tool_id":"stage.unsafe","kwargs":{"name":"behind"}}]}`)[0]
	if n := bytes.Count(answer.Data, []byte(`"deadline_exceeded"`)); n < 2 || !bytes.Contains(answer.Data, []byte(`"started":false`)) || m.stage.ran("behind") != 0 {
		t.Errorf("%s", answer.Data)
	}
}

// A cancel, by the context or by the batch's id, ends running calls, and no further ones begin.
func TestCancel(t *testing.T) {
	t.Parallel()
	m := single(t, 3, router.Options{})
	for _, byID := range []bool{false, true} {
		id := subjects.RPCID(fmt.Sprint("batch_", byID))
		first, second := fmt.Sprint("runs", byID), fmt.Sprint("waits", byID)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			results, err := m.client.Batch(ctx, []client.BatchCall{call("unsafe", in{Name: first, Wait: "never"}), call("unsafe", in{Name: second})}, client.WithRPCID(id))
			if byID && err == nil {
				if diff := cmp.Diff([]string{"cancelled started:true", "cancelled started:false"}, outcome(results)); diff != "" {
					t.Error(diff)
				}
			}
			done <- err
		}()
		m.stage.began(t, first)
		if byID {
			ok, err := m.client.Cancel(t.Context(), id)
			if err != nil || !ok {
				t.Errorf("cancel: %v %v", ok, err)
			}
		} else {
			cancel()
		}
		if err := <-done; byID && err != nil || !byID && toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			t.Errorf("by id %v: %v", byID, err)
		}
		cancel()
		meshtest.Until(t, "what ran has ended", func() bool { return slices.Contains(m.stage.log(), "-"+first) })
		if m.stage.ran(second) != 0 {
			t.Error("a call began after the cancel")
		}
	}
}

// More calls than the nodes have slots wait for each other's ends.
func TestFullNodes(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{Slots: 2})
	var calls []client.BatchCall
	for i := range 200 {
		calls = append(calls, call("keyed", in{Name: "n", Path: fmt.Sprint(i)}))
	}
	var batches sync.WaitGroup
	for range 4 {
		batches.Go(func() {
			results, err := m.client.Batch(t.Context(), calls)
			if err != nil {
				t.Error(err)
			}
			for i, r := range results {
				if r.Err != nil {
					t.Errorf("call %d: %v", i, r.Err)
				}
			}
		})
	}
	batches.Wait()
	if n := m.stage.ran("n"); n != 800 {
		t.Errorf("%d runs", n)
	}
}

// For a caller without references, results that are too large for a message together fail one by
// one, with a remedy.
func TestLargeResults(t *testing.T) {
	t.Parallel()
	m := single(t, 1, router.Options{}, meshtest.MaxPayload(64<<10))
	var calls []string
	for name, size := range map[string]int{"a": 30_000, "b": 30_000, "c": 30_000, "d": 0, "e": 70_000} {
		calls = append(calls, fmt.Sprintf(`{"index":%d,"tool_id":"stage.unsafe","kwargs":{"name":%q,"size":%d}}`, name[0]-'a', name, size))
	}
	slices.Sort(calls)
	answer := m.requestTo(t, "mesh.batch.default", nil, `{"type":"rpc_batch_call","batch_id":"b","requests":[`+strings.Join(calls, ",")+`]}`)
	results, err := codec.ParseBatchResults(answer[0].Data)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range results {
		code := toolmesh.Code("")
		if r.Err != nil {
			code = r.Err.Code
		}
		got = append(got, string(code))
	}
	if diff := cmp.Diff([]string{"", "payload_too_large", "payload_too_large", "", "payload_too_large"}, got); diff != "" {
		t.Error(diff)
	}
	if e := results[1].Err; e.Started != toolmesh.StartedYes || !strings.Contains(e.Message, "fewer") {
		t.Errorf("%+v", e)
	}
}

// A batch that is sent again to a node that leaves meanwhile joins the one that runs there:
// it is neither refused as if it had not begun, nor run by the node that has its id now.
func TestSentAgainToANodeThatLeaves(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{})
	const body = `{"type":"rpc_batch_call","batch_id":"kept","requests":[{"tool_id":"stage.unsafe","kwargs":{"name":"kept","wait":"kept"}}]}`
	answers := make(chan *nats.Msg, 3)
	send := func(header nats.Header) {
		go func() { answers <- m.requestTo(t, "mesh.node.node-0.batch.default", header, body)[0] }()
	}
	send(nats.Header{"Mesh-Hops": {"1"}}) // runs here, whichever node owns its id
	m.stage.began(t, "kept")
	closed := make(chan error, 1)
	go func() { closed <- m.routers[0].Close() }()
	view, err := m.routers[1].View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the node is seen to leave", func() bool {
		return slices.ContainsFunc(view.Nodes(), func(n registry.NodeStatus) bool { return n.Node == "node-0" && n.State == registry.StateDraining })
	})
	send(nil)
	send(nats.Header{"Mesh-Again": {"100"}, "Mesh-Rpc-Id": {"kept"}, "Mesh-Timeout-Ms": {"0"}})
	m.requestTo(t, "mesh.node.node-0.batch.default", nil, "{}") // by then they have joined, or will find the answer
	m.stage.open("kept", 3)
	for range 3 {
		if a := <-answers; !bytes.Contains(a.Data, []byte(`"status":"ok","result":"kept"`)) {
			t.Errorf("%v %s", a.Header, a.Data)
		}
	}
	if n := m.stage.ran("kept"); n != 1 {
		t.Errorf("run %d times", n)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A node that leaves lets its batches end, and takes no more: others do.
func TestDrain(t *testing.T) {
	t.Parallel()
	m := single(t, 2, router.Options{})
	done := make(chan []client.BatchResult, 20)
	for i := range 20 { // some on each node
		go func() {
			results, err := m.client.Batch(t.Context(), []client.BatchCall{
				call("unsafe", in{Name: fmt.Sprint("first", i), Wait: "door"}), call("unsafe", in{Name: "second"}),
			})
			if err != nil {
				t.Error(err)
			}
			done <- results
		}()
	}
	for i := range 20 {
		m.stage.began(t, fmt.Sprint("first", i))
	}
	closed := make(chan error, 1)
	go func() { closed <- m.routers[0].Close() }()
	view, err := m.routers[1].View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the node is seen to leave", func() bool {
		return slices.ContainsFunc(view.Nodes(), func(n registry.NodeStatus) bool { return n.Node == "node-0" && n.State == registry.StateDraining })
	})
	for i := range 20 {
		if results, err := m.client.Batch(t.Context(), []client.BatchCall{call("safe", in{Name: fmt.Sprint(i)})}); err != nil || results[0].Err != nil {
			t.Errorf("while the node leaves: %v %v", err, results)
		}
	}
	m.stage.open("door", 20)
	for range 20 {
		for i, r := range <-done {
			if r.Err != nil {
				t.Errorf("call %d: %v", i, r.Err)
			}
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A batch whose node dies ends as node_lost in time.
func TestNodeLost(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	proxies := make([]*meshtest.Proxy, 3)
	m := open(t, &place{broker: broker, node: func(t testing.TB, i int) *nats.Conn {
		t.Helper()
		proxies[i] = meshtest.NewProxy(t, broker)
		return proxies[i].Connect(t)
	}}, 3, router.Options{})
	view, err := m.routers[0].View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owner, ok := view.Owner(codec.FeatureBatch, nil, "default", "batch_lost")
	if !ok {
		t.Fatal("no node has the batch")
	}
	errs := make(chan error, 12)
	for range cap(errs) { // the batch and its repetitions, by whichever node
		go func() {
			_, err := m.client.Batch(t.Context(), []client.BatchCall{call("unsafe", in{Name: "runs", Wait: "never"})}, client.WithRPCID("batch_lost"))
			errs <- err
		}()
	}
	m.stage.began(t, "runs")
	for i, r := range m.routers {
		if r.Node() == owner.Node {
			proxies[i].Blackhole()
			t.Cleanup(proxies[i].Heal) // before the node leaves
		}
	}
	for range cap(errs) {
		if err := <-errs; toolmesh.CodeOf(err) != toolmesh.CodeNodeLost {
			t.Errorf("got %v", err)
		}
	}
	if n := m.stage.ran("runs"); n != 1 {
		t.Errorf("run %d times", n)
	}
	m.stage.open("never", 1) // for the node that is to leave
}
