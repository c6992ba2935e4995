package bridge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"iter"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tinylib/msgp/msgp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/bridge"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// mesh is a mesh with an index "lab".
type mesh struct {
	broker *meshtest.Server
	router *router.Router
	client *client.Client
}

type pair struct {
	A int `json:"a"`
	B int `json:"b"`
}

type number struct {
	N int `json:"n"`
}

func newMesh(t testing.TB) *mesh {
	t.Helper()
	m := &mesh{broker: meshtest.Broker(t)}
	var err error
	if m.router, err = router.New(m.broker.Connect(t), &router.Options{Slots: 64}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.router.Stop(t.Context()) }) // the test is over: no drain
	m.client = m.router.Client()
	for name, tool := range map[string]host.Handler{
		"add":   host.Func(func(_ context.Context, in pair) (int, error) { return in.A + in.B, nil }),
		"count": host.Stream(count),
		"fail": host.Func(func(context.Context, struct{}) (int, error) {
			e := toolmesh.Errorf(toolmesh.CodeToolError, "no such city")
			e.Type, e.Stacktrace = "ValueError", "lab.py, line 3"
			return 0, e.WithDetail("city", "Atlantis")
		}),
		"wait": host.Func(func(ctx context.Context, _ struct{}) (int, error) { <-ctx.Done(); return 0, ctx.Err() }),
	} {
		if _, err := m.router.Handle("lab", name, tool); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Until(t, "the registry knows the tools", func() bool {
		all, err := m.client.List(t.Context())
		return err == nil && len(all) == 4
	})
	return m
}

func count(_ context.Context, in number) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for i := range in.N {
			if !yield(i+1, nil) {
				return
			}
		}
	}
}

// program is the test's end of a bridge.
type program struct {
	t      testing.TB
	packed bool
	to     *io.PipeWriter
	from   *bufio.Reader
	stop   context.CancelFunc // as a signal does
	ended  chan error         // the error of Run
}

// start begins a bridge for the test, which is its program.
func (m *mesh) start(t testing.TB, opts bridge.Options) *program {
	t.Helper()
	return startOn(t, m.broker.Connect(t), opts)
}

// startOn is start on a connection.
func startOn(t testing.TB, nc *nats.Conn, opts bridge.Options) *program {
	t.Helper()
	b := testmesh.Bus(t, nc, nil)
	if opts.Node == "" {
		opts.Node = "bridge-1"
	}
	br, err := bridge.New(b, &opts)
	if err != nil {
		t.Fatal(err)
	}
	in, to := io.Pipe()
	from, out := io.Pipe()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &program{t: t, packed: opts.MessagePack, to: to, from: bufio.NewReader(from), stop: stop, ended: make(chan error, 1)}
	go func() {
		err := br.Run(ctx, in, out)
		_ = out.Close()
		p.ended <- err
	}()
	t.Cleanup(func() { // unless the program has ended
		_ = to.Close()
		_ = from.Close()
		stop()
		select {
		case <-p.ended:
		case <-time.After(time.Minute):
			t.Error("the bridge does not end")
		}
		_ = in.Close()
	})
	return p
}

// end is the error of Run.
func (p *program) end() error {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		return err
	case <-time.After(time.Minute):
		p.t.Fatal("the bridge does not end")
		panic("unreachable")
	}
}

// write sends a frame of JSON.
func (p *program) write(body string) {
	p.t.Helper()
	if err := p.raw([]byte(body)); err != nil {
		p.t.Fatalf("write %.200s: %v", body, err)
	}
}

func (p *program) raw(body []byte) error {
	if p.packed {
		body = codec.Pack(nil, body)
	}
	_, err := p.to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// next is the next frame, as JSON; io.EOF at the end.
func (p *program) next() (json.RawMessage, error) {
	var head [4]byte
	if _, err := io.ReadFull(p.from, head[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(p.from, body); err != nil {
		return nil, err
	}
	if !p.packed {
		return body, nil
	}
	var plain bytes.Buffer
	if _, err := msgp.UnmarshalAsJSON(&plain, body); err != nil {
		return nil, err
	}
	return plain.Bytes(), nil
}

// read is the next frame.
func (p *program) read() map[string]any {
	p.t.Helper()
	body, err := p.next()
	if err != nil {
		p.t.Fatalf("the bridge says nothing more: %v", err)
	}
	var f map[string]any
	if err := json.Unmarshal(body, &f); err != nil {
		p.t.Fatalf("%s: %v", body, err)
	}
	return f
}

// is reads a frame of a type.
func (p *program) is(kind string) map[string]any {
	p.t.Helper()
	f := p.read()
	if f["type"] != kind {
		p.t.Fatalf("the bridge says %v, want %s", f, kind)
	}
	return f
}
