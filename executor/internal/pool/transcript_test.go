package pool_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
	"github.com/toolmesh/toolmesh/executor/internal/sandbox"
)

// line is a frame of a recording: from the worker, or to it.
type line struct {
	frameOf
	worker bool
	text   string
}

// recording reads a file of executor/internal/frame/testdata; python/tests/test_transcripts.py says how a line is written.
func recording(t *testing.T, name string) (lines []line) {
	t.Helper()
	data, err := os.ReadFile("../frame/testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(data)) {
		text = strings.TrimSuffix(text, "\n")
		if text == "" || text[0] == '#' {
			continue
		}
		parts := strings.SplitN(text, " ", 4)
		header, err := hex.DecodeString(parts[2])
		var body string
		if err := errors.Join(err, json.Unmarshal([]byte(parts[3]), &body)); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		l := line{frameOf: frameOf{Header: frame.Parse(header)}, worker: parts[0] == "<", text: text}
		for _, char := range body { // one for each byte
			l.body = append(l.body, byte(char))
		}
		lines = append(lines, l)
	}
	return lines
}

// replayed is a process that sends the test's frames, and keeps the frames sent to it.
type replayed struct {
	*process
	mu  sync.Mutex
	got []frameOf
}

func (r *replayed) Write(data []byte) {
	for len(data) > 0 {
		h := frame.Parse(data)
		end := frame.HeaderSize + int(h.Length)
		if h.Type == frame.Ping { // when is not recorded
			r.send(frame.Header{Type: frame.Pong, ID: h.ID}, nil)
		} else {
			r.mu.Lock()
			r.got = append(r.got, frameOf{h, bytes.Clone(data[frame.HeaderSize:end])})
			r.mu.Unlock()
		}
		data = data[end:]
	}
}

// take is the frames sent to the process since the last take.
func (r *replayed) take() []frameOf {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	r.got = nil
	return got
}

// player collects the output of a recording's calls, and makes their nested calls.
type player struct {
	pool.Nested
	mu     sync.Mutex
	items  []string
	logs   []string
	nested []string
	answer chan string // of the nested call
}

func (p *player) note(list *[]string, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*list = append(*list, text)
}

func (p *player) Item(_ context.Context, data json.RawMessage) error {
	p.note(&p.items, string(data))
	return nil
}

func (p *player) Log(r output.Record) { p.note(&p.logs, r.Message) }

func (p *player) Call(_ context.Context, tool string, args json.RawMessage) (json.RawMessage, error) {
	p.note(&p.nested, tool+" "+string(args))
	return json.RawMessage(<-p.answer), nil
}

func (p *player) Stream(context.Context, string, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return nil
}

// Recorded conversations are replayed to a pool: it sends the recorded frames, and each call ends as recorded.
func TestRecordedConversations(t *testing.T) {
	for name, async := range map[string]bool{"plain": false, "coroutines": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) { replay(t, recording(t, name), async) })
		})
	}
}

func replay(t *testing.T, lines []line, async bool) {
	r := &replayed{process: &process{id: 1, outMore: make(chan struct{}, 1), inMore: make(chan struct{}, 1), done: make(chan struct{})}}
	p := pool.New(config(func(c *pool.Config) { c.Async, c.MaxWorkers, c.MaxCalls = async, 1, 0 }),
		func(context.Context) (pool.Process, error) { return r, nil })
	defer p.Close()
	sent := &player{answer: make(chan string, 1)}
	want := &player{}
	ends, cancels := map[uint64]<-chan outcome{}, map[uint64]context.CancelFunc{}
	warm := make(chan error, 1)
	go func() { warm <- p.Warm() }()
	for _, l := range lines {
		if l.worker {
			r.send(l.Header, l.body)
			synctest.Wait()
			switch l.Type {
			case frame.Ready:
				if err := <-warm; err != nil {
					t.Fatal(err)
				}
			case frame.Log:
				want.logs = append(want.logs, strings.TrimSuffix(string(l.body), "\n"))
			case frame.Yield:
				want.items = append(want.items, string(l.body))
			case frame.NestedCall:
				size := 4 + binary.LittleEndian.Uint32(l.body)
				var about struct {
					Tool string `json:"tool"`
				}
				if err := json.Unmarshal(l.body[4:size], &about); err != nil {
					t.Fatal(err)
				}
				want.nested = append(want.nested, about.Tool+" "+string(l.body[size:]))
			}
			if l.Type == frame.Result || l.Type == frame.Error || l.Type == frame.End {
				wantEnd(t, l, ends[l.ID], cancels[l.ID])
				delete(ends, l.ID)
			}
			continue
		}
		switch l.Type {
		case frame.Call:
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			args := l.body
			if l.Flags&frame.FlagMeta != 0 { // credit: a pool leaves it to the worker how much it begins with
				l.Flags &^= frame.FlagMeta
				args = args[4+binary.LittleEndian.Uint32(args):]
			}
			ends[l.ID] = begin(ctx, p, pool.Call{
				Slot: l.Slot, Args: args, Sink: sent, Nested: sent,
				Stream: l.Flags&frame.FlagStream != 0, Collect: l.Flags&frame.FlagCollect != 0,
			})
			cancels[l.ID] = cancel
			l.body = args
		case frame.Cancel:
			if ends[l.ID] == nil {
				continue // it has ended: a pool sends none, a worker drops it
			}
			cancels[l.ID]()
		case frame.NestedResult:
			sent.answer <- string(l.body)
		case frame.Exit:
			p.End()
		case frame.Credit, frame.Ping:
			continue // credit and keepalives: the pool decides their time
		}
		synctest.Wait()
		l.Length = uint32(len(l.body))
		took := r.take()
		for i, f := range took { // each call of these tests has an end, and those that were recorded have none
			if f.Type == frame.Call && f.Flags&frame.FlagUntil != 0 {
				f.Flags, f.Length, f.body = f.Flags&^frame.FlagUntil, f.Length-8, f.body[8:]
				took[i] = f
			}
		}
		if diff := cmp.Diff([]frameOf{l.frameOf}, took, cmp.AllowUnexported(frameOf{}), cmp.Transformer("text", func(b []byte) string { return string(b) })); diff != "" {
			t.Fatalf("%s\n(-recorded +sent):\n%s", l.text, diff)
		}
		if l.Type == frame.Exit {
			r.ended(sandbox.Exit{})
		}
	}
	<-p.Gone()
	if got := r.take(); len(got) > 0 {
		t.Errorf("sent beyond the recording: %v", got)
	}
	if s := p.Stats(); s.Restarts != 0 || s.Busy != 0 {
		t.Errorf("after the end: %+v", s)
	}
	for what, lists := range map[string][2][]string{
		"items": {want.items, sent.items}, "output": {want.logs, sent.logs}, "nested calls": {want.nested, sent.nested},
	} {
		if diff := cmp.Diff(lists[0], lists[1]); diff != "" {
			t.Errorf("%s (-recorded +taken):\n%s", what, diff)
		}
	}
}

// wantEnd compares how a call ended with its terminal.
func wantEnd(t *testing.T, terminal line, end <-chan outcome, cancel context.CancelFunc) {
	t.Helper()
	defer cancel()
	var o outcome
	select {
	case o = <-end:
	default:
		t.Fatalf("the call goes on after %s", terminal.text)
	}
	var said struct {
		Code    toolmesh.Code `json:"code"`
		Started bool          `json:"started"`
	}
	switch terminal.Type {
	case frame.Error:
		if err := json.Unmarshal(terminal.body, &said); err != nil {
			t.Fatal(err)
		}
		if e := wantCode(t, o.err, said.Code); (e.Started == toolmesh.StartedYes) != said.Started {
			t.Errorf("%s: started %v", terminal.text, e.Started)
		}
	default:
		if o.err != nil || o.body != string(terminal.body) {
			t.Errorf("%s: %+v", terminal.text, o)
		}
	}
}
