package codec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/transcript"
	"github.com/toolmesh/toolmesh/subjects"
)

const transcripts = "../docs/protocol/transcripts"

// speakers are the placeholders of the files, as this replay fills them.
var speakers = map[string]string{
	"NODE": "gpu-1", "BOOT": "01JZ0BOOT", "REV": "4f2a9c", "INBOX": "_INBOX.Xk29dq.1", "RPC": "rpc_018f5c0d1c7a7b3e9a4d2f6e8b0c1d2e",
	"DEADLINE": "1767225600000",
}

// TestTranscripts compares this package with docs/protocol/transcripts: it reads the client's
// messages and renders the host's answers byte for byte. A change of the wire changes the file too,
// and the diff shows what breaks for other clients.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(transcripts + "/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts in %s: %v", transcripts, err)
	}
	said := make(map[string]bool)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, err := transcript.Parse(strings.TrimSuffix(filepath.Base(file), ".txtar"), data, speakers)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range c.Steps {
			said[string(step.Speaker)+" "+step.Kind] = true
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			p := player{host: NewIdentity(subjects.NodeID(speakers["NODE"]), subjects.BootID(speakers["BOOT"]), speakers["REV"])}
			for i, step := range c.Steps {
				t.Run(strings.ReplaceAll(step.Name, "/", "_"), func(t *testing.T) {
					p.play(t, step)
					if step.Speaker == transcript.Client && step.Read == nil && !p.refused(c.Steps[i+1:]) {
						t.Error("a section \"read\" must say what is read here")
					}
				})
			}
		})
	}
	for _, kind := range []string{
		"client call", "client cancel", "client credit", "client replay", "host result", "host error", "host refusal", "host ack",
		"host chunk", "host keepalive", "host end", "host high", "host cancelled", "host heartbeat", "host silence", "broker 503",
	} {
		if !said[kind] {
			t.Errorf("no transcript has a %q", kind)
		}
	}
}

// player is the state of one transcript at both ends.
type player struct {
	host    *Identity
	request *Request        // the last call, as the host read it
	refusal *toolmesh.Error // why the host refused it
	replay  bool            // the client's last request was one for stored chunks
	replyTo string          // of the client's last message
	seq     int64           // of the last chunk
}

func (p *player) refused(next []transcript.Step) bool {
	return len(next) > 0 && next[0].Speaker == transcript.Host && (next[0].Kind == "refusal" || next[0].Kind == "silence")
}

func (p *player) play(t *testing.T, s transcript.Step) {
	t.Helper()
	switch s.Speaker {
	case transcript.Client:
		p.hear(t, s)
	case transcript.Host:
		p.answer(t, s)
	case transcript.Broker:
		if got := ParseReply(Header(s.Header), s.Body); got.Kind != ReplyNoResponders || s.Subject != p.replyTo {
			t.Errorf("the client reads %+v on %s", got, s.Subject)
		}
	}
}

// hear is the host's side of a client's message.
func (p *player) hear(t *testing.T, s transcript.Step) {
	t.Helper()
	if text := transcript.Text(s.Header, s.Body); text != s.Raw {
		t.Errorf("the file's message is not in its normal form:\n%s", cmp.Diff(text, s.Raw))
	}
	subject, err := subjects.Parse(s.Subject)
	if err != nil {
		t.Fatal(err)
	}
	if s.Reply != "" || s.Kind == "call" {
		p.replyTo = s.Reply // a message without an answer leaves the call's in place
	}
	var read any
	p.replay = s.Kind == "replay"
	switch s.Kind {
	case "call":
		if subject.Kind != subjects.KindTool && subject.Kind != subjects.KindNodeTool {
			t.Fatalf("%s is not where a tool is called", s.Subject)
		}
		p.seq = 0
		if p.request, p.refusal = ParseRequest(subject, Header(s.Header), s.Body); p.refusal == nil {
			read = readAs(p.request)
			p.sameHeader(t, s)
		}
	case "cancel", "credit":
		if subject.Kind != subjects.KindNodeCtl && subject.Kind != subjects.KindCtl {
			t.Fatalf("%s is not where a call is controlled", s.Subject)
		}
		var c Control
		if c, p.refusal = ParseControl(Header(s.Header), s.Body); string(c.Type) != s.Kind {
			t.Errorf("it is read as %s", c.Type)
		}
		read = c
	case "replay":
		if subject.Kind != subjects.KindReplay {
			t.Fatalf("%s is not where chunks are asked for", s.Subject)
		}
		var r ReplayRequest
		r, p.refusal = ParseReplay(Header(s.Header), s.Body)
		p.request, p.seq, read = &Request{Call: Call{RPCID: subject.RPC}}, r.FromSeq-1, r
	}
	switch {
	case p.refusal != nil:
		if s.Read != nil {
			t.Errorf("it is refused: %v", p.refusal)
		}
	case s.Read != nil:
		if diff := cmp.Diff(string(s.Read), string(Encode(read))); diff != "" {
			t.Errorf("read (-file +got):\n%s", diff)
		}
	}
}

// sameHeader compares our own client's headers with the file's, if the file uses only features of
// ours.
func (p *player) sameHeader(t *testing.T, s transcript.Step) {
	t.Helper()
	r := p.request
	if r.RPCID == "" || r.Form != FormPlain {
		return
	}
	ours := Call{
		RPCID: r.RPCID, Session: r.Session, Tool: r.Tool, Delivery: r.Delivery, Timeout: r.Timeout, Deadline: r.Deadline, Credit: r.Credit,
		Depth: r.Depth, Parent: r.Parent, Revision: r.Revision, Isolation: r.Isolation, Keepalive: r.Keepalive, WantLoad: r.WantLoad, NoCache: r.NoCache, Trace: r.Trace,
	}
	got := ours.Header()
	for _, name := range []string{HeaderProto, HeaderRequire, HeaderContentType, HeaderAgain, HeaderBoot} {
		if v, ok := s.Header[name]; ok {
			got[name] = v
		}
	}
	if diff := cmp.Diff(Header(s.Header), got); diff != "" {
		t.Errorf("our client's headers (-file +ours):\n%s", diff)
	}
}

// readAs is how a "read" section shows a request.
func readAs(r *Request) any {
	read := struct {
		Form       string             `json:"form"`
		Session    subjects.SessionID `json:"session"`
		Tool       subjects.ToolID    `json:"tool"`
		RPCID      subjects.RPCID     `json:"rpc_id,omitempty"`
		Args       json.RawMessage    `json:"args"`
		Positional []json.RawMessage  `json:"positional,omitempty"`
		Stream     string             `json:"stream,omitempty"`
		TimeoutMS  *int64             `json:"timeout_ms,omitempty"`
		DeadlineMS int64              `json:"deadline_ms,omitempty"`
		AgainMS    *int64             `json:"again_ms,omitempty"`
		Credit     *int64             `json:"credit,omitempty"`
		Depth      int                `json:"depth,omitempty"`
		Parent     subjects.RPCID     `json:"parent,omitempty"`
		Revision   string             `json:"revision,omitempty"`
		Isolation  toolmesh.Isolation `json:"isolation,omitempty"`
		Keepalive  bool               `json:"keepalive,omitempty"`
		WantLoad   bool               `json:"want_load,omitempty"`
		NoCache    bool               `json:"no_cache,omitempty"`
	}{
		Form:    [...]string{FormPlain: "plain", FormEnvelope: "envelope", FormLegacy: "legacy"}[r.Form],
		Session: r.Session, Tool: r.Tool, RPCID: r.RPCID, Args: r.Args, Positional: r.Positional,
		Stream: [...]string{DeliverNone: "", DeliverLive: "live", DeliverInbox: "inbox", DeliverEnvelope: "envelope"}[r.Delivery],
		Depth:  r.Depth, Parent: r.Parent, Revision: r.Revision, Isolation: r.Isolation, Keepalive: r.Keepalive, WantLoad: r.WantLoad, NoCache: r.NoCache,
	}
	if r.HasTimeout {
		ms := r.Timeout.Milliseconds()
		read.TimeoutMS = &ms
	}
	if r.IsAgain {
		ms := r.Again.Milliseconds()
		read.AgainMS = &ms
	}
	if r.HasCredit {
		read.Credit = &r.Credit
	}
	if !r.Deadline.IsZero() {
		read.DeadlineMS = r.Deadline.UnixMilli()
	}
	return read
}

// answer renders the host's answer from the content of the file's message, compares the two, and
// reads the message as the client does.
func (p *player) answer(t *testing.T, s transcript.Step) {
	t.Helper()
	if s.Kind == "silence" {
		p.silent(t)
		return
	}
	if s.Kind == "heartbeat" {
		var beat Heartbeat
		if err := json.Unmarshal(s.Body, &beat); err != nil {
			t.Fatal(err)
		}
		subject, err := subjects.Heartbeat(subjects.NodeID(beat.Node))
		if err != nil || s.Subject != subject {
			t.Errorf("a heartbeat of %s goes to %s, %v", beat.Node, subject, err)
		}
		same(t, s, nil, Encode(beat))
		return
	}
	if p.request == nil && s.Kind != "cancelled" {
		t.Fatal("nobody has asked yet")
	}
	if s.Subject != p.answersTo(t, s.Kind) {
		t.Errorf("it goes to %s, want %s", s.Subject, p.answersTo(t, s.Kind))
	}
	enveloped := p.request != nil && p.request.Form != FormPlain
	reply := ParseReply(Header(s.Header), s.Body)
	if enveloped {
		reply, _ = ParseEnvelope(s.Body)
	}
	var header Header
	var body []byte
	var want ReplyKind
	switch s.Kind {
	case "result":
		want = ReplyResult
		header, body = p.request.Result(p.host, reply.Body, reply.Load)
		CacheUse(reply.Cache).Put(header)
	case "error":
		failed := reply.Err
		if want = ReplyError; failed == nil && reply.Chunk.Err != nil {
			want, failed = ReplyChunk, reply.Chunk.Err
		}
		if failed == nil {
			t.Fatalf("the message reads as %+v", reply)
		}
		host := p.host
		if s.Header[HeaderRevision] == nil { // a tool that the node does not serve has none
			host = NewIdentity(host.Node, host.Boot, "")
		}
		header, body = p.request.Failure(host, failed, reply.Load)
	case "refusal":
		if p.refusal == nil {
			t.Fatal("the request is accepted")
		}
		if want = ReplyError; p.request.Delivery == DeliverEnvelope {
			want = ReplyChunk
		}
		header, body = p.request.Failure(p.host, p.refusal, reply.Load)
		if p.replay {
			header, body = ErrorReply(p.refusal)
		}
	case "ack":
		header, body = p.request.Ack(p.host, reply.Load)
	case "chunk":
		want = ReplyChunk
		if p.seq++; reply.Chunk.Seq != p.seq {
			t.Errorf("chunk %d follows %d", reply.Chunk.Seq, p.seq-1)
		}
		if enveloped {
			body = reply.Chunk.Envelope(p.request)
		} else {
			header, body = reply.Chunk.Encode(p.request.RPCID, Header(s.Header).Get(HeaderEpoch))
		}
	case "keepalive":
		want = ReplyKeepalive
		header = p.request.KeepaliveHeader(p.host, reply.High, nil)
	case "end":
		want = ReplyEnd
	case "high":
		want = ReplyEnd
		header = ReplayEnd(High{Seq: reply.High, Terminal: reply.Terminal})
	case "cancelled":
		var c Cancelled
		if err := json.Unmarshal(s.Body, &c); err != nil {
			t.Fatal(err)
		}
		body = Encode(c)
	}
	if reply.Kind != want {
		t.Errorf("a client reads it as kind %d, want %d", reply.Kind, want)
	}
	same(t, s, header, body)
}

// answersTo is where the host's next message of a kind belongs.
func (p *player) answersTo(t *testing.T, kind string) string {
	t.Helper()
	if kind != "chunk" || p.request.Delivery != DeliverLive {
		return p.replyTo
	}
	live, err := subjects.Live(p.request.Session, p.request.RPCID)
	if err != nil {
		t.Fatal(err)
	}
	return live
}

// silent fails if the host had to answer the client's last message.
func (p *player) silent(t *testing.T) {
	t.Helper()
	if p.request != nil && subjects.ReplyAllowed(p.replyTo, p.request.Session, false) {
		t.Errorf("%s is an inbox: a request there is answered", p.replyTo)
	}
}

func same(t *testing.T, s transcript.Step, header Header, body []byte) {
	t.Helper()
	if diff := cmp.Diff(s.Raw, transcript.Text(header, body)); diff != "" {
		t.Errorf("the message (-file +rendered):\n%s", diff)
	}
}
