package pool_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/output"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

// slow is a sink that takes an item and then no more until it is let go.
type slow struct {
	sink
	until chan struct{}
}

func (s *slow) Item(context.Context, json.RawMessage) error {
	<-s.until
	return nil
}

// endless is a tool that a tool calls, and that has many items.
type endless struct {
	pool.Nested
	sent int
}

func (*endless) Call(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	return nil, nil
}

func (*endless) Batch(context.Context, json.RawMessage) (json.RawMessage, error) { return nil, nil }

func (*endless) Task(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	return nil, nil
}

func (*endless) Describe(context.Context, string) (json.RawMessage, error) { return nil, nil }

func (e *endless) Stream(context.Context, string, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for yield(make(json.RawMessage, 64<<10), nil) {
			e.sent++
		}
	}
}

// A worker that breaks the protocol is ended, its call fails, and the next one is served by
// another; the agent keeps no more than a stream's window of its output.
func TestAWorkerBreaksTheProtocol(t *testing.T) {
	const elsewhere = 1 << 40 // no call has this id
	sends := func(typ frame.Type, flags uint8, id uint64, body string) func(w *work) {
		return func(w *work) { w.send(frame.Header{Type: typ, Flags: flags, ID: id}, []byte(body)) }
	}
	nested := func(length uint32, about string) string {
		return string(binary.LittleEndian.AppendUint32(nil, length)) + about
	}
	for name, row := range map[string]struct {
		stream   bool
		plain    bool // of plain functions, too
		what     func(w *work)
		answered bool // the call itself is
	}{
		"items that nobody has asked for": {plain: true, what: func(w *work) { w.yield("1") }},
		"items without credit": {stream: true, what: func(w *work) {
			for range 100 {
				w.send(frame.Header{Type: frame.Yield, ID: w.id}, make([]byte, 64<<10))
			}
		}},
		"another call's item":         {plain: true, stream: true, what: sends(frame.Yield, 0, elsewhere, "1")},
		"another call's answer":       {plain: true, what: sends(frame.Result, 0, elsewhere, "1")},
		"another call's error":        {plain: true, what: sends(frame.Error, 0, elsewhere, "{}")},
		"another hello":               {plain: true, what: sends(frame.Ready, 0, 0, "{}")},
		"an agent's frame":            {plain: true, what: sends(frame.Call, 0, 1, "{}")},
		"a zygote's frame":            {plain: true, what: sends(frame.Described, 0, 0, "{}")},
		"an unknown frame":            {plain: true, what: sends(99, 0, 0, "")},
		"a nested call cut off":       {plain: true, what: sends(frame.NestedCall, 0, 1, "\x01")},
		"a nested call that lies":     {plain: true, what: sends(frame.NestedCall, 0, 1, nested(1<<31, "{}"))},
		"a nested call of no JSON":    {plain: true, what: sends(frame.NestedCall, 0, 1, nested(2, "{["))},
		"a frame longer than allowed": {plain: true, what: func(w *work) { w.send(frame.Header{Type: frame.Log, ID: w.id}, make([]byte, 2<<20)) }},
		"credit that was not used": {plain: true, what: func(w *work) {
			w.send(frame.Header{Type: frame.NestedCall, Flags: frame.FlagStream, ID: 1}, asks(w.id))
			for range 8 {
				w.send(frame.Header{Type: frame.NestedCredit, ID: 1}, []byte{0, 0, 0, 0x7f})
			}
		}},
		"two answers": {what: func(w *work) {
			w.send(frame.Header{Type: frame.Result, ID: w.id}, []byte("1"))
			w.send(frame.Header{Type: frame.Result, ID: w.id}, []byte("1"))
		}, answered: true},
	} {
		for _, async := range []bool{true, false} {
			if !async && !row.plain {
				continue
			}
			t.Run(fmt.Sprint(name, " async ", async), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p, ps := open(t, config(func(c *pool.Config) { c.Async = async }), func(w *work) (string, error) {
						if w.args == "good" {
							return `"good"`, nil
						}
						row.what(w)
						return w.wait(nil)
					})
					to, under := &slow{until: make(chan struct{})}, &endless{}
					end := begin(t.Context(), p, pool.Call{Args: json.RawMessage("bad"), Stream: row.stream, Sink: to, Nested: under})
					synctest.Wait()
					first := ps.list()[0]
					select {
					case <-first.done:
					default:
						t.Error("the worker goes on")
					}
					close(to.until)
					if o := <-end; !row.answered {
						wantCode(t, o.err, toolmesh.CodeWorkerCrashed)
					}
					if under.sent > 8 {
						t.Errorf("%d nested items were sent", under.sent)
					}
					if o := <-begin(t.Context(), p, args("good")); o.err != nil || o.body != `"good"` {
						t.Errorf("the next call: %s, %v", o.body, o.err)
					}
				})
			})
		}
	}
}

// waiting counts a tool's requests to the mesh, and answers none.
type waiting struct {
	pool.Nested
	asked atomic.Int64
}

func (w *waiting) Task(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
	return w.Describe(ctx, "")
}

func (w *waiting) Batch(ctx context.Context, _ json.RawMessage) (json.RawMessage, error) {
	return w.Describe(ctx, "")
}

func (w *waiting) Describe(ctx context.Context, _ string) (json.RawMessage, error) {
	w.asked.Add(1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// Questions and batches of a tool are bounded as its calls are, and end with it.
func TestAWorkerFloodsTheMesh(t *testing.T) {
	const most = 1024
	for name, row := range map[string]struct {
		flag uint8
		args int
		want int64
	}{
		"describe":        {frame.FlagDescribe, 0, most},
		"batch":           {frame.FlagBatch, 0, most},
		"task":            {frame.FlagTask, 0, most},
		"large arguments": {frame.FlagBatch, 128 << 10, 31}, // in four frames of the maximum
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, _ := open(t, config(nil), func(w *work) (string, error) {
					if w.args == "good" {
						return `"good"`, nil
					}
					for i := range uint64(2 * most) {
						if row.args > 0 && i == 2*uint64(row.want) {
							break
						}
						w.send(frame.Header{Type: frame.NestedCall, Flags: row.flag, ID: i + 1}, append(asks(w.id), make([]byte, row.args)...))
					}
					return w.wait(nil)
				})
				ctx, cancel := context.WithCancel(t.Context())
				asked := &waiting{}
				end := begin(ctx, p, pool.Call{Args: json.RawMessage("bad"), Nested: asked})
				synctest.Wait()
				if n := asked.asked.Load(); n != row.want {
					t.Errorf("%d were asked at once, want %d", n, row.want)
				}
				cancel()
				wantCode(t, (<-end).err, toolmesh.CodeCancelled)
				if o := <-begin(t.Context(), p, args("good")); o.err != nil || o.body != `"good"` {
					t.Errorf("the next call: %s, %v", o.body, o.err)
				}
			})
		})
	}
}

// asks is the body of a nested call by the tool of a call.
// printed counts the bytes of a call's output.
type printed struct {
	sink
	bytes int
}

func (p *printed) Log(r output.Record) { p.bytes += len(r.Message) }

// A call whose code writes frames of output itself prints about as much as any: the worker's own bound
// does not hold for it.
func TestOutputInFramesIsBounded(t *testing.T) {
	for _, async := range []bool{false, true} {
		for _, kind := range []uint8{frame.LogStdout, frame.LogRecord, frame.LogProgress} {
			t.Run(fmt.Sprint(async, kind), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p, _ := open(t, config(func(c *pool.Config) { c.Async = async }), func(w *work) (string, error) {
						for range 300 {
							w.send(frame.Header{Type: frame.Log, Flags: kind, ID: w.id}, make([]byte, 64<<10))
						}
						return "1", nil
					})
					to := &printed{}
					if o := <-begin(t.Context(), p, pool.Call{Sink: to}); o.err != nil {
						t.Error(o.err)
					}
					if to.bytes < 256<<10 || to.bytes > 1<<20 {
						t.Errorf("%d bytes were passed on", to.bytes)
					}
				})
			})
		}
	}
}

func asks(call uint64) []byte {
	about := fmt.Sprintf(`{"call":%d,"tool":"x.y"}`, call)
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(about))), about...)
}

// With any output of a worker its call ends, the pool serves the next one, and can be
// closed.
func FuzzOutputOfWorkers(f *testing.F) {
	for _, typ := range []frame.Type{frame.Result, frame.Error, frame.Yield, frame.End, frame.Log, frame.Ready, frame.NestedCall, frame.NestedCredit, 99} {
		for _, async := range []bool{false, true} {
			f.Add(async, frame.Append(frame.Append(nil, frame.Header{Type: typ, ID: 1}, []byte("{}")), frame.Header{Type: frame.End, ID: 1}, nil))
		}
	}
	for flags := range frame.FlagTask | frame.FlagDescribe | frame.FlagBatch | frame.FlagStream + 1 { // of the first call
		f.Add(false, frame.Append(nil, frame.Header{Type: frame.NestedCall, Flags: flags, ID: 1}, asks(1)))
	}
	f.Fuzz(func(t *testing.T, async bool, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			p, _ := open(t, config(func(c *pool.Config) { c.Async = async }), func(w *work) (string, error) {
				if w.args == "good" {
					return `"good"`, nil
				}
				w.mu.Lock()
				w.out = append(w.out, data...)
				w.mu.Unlock()
				wake(w.outMore)
				return w.wait(nil)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // some bytes say nothing
			defer cancel()
			<-begin(ctx, p, pool.Call{Args: json.RawMessage("bad"), Stream: true, Sink: &sink{most: 1 << 20}, Nested: &endless{}})
			for range 3 { // the first may find remains of the worker
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				o := <-begin(ctx, p, args("good"))
				cancel()
				if o.body == `"good"` {
					return
				}
			}
			t.Error("no call is served afterwards")
		})
	})
}

func (*waiting) File(context.Context, string, []byte) ([]byte, error) { return nil, nil }

func (*waiting) ReadFile(context.Context, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(func(json.RawMessage, error) bool) {}
}

func (*endless) File(context.Context, string, []byte) ([]byte, error) { return nil, nil }

func (*endless) ReadFile(context.Context, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(func(json.RawMessage, error) bool) {}
}
