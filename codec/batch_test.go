package codec

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// The parallel option of batches, by the vectors that clients in other languages share.
func TestParallelBatches(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../docs/protocol/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Batches []struct {
			Body     string
			Parallel bool
			Refused  toolmesh.Code
		}
	}
	if err := json.Unmarshal(data, &vectors); err != nil || len(vectors.Batches) == 0 {
		t.Fatalf("%d batches: %v", len(vectors.Batches), err)
	}
	where := subjects.Subject{Kind: subjects.KindBatch, Session: "s"}
	for _, v := range vectors.Batches {
		b, bad := ParseBatch(where, nil, []byte(v.Body))
		if (bad != nil) != (v.Refused != "") || bad != nil && bad.Code != v.Refused {
			t.Errorf("%s: %v, want %q", v.Body, bad, v.Refused)
		}
		if b.Independent != v.Parallel {
			t.Errorf("%s: parallel is read as %v", v.Body, b.Independent)
		}
	}
	members := []Member{{Tool: "i.m.f", Args: json.RawMessage("{}")}}
	for _, parallel := range []bool{true, false} {
		if b, bad := ParseBatch(where, nil, EncodeBatch("b", members, parallel)); bad != nil || b.Independent != parallel {
			t.Errorf("what is written as %v is read as %v, %v", parallel, b.Independent, bad)
		}
	}
}
