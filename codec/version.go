package codec

import (
	"slices"
	"strconv"
	"strings"

	"github.com/toolmesh/toolmesh"
)

// Proto is the version of the wire that this package speaks; a message without
// Mesh-Proto is of version 1.
const (
	Proto    = 1
	ProtoMin = 1
)

// features are the names that Mesh-Require may hold, next to those of our headers.
var features = []string{"unary", "stream", "inbox", "replay", "credit", "cancel", "keepalive", "envelope", "drain", "idempotency", "msgpack", "zstd", "ref"}

// FeatureBatch is the feature that the lease of a node advertises if it serves batches.
const FeatureBatch = "batch"

// Features returns the features that a lease advertises.
func Features() []string { return slices.Clone(features) }

// known reports whether a name of Mesh-Require is one we act on: a feature, or
// the name of a request header that is not for later.
func known(name string) bool {
	// Only nodes that run batches get one.
	return headerName(name) != "" || strings.EqualFold(name, FeatureBatch) || slices.ContainsFunc(features, func(f string) bool { return strings.EqualFold(name, f) })
}

// checkVersion checks the version of a message and its required features.
func checkVersion(proto string, require []string) error {
	if proto != "" {
		n, err := strconv.Atoi(proto)
		if err != nil || n < 1 {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "header %s is %q: it is a number from 1 on", HeaderProto, proto)
		}
		if n > Proto || n < ProtoMin {
			return toolmesh.Errorf(toolmesh.CodeProtocolError, "protocol version %d is not spoken here: send %d to %d", n, ProtoMin, Proto).
				WithDetail("proto", []int{ProtoMin, Proto})
		}
	}
	for name := range strings.SplitSeq(strings.Join(require, ","), ",") {
		if name = strings.TrimSpace(name); name != "" && !known(name) {
			return toolmesh.Errorf(toolmesh.CodeProtocolError, "the request requires %q, which this node does not know", name).
				WithDetail("require", name).WithDetail("features", features)
		}
	}
	return nil
}
