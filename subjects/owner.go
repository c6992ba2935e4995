package subjects

import (
	"bytes"
	"crypto/sha256"
	"strings"
)

// Owner returns which of some nodes has something to itself, by rendezvous hashing: all
// that know the same nodes name the same one, in whatever order they know them, and a
// node that comes or goes changes only what is its own. It returns "" of no nodes.
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
