package subjects

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"time"
)

// NewRPCID returns a new rpc id: prefix and 32 hex digits, a UUID of version 7.
// It makes one for each call, so it takes its 74 random bits from the process's
// own generator, which the system has seeded, and asks the system for nothing.
func NewRPCID(prefix string) RPCID {
	const (
		version = 0x7000
		variant = 1 << 63
	)
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], uint64(time.Now().UnixMilli())<<16|version|rand.Uint64()&0xfff) //nolint:gosec // after 1970
	binary.BigEndian.PutUint64(id[8:], variant|rand.Uint64()>>2)
	var room [64]byte
	return RPCID(hex.AppendEncode(append(room[:0], prefix...), id[:]))
}
