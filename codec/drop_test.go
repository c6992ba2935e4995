package codec

import (
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/subjects"
)

// A request that waits keeps its name and its key, and nothing else of its header block.
func TestDroppedRequestsHoldNoHeaders(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	kept := make([]*Request, 1000)
	for n := range kept {
		block := strings.Repeat("x", 30<<10) + strconv.Itoa(n)
		r, err := ReadRequest(subjects.Subject{Kind: subjects.KindTool, Session: "s", Tool: "a.b"},
			Header{HeaderRPCID: {block[30<<10:]}, HeaderIdempotencyKey: {block[30<<10:]}, HeaderParent: {block[30<<10:]}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Drop()
		kept[n] = r
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("%d requests hold %d MB", len(kept), grown>>20)
	}
	runtime.KeepAlive(kept)
}
