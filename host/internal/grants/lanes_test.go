package grants_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

func TestMain(m *testing.M) {
	meshtest.Parallel(8)
	meshtest.Main(m)
}

// waitTimeout bounds every wait for a signal: long, because machines are busy.
const waitTimeout = 60 * time.Second

// where has the methods of a [meshtest.Topology] and a [place].
type where interface {
	ServeOn(t testing.TB, i int, options ...nats.Option) *nats.Conn
	Call(t testing.TB, options ...nats.Option) *nats.Conn
}

// place is one broker, which nodes may reach in a way of their own.
type place struct {
	*meshtest.Server
	proxies []*meshtest.Proxy
}

func (p *place) ServeOn(t testing.TB, i int, options ...nats.Option) *nats.Conn {
	t.Helper()
	if i < len(p.proxies) {
		return p.proxies[i].Connect(t, options...)
	}
	return p.Connect(t, options...)
}

func (p *place) Call(t testing.TB, options ...nats.Option) *nats.Conn {
	t.Helper()
	return p.Connect(t, options...)
}

// mesh is nodes that all serve the tools of a stage, and a caller.
type mesh struct {
	*stage
	nc     *nats.Conn // the caller's
	hosts  []*host.Host
	client *client.Client
}

func open(t *testing.T, at where, n int, opts host.Options) *mesh {
	t.Helper()
	m := &mesh{stage: &stage{now: map[string]int{}, peak: map[string]int{}, signals: map[string]chan struct{}{}}, nc: at.Call(t)}
	for i := range n {
		o := opts
		o.Node, o.Index = subjects.NodeID(fmt.Sprintf("node-%d", i)), "stage"
		nc := at.ServeOn(t, i)
		h, err := host.New(nc, &o)
		if err != nil {
			t.Fatal(err)
		}
		nested := testmesh.Client(t, nc, nil)
		m.serve(t, h, nested)
		testmesh.Start(t, h)
		m.hosts = append(m.hosts, h)
	}
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for _, h := range m.hosts {
			closing.Go(func() { meshtest.End(t, h) })
		}
		closing.Wait()
	})
	var session subjects.SessionID
	if top, ok := at.(*meshtest.Topology); ok {
		session = top.Session // a session's key calls there alone
	}
	c := testmesh.Client(t, m.nc, &client.Options{Session: session})
	m.client = c
	meshtest.Until(t, "a call is served", func() bool {
		_, err := c.Call(t.Context(), "stage.free", in{})
		return err == nil
	})
	return m
}

// stage has the tools of a test: running calls, and signals for which calls wait.
type stage struct {
	mu      sync.Mutex
	now     map[string]int // how many of a name run
	peak    map[string]int
	order   []string
	fences  []uint64
	signals map[string]chan struct{}
}

type in struct {
	Name  string `json:"name,omitempty"`
	Path  string `json:"path,omitempty"`
	Wait  string `json:"wait,omitempty"`  // for a signal
	Calls string `json:"calls,omitempty"` // a tool of the stage, with the path Below
	Below string `json:"below,omitempty"`
}

func (s *stage) signal(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.signals[name] == nil {
		s.signals[name] = make(chan struct{}, 10_000)
	}
	return s.signals[name]
}

// release lets n calls pass that wait for a signal.
func (s *stage) release(name string, n int) {
	for range n {
		s.signal(name) <- struct{}{}
	}
}

// began waits for the next call of a name to begin.
func (s *stage) began(t *testing.T, name string) {
	t.Helper()
	select {
	case <-s.signal("began " + name):
	case <-time.After(waitTimeout):
		t.Fatalf("no call %q has begun; so far %v", name, s.begun())
	}
}

func (s *stage) begun() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

func (s *stage) most(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peak[name]
}

func (s *stage) do(ctx context.Context, node subjects.NodeID, nested *client.Client, a in) (string, error) {
	count := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range []string{a.Name, string(node) + a.Name} {
			s.now[name] += n
			s.peak[name] = max(s.peak[name], s.now[name])
		}
		if n > 0 {
			s.order = append(s.order, a.Name)
			if fence := host.Fence(ctx); fence > 0 {
				s.fences = append(s.fences, fence)
			}
		}
	}
	count(1)
	defer count(-1)
	s.signal("began " + a.Name) <- struct{}{}
	if a.Wait != "" {
		select {
		case <-s.signal(a.Wait):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	if a.Calls != "" {
		_, err := nested.Call(ctx, subjects.ToolID("stage."+a.Calls), in{Name: "inner", Path: a.Below})
		return "", err
	}
	return a.Name, nil
}

func (s *stage) serve(t *testing.T, h *host.Host, nested *client.Client) {
	t.Helper()
	keyed := func(scope tool.LaneScope, reads bool) tool.Annotations {
		return tool.Annotations{ParallelSafe: true, ReadOnly: reads, LaneScope: scope, ResourceKey: tool.ResourceKey{Parts: []string{"fs", "{path}"}}}
	}
	for name, a := range map[string]tool.Annotations{
		"free": {}, "alone": {LaneScope: tool.LaneSession}, "keyed": keyed(tool.LaneSession, false), "reads": keyed(tool.LaneSession, true),
		"everywhere": {LaneScope: tool.LaneMesh}, "here": {LaneScope: tool.LaneNode},
		"kept": {LaneScope: tool.LaneSession, CacheTTL: time.Minute},
	} {
		f := host.Func(func(ctx context.Context, a in) (string, error) { return s.do(ctx, h.Node(), nested, a) })
		if _, err := h.Handle(name, f, host.Annotate(a)); err != nil {
			t.Fatal(err)
		}
	}
}

func single(t *testing.T, n int, opts host.Options) *mesh {
	t.Helper()
	return open(t, &place{Server: meshtest.Broker(t)}, n, opts)
}

// all makes calls at once, each by a node that the broker chooses, and waits for them.
func (m *mesh) all(t *testing.T, n int, name string, args func(i int) in, opts ...client.CallOption) {
	t.Helper()
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			if _, err := m.client.Call(t.Context(), subjects.ToolID("stage."+name), args(i), append(opts, client.ViaQueue())...); err != nil {
				t.Errorf("call %d of %s: %v", i, name, err)
			}
		})
	}
	calls.Wait()
}

// Calls of one lane never overlap, on any nodes, and calls with another key, or that only
// read, do: rows K1 to K3, K6 and K8 of the conformance table, on any topology and with any
// key.
func TestCallsOfOneLaneDoNotOverlap(t *testing.T) {
	t.Parallel()
	meshtest.Conversations(t, func(t *testing.T, top *meshtest.Topology) {
		m := open(t, top, 3, host.Options{})
		m.all(t, 40, "alone", func(int) in { return in{Name: "alone"} })
		m.all(t, 40, "keyed", func(i int) in { return in{Name: "one key", Path: strings.Repeat("./", i%3) + "a"} })
		m.all(t, 40, "everywhere", func(int) in { return in{Name: "mesh"} })
		for _, name := range []string{"alone", "one key", "mesh"} {
			if peak := m.most(name); peak != 1 {
				t.Errorf("%d calls ran at once of %q", peak, name)
			}
		}
		for _, c := range []struct {
			tool string
			path func(i int) string
		}{
			{"keyed", func(i int) string { return fmt.Sprint(i) }},
			{"reads", func(int) string { return "same" }},
		} {
			m.release(c.tool, 4)
			done := make(chan struct{})
			m.mu.Lock()
			m.signals[c.tool] = make(chan struct{}, 10)
			m.mu.Unlock()
			go func() {
				m.all(t, 4, c.tool, func(i int) in { return in{Name: "beside " + c.tool, Path: c.path(i), Wait: c.tool} })
				close(done)
			}()
			for range 4 {
				m.began(t, "beside "+c.tool) // all four, as none goes on before
			}
			m.release(c.tool, 4)
			<-done
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.fences) < 100 {
			t.Errorf("%d calls had a fence", len(m.fences))
		}
	})
}

// Sessions have lanes of their own, the mesh has one, and each node has its own.
func TestScopes(t *testing.T) {
	t.Parallel()
	m := single(t, 2, host.Options{})
	session := func(name subjects.SessionID) client.CallOption { return client.WithSession(name) }
	var calls sync.WaitGroup
	call := func(name string, args in, opts ...client.CallOption) {
		calls.Go(func() {
			if _, err := m.client.Call(t.Context(), subjects.ToolID("stage."+name), args, opts...); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	for i := range 4 { // K8: sessions do not wait for each other
		call("alone", in{Name: "sessions", Wait: "sessions"}, session(subjects.SessionID(fmt.Sprint("s", i))))
	}
	for range 4 {
		m.began(t, "sessions")
	}
	m.release("sessions", 4)
	for i := range 10 {
		call("everywhere", in{Name: "mesh"}, session(subjects.SessionID(fmt.Sprint("s", i))))
	}
	for i := range 20 {
		call("here", in{Name: "here", Wait: "here"}, session(subjects.SessionID(fmt.Sprint("s", i))), client.ViaQueue())
	}
	m.began(t, "here")
	m.began(t, "here") // one on each node
	m.release("here", 20)
	calls.Wait()
	got := map[string]int{"mesh": m.most("mesh"), "here": m.most("here"), "node-0": m.most("node-0here"), "node-1": m.most("node-1here")}
	if diff := cmp.Diff(map[string]int{"mesh": 1, "here": 2, "node-0": 1, "node-1": 1}, got); diff != "" {
		t.Error(diff)
	}
}

// waiting is how many calls wait for a turn, on all nodes.
func (m *mesh) waiting() (n int) {
	for _, h := range m.hosts {
		n += h.Figures().Waiting
	}
	return n
}

func (m *mesh) untilWaiting(t *testing.T, n int) {
	t.Helper()
	meshtest.Until(t, fmt.Sprintf("%d calls wait for their turn", n), func() bool { return m.waiting() == n })
}

// Lanes are granted in the order of the calls. A wait takes no slot, counts in the call's time,
// is reported, and ends with a cancel; a call that gave up is not waited for.
func TestLanesAreGrantedInOrder(t *testing.T) {
	t.Parallel()
	m := single(t, 3, host.Options{Slots: 2})
	var calls sync.WaitGroup
	waits := make(chan time.Duration, 20)
	call := func(name string, opts ...client.CallOption) {
		calls.Go(func() {
			r, err := m.client.Call(t.Context(), "stage.alone", in{Name: name, Wait: name}, append(opts, client.ViaQueue())...)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			waits <- r.LaneWait
		})
	}
	call("first")
	m.began(t, "first")
	var want []string
	for i := range 10 { // more than there are slots
		want = append(want, fmt.Sprint("w", i))
		call(want[i])
		m.untilWaiting(t, i+1)
	}
	_, err := m.client.Call(t.Context(), "stage.alone", in{Name: "late"}, client.WithTimeout(200*time.Millisecond))
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeDeadlineExceeded || e.Started != toolmesh.StartedNo {
		t.Errorf("a call whose time is up while it waits: %+v", e)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := make(chan error, 1)
	go func() {
		_, err := m.client.Call(ctx, "stage.alone", in{Name: "cancelled"})
		cancelled <- err
	}()
	m.untilWaiting(t, 11)
	cancel()
	if err := <-cancelled; toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("a call that is cancelled while it waits: %v", err)
	}
	m.untilWaiting(t, 10)
	if _, err := m.client.Call(t.Context(), "stage.free", in{Name: "free"}); err != nil {
		t.Errorf("while calls wait for their turn: %v", err)
	}
	m.release("first", 1)
	for _, name := range want {
		m.release(name, 1)
	}
	calls.Wait()
	close(waits)
	some := 0
	for d := range waits {
		if d > 0 {
			some++
		}
	}
	if some < 10 {
		t.Errorf("%d calls say that they waited", some)
	}
	order := slices.DeleteFunc(m.begun(), func(name string) bool { return !strings.HasPrefix(name, "w") })
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("the order of the turns:\n%s", diff)
	}
	if m.most("late") > 0 || m.most("cancelled") > 0 {
		t.Error("a call ran that had given up")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.IsSorted(m.fences) || len(slices.Compact(m.fences)) != len(m.fences) {
		t.Errorf("fences do not grow: %v", m.fences)
	}
}

// A call that would wait for itself is refused at once: K9.
func TestCallsThatWaitForThemselves(t *testing.T) {
	t.Parallel()
	m := single(t, 2, host.Options{})
	_, err := m.client.Call(t.Context(), "stage.alone", in{Name: "outer", Calls: "alone"})
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInvalidRequest || !strings.Contains(e.Message, "wait for itself") {
		t.Errorf("a call below one of its own lane: %v", err)
	}
	_, err = m.client.Call(t.Context(), "stage.keyed", in{Name: "outer", Path: "a/b", Calls: "alone"})
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInvalidRequest {
		t.Errorf("a call below one that it overlaps with: %v", err)
	}
	if _, err = m.client.Call(t.Context(), "stage.keyed", in{Name: "outer", Path: "c", Calls: "everywhere"}); err != nil {
		t.Errorf("a call below one of another lane: %v", err)
	}
	// Two calls hold the lane that the other one's nested call needs: one fails, the other goes on.
	results := make(chan error, 2)
	for _, c := range []in{{Name: "circle", Path: "x", Below: "y"}, {Name: "circle", Path: "y", Below: "x"}} {
		c.Wait, c.Calls = "both", "keyed"
		go func() {
			_, err := m.client.Call(t.Context(), "stage.keyed", c)
			results <- err
		}()
	}
	m.began(t, "circle")
	m.began(t, "circle")
	m.release("both", 2)
	refused := 0
	for range 2 {
		if err := <-results; err != nil {
			refused++
			if e := toolmesh.AsError(err); e.Code != toolmesh.CodeBusy || e.Details["limit"] != "lanes" {
				t.Errorf("a call that closes a circle: %+v", e)
			}
		}
	}
	if refused != 1 {
		t.Errorf("%d of two were refused", refused)
	}
}

// A lane is acquired with one message to its owner, and passed on with one to the owner and one
// to the waiter; the store is not asked.
func TestMessagesOfALane(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	m := open(t, &place{Server: broker}, 2, host.Options{})
	// The lane is node-0's.
	on := func(node string, a in) {
		t.Helper()
		body := fmt.Sprintf(`{"name":%q,"wait":%q}`, a.Name, a.Wait)
		r, err := m.nc.RequestMsg(&nats.Msg{Subject: "mesh.node." + node + ".tools.default.stage.alone", Header: nats.Header{"Mesh-Timeout-Ms": {"20000"}}, Data: []byte(body)}, waitTimeout)
		if err != nil || r.Header.Get("Mesh-Error-Code") != "" {
			t.Errorf("%s: %v %s", node, err, r.Data)
		}
	}
	on("node-0", in{Name: "owns"})
	on("node-1", in{Name: "knows the owner"})
	all, err := broker.Connect(t).SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	// sent returns the subjects of the messages since its last call, but for those that nodes send anyway: heartbeats,
	// events, and what keeps leases and streams.
	sent := func() (subjects []string) {
		t.Helper()
		if err := m.nc.Flush(); err != nil {
			t.Fatal(err)
		}
		stored := map[string]bool{"": true} // where the store answers them
		for {
			msg, err := all.NextMsg(200 * time.Millisecond)
			if err != nil {
				return subjects
			}
			body, ofStore := string(msg.Data), false
			for _, prefix := range []string{"$KV.", "$JS.", "mesh.reg."} {
				ofStore = ofStore || strings.HasPrefix(msg.Subject, prefix)
			}
			switch {
			case ofStore && !strings.Contains(msg.Subject+body, "MESH_LANES"):
				stored[msg.Reply] = true
			case stored[msg.Subject], strings.HasPrefix(msg.Subject, "mesh.hb."), strings.HasPrefix(msg.Subject, "mesh.evt."), strings.HasPrefix(msg.Subject, "$SYS"),
				strings.Contains(body, `"renew`):
			default:
				subjects = append(subjects, msg.Subject)
			}
		}
	}
	count := func(all []string, prefix string) (n int) {
		for _, s := range all {
			if strings.HasPrefix(s, prefix) {
				n++
			}
		}
		return n
	}
	const owner = "mesh.node.node-0.lane.default"
	var got []string
	// A question without an answer within a second is repeated: a busy machine gets more than one try.
	few := func(what string, enough func() bool, try func()) {
		t.Helper()
		for range 5 {
			sent()
			if try(); enough() {
				return
			}
		}
		t.Errorf("%s: %v", what, got)
	}
	// The call and its answer, the question and its answer, the turn's return.
	few("one call of a lane", func() bool { return len(got) == 5 && count(got, owner) == 2 }, func() {
		on("node-1", in{Name: "asks"})
		got = sent()
	})
	// Two answers, the turn, its return.
	few("a turn is handed over", func() bool { return len(got) <= 6 && count(got, owner) <= 2 && count(got, "$") == 0 }, func() {
		var calls sync.WaitGroup
		calls.Go(func() { on("node-0", in{Name: "holds", Wait: "holds"}) })
		m.began(t, "holds")
		calls.Go(func() { on("node-1", in{Name: "waits"}) })
		m.untilWaiting(t, 1)
		for count(sent(), "mesh.node.node-0.lane") > 0 { // it is not said again for a second
		}
		m.release("holds", 1)
		calls.Wait()
		got = sent()
	})
}

// through opens a mesh with a proxy between each node and the broker.
func through(t *testing.T, n int) (*mesh, []*meshtest.Proxy) {
	t.Helper()
	at := &place{Server: meshtest.Broker(t)}
	for range n {
		at.proxies = append(at.proxies, meshtest.NewProxy(t, at.Server))
	}
	m := open(t, at, n, host.Options{})
	t.Cleanup(func() { // before the nodes are stopped: one that reaches its broker stops at once
		for _, p := range at.proxies {
			p.Heal()
		}
	})
	return m, at.proxies
}

// on calls a tool of one node.
func (m *mesh) on(ctx context.Context, node int, name string, a in) error {
	body := fmt.Sprintf(`{"name":%q,"wait":%q,"path":%q}`, a.Name, a.Wait, a.Path)
	answer, err := m.nc.RequestMsgWithContext(ctx, &nats.Msg{
		Subject: fmt.Sprintf("mesh.node.node-%d.tools.default.stage.%s", node, name), Header: nats.Header{"Mesh-Timeout-Ms": {"60000"}}, Data: []byte(body),
	})
	if err != nil {
		return err
	}
	if code := answer.Header.Get("Mesh-Error-Code"); code != "" {
		return toolmesh.Errorf(toolmesh.Code(code), "%s", answer.Data)
	}
	return nil
}

// An owner that is cut off stops granting before another node grants; holders of its grants stop
// before that.
func TestOwnerIsLost(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"cut off", "killed", "frozen"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			m, proxies := through(t, 3)
			if err := m.on(t.Context(), 0, "alone", in{Name: "owns"}); err != nil {
				t.Fatal(err)
			}
			call := func(node int, a in) <-chan error {
				end := make(chan error, 1)
				go func() { end <- m.on(t.Context(), node, "alone", a) }()
				return end
			}
			holder := call(1, in{Name: "turn", Wait: "never"})
			m.began(t, "turn")
			atOwner, elsewhere := call(0, in{Name: "turn"}), call(2, in{Name: "turn"})
			m.untilWaiting(t, 2)
			switch lost {
			case "cut off":
				proxies[0].Blackhole()
			case "killed":
				proxies[0].Cut(true)
			case "frozen":
				proxies[0].Stall()
			}
			if err := <-holder; toolmesh.CodeOf(err) != toolmesh.CodeNodeLost {
				t.Errorf("the call that holds the lane of a lost owner: %v", err)
			}
			if err := <-elsewhere; err != nil { // the next owner serves it
				t.Errorf("the call that waits on another node: %v", err)
			}
			proxies[0].Heal()
			if err := <-atOwner; toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
				t.Errorf("the call that waits on the node that was cut off: %v", err)
			}
			if err := m.on(t.Context(), 0, "alone", in{Name: "turn"}); err != nil {
				t.Errorf("when the node is back: %v", err)
			}
			if peak := m.most("turn"); peak != 1 {
				t.Errorf("%d calls of one lane ran at once", peak)
			}
		})
	}
}

// A node that is cut off while it holds lanes stops their calls, and no other call begins
// before.
func TestHolderIsLost(t *testing.T) {
	t.Parallel()
	m, proxies := through(t, 2)
	if err := m.on(t.Context(), 0, "alone", in{Name: "owns"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = m.on(ctx, 1, "alone", in{Name: "turn", Wait: "never"}) }()
	m.began(t, "turn")
	proxies[1].Blackhole()
	if err := m.on(t.Context(), 0, "alone", in{Name: "turn"}); err != nil {
		t.Error(err)
	}
	if peak := m.most("turn"); peak != 1 {
		t.Errorf("%d calls of one lane ran at once", peak)
	}
}

// A node that leaves hands its lanes over: holders keep theirs, waiters get the next ones, and
// none waits for a lease to end.
func TestOwnerLeaves(t *testing.T) {
	t.Parallel()
	m := single(t, 3, host.Options{})
	if err := m.on(t.Context(), 0, "alone", in{Name: "owns"}); err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 2)
	go func() { ends <- m.on(t.Context(), 1, "alone", in{Name: "turn", Wait: "door"}) }()
	m.began(t, "turn")
	go func() { ends <- m.on(t.Context(), 2, "alone", in{Name: "turn", Wait: "door"}) }()
	m.untilWaiting(t, 1)
	if err := m.hosts[0].Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if m.most("turn") != 1 || m.waiting() != 1 {
		t.Errorf("%d calls ran, %d wait", m.most("turn"), m.waiting())
	}
	m.release("door", 2)
	for range 2 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	if peak := m.most("turn"); peak != 1 {
		t.Errorf("%d calls of one lane ran at once", peak)
	}
}

// Invalid lanes are refused at once.
func TestBadLanes(t *testing.T) {
	t.Parallel()
	m := single(t, 1, host.Options{})
	_, err := m.client.Call(t.Context(), "stage.keyed", in{Name: "never", Path: strings.Repeat("x", 500_000)})
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeInvalidArguments || e.Started != toolmesh.StartedNo || !strings.Contains(e.Message, "resource key") {
		t.Errorf("a key of half a megabyte: %v", err)
	}
	answer, err := m.nc.RequestMsg(&nats.Msg{Subject: "tools.default.stage.alone", Header: nats.Header{"Mesh-Lanes": {strings.Repeat("x", 5000)}}}, waitTimeout)
	if err != nil || answer.Header.Get("Mesh-Error-Code") != "invalid_request" {
		t.Errorf("a long Mesh-Lanes: %v %v", err, answer)
	}
	// A caller that is not a node asks for a lane: it gets no answer, and holds nothing.
	for _, body := range []string{"", "{", `{"type":"ask"}`, `{"type":"ask","ids":[""]}`, `{"type":"wings","ids":["x"]}`, `[]`} {
		if err := m.nc.Publish("mesh.node.node-0.lane.default", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.on(t.Context(), 0, "alone", in{Name: "fine"}); err != nil || m.most("never") > 0 {
		t.Errorf("%v", err)
	}
}

// A cached result needs no lane, and an execution that outlives its caller keeps its lane.
func TestCachedResultsNeedNoLane(t *testing.T) {
	t.Parallel()
	m := single(t, 1, host.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := m.client.Call(ctx, "stage.kept", in{Name: "runs", Wait: "runs"})
		first <- err
	}()
	m.began(t, "runs")
	second := make(chan error, 1)
	go func() {
		_, err := m.client.Call(t.Context(), "stage.kept", in{Name: "runs", Wait: "runs"})
		second <- err
	}()
	meshtest.Until(t, "the second call is there", func() bool { return m.hosts[0].Figures().InFlight == 2 })
	cancel()
	<-first
	third := make(chan error, 1)
	go func() { third <- m.on(t.Context(), 0, "alone", in{Name: "after"}) }()
	m.untilWaiting(t, 1) // for the execution that its first caller has left
	m.release("runs", 1)
	if err := <-second; err != nil {
		t.Error(err)
	}
	if err := <-third; err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"runs", "after"}, slices.DeleteFunc(m.begun(), func(s string) bool { return s == "" })); diff != "" {
		t.Error(diff)
	}
}

// A call waits half a minute for an owner that has its lease and does not answer: otherwise it
// would wait for ever.
func TestOwnerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	m := open(t, &place{Server: meshtest.Broker(t)}, 2, host.Options{})
	js, err := jetstream.New(m.nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.on(t.Context(), 0, "alone", in{Name: "owns"}); err != nil { // the bucket is there
		t.Fatal(err)
	}
	name, err := subjects.LaneKey("deaf")
	if err != nil {
		t.Fatal(err)
	}
	record := fmt.Appendf(nil, `{"node":%q,"boot":%q}`, m.hosts[1].Node(), m.hosts[1].Boot())
	if _, err := js.Publish(t.Context(), "$KV."+subjects.BucketLanes+"."+name, record); err != nil {
		t.Fatal(err)
	}
	answer, err := m.nc.RequestMsgWithContext(t.Context(), &nats.Msg{
		Subject: "mesh.node.node-0.tools.deaf.stage.alone", Header: nats.Header{"Mesh-Timeout-Ms": {"300000"}}, Data: []byte(`{"name":"waits"}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Header.Get("Mesh-Error-Code") != "unavailable" || answer.Header.Get("Mesh-Started") != "false" || !strings.Contains(string(answer.Data), "has not answered") {
		t.Errorf("a call whose lane's owner does not answer: %v %s", answer.Header, answer.Data)
	}
}
