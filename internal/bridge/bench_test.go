package bridge_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"github.com/toolmesh/toolmesh/internal/bridge"
)

// BenchmarkServed is calls of a program's tool by 64 callers; the program answers each
// at once.
func BenchmarkServed(b *testing.B) {
	m := newMesh(b)
	p := m.start(b, bridge.Options{})
	p.is("ready")
	p.offer(`[{"name":"f"}]`)
	go func() {
		var head [4]byte
		var out []byte
		for {
			if _, err := io.ReadFull(p.from, head[:]); err != nil {
				return
			}
			body := make([]byte, binary.BigEndian.Uint32(head[:]))
			if _, err := io.ReadFull(p.from, body); err != nil {
				return
			}
			const before = len(`{"type":"rpc_tool_call","rpc_id":"`)
			id := body[before : before+36]
			answer := fmt.Appendf(nil, `{"type":"rpc_tool_response","rpc_id":"%s","status":"ok","result":{"ok":true}}`, id)
			out = append(binary.BigEndian.AppendUint32(out[:0], uint32(len(answer))), answer...)
			if _, err := p.to.Write(out); err != nil {
				return
			}
		}
	}()
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if got := <-m.call(b, "f", `{"a":1}`); got.err != nil {
				b.Error(got.err)
				return
			}
		}
	})
}
