package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host/internal/admit"
	"github.com/toolmesh/toolmesh/host/internal/quota"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/chunks"
	"github.com/toolmesh/toolmesh/internal/fair"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// fake is a host, a store that stores at once, and a call.
type fake struct {
	mu       sync.Mutex
	sent     []*nats.Msg
	answered []admit.Record
	acked    int
	ended    *toolmesh.Error
	stored   func(codec.Chunk, int)
	admit    func(int) error
	high     int64
	bus      *bus.Bus // opens inboxes; nil: there are none
}

func (f *fake) Keep(_ subjects.SessionID, value []byte) (*codec.Ref, *toolmesh.Error) {
	return &codec.Ref{Name: "s.kept", Size: int64(len(value))}, nil
}

func (f *fake) Send(m *nats.Msg) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, m)
	return true
}

func (f *fake) Answer(_ *Reader, record admit.Record) { f.answered = append(f.answered, record) }
func (f *fake) Acknowledge(*Reader)                   { f.acked++ }
func (f *fake) Fit(e *toolmesh.Error) *toolmesh.Error { return e }
func (f *fake) Epoch(context.Context) (string, error) { return "", nil }
func (f *fake) End(cause *toolmesh.Error)             { f.ended = cause }
func (f *fake) MaxPayload() int64                     { return 1 << 20 }
func (f *fake) Flush(context.Context) error           { return nil }
func (f *fake) Tick()                                 {}
func (f *fake) High() int64                           { return f.high }
func (f *fake) Close()                                {}

func (f *fake) Open(deliver func(*nats.Msg, error)) (*bus.Inbox, error) {
	if f.bus == nil {
		return nil, errors.New("no inbox")
	}
	return f.bus.Open(deliver)
}

func (f *fake) Writer(_ subjects.SessionID, _ subjects.RPCID, opts chunks.WriterOptions) (Writer, error) {
	f.stored, f.admit = opts.Stored, opts.Admit
	return f, nil
}

func (f *fake) Read(context.Context, subjects.SessionID, subjects.RPCID, string, codec.ReplayRequest) (chunks.Page, error) {
	return chunks.Page{}, nil
}

func (f *fake) Write(_ context.Context, c codec.Chunk) error {
	if !c.Terminal() {
		if err := f.admit(len(c.Data)); err != nil {
			return err
		}
	}
	f.high = c.Seq
	f.stored(c, len(c.Data))
	return nil
}

func begin(t *testing.T, req *codec.Request, limit int64) (*fake, *Readers, *Stream) {
	t.Helper()
	f := &fake{}
	node := &Node{
		ID: "n", Base: t.Context(), Log: slog.New(slog.DiscardHandler), Replies: f, Go: func(run func()) { run() }, Store: f,
		Quota: quota.New(limit, time.Hour, time.Now), Replays: fair.NewQueue[subjects.SessionID](16, 16, func(f func()) { go f() }), Account: func(s subjects.SessionID) subjects.SessionID { return s },
	}
	req.Session, req.RPCID = "default", "r1"
	r := &Readers{}
	r.Init(node, f, &Reader{Request: req, Reply: "_INBOX.a", Start: time.Now()})
	s, err := New(t.Context(), r, "", false)
	if err != nil {
		t.Fatal(err)
	}
	return f, r, s
}

// Each item and the end go to the first caller, with the empty message that ends the answer
// of an inbox.
func TestItemsAndEndReachTheFirstCaller(t *testing.T) {
	t.Parallel()
	f, _, s := begin(t, &codec.Request{Call: codec.Call{Delivery: codec.DeliverInbox}}, 1000)
	if err := s.Send(t.Context(), json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	s.Finish(admit.Record{Streamed: true})
	if len(f.sent) != 3 {
		t.Errorf("%d messages; want the item, the end and the empty one", len(f.sent))
	}
	if err := s.Send(t.Context(), json.RawMessage(`2`)); toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("an item after the end: %v", err)
	}
}

// A live stream is acknowledged once; an error before its first item is its answer.
func TestStreamIsAcknowledged(t *testing.T) {
	t.Parallel()
	f, _, s := begin(t, &codec.Request{Call: codec.Call{Delivery: codec.DeliverLive}}, 1000)
	for range 2 {
		if err := s.Send(t.Context(), json.RawMessage(`1`)); err != nil {
			t.Fatal(err)
		}
	}
	s.Finish(admit.Record{Streamed: true})
	if f.acked != 1 || len(f.answered) != 0 {
		t.Errorf("%d acknowledgements and %d answers, want one and none", f.acked, len(f.answered))
	}
	f, _, s = begin(t, &codec.Request{Call: codec.Call{Delivery: codec.DeliverLive}}, 1000)
	s.Finish(admit.Record{Err: toolmesh.Errorf(toolmesh.CodeToolError, "no"), Streamed: true})
	if f.acked != 0 || len(f.answered) != 1 || f.answered[0].Err == nil {
		t.Errorf("%d acknowledgements, answers %v; want the error alone", f.acked, f.answered)
	}
}

// An item waits for credit; after 10 s without any the call is stopped.
func TestCredit(t *testing.T) {
	t.Parallel()
	f, _, s := begin(t, &codec.Request{Call: codec.Call{Delivery: codec.DeliverInbox, Credit: 1}, HasCredit: true}, 1000)
	if err := s.Send(t.Context(), json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- s.Send(t.Context(), json.RawMessage(`2`)) }()
	select {
	case err := <-sent:
		t.Fatalf("an item without credit was sent: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	s.Grant(2)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	s.Tick(time.Now().Add(readerGone - time.Second))
	if f.ended != nil {
		t.Fatalf("ended too early: %v", f.ended)
	}
	s.Tick(time.Now().Add(readerGone + time.Second))
	if f.ended == nil || f.ended.Details["reason"] != "caller_gone" {
		t.Errorf("the call ended with %v", f.ended)
	}
}

// The session's quota bounds its streams.
func TestQuotaOfStream(t *testing.T) {
	t.Parallel()
	_, _, s := begin(t, &codec.Request{Call: codec.Call{Delivery: codec.DeliverInbox}}, 3)
	if err := s.Send(t.Context(), json.RawMessage(`12`)); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(t.Context(), json.RawMessage(`34`)); toolmesh.CodeOf(err) != toolmesh.CodeBusy {
		t.Errorf("more than the quota: %v", err)
	}
}

// An item by reference counts with its own size.
func TestQuotaOfLargeItems(t *testing.T) {
	t.Parallel()
	_, r, s := begin(t, &codec.Request{Call: codec.Call{Delivery: codec.DeliverInbox, AcceptRef: true}}, 3<<20)
	item := json.RawMessage(`"` + strings.Repeat("x", 2<<20) + `"`)
	if err := s.Send(t.Context(), item); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(t.Context(), item); toolmesh.CodeOf(err) != toolmesh.CodeBusy {
		t.Errorf("more than the quota: %v", err)
	}
	s.Finish(admit.Record{Streamed: true})
	if used, ok := r.node.Quota.Take("default", 1<<20); ok {
		t.Errorf("what is stored is given back: %d are used", used)
	}
}

// A repetition for which too many others read waits its turn for as long as the call runs: no
// error ends a stream that goes on.
func TestARepetitionWaitsForOthersThatRead(t *testing.T) {
	t.Parallel()
	f, r, s := begin(t, &codec.Request{Call: codec.Call{Delivery: codec.DeliverLive}}, 1000)
	if err := s.Send(t.Context(), json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	free := make(chan struct{})
	var others sync.WaitGroup
	defer others.Wait()
	r.node.Replays = fair.NewQueue[subjects.SessionID](1, 1, func(f func()) { others.Go(f) })
	for range 2 {
		r.node.Replays.Do("default", func() { <-free })
	}
	gone := toolmesh.Errorf(toolmesh.CodeToolError, "the call's own end")
	asked := 0
	own := &Readers{}
	own.Init(r.node, f, &Reader{Request: &codec.Request{Call: codec.Call{Session: "default", RPCID: "r1", Delivery: codec.DeliverInbox}}, Reply: "_INBOX.b", Start: time.Now()})
	r.node.Account = func(session subjects.SessionID) subjects.SessionID {
		if asked++; asked == 2 {
			close(free)
			others.Wait()
			r.End(admit.Record{Err: gone})
		}
		return session
	}
	r.Join(own)
	if asked < 2 {
		close(free)
	}
	if len(f.answered) != 1 || f.answered[0].Err != gone {
		t.Errorf("the repetition has %v, want %v", f.answered, gone)
	}
	late := &Readers{}
	late.Init(r.node, f, &Reader{Request: &codec.Request{Call: codec.Call{Session: "default", RPCID: "r1"}}, Reply: "_INBOX.c", Start: time.Now()})
	r.Join(late)
	if len(f.answered) != 2 || f.answered[1].Err != gone {
		t.Errorf("a repetition that joins when the call has ended has %v, want %v", f.answered, gone)
	}
}

// A caller that repeats its call under the same reply subject is one caller: a keepalive without
// a subscription shows that both are gone.
func TestRepetitionByOneCallerIsOneCaller(t *testing.T) {
	t.Parallel()
	b, err := bus.New(meshtest.Broker(t).Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	f := &fake{bus: b}
	node := &Node{ID: "n", Base: t.Context(), Replies: f, Store: f}
	caller := func() *Readers {
		r := &Readers{}
		r.Init(node, f, &Reader{Request: &codec.Request{Call: codec.Call{Session: "default", RPCID: "r1", Keepalive: true}}, Reply: "_INBOX.a", Identity: codec.NewIdentity("n", "b", ""), Start: time.Now().Add(-time.Minute)})
		return r
	}
	r := caller()
	defer r.Close()
	r.Join(caller())
	r.KeepAlive(time.Now())
	if len(f.sent) != 1 {
		t.Fatalf("%d keepalives", len(f.sent))
	}
	if err := b.Conn().PublishMsg(f.sent[0]); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the caller is gone", r.Deserted)
}

// A repetition that asks for progress gets it, even if the first caller did not ask.
func TestProgressGoesToARepetition(t *testing.T) {
	t.Parallel()
	f := &fake{}
	node := &Node{ID: "n", Base: t.Context(), Replies: f, Store: f}
	caller := func(reply string, wants bool) *Readers {
		r := &Readers{}
		r.Init(node, f, &Reader{Request: &codec.Request{Call: codec.Call{Session: "default", RPCID: "r1", Keepalive: true, WantProgress: wants}}, Reply: reply, Identity: codec.NewIdentity("n", "b", "")})
		return r
	}
	r := caller("_INBOX.a", false)
	r.Report(&codec.Progress{Text: "one"})
	r.Join(caller("_INBOX.b", true))
	r.Report(&codec.Progress{Text: "two"})
	if len(f.sent) != 1 || f.sent[0].Subject != "_INBOX.b" {
		t.Errorf("progress went to %v", f.sent)
	}
	r.Report(&codec.Progress{Text: "three"}) // too early: it waits
	r.Close()
	if later := r.later.Load(); later == nil || later.Stop() {
		t.Error("progress that waited is sent behind the end of its call")
	}
	if r.tellProgress(); len(f.sent) != 1 {
		t.Errorf("a call that is over told progress: %v", f.sent)
	}
}

// A caller that repeats its call very often does not have each report sent to all of its repetitions.
func TestProgressOfManyRepetitionsIsBounded(t *testing.T) {
	t.Parallel()
	f := &fake{}
	node := &Node{ID: "n", Base: t.Context(), Replies: f, Store: f}
	caller := func(n int) *Readers {
		r := &Readers{}
		r.Init(node, f, &Reader{Request: &codec.Request{Call: codec.Call{Session: "default", RPCID: "r1", Keepalive: true, WantProgress: true}}, Reply: fmt.Sprintf("_INBOX.%d", n), Identity: codec.NewIdentity("n", "b", "")})
		return r
	}
	r := caller(0)
	defer r.Close()
	for n := range 1000 {
		r.Join(caller(n + 1))
	}
	r.Report(&codec.Progress{Text: "one"})
	if len(f.sent) != 1+mostAtOnce || f.sent[0].Subject != "_INBOX.0" || f.sent[mostAtOnce].Subject != "_INBOX.1000" {
		t.Errorf("one report was sent to %d of 1,001 callers, want the first and the latest %d", len(f.sent), mostAtOnce)
	}
}
