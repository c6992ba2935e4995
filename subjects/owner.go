package subjects

import (
	"bytes"
	"crypto/sha256"
	"strings"
)

// Owner returns the one of some nodes that owns something, by rendezvous hashing: all that know the
// same nodes return the same one, in any order, and a node that joins or leaves changes only its
// own. It returns "" of no nodes.
func Owner(nodes []NodeID, of ...string) (owner NodeID) {
	key := "\x00" + strings.Join(of, "\x00")
	var best [sha256.Size]byte
	for _, id := range nodes {
		score := sha256.Sum256([]byte(string(id) + key))
		if owner == "" || bytes.Compare(score[:], best[:]) > 0 {
			owner, best = id, score
		}
	}
	return owner
}
