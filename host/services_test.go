package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// echo returns its arguments.
var echo = host.HandlerFunc(func(ctx context.Context, call *host.Call, sink host.Sink) error { return sink.Send(ctx, call.Args) })

// numbered is the schema of function i.
func numbered(i int) host.ToolOption {
	return host.Schema(json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{"n%d":{"type":"integer","minimum":%d}}}`, i, -i)), nil)
}

// handleMany registers functions from..to-1 of a service.
func handleMany(t *testing.T, h *host.Host, index, session string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if _, err := h.HandleIn(subjects.IndexName(index), subjects.SessionID(session), fmt.Sprintf("f%d", i), echo, numbered(i)); err != nil {
			t.Fatalf("function %d: %v", i, err)
		}
	}
}

func newHost(t *testing.T, nc *nats.Conn, opts *host.Options) *host.Host {
	t.Helper()
	h := testmesh.Host(t, nc, opts)
	return h
}

func start(t *testing.T, nc *nats.Conn, h *host.Host) {
	t.Helper()
	testmesh.Start(t, h)
	joined(t, nc, h)
}

// allocations is how many allocations of this process do runs for.
func allocations(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

// The cost of one more function does not depend on the number of functions: nothing is compiled,
// copied or encoded again. Not parallel: it counts allocations of the process.
func TestAddingAFunctionCostsTheSameInLargeIndexes(t *testing.T) {
	const some = 20
	for _, serving := range []bool{false, true} {
		for _, session := range []string{"", "kept"} {
			index := "many"
			if session != "" {
				index = ""
			}
			t.Run(fmt.Sprintf("serving %v, session %q", serving, session), func(t *testing.T) {
				nc := meshtest.Broker(t).Connect(t)
				h := newHost(t, nc, nil)
				if serving {
					start(t, nc, h)
				}
				// The first ones begin a record, as the hundreds do.
				first := allocations(func() { handleMany(t, h, index, session, 0, some) })
				handleMany(t, h, index, session, some, 600)
				last := allocations(func() { handleMany(t, h, index, session, 600, 600+some) })
				if last > 3*first {
					t.Errorf("%d functions cost %d allocations behind 600 others, %d before them", some, last, first)
				}
			})
		}
	}
}

// written follows the writes to a bucket.
type written struct {
	mu             sync.Mutex
	count, largest int
	latest         map[string]string
}

func follow(t *testing.T, nc *nats.Conn, bucket string) *written {
	t.Helper()
	w := &written{latest: make(map[string]string)}
	prefix := "mesh.reg." + bucket + "."
	_, err := nc.Subscribe(prefix+">", func(m *nats.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.count++
		w.largest = max(w.largest, len(m.Data))
		w.latest[strings.TrimPrefix(m.Subject, prefix)] = string(m.Data)
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// reset returns how many records were written since the last reset, and the size of
// the largest.
func (w *written) reset() (count, largest int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	count, largest = w.count, w.largest
	w.count, w.largest = 0, 0
	return count, largest
}

// has reports whether a record with a prefix of its key contains a text.
func (w *written) has(prefix, text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, data := range w.latest {
		if strings.HasPrefix(key, prefix) && strings.Contains(data, text) {
			return true
		}
	}
	return false
}

// keys is how many keys were written.
func (w *written) keys() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.latest)
}

// tools counts the tools that the records of a key's beginning name.
func (w *written) tools(t *testing.T, prefix string) int {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for key, data := range w.latest {
		var r registry.ToolsRecord
		if strings.HasPrefix(key, prefix) && data != "" {
			mustJSON(t, []byte(data), &r)
			n += len(r.Tools)
		}
	}
	return n
}

// A function that is added while the host serves is written, and no other record
// but the one that it is in, which is small.
func TestOneMoreFunctionIsOneWrite(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc, watch := broker.Connect(t), broker.Connect(t)
	h := newHost(t, nc, &host.Options{Node: "n1"})
	handleMany(t, h, "many", "", 0, 300)
	handleMany(t, h, "", "kept", 0, 300)
	tools, schemas := follow(t, watch, "MESH_TOOLS"), follow(t, watch, "MESH_SCHEMAS")
	start(t, nc, h)
	meshtest.Until(t, "all of the first are in the registry", func() bool {
		return tools.tools(t, "n1.=.i.many") == 300 && tools.tools(t, "n1.kept.t.") == 300 && schemas.keys() == 600
	})
	tools.reset()
	schemas.reset()
	const more = 20
	for _, one := range []struct{ index, session, last string }{{"many", "", "n1.=.i.many"}, {"", "kept", "n1.kept.t.f319"}} {
		before := schemas.keys()
		handleMany(t, h, one.index, one.session, 300, 300+more)
		meshtest.Until(t, "the last one is in the registry, and all descriptors", func() bool {
			return tools.has(one.last, "f319") && schemas.keys() >= before+more
		})
		count, largest := tools.reset()
		if described, _ := schemas.reset(); count > more || largest > 20<<10 || described != more {
			t.Errorf("%+v: %d more tools were %d records, the largest of %d bytes, and %d descriptors", one, more, count, largest, described)
		}
	}
}

// A service of 2,000 functions, in make soak 20,000, is listed, described, resolved and
// called like any other, and goes as one.
func TestThousandsOfFunctions(t *testing.T) {
	t.Parallel()
	n := 2_000
	if meshtest.Soak() {
		n = 20_000
	}
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	h := newHost(t, nc, &host.Options{Index: "many", Node: "n1"})
	handleMany(t, h, "many", "", 0, n)
	start(t, nc, h)
	view := responding(t, broker)
	meshtest.Until(t, "all are known", func() bool {
		all, _ := view.List("s", "", 0)
		return len(all) == n
	})
	if nodes := view.Nodes(); len(nodes) != 1 || len(nodes[0].Indexes) != 1 || nodes[0].Indexes[0] != "many" {
		t.Errorf("nodes: %+v", nodes)
	}
	c := testmesh.Client(t, broker.Connect(t), nil)
	seen := make(map[string]bool)
	for after, more := "", true; more; {
		m, err := nc.Request("mesh.registry.s.list", []byte(fmt.Sprintf(`{"after":%q,"limit":500}`, after)), waitTimeout)
		if err != nil {
			t.Fatal(err)
		}
		var page registry.ListAnswer
		mustJSON(t, m.Data, &page)
		for _, one := range page.Tools {
			if seen[string(one.ID)] || one.State != registry.ToolServing || len(one.Nodes) != 1 {
				t.Fatalf("listed: %+v", one)
			}
			seen[string(one.ID)] = true
		}
		after, more = string(page.Next), page.Next != ""
	}
	if len(seen) != n {
		t.Errorf("%d tools are listed", len(seen))
	}
	for _, i := range []int{0, n / 2, n - 1} {
		id := fmt.Sprintf("many.f%d", i)
		m, err := nc.Request("mesh.registry.s.describe", []byte(fmt.Sprintf(`{"tool":"f%d"}`, i)), waitTimeout)
		if err != nil || !strings.Contains(string(m.Data), fmt.Sprintf(`"n%d"`, i)) {
			t.Errorf("describe: %v %s", err, m.Data)
		}
		if m, err = nc.Request("mesh.registry.s.resolve", []byte(fmt.Sprintf(`{"name":"f%d"}`, i)), waitTimeout); err != nil || !strings.Contains(string(m.Data), id) {
			t.Errorf("resolve: %v %s", err, m.Data)
		}
		if _, err := c.Call(t.Context(), subjects.ToolID(id), map[string]any{fmt.Sprintf("n%d", i): 1}); err != nil {
			t.Errorf("call %s: %v", id, err)
		}
		if _, err := c.Call(t.Context(), subjects.ToolID(id), map[string]any{fmt.Sprintf("n%d", i): -i - 1}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments {
			t.Errorf("call %s with another's arguments: %v", id, err)
		}
	}
	if err := h.Withdraw(t.Context(), "many", ""); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "none is known", func() bool {
		all, _ := view.List("s", "", 0)
		return len(all) == 0
	})
}

// A function that never fits a message is an error at once, and harms no other function.
func TestAFunctionThatFitsNoMessage(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t, meshtest.MaxPayload(64<<10))
	nc := broker.Connect(t)
	h := newHost(t, nc, &host.Options{Index: "desk", Node: "n1"})
	tools := follow(t, broker.Connect(t), "MESH_TOOLS")
	refused := func(name string) {
		t.Helper()
		_, err := h.Handle(name, echo, host.Description(strings.Repeat("long ", 20_000)))
		if toolmesh.CodeOf(err) != toolmesh.CodePayloadTooLarge || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v", err)
		}
	}
	refused("early")
	handleMany(t, h, "desk", "", 0, 2)
	start(t, nc, h)
	refused("late")
	if err := h.Publish(t.Context(), host.Service{Index: "lost", Unavailable: []host.Unavailable{{ID: "lost.tool", Reason: strings.Repeat("why ", 20_000)}}}); toolmesh.CodeOf(err) != toolmesh.CodePayloadTooLarge {
		t.Errorf("a reason: %v", err)
	}
	handleMany(t, h, "desk", "", 2, 3)
	meshtest.Until(t, "the others are in the registry", func() bool { return tools.tools(t, "n1.=.i.desk") == 3 })
	if got := tools.tools(t, "n1"); got != 3 {
		t.Errorf("%d tools are in the registry", got)
	}
}

// A host that starts without its registry serves, and claims its names later. A
// name that turns out to be another's is given up, with an error in the log; its
// other services are not held up by that.
func TestServiceWhoseNameIsClaimedLaterIsWithdrawn(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	watch := broker.Connect(t)
	b := testmesh.Bus(t, broker.Connect(t), nil)
	if err := store.Of(b).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	tools := follow(t, watch, "MESH_TOOLS")
	store := testmesh.Store(t, b)
	var taken []string
	for i := range 4 {
		name := fmt.Sprintf("taken%d", i)
		taken = append(taken, name)
		if err := store.ClaimIndex(t.Context(), registry.IndexRecord{Name: subjects.IndexName(name), Source: "github.com/other/tools"}); err != nil {
			t.Fatal(err)
		}
	}
	proxy := meshtest.NewProxy(t, broker)
	nc := proxy.Connect(t, client.ConnectOptions()...)
	log := meshtest.CaptureLogs(t)
	h := newHost(t, nc, &host.Options{Node: "n1", Logger: log.Logger})
	for _, name := range append(taken, "free") {
		handleMany(t, h, name, "", 0, 2)
	}
	proxy.Cut(true)
	meshtest.Until(t, "the connection is gone", func() bool { return !nc.IsConnected() })
	if err := h.Start(t.Context()); err != nil {
		t.Fatalf("start without a broker: %v", err)
	}
	proxy.Heal()
	meshtest.Until(t, "the service whose name is free is listed", func() bool { return tools.tools(t, "n1.=.i.free") == 2 })
	for _, name := range taken {
		meshtest.Until(t, "nobody serves a taken name", func() bool {
			_, err := watch.Request("tools.default."+name+".f0", []byte("{}"), time.Second)
			return err == nats.ErrNoResponders
		})
		if tools.tools(t, "n1.=.i."+name) != 0 {
			t.Errorf("%s is listed", name)
		}
		log.Wait(t, "belongs to github.com/other/tools")
		if _, err := h.HandleIn(subjects.IndexName(name), "", "again", echo); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("a function under %s: %v", name, err)
		}
	}
	if log.Count("level=ERROR") != len(taken) {
		t.Errorf("%d errors in the log, want one for each name", log.Count("level=ERROR"))
	}
	if _, err := watch.Request("tools.default.free.f1", []byte("{}"), waitTimeout); err != nil {
		t.Errorf("the free name: %v", err)
	}
}

// A claim that cannot be read is no claim that was not refused.
func TestClaimThatFails(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	h := newHost(t, nc, &host.Options{Node: "n1"})
	start(t, nc, h)
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.Publish(t.Context(), "$KV.MESH_INDEXES.odd", []byte("no record"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.HandleIn("odd", "", "f", echo); toolmesh.CodeOf(err) != toolmesh.CodeProtocolError {
		t.Errorf("got %v", err)
	}
	if _, err := nc.Request("tools.default.odd.f", nil, waitTimeout); err != nats.ErrNoResponders {
		t.Errorf("it is served: %v", err)
	}
}

// Tools that are added together are all there or none is; one that is removed is gone
// from the registry and unknown here, and the others stay.
func TestToolsAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	h := newHost(t, nc, nil)
	start(t, nc, h)
	records := follow(t, nc, subjects.BucketTools)
	c := testmesh.Client(t, nc, nil)
	a := func(name string) host.Tool {
		id := subjects.ToolID("many." + name)
		return host.Tool{Descriptor: &tool.Descriptor{ID: id, Name: name, Source: tool.SourceGo}, Handler: echo}
	}
	call := func(name string) toolmesh.Code {
		_, err := c.Call(t.Context(), subjects.ToolID("many."+name), nil, client.ViaQueue())
		return toolmesh.CodeOf(err)
	}
	bad := a("bad")
	bad.Descriptor.InputSchema = json.RawMessage(`{"type":7}`)
	if err := h.Add("many", "", a("one"), bad); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Fatalf("a schema that is none: %v", err)
	}
	if code := call("one"); code == "" {
		t.Error("a tool beside one that is refused is served")
	}
	if err := h.Add("many", "", a("one"), a("two"), a("three")); err != nil {
		t.Fatal(err)
	}
	removed, err := h.Remove(t.Context(), "many", "", "many.two", "many.never")
	if err != nil || fmt.Sprint(removed) != "[many.two]" {
		t.Fatalf("removed %v, %v", removed, err)
	}
	if one, two, three := call("one"), call("two"), call("three"); one != "" || two == "" || three != "" {
		t.Errorf("one %q, two %q, three %q", one, two, three)
	}
	known := func() string {
		records.mu.Lock()
		defer records.mu.Unlock()
		text := ""
		for _, record := range records.latest {
			text += record
		}
		return text
	}
	meshtest.Until(t, "the registry knows", func() bool {
		text := known()
		return strings.Contains(text, "many.one") && strings.Contains(text, "many.three") && !strings.Contains(text, "many.two")
	})
	if err := h.Add("many", "", a("two")); err != nil || call("two") != "" {
		t.Errorf("added again: %v", err)
	}
	if _, err := h.Remove(t.Context(), "many", "", "many.one", "many.two", "many.three"); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "nothing is said of them", func() bool { return !strings.Contains(known(), "many.") })
}

// A tool that is named twice is one tool: once it is removed nothing asks for its requests.
func TestAToolThatIsAddedTwiceAtOnce(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	h := newHost(t, nc, nil)
	start(t, nc, h)
	one := host.Tool{Descriptor: &tool.Descriptor{ID: "twice.one", Name: "one", Source: tool.SourceGo}, Handler: echo}
	if err := h.Add("twice", "", one, one); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("tools.default.twice.one", nil, waitTimeout); err != nil {
		t.Errorf("while it is served: %v", err)
	}
	if _, err := h.Remove(t.Context(), "twice", "", "twice.one", "twice.one"); err != nil {
		t.Fatal(err)
	}
	if a, err := nc.Request("tools.default.twice.one", nil, waitTimeout); err != nats.ErrNoResponders {
		t.Errorf("after it was removed: %v, %v", a, err)
	}
}

// responding starts an answerer for the registry, with the returned view.
func responding(t *testing.T, broker *meshtest.Server) *registry.View {
	t.Helper()
	b := testmesh.Bus(t, broker.Connect(t), nil)
	view := testmesh.View(t, b, nil)
	t.Cleanup(view.Close)
	responder, err := registry.NewResponder(b, view, testmesh.Store(t, b))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(responder.Close)
	return view
}
