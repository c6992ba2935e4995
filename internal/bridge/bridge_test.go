package bridge_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/bridge"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
	"github.com/toolmesh/toolmesh/subjects"
)

// offer has the program offer tools in the session default.
func (p *program) offer(tools string) {
	p.t.Helper()
	p.write(`{"type":"init_tool_bridge","rpc_id":"offer","tools":` + tools + `}`)
	if f := p.is("rpc_tool_response"); f["status"] != "ok" {
		p.t.Fatalf("the offer: %v", f)
	}
}

// outcome is a call's result, or its error.
type outcome struct {
	value string
	err   error
}

// Input that is not JSON, or not a frame, costs the program no more than it must.
func TestFramesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.start(t, bridge.Options{})
	p.is("ready")
	p.offer(`[{"name":"f"},{"name":"s","type":"streaming"}]`)
	raw := func(body string) {
		t.Helper()
		if err := p.raw([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	code := func(f map[string]any) any {
		e, _ := f["error"].(map[string]any)
		return e["code"]
	}
	for _, body := range []string{"", "{", "nothing", `{"type":"rpc_tool_call"`, "\xff", `{} {}`} {
		raw(body)
		if f := p.is("rpc_error"); code(f) != "invalid_request" {
			t.Errorf("%q: %v", body, f)
		}
	}
	// A call of the program is answered, since it can be told.
	raw(`{"type":"rpc_tool_call","rpc_id":"c","tool_id":"lab.add","kwargs":{"a":NaN}}`)
	if f := p.is("rpc_tool_response"); f["rpc_id"] != "c" || code(f) != "invalid_request" {
		t.Errorf("a call with NaN: %v", f)
	}
	// So is the caller of one that the program answers so.
	for _, c := range []struct{ tool, answer string }{
		{"f", `{"type":"rpc_tool_response","rpc_id":%q,"status":"ok","result":NaN}`},
		{"s", `{"type":"rpc_stream_chunk","rpc_id":%q,"chunk_type":"data","data":[Infinity]}`},
	} {
		answer := m.call(t, c.tool, `{}`)
		raw(fmt.Sprintf(c.answer, p.read()["rpc_id"]))
		if f := p.is("rpc_error"); code(f) != "invalid_request" {
			t.Errorf("an answer of NaN: %v", f)
		}
		if got := <-answer; toolmesh.CodeOf(got.err) != toolmesh.CodeResultNotSerializable {
			t.Errorf("an answer of NaN: %v", got)
		}
	}
	// A frame that is too long is skipped.
	const size = 64<<20 + 1
	go func() {
		_, _ = p.to.Write(binary.BigEndian.AppendUint32(nil, size))
		_, _ = p.to.Write(make([]byte, size))
	}()
	if f := p.is("rpc_error"); code(f) != "payload_too_large" {
		t.Errorf("a long frame: %v", f)
	}
	raw(`{"type":"rpc_tool_call","rpc_id":"c","tool_id":"lab.add","kwargs":{"a":1,"b":1}}`)
	if f := p.is("rpc_tool_response"); f["result"] != 2.0 {
		t.Errorf("behind it: %v", f)
	}
	// Text without lengths is the end.
	if _, err := io.WriteString(p.to, `{"type":"drain"}`); err != nil {
		t.Fatal(err)
	}
	if f := p.is("rpc_error"); code(f) != "protocol_error" {
		t.Errorf("text: %v", f)
	}
	if err := p.end(); toolmesh.CodeOf(err) != toolmesh.CodeProtocolError {
		t.Errorf("the bridge ended with %v", err)
	}
}

// call calls a tool of the session default.
func (m *mesh) call(t testing.TB, id, args string, opts ...client.CallOption) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		r, err := m.client.Call(t.Context(), subjects.ToolID(id), json.RawMessage(args), opts...)
		if err != nil {
			done <- outcome{err: err}
			return
		}
		done <- outcome{value: string(r.Value)}
	}()
	return done
}

// If a program does not read, callers get busy, and the calls work again once it reads; frames
// kept for it are bounded.
func TestAProgramThatReadsNothing(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	const slots = 8
	p := m.start(t, bridge.Options{Slots: slots})
	p.is("ready")
	p.offer(`[{"name":"f"}]`)
	large := `{"x":"` + strings.Repeat("x", 700_000) + `"}`
	var held []<-chan outcome
	for range slots {
		held = append(held, m.call(t, "f", large, client.ViaQueue()))
	}
	view, err := m.router.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "all slots are taken", func() bool {
		for _, n := range view.Nodes() {
			if n.Node == "bridge-1" {
				return n.InFlight == slots
			}
		}
		return false
	})
	if got := <-m.call(t, "f", `{}`, client.ViaQueue(), client.NoWait()); toolmesh.CodeOf(got.err) != toolmesh.CodeBusy {
		t.Errorf("one call more: %v", got)
	}
	go func() { // now it reads, and answers
		for {
			body, err := p.next()
			if err != nil {
				return
			}
			var f struct{ Type, RPCID string }
			if err := json.Unmarshal(bytes.Replace(body, []byte("rpc_id"), []byte("RPCID"), 1), &f); err != nil {
				t.Errorf("%.100s: %v", body, err)
			}
			if f.Type == "rpc_tool_call" {
				p.write(fmt.Sprintf(`{"type":"rpc_tool_response","rpc_id":%q,"status":"ok","result":1}`, f.RPCID))
			}
		}
	}()
	for _, one := range held {
		if got := <-one; got.value != "1" {
			t.Errorf("got %v", got)
		}
	}
	p.stop()
	if err := p.end(); err != nil {
		t.Error(err)
	}
}

// A stream to a program that does not read on, and one of a program that ignores credit, are
// held back at their source; no item is lost.
func TestStreamsAreHeldBack(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.start(t, bridge.Options{})
	p.is("ready")
	p.offer(`[{"name":"fast","type":"streaming"}]`)

	// The program's own stream, read by the program with credit: through its tool.
	const items = 20_000
	p.write(fmt.Sprintf(`{"type":"rpc_tool_stream","rpc_id":"r","tool_id":"lab.count","kwargs":{"n":%d},"credit":10}`, items))
	for i := 1; i <= items; i++ {
		f := p.is("rpc_stream_chunk")
		if f["data"] != float64(i) || f["seq"] != float64(i) {
			t.Fatalf("item %d: %v", i, f)
		}
		if i%10 == 0 {
			p.write(fmt.Sprintf(`{"type":"rpc_credit","rpc_id":"r","seq":%d}`, i+10))
		}
	}
	if f := p.is("rpc_stream_chunk"); f["chunk_type"] != "complete" {
		t.Fatalf("the end: %v", f)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next, resume := make(chan int, 1), make(chan struct{})
	go func() {
		n := 0
		for one, err := range m.client.Stream(ctx, "fast", nil) {
			if err != nil || one.Seq != int64(n+1) || string(one.Data) != fmt.Sprint(n) {
				t.Errorf("item %d: %s, %v", n, one.Data, err)
				break
			}
			if n++; n == 1 {
				<-resume
			}
		}
		next <- n
	}()
	call := p.is("rpc_tool_stream")
	written, all := make(chan int, items), make(chan struct{})
	go func() { // heeds no credit
		defer close(all)
		for i := range items {
			p.write(fmt.Sprintf(`{"type":"rpc_stream_chunk","rpc_id":%q,"chunk_type":"data","data":%d}`, call["rpc_id"], i))
			written <- i
		}
		p.write(fmt.Sprintf(`{"type":"rpc_stream_chunk","rpc_id":%q,"chunk_type":"complete"}`, call["rpc_id"]))
	}()
	var reading sync.WaitGroup
	reading.Go(func() { // the program goes on reading meanwhile
		for {
			if _, err := p.next(); err != nil {
				return
			}
		}
	})
	// The reader holds still: the program's writes come to a halt, far from its end.
	before, looks := 0, 0
	meshtest.Until(t, "the program is held back", func() bool {
		now := len(written)
		if looks++; now == 0 || now != before {
			before, looks = now, 0
		}
		return looks == 20
	})
	if before >= items {
		t.Errorf("all %d items were taken while nobody read", items)
	}
	close(resume)
	<-all
	if n := <-next; n != items {
		t.Errorf("%d items came, want %d", n, items)
	}
	p.stop()
	if err := p.end(); err != nil {
		t.Error(err)
	}
	reading.Wait()
}

// A signal drains, as the program's own drain does; a program that does not read does not
// keep the bridge.
func TestASignalDrains(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.start(t, bridge.Options{})
	p.is("ready")
	p.offer(`[{"name":"f"}]`)
	answer := m.call(t, "f", `{}`)
	call := p.is("rpc_tool_call")
	p.stop()
	p.is("draining")
	p.write(fmt.Sprintf(`{"type":"rpc_tool_response","rpc_id":%q,"status":"ok","result":"in time"}`, call["rpc_id"]))
	if got := <-answer; got.value != `"in time"` {
		t.Errorf("the call that ran: %v", got)
	}
	if _, err := p.next(); err == nil {
		t.Error("there is more behind the end")
	}
	if err := p.end(); err != nil {
		t.Error(err)
	}
}

// A program that is gone without having served anything ended well, and its calls on
// the mesh are cancelled.
func TestTheProgramsCallsEndWithIt(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	began, cancelled := make(chan struct{}), make(chan struct{})
	if _, err := m.router.Handle("more", "held", held(began, cancelled)); err != nil {
		t.Fatal(err)
	}
	p := m.start(t, bridge.Options{})
	p.is("ready")
	p.write(`{"type":"rpc_tool_call","rpc_id":"c","tool_id":"more.held"}`)
	<-began
	if err := p.to.Close(); err != nil {
		t.Fatal(err)
	}
	<-cancelled
	if err := p.end(); err != nil {
		t.Error(err)
	}
}

// held is a function that says when it began and when it was cancelled.
func held(began, cancelled chan<- struct{}) host.Handler {
	return host.Func(func(ctx context.Context, _ struct{}) (int, error) {
		close(began)
		<-ctx.Done()
		close(cancelled)
		return 0, ctx.Err()
	})
}

// The program gets the list of tools that a session can call, in the form of offered tools.
func TestTheToolsOfASession(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.start(t, bridge.Options{})
	p.is("ready")
	p.offer(`[{"tool_id":"mine","name":"own","description":"Owns.","metadata":{"k":[1]},"input_schema":{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}}},
		"output_schema":{"type":"string"},"positional":["a","b"],"annotations":{"idempotent":true}}]`)
	meshtest.Until(t, "the registry knows the tool", func() bool {
		p.write(`{"type":"init_tool_bridge","rpc_id":1}`)
		f := p.is("rpc_tool_response")
		result, _ := f["result"].(map[string]any)
		if result["tool_count"] != 5.0 {
			return false
		}
		names, tools := fmt.Sprint(result["tool_names"]), map[string]map[string]any{}
		if names != "[lab.add lab.count lab.fail lab.wait own]" {
			t.Errorf("tools %s", names)
		}
		for _, one := range result["tools"].([]any) {
			tool := one.(map[string]any)
			tools[tool["tool_id"].(string)] = tool
		}
		if tools["lab.count"]["type"] != "streaming" || tools["lab.add"]["type"] != "standard" || tools["lab.add"]["name"] != "add" {
			t.Errorf("tools %v", tools)
		}
		own, _ := json.Marshal(tools["own"])
		want := `{"annotations":{"idempotent":true},"description":"Owns.","input_schema":{"properties":{"a":{"type":"string"},"b":{"type":"integer"}},"type":"object"},` +
			`"metadata":{"k":[1]},"name":"own","output_schema":{"type":"string"},"positional":["a","b"],"tool_id":"own","type":"standard"}`
		if string(own) != want {
			t.Errorf("got  %s\nwant %s", own, want)
		}
		return true
	})
	nodes, err := m.router.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, n := range nodes.Nodes() {
		found = found || n.Node == "bridge-1" && n.Alive
	}
	if !found {
		t.Errorf("the program is no node: %+v", nodes.Nodes())
	}
}

// Tools of a session end with it, and are not those of the next one of its name, also
// when another tool is offered there.
func TestToolsEndWithTheirSession(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	s, err := m.router.CreateSession(t.Context(), &router.SessionOptions{ID: "chat"})
	if err != nil {
		t.Fatal(err)
	}
	p := m.start(t, bridge.Options{Session: "chat"})
	p.is("ready")
	p.offer(`[{"name":"old"}]`)
	if err := s.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err = m.router.CreateSession(t.Context(), &router.SessionOptions{ID: "chat"}); err != nil {
		t.Fatal(err)
	}
	p.offer(`[{"name":"new"}]`)
	done := make(chan string, 1)
	go func() {
		r, err := s.Call(t.Context(), "new", nil)
		if err != nil {
			done <- err.Error()
			return
		}
		done <- string(r.Value)
	}()
	p.write(fmt.Sprintf(`{"type":"rpc_tool_response","rpc_id":%q,"status":"ok","result":1}`, p.is("rpc_tool_call")["rpc_id"]))
	if got := <-done; got != "1" {
		t.Errorf("the new tool: %s", got)
	}
	if _, err := s.Call(t.Context(), "old", nil); toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound && toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
		t.Errorf("the old tool: %v", err)
	}
}

// Two calls of one name from two sessions are two.
func TestEqualNamesOfTwoSessions(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.start(t, bridge.Options{})
	p.is("ready")
	p.write(`{"type":"init_tool_bridge","index":"prog","tools":[{"name":"f"}]}`)
	p.is("rpc_tool_response")
	one := m.call(t, "prog.f", `{}`, client.WithSession("s1"), client.WithRPCID("same"))
	first := p.is("rpc_tool_call")
	other := m.call(t, "prog.f", `{}`, client.WithSession("s2"), client.WithRPCID("same"))
	second := p.is("rpc_tool_call")
	if first["rpc_id"] != "same" || second["rpc_id"] != "same'" {
		t.Errorf("the calls are %v and %v", first["rpc_id"], second["rpc_id"])
	}
	p.write(`{"type":"rpc_tool_response","rpc_id":"same'","status":"ok","result":2}`)
	p.write(`{"type":"rpc_tool_response","rpc_id":"same","status":"ok","result":1}`)
	if a, b := <-one, <-other; a.value != "1" || b.value != "2" {
		t.Errorf("got %v and %v", a, b)
	}
}

// A tool that calls itself comes to an end by its depth, and waits for no slot that it
// holds: one is enough.
func TestACircleEnds(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.start(t, bridge.Options{Slots: 1})
	p.is("ready")
	p.offer(`[{"name":"f"}]`)
	answer := m.call(t, "f", `{}`)
	var above []any
	for depth := range 9 {
		f := p.is("rpc_tool_call")
		if f["depth"] != float64(depth) {
			t.Fatalf("depth %d: %v", depth, f)
		}
		above = append(above, f["rpc_id"])
		p.write(fmt.Sprintf(`{"type":"rpc_tool_call","rpc_id":%d,"tool_id":"f","parent":%q}`, depth, f["rpc_id"]))
	}
	f := p.is("rpc_tool_response")
	if e, _ := f["error"].(map[string]any); f["rpc_id"] != 8.0 || e["code"] != "invalid_request" || fmt.Sprint(e["details"]) != "map[limit:depth max:8]" {
		t.Errorf("the ninth: %v", f)
	}
	for depth := 8; depth >= 0; depth-- {
		p.write(fmt.Sprintf(`{"type":"rpc_tool_response","rpc_id":%q,"status":"ok","result":%d}`, above[depth], depth))
		if depth > 0 {
			if f := p.is("rpc_tool_response"); f["result"] != float64(depth) {
				t.Errorf("depth %d: %v", depth, f)
			}
		}
	}
	if got := <-answer; got.value != "0" {
		t.Errorf("got %v", got)
	}
}

// While the broker is away the program's calls fail at once, with started false; if another
// process has become the node meanwhile, the bridge ends.
func TestABridgeThatIsCutOff(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	proxy := meshtest.NewProxy(t, m.broker)
	p := startOn(t, proxy.Connect(t), bridge.Options{})
	p.is("ready")
	p.offer(`[{"name":"f"}]`)
	proxy.Cut(true)
	meshtest.Until(t, "the bridge knows", func() bool {
		p.write(`{"type":"rpc_tool_call","rpc_id":1,"tool_id":"lab.add","kwargs":{"a":1,"b":1}}`)
		e, _ := p.is("rpc_tool_response")["error"].(map[string]any)
		return e["code"] == "unavailable" && e["started"] == false && e["origin"] == "caller"
	})
	other, err := host.New(m.broker.Connect(t), &host.Options{Node: "bridge-1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Stop(t.Context()) })
	if err := other.Start(t.Context()); err != nil { // it listens for 2.5 s
		t.Fatal(err)
	}
	proxy.Heal()
	p.is("draining")
	if err := p.end(); err == nil || toolmesh.CodeOf(err) == toolmesh.CodeWorkerCrashed {
		t.Errorf("the bridge ended with %v", err)
	}
}
