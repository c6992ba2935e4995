package subjects_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/subjects"
)

func TestNewRPCID(t *testing.T) {
	t.Parallel()
	seen := make(map[subjects.RPCID]bool)
	before := time.Now().UnixMilli()
	for range 1000 {
		id := subjects.NewRPCID("rpc_stream_")
		text, ok := strings.CutPrefix(string(id), "rpc_stream_")
		raw, err := hex.DecodeString(text)
		if !ok || err != nil || len(raw) != 16 || text != strings.ToLower(text) {
			t.Fatalf("id %q, want the prefix and 32 lower hex digits", id)
		}
		if raw[6]>>4 != 7 || raw[8]>>6 != 2 {
			t.Fatalf("id %q is no UUID of version 7", id)
		}
		var made int64
		for _, b := range raw[:6] {
			made = made<<8 | int64(b)
		}
		if made < before || made > time.Now().UnixMilli() {
			t.Fatalf("id %q was made at %d, want between %d and now", id, made, before)
		}
		if seen[id] {
			t.Fatalf("id %q came twice", id)
		}
		seen[id] = true
		if token, err := subjects.EncodeToken(string(id)); err != nil || token != string(id) {
			t.Fatalf("id %q is not its own token", id)
		}
	}
}
