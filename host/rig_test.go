package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// waitTimeout bounds every wait for a signal: long, because machines are busy.
const waitTimeout = 60 * time.Second

// gate is one call of the tools "gate" and "gen" as the test holds it.
type gate struct {
	started chan struct{}   // one element for each execution
	release chan struct{}   // close it, or send one element per item
	ended   chan error      // the cause of the context at the end of each execution
	seen    chan *host.Call // the handler's calls
	sent    chan int        // each item's number, once Send has returned
}

// deserted checks that a stream without readers since a time goes on for 10 s, in which a reader
// may come back, and then ends.
func (g *gate) deserted(t *testing.T, left time.Time) {
	t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case g.release <- struct{}{}:
			if <-ticker.C; time.Since(left) > waitTimeout {
				t.Fatalf("the stream goes on %v after its last reader has left", time.Since(left))
			}
			continue
		case err := <-g.ended:
			cause := toolmesh.AsError(err)
			if cause == nil || cause.Code != toolmesh.CodeCancelled || cause.Details["reason"] != "caller_gone" {
				t.Errorf("cause = %v", err)
			}
			if took := time.Since(left); took < 10*time.Second {
				t.Errorf("after %v: the caller has 10s to come back", took)
			}
		}
		return
	}
}

// desk has the handlers of a rig, and records their calls.
type desk struct {
	mu    sync.Mutex
	runs  map[string]int
	gates map[string]*gate
}

func newDesk() *desk { return &desk{runs: make(map[string]int), gates: make(map[string]*gate)} }

// gate returns the gate of a key, the same one for all.
func (d *desk) gate(key string) *gate {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.gates[key]
	if g == nil {
		g = &gate{
			started: make(chan struct{}, 100), release: make(chan struct{}, 100),
			ended: make(chan error, 100), seen: make(chan *host.Call, 100), sent: make(chan int, 1<<16),
		}
		d.gates[key] = g
	}
	return g
}

// ran counts the executions with a key.
func (d *desk) ran(key string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs[key]
}

// counts is how often each key ran.
func (d *desk) counts() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.runs)
}

func (d *desk) begin(call *host.Call, key string) *gate {
	g := d.gate(key)
	d.mu.Lock()
	d.runs[key]++
	d.mu.Unlock()
	g.seen <- call
	g.started <- struct{}{}
	return g
}

type deskArgs struct {
	Key      string `json:"key"`
	N        int    `json:"n"`    // items
	Size     int    `json:"size"` // bytes of each
	Gate     bool   `json:"gate"` // wait for the test before each item
	Fail     bool   `json:"fail"` // after the items
	Code     string `json:"code"`
	Ignoring bool   `json:"ignoring"` // to the end of the call
}

func (a *deskArgs) read(call *host.Call) error { return json.Unmarshal(call.Args, a) }

// note runs at once and returns its arguments.
func (d *desk) note(ctx context.Context, call *host.Call, sink host.Sink) error {
	var in deskArgs
	if err := in.read(call); err != nil {
		return err
	}
	d.begin(call, in.Key)
	return sink.Send(ctx, call.Args)
}

// hold waits until the test releases it, or its call is over.
func (d *desk) hold(ctx context.Context, call *host.Call, sink host.Sink) error {
	var in deskArgs
	if err := in.read(call); err != nil {
		return err
	}
	g := d.begin(call, in.Key)
	if strings.HasPrefix(in.Key, "name ") {
		host.Progress(ctx, 0.5, "höld "+in.Key+"\n\x7f and more")
	}
	done := ctx.Done()
	if in.Ignoring {
		done = nil
	}
	select {
	case <-g.release:
		g.ended <- nil
		return sink.Send(context.WithoutCancel(ctx), json.RawMessage(strconv.Quote("released "+in.Key)))
	case <-done:
		g.ended <- context.Cause(ctx)
		return ctx.Err()
	}
}

// gen yields numbers from 1 on, as texts of a size where one is asked for.
func (d *desk) gen(ctx context.Context, call *host.Call, sink host.Sink) (err error) {
	var in deskArgs
	if err := in.read(call); err != nil {
		return err
	}
	g := d.begin(call, in.Key)
	defer func() {
		if cause := context.Cause(ctx); cause != nil && err != nil {
			g.ended <- cause
			return
		}
		g.ended <- err
	}()
	for i := 1; i <= in.N; i++ {
		if in.Gate {
			select {
			case <-g.release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := sink.Send(ctx, item(i, in.Size)); err != nil {
			return err
		}
		select {
		case g.sent <- i:
		default:
		}
	}
	if in.Fail {
		return errors.New("out of items")
	}
	return nil
}

// item is the JSON of item i, padded to size bytes.
func item(i, size int) json.RawMessage {
	text := strconv.Itoa(i)
	if size == 0 {
		return json.RawMessage(text)
	}
	return json.RawMessage(strconv.Quote(text + strings.Repeat(".", max(size-len(text)-2, 0))))
}

// fail returns an error of the code it is given; "panic" and "plain" are others.
func (d *desk) fail(_ context.Context, call *host.Call, _ host.Sink) error {
	var in deskArgs
	if err := in.read(call); err != nil {
		return err
	}
	switch in.Code {
	case "panic":
		panic("out of luck")
	case "plain":
		return errors.New("out of order")
	}
	return toolmesh.Errorf(toolmesh.Code(in.Code), "as asked").WithDetail("asked", in.Code)
}

// budget returns how many milliseconds the call has.
func budget(ctx context.Context, call *host.Call, sink host.Sink) error {
	left := int64(0)
	if !call.Deadline.IsZero() {
		left = time.Until(call.Deadline).Milliseconds()
	}
	return sink.Send(ctx, json.RawMessage(strconv.FormatInt(left, 10)))
}

// wide returns a text of a size.
func wide(ctx context.Context, call *host.Call, sink host.Sink) error {
	var in deskArgs
	if err := in.read(call); err != nil {
		return err
	}
	return sink.Send(ctx, item(1, in.Size))
}

// rig is one broker with a host of index "desk", and a plain NATS connection.
type rig struct {
	*desk
	t      *testing.T
	broker *meshtest.Server
	h      *host.Host
	nc     *nats.Conn
	// session is where it calls, if that is not "default".
	session subjects.SessionID
}

// within puts the rig's session into a subject of the session "default".
func (r *rig) within(subject string) string { return inSession(subject, r.session) }

func inSession(subject string, session subjects.SessionID) string {
	if session == "" {
		return subject
	}
	return strings.Replace(subject, ".default.", "."+string(session)+".", 1)
}

type rigOptions struct {
	host   host.Options
	broker []meshtest.Option
	serve  []nats.Option
}

func newRig(t *testing.T, o *rigOptions) *rig {
	t.Helper()
	if o == nil {
		o = &rigOptions{}
	}
	broker := meshtest.Broker(t, o.broker...)
	d := newDesk()
	h := d.serve(t, broker.Connect(t, o.serve...), &o.host)
	return &rig{desk: d, t: t, broker: broker, h: h, nc: broker.Connect(t)}
}

// serve starts a host with the desk's tools, and stops it with the test.
func (d *desk) serve(t *testing.T, nc *nats.Conn, opts *host.Options) *host.Host {
	t.Helper()
	h := d.host(t, nc, opts)
	testmesh.Start(t, h)
	t.Cleanup(func() { meshtest.End(t, h) })
	joined(t, nc, h)
	return h
}

// joined waits until a host has found its store of chunks, if there is any: on a busy machine its
// start may return earlier.
func joined(t *testing.T, nc *nats.Conn, h *host.Host) {
	t.Helper()
	if h.Unready() == nil {
		return
	}
	if a, err := nc.Request("$JS.API.INFO", nil, time.Minute); errors.Is(err, nats.ErrNoResponders) ||
		err == nil && strings.Contains(string(a.Data), "not enabled") {
		return // there is none
	}
	meshtest.Until(t, "the node has joined", func() bool { return h.Unready() == nil })
}

func stop(t *testing.T, h *host.Host) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := h.Stop(ctx); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("stop: %v", err)
	}
}

func (d *desk) host(t *testing.T, nc *nats.Conn, opts *host.Options) *host.Host {
	t.Helper()
	o := *opts
	if o.Index == "" && o.Session == "" {
		o.Index = "desk"
	}
	h, err := host.New(nc, &o)
	if err != nil {
		t.Fatal(err)
	}
	open := json.RawMessage(`{"type":"object"}`)
	declared := tool.Annotations{Timeout: 20 * time.Second}
	for _, one := range []struct {
		name    string
		handler host.HandlerFunc
		opts    []host.ToolOption
	}{
		{"note", d.note, nil},
		{"hold", d.hold, nil},
		{"gen", d.gen, []host.ToolOption{host.Annotate(tool.Annotations{Streaming: true})}},
		{"genlist", d.gen, []host.ToolOption{host.Annotate(tool.Annotations{Streaming: true, Collect: true})}},
		{"fail", d.fail, nil},
		{"wide", wide, nil},
		{"budget", budget, nil},
		{"budget20", budget, []host.ToolOption{host.Annotate(declared)}},
		{"nojson", func(ctx context.Context, _ *host.Call, sink host.Sink) error {
			return sink.Send(ctx, json.RawMessage("not json"))
		}, nil},
		{"session", func(ctx context.Context, call *host.Call, sink host.Sink) error {
			return sink.Send(ctx, json.RawMessage(strconv.Quote(string(call.Session))))
		}, nil},
	} {
		if _, err := h.Handle(one.name, one.handler, append(one.opts, host.Schema(open, nil))...); err != nil {
			t.Fatal(err)
		}
	}
	add := func(_ context.Context, in struct {
		A int `json:"a"`
		B int `json:"b"`
	}) (int, error) {
		return in.A + in.B, nil
	}
	if _, err := h.Handle("add", host.Func(add), func(desc *tool.Descriptor) { desc.Positional = []string{"a", "b"} }); err != nil {
		t.Fatal(err)
	}
	return h
}

// answer is one message as a plain client reads it.
type answer struct {
	*nats.Msg
	Error *wireError
}

// wireError is the error object of the wire, parsed without the product's code.
type wireError struct {
	Code       string         `json:"code"`
	Message    string         `json:"message"`
	Details    map[string]any `json:"details"`
	Origin     string         `json:"origin"`
	Retryable  *bool          `json:"retryable"`
	Started    *bool          `json:"started"`
	Type       string         `json:"type"`
	Stacktrace string         `json:"stacktrace"`
}

func (e *wireError) started() string {
	if e == nil || e.Started == nil {
		return "unknown"
	}
	return strconv.FormatBool(*e.Started)
}

func readAnswer(m *nats.Msg) answer {
	a := answer{Msg: m}
	var body struct {
		Error *wireError `json:"error"`
	}
	if json.Unmarshal(m.Data, &body) == nil {
		a.Error = body.Error
	}
	return a
}

func (a answer) code() string {
	if a.Error == nil {
		return "ok"
	}
	return a.Error.Code
}

// headers makes headers of name and value in turn.
func headers(pairs ...string) nats.Header {
	h := nats.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h[pairs[i]] = append(h[pairs[i]], pairs[i+1])
	}
	return h
}

// ask sends one request and returns the first message that answers it.
func (r *rig) ask(subject, body string, pairs ...string) answer {
	r.t.Helper()
	m, err := r.nc.RequestMsg(&nats.Msg{Subject: r.within(subject), Header: headers(pairs...), Data: []byte(body)}, waitTimeout)
	if err != nil {
		r.t.Fatalf("request to %s: %v", subject, err)
	}
	return readAnswer(m)
}

// call is ask for a tool of the desk, in the rig's session.
func (r *rig) call(name, body string, pairs ...string) answer {
	r.t.Helper()
	return r.ask("tools.default.desk."+name, body, pairs...)
}

// inbox is a subscription with messages read one by one.
type inbox struct {
	t       *testing.T
	Subject string
	sub     *nats.Subscription
}

func (r *rig) inbox() *inbox { r.t.Helper(); return openInbox(r.t, r.nc, r.nc.NewInbox()) }

func openInbox(t *testing.T, nc *nats.Conn, subject string) *inbox {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	return &inbox{t: t, Subject: subject, sub: sub}
}

func (in *inbox) next() answer {
	in.t.Helper()
	m, err := in.sub.NextMsg(waitTimeout)
	if err != nil {
		in.t.Fatalf("nothing on %s: %v", in.Subject, err)
	}
	return readAnswer(m)
}

// has returns a message that is here already.
func (in *inbox) has() (answer, bool) {
	m, err := in.sub.NextMsg(time.Millisecond)
	if err != nil {
		return answer{}, false
	}
	return readAnswer(m), true
}

// none fails if a message is here. Flush the connection that would have brought
// it before.
func (in *inbox) none(what string) {
	in.t.Helper()
	if m, err := in.sub.NextMsg(time.Millisecond); err == nil {
		in.t.Errorf("%s: one message too many: %v %s", what, m.Header, m.Data)
	}
}

// send publishes a request that is answered to in.
func (r *rig) send(in *inbox, subject, body string, pairs ...string) {
	r.t.Helper()
	m := &nats.Msg{Subject: r.within(subject), Data: []byte(body), Header: headers(pairs...)}
	if in != nil {
		m.Reply = in.Subject
	}
	if err := r.nc.PublishMsg(m); err != nil {
		r.t.Fatal(err)
	}
}

// settled returns once everything that was sent before has been looked at by
// the host and its answers are here.
func (r *rig) settled() {
	r.t.Helper()
	if a := r.ask(directed(r.h, "default", "desk.note"), `{"key":"settled"}`); a.code() != "ok" {
		r.t.Fatalf("the host does not answer: %+v", a.Error)
	}
	if err := r.nc.Flush(); err != nil {
		r.t.Fatal(err)
	}
}

func directed(h *host.Host, session, id string) string {
	return "mesh.node." + string(h.Node()) + ".tools." + session + "." + id
}

func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(waitTimeout)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("%s: nothing after %v", what, waitTimeout)
		panic("unreachable")
	}
}

// chunk is one chunk as a plain client reads it.
type chunk struct {
	seq   int
	kind  string
	count string
	body  string
}

func readChunk(m *nats.Msg) (chunk, error) {
	seq, err := strconv.Atoi(m.Header.Get("Mesh-Seq"))
	if err != nil {
		return chunk{}, fmt.Errorf("message %v %q is no chunk", m.Header, m.Data)
	}
	return chunk{seq: seq, kind: m.Header.Get("Mesh-Chunk"), count: m.Header.Get("Mesh-Count"), body: string(m.Data)}, nil
}

// chunks reads until the terminal, and holds the order.
func (in *inbox) chunks() []chunk {
	in.t.Helper()
	var all []chunk
	for {
		m := in.next()
		c, err := readChunk(m.Msg)
		if err != nil {
			in.t.Fatal(err)
		}
		if c.seq != len(all)+1 {
			in.t.Fatalf("chunk %d follows %d", c.seq, len(all))
		}
		all = append(all, c)
		if c.kind != "data" {
			return all
		}
	}
}

func isEmpty(m *nats.Msg) bool { return len(m.Data) == 0 && len(m.Header) == 0 }

func mustJSON(t *testing.T, text []byte, into any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func tokenOf(t *testing.T, name string) string {
	t.Helper()
	token, err := subjects.EncodeToken(name)
	if err != nil {
		t.Fatal(err)
	}
	return token
}
