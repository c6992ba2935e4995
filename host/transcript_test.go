package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/transcript"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const transcriptFiles = "../docs/protocol/transcripts"

// TestTranscripts plays docs/protocol/transcripts against a host over a broker: a plain NATS
// connection sends the recorded bytes, and the answers are compared with the whole of the file's
// messages. A change of the wire changes the file too. They are played without users, on servers
// with the configuration of mesh auth template, and by a client with the key of a created
// session.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	names, err := os.ReadDir(transcriptFiles)
	if err != nil {
		t.Fatal(err)
	}
	played := 0
	for _, entry := range names {
		name, ok := strings.CutSuffix(entry.Name(), ".txtar")
		if !ok {
			continue
		}
		played++
		data, err := os.ReadFile(transcriptFiles + "/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for ground, start := range map[string]func(t *testing.T, p *player){
				"open": openGround, "keys": func(t *testing.T, p *player) { t.Helper(); p.secured(meshtest.WithKeys(t)) },
				"jwt": func(t *testing.T, p *player) { t.Helper(); p.secured(meshtest.WithJWTs(t)) }, "session": sessionGround,
			} {
				t.Run(ground, func(t *testing.T) {
					t.Parallel()
					playTranscript(t, name, data, start)
				})
			}
		})
	}
	if played < 15 {
		t.Errorf("only %d transcripts were found", played)
	}
}

// Names under which the player serves tools of its own, beside the file's.
const (
	fillTool  subjects.ToolID = "player.fill"  // takes a slot until it is told to end
	storeTool subjects.ToolID = "player.store" // makes the streams that are replayed
)

const transcriptSlots = 8

// act is one thing that a handler does.
type act struct {
	item json.RawMessage
	err  *toolmesh.Error
	done bool
}

// part is the tool's behaviour in one call, by the file.
type part struct {
	acts    chan act
	started chan *host.Call
}

// player plays the client of one transcript.
type player struct {
	t *testing.T
	c *transcript.Transcript
	h *host.Host
	// Connections: of the host, of a listener to all subjects, of a client in a session.
	node, all *nats.Conn
	as        func(session subjects.SessionID) *nats.Conn
	clients   map[subjects.SessionID]*nats.Conn
	// session is the one that is "default" in the file.
	session subjects.SessionID
	told    struct { // what the file's section "tool" says
		Schema      json.RawMessage   `json:"schema"`
		Positional  []string          `json:"positional"`
		Annotations tool.Annotations  `json:"annotations"`
		Items       []json.RawMessage `json:"items"`
	}
	inboxes map[string]*inbox // by subject: those that the file names
	mu      sync.Mutex
	parts   map[subjects.RPCID]*part

	// Of the last call or replay:
	answers []transcript.Step // until the next one
	played  int               // of answers, by the tool
	rpc     subjects.RPCID    // "" if nothing runs
	inbox   *inbox            // where it is answered
	control *inbox            // where the last cancel is answered
	asked   bool              // for keepalives
	free    func()            // gives slots back that are taken for it

	refused uint64
	drained chan error // nil until the node drains
}

// epochs gives sessions the epochs that the files show.
type epochs struct{}

func (epochs) Ended(subjects.SessionID, time.Time) bool { return false }

func (epochs) Admit(session subjects.SessionID) (string, error) {
	if session == "s9" {
		return "4", nil
	}
	return "", nil
}

// openGround is a broker where all may do all.
func openGround(t *testing.T, p *player) {
	t.Helper()
	broker := meshtest.Broker(t)
	p.node, p.all = broker.Connect(t), broker.Connect(t)
	p.as = func(subjects.SessionID) *nats.Conn { return p.all }
}

// secured is a broker with users: a client has the rights of one session.
func (p *player) secured(k *meshtest.Keyed) {
	p.node, p.all = k.As(p.t, access.Node), k.As(p.t, access.Admin)
	p.as = func(session subjects.SessionID) *nats.Conn {
		if session == subjects.DefaultSession {
			if k.DataDir != "" {
				return k.Connect(p.t) // without a key
			}
			return k.As(p.t, access.Caller)
		}
		return k.AsSession(p.t, session)
	}
}

// sessionGround has the client speak in a session that was created, with its key.
func sessionGround(t *testing.T, p *player) {
	t.Helper()
	p.session = "mine"
	p.secured(meshtest.WithKeys(t))
}

func playTranscript(t *testing.T, name string, data []byte, ground func(t *testing.T, p *player)) {
	p := &player{
		t: t, session: subjects.DefaultSession, clients: make(map[subjects.SessionID]*nats.Conn),
		inboxes: make(map[string]*inbox), parts: make(map[subjects.RPCID]*part),
	}
	ground(t, p)
	data = bytes.ReplaceAll(data, []byte(".default."), []byte("."+p.session+"."))
	data = bytes.ReplaceAll(data, []byte(`"session":"default"`), fmt.Appendf(nil, `"session":%q`, p.session))
	const revision = "4f2a9c"
	h, err := host.New(p.node, &host.Options{
		Node: "gpu-1", Revision: revision, Slots: transcriptSlots, Sessions: epochs{}, StreamQuota: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := transcript.Parse(name, data, map[string]string{
		"NODE": string(h.Node()), "BOOT": string(h.Boot()), "REV": revision, "RPC": "rpc_018f5c0d1c7a7b3e9a4d2f6e8b0c1d2e",
		"DEADLINE": strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10),
	})
	if err != nil {
		t.Fatal(err)
	}
	p.c, p.h = c, h
	if c.Tool != nil {
		mustJSON(t, c.Tool, &p.told)
	}
	p.serve()
	t.Cleanup(func() { meshtest.End(t, h) })
	p.prepare()
	for i, step := range c.Steps {
		switch {
		case step.Speaker == transcript.Client && (step.Kind == "call" || step.Kind == "replay"):
			p.leave()
			p.begin(step, answersOf(c.Steps[i+1:]))
		case step.Speaker == transcript.Client:
			p.interfere(step)
		case step.Kind == "heartbeat":
			p.heartbeat(step)
		case step.Kind == "silence":
			p.silence(step)
		default:
			p.hear(step)
		}
	}
	p.leave()
}

// serve publishes the tools that the file's client calls and the host has.
func (p *player) serve() {
	ids := map[subjects.ToolID]bool{fillTool: true, storeTool: true}
	for i, s := range p.c.Steps {
		if s.Speaker != transcript.Client || s.Kind != "call" {
			continue
		}
		at, err := subjects.Parse(s.Subject)
		if err != nil {
			p.t.Fatal(err)
		}
		absent := false
		for _, a := range answersOf(p.c.Steps[i+1:]) {
			absent = absent || a.Kind == "503" || slices.Contains(a.Header["Mesh-Error-Code"], "tool_not_found")
		}
		if !absent {
			ids[at.Tool] = true
		}
	}
	open := json.RawMessage(`{"type":"object"}`)
	services := make(map[subjects.IndexName]*host.Service)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		index, ok := id.Index()
		if !ok {
			p.t.Fatalf("tool %q belongs to no index", id)
		}
		d := &tool.Descriptor{
			ID: id, Name: strings.TrimPrefix(string(id), string(index)+"."), Source: tool.SourceGo, InputSchema: open,
			Index: &tool.IndexRef{Name: index, Revision: "4f2a9c"},
		}
		if id != fillTool && id != storeTool {
			d.Positional, d.Annotations = p.told.Positional, p.told.Annotations
			if p.told.Schema != nil {
				d.InputSchema = p.told.Schema
			}
		}
		if services[index] == nil {
			services[index] = &host.Service{Index: index, Revision: "4f2a9c"}
		}
		services[index].Tools = append(services[index].Tools, host.Tool{Descriptor: d, Handler: host.HandlerFunc(p.handle)})
	}
	for _, s := range services {
		if err := p.h.Publish(p.t.Context(), *s); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := p.h.Start(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	joined(p.t, p.node, p.h)
}

// client is the client of the session of a subject, or of the file's own.
func (p *player) client(subject string) *nats.Conn {
	session := p.session
	if at, err := subjects.Parse(subject); err == nil && at.Session != "" {
		session = at.Session
	}
	if p.clients[session] == nil {
		p.clients[session] = p.as(session)
	}
	return p.clients[session]
}

func (p *player) part(rpc subjects.RPCID) *part {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.parts[rpc]
	if a == nil {
		a = &part{acts: make(chan act, 100), started: make(chan *host.Call, 10)}
		p.parts[rpc] = a
	}
	return a
}

// handle plays the tool.
func (p *player) handle(ctx context.Context, call *host.Call, sink host.Sink) error {
	a := p.part(call.RPCID)
	a.started <- call
	for {
		select {
		case next := <-a.acts:
			switch {
			case next.err != nil:
				return next.err
			case next.done:
				return nil
			}
			if err := sink.Send(ctx, next.item); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fill takes slots; free gives them back.
func (p *player) fill(n int) (free func()) {
	var inboxes []*inbox
	var parts []*part
	for range n {
		rpc := string(subjects.NewRPCID("fill_"))
		subject := "tools." + string(p.session) + "." + string(fillTool)
		in := p.answersTo(subject)
		a := p.part(subjects.RPCID(rpc))
		p.send(subject, in.Subject, headers("Mesh-Rpc-Id", rpc), nil)
		wait(p.t, "start", a.started)
		inboxes, parts = append(inboxes, in), append(parts, a)
	}
	return func() {
		for i, in := range inboxes {
			parts[i].acts <- act{done: true}
			in.next()
		}
	}
}

// prepare makes the initial state of the transcript: calls that a heartbeat counts, streams that
// a replay finds, subscriptions.
func (p *player) prepare() {
	busy := 0
	stored := make(map[string]bool)
	for i, s := range p.c.Steps {
		switch {
		case s.Kind == "heartbeat":
			var beat struct {
				InFlight int `json:"in_flight"`
			}
			mustJSON(p.t, s.Body, &beat)
			busy = max(busy, beat.InFlight)
			p.listen(s.Subject)
		case s.Kind == "chunk" && s.Subject != "$INBOX":
			p.listen(s.Subject)
		case s.Kind == "replay" && !stored[s.Subject]:
			stored[s.Subject] = true
			p.store(s.Subject, answersOf(p.c.Steps[i+1:]))
		}
	}
	if busy > 0 {
		p.t.Cleanup(p.fill(busy))
	}
}

func (p *player) listen(subject string) *inbox {
	if p.inboxes[subject] == nil {
		p.inboxes[subject] = openInbox(p.t, p.client(subject), subject)
	}
	return p.inboxes[subject]
}

// store has a stream stored that a replay is to find: all of the file's items,
// or those of the answer if that says that the stream has yet to end.
func (p *player) store(replay string, answers []transcript.Step) {
	at, err := subjects.Parse(replay)
	if err != nil {
		p.t.Fatal(err)
	}
	last := answers[len(answers)-1].Header["Mesh-High"]
	if len(last) == 0 || last[0] == "0" {
		return // it is refused, or finds nothing
	}
	high := last[0]
	items, whole := p.told.Items, strings.HasSuffix(high, ";terminal")
	if !whole {
		items = nil
		for _, c := range answers {
			if c.Kind == "chunk" {
				items = append(items, c.Body)
			}
		}
	}
	tool, in := p.part(at.RPC), p.answersTo(replay)
	for _, item := range items {
		tool.acts <- act{item: item}
	}
	subject := "tools." + string(at.Session) + "." + string(storeTool)
	p.send(subject, in.Subject, headers("Mesh-Rpc-Id", string(at.RPC), "Mesh-Stream", "inbox"), nil)
	for range items {
		in.next()
	}
	if !whole {
		p.t.Cleanup(func() { tool.acts <- act{done: true} })
		return
	}
	tool.acts <- act{done: true}
	in.next()
}

// answersOf are the steps until the client begins something new.
func answersOf(steps []transcript.Step) []transcript.Step {
	for i, s := range steps {
		if s.Speaker == transcript.Client && (s.Kind == "call" || s.Kind == "replay") {
			return steps[:i]
		}
	}
	return steps
}

// answersTo opens an inbox for answers on a subject.
func (p *player) answersTo(subject string) *inbox {
	p.t.Helper()
	nc := p.client(subject)
	return openInbox(p.t, nc, nc.NewInbox())
}

func (p *player) send(subject, reply string, header map[string][]string, body []byte) {
	p.t.Helper()
	if err := p.client(subject).PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Header: header, Data: body}); err != nil {
		p.t.Fatal(err)
	}
}

// content is the tool's action for a host's message.
type content struct {
	Result    json.RawMessage `json:"result"`
	Data      json.RawMessage `json:"data"`
	ChunkType string          `json:"chunk_type"`
	Error     *toolmesh.Error `json:"error"`
}

func (p *player) content(s transcript.Step) (c content) {
	p.t.Helper()
	switch {
	case len(s.Header) == 0 || s.Kind == "error":
		mustJSON(p.t, s.Body, &c) // an envelope, or an error with its headers
	case s.Kind == "result":
		c.Result = s.Body
	case s.Kind == "chunk":
		c.Data, c.ChunkType = s.Body, s.Header["Mesh-Chunk"][0]
		if c.ChunkType == "error" {
			c.Error = new(toolmesh.Error)
			mustJSON(p.t, s.Body, c.Error)
		}
	}
	return c
}

// play has the tool produce the answers, up to the next keepalive.
func (p *player) play() {
	tool := p.part(p.rpc)
	for ; p.played < len(p.answers); p.played++ {
		s := p.answers[p.played]
		switch s.Kind {
		case "keepalive":
			return
		case "result":
			tool.acts <- act{item: p.content(s).Result}
			tool.acts <- act{done: true}
		case "chunk":
			switch c := p.content(s); c.ChunkType {
			case "data":
				tool.acts <- act{item: c.Data}
			case "complete":
				tool.acts <- act{done: true}
			case "error":
				tool.acts <- act{err: c.Error}
			}
		case "error":
			if e := p.content(s).Error; e.Started != toolmesh.StartedNo && e.Code != toolmesh.CodeCancelled {
				tool.acts <- act{err: e}
			}
		}
	}
	if !slices.ContainsFunc(p.answers, func(s transcript.Step) bool { return s.Speaker == transcript.Host }) {
		tool.acts <- act{done: true} // the file does not say how it ends
	}
}

// begin sends a call or a replay, and checks the tool's call.
func (p *player) begin(s transcript.Step, answers []transcript.Step) {
	p.t.Helper()
	p.answers, p.played, p.rpc, p.asked = answers, 0, "", len(s.Header["Mesh-Keepalive"]) > 0
	runs := s.Kind == "call" && s.Read != nil && s.Header["Mesh-Again"] == nil // a repetition has run
	for _, a := range answers {
		if a.Kind == "silence" || a.Kind == "503" || slices.Contains(a.Header["Mesh-Cache"], "hit") {
			runs = false
		}
		if a.Kind == "error" {
			if e := p.content(a).Error; e.Started == toolmesh.StartedNo || e.Code == toolmesh.CodeInvalidRequest {
				runs = false
				if e.Code == toolmesh.CodeBusy {
					meshtest.Until(p.t, "the call before has ended", func() bool { return p.h.Figures().InFlight == 0 })
					p.free = p.fill(transcriptSlots)
				}
			}
		}
	}
	reply := s.Reply
	switch nc := p.client(s.Subject); {
	case reply == "$INBOX":
		p.inbox = p.answersTo(s.Subject)
		reply = p.inbox.Subject
	case reply == "":
		p.inbox = nil
	case strings.HasPrefix(reply, nc.Opts.InboxPrefix+"."):
		p.inbox = openInbox(p.t, nc, reply)
	default: // it is not the client's to hear
		p.inbox = openInbox(p.t, p.all, reply)
	}
	if !runs {
		p.send(s.Subject, reply, s.Header, s.Body)
		return
	}
	var read struct {
		Tool       subjects.ToolID            `json:"tool"`
		RPCID      subjects.RPCID             `json:"rpc_id"`
		Session    subjects.SessionID         `json:"session"`
		Args       map[string]json.RawMessage `json:"args"`
		Positional []json.RawMessage          `json:"positional"`
		Stream     string                     `json:"stream"`
	}
	mustJSON(p.t, s.Read, &read)
	for i, v := range read.Positional {
		read.Args[p.told.Positional[i]] = v
	}
	p.rpc = read.RPCID
	p.play()
	p.send(s.Subject, reply, s.Header, s.Body)
	call := wait(p.t, "start of "+string(p.rpc), p.part(p.rpc).started)
	var args map[string]json.RawMessage
	mustJSON(p.t, call.Args, &args)
	if diff := cmp.Diff(read.Args, args); diff != "" {
		p.t.Errorf("%s: arguments (-file +the tool's):\n%s", s.Name, diff)
	}
	if call.Tool != read.Tool || call.Session != read.Session || call.RPCID != read.RPCID || call.Stream != (read.Stream != "") {
		p.t.Errorf("%s: the tool is given %+v, the file reads %s", s.Name, call, s.Read)
	}
}

// interfere sends a message about the call that runs.
func (p *player) interfere(s transcript.Step) {
	p.t.Helper()
	reply := s.Reply
	if reply != "" {
		p.control = p.answersTo(s.Subject)
		reply = p.control.Subject
	}
	p.send(s.Subject, reply, s.Header, s.Body)
}

// hear reads the message of a step, and compares it.
func (p *player) hear(s transcript.Step) {
	p.t.Helper()
	in := p.inbox
	switch {
	case s.Kind == "cancelled":
		in = p.control
	case p.inboxes[s.Subject] != nil:
		in = p.inboxes[s.Subject]
	case s.Subject != "$INBOX" && s.Subject != p.inbox.Subject:
		p.t.Fatalf("%s: nobody listens there", s.Name)
	}
	if s.Speaker == transcript.Broker {
		if _, err := in.sub.NextMsg(waitTimeout); !errors.Is(err, nats.ErrNoResponders) || s.Raw != "Status: 503\n\n" {
			p.t.Errorf("%s: %v", s.Name, err)
		}
		return
	}
	got := p.text(in.next())
	for p.asked && got != s.Raw && isKeepalive(got) {
		got = p.text(in.next()) // one more second went by
	}
	if s.Kind == "error" {
		got, s.Raw = normal(got), normal(s.Raw)
	}
	if diff := cmp.Diff(s.Raw, got); diff != "" {
		p.t.Errorf("%s (-file +got):\n%s", s.Name, diff)
	}
	if s.Kind == "keepalive" {
		p.played++
		p.play()
	}
}

// normal sorts the keys of a body: their order is undefined, and an error's details have their
// own.
func normal(message string) string {
	head, body, _ := strings.Cut(message, "\n\n")
	dec := json.NewDecoder(strings.NewReader(strings.TrimPrefix(body, "\n")))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return message
	}
	text, err := json.Marshal(v)
	if err != nil {
		return message
	}
	return head + "\n\n" + string(text)
}

func isKeepalive(text string) bool { return strings.Contains(text, "Mesh-Keepalive: 1\n") }

// text renders a message as the files do, without the store's own headers, the node's boot id on
// the first chunk, and the epoch of a created session if the file's session was not created.
func (p *player) text(m answer) string {
	header := make(map[string][]string)
	for name, values := range m.Header {
		switch {
		case strings.HasPrefix(name, "Nats-") && !strings.HasPrefix(name, "Nats-Service-"):
		case name == "Mesh-Epoch" && p.session != subjects.DefaultSession && values[0] == meshtest.Epoch: // of the session that was created
		case name == "Mesh-Boot" && m.Header["Mesh-Chunk"] != nil && m.Header.Get("Mesh-Seq") == "1" && values[0] == string(p.h.Boot()):
		default:
			header[name] = values
		}
	}
	return transcript.Text(header, m.Data)
}

// meshTime is the time in a heartbeat, which the files leave out.
var meshTime = regexp.MustCompile(`,"now_ms":\d+,"bound_ms":\d+`)

func (p *player) heartbeat(s transcript.Step) {
	p.t.Helper()
	if strings.Contains(s.Raw, `"draining"`) && p.drained == nil {
		p.drained = make(chan error, 1)
		go func() { p.drained <- p.h.Stop(context.WithoutCancel(p.t.Context())) }()
	}
	got := ""
	for range 20 {
		if got = meshTime.ReplaceAllString(p.text(p.inboxes[s.Subject].next()), ""); got == s.Raw {
			return
		}
	}
	p.t.Errorf("%s (-file +the last):\n%s", s.Name, cmp.Diff(s.Raw, got))
}

// silence holds that the last request was neither answered nor begun.
func (p *player) silence(s transcript.Step) {
	p.t.Helper()
	p.refused++
	meshtest.Until(p.t, "the request is refused", func() bool { return p.h.Figures().RefusedReplies >= p.refused })
	p.mu.Lock()
	defer p.mu.Unlock()
	for rpc, part := range p.parts {
		if len(part.started) > 0 {
			p.t.Errorf("%s: call %s was started", s.Name, rpc)
		}
	}
}

// leave holds that nothing else came, before something new begins.
func (p *player) leave() {
	p.t.Helper()
	if p.free != nil {
		p.free()
		p.free = nil
	}
	if p.drained == nil { // all earlier messages of the host have arrived after this
		p.fill(1)()
	}
	for _, nc := range append(slices.Collect(maps.Values(p.clients)), p.all) {
		if err := nc.Flush(); err != nil {
			p.t.Fatal(err)
		}
	}
	open := slices.Collect(maps.Values(p.inboxes))
	if slices.ContainsFunc(p.answers, func(s transcript.Step) bool { return s.Speaker == transcript.Host }) {
		open = append(open, p.inbox, p.control)
	}
	for _, in := range open {
		if in == nil || strings.HasPrefix(in.Subject, "mesh.hb.") {
			continue
		}
		for m, ok := in.has(); ok; m, ok = in.has() {
			if text := p.text(m); !p.asked || !isKeepalive(text) {
				p.t.Errorf("one message too many on %s:\n%s", in.Subject, text)
			}
		}
	}
	p.control = nil
}
