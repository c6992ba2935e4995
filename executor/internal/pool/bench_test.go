package pool_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/toolmesh/toolmesh/executor/internal/frame"
	"github.com/toolmesh/toolmesh/executor/internal/pool"
)

// instant is a process that has answered a call when it was sent.
type instant struct{ *process }

func (p instant) Write(data []byte) {
	h := frame.Parse(data)
	p.send(frame.Header{Type: map[frame.Type]frame.Type{frame.Call: frame.Result}[h.Type], ID: h.ID}, []byte("1"))
	if h.Type == frame.Exit {
		p.Kill()
	}
}

// BenchmarkCall is what the pool takes of a call that its worker answers at once.
func BenchmarkCall(b *testing.B) {
	ps := &processes{}
	p := pool.New(config(nil), func(ctx context.Context) (pool.Process, error) {
		one, err := ps.spawn(ctx)
		return instant{one.(*process)}, err
	})
	defer p.Close()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := p.Call(ctx, pool.Call{Tool: "t.tool", Args: json.RawMessage(`{"city":"Oslo","days":3}`)}); err != nil {
			b.Fatal(err)
		}
	}
}
