package subjects

import "strings"

// Patterns that a serving side or a reader subscribes. None of them is per call.
const (
	// AllCtl takes the cancels of callers that do not know the node.
	AllCtl = "mesh.ctl.>"
	// AllReplay is answered by routers and agents, in the queue group.
	AllReplay = "mesh.replay.>"
	// AllRegistry is answered by routers and agents, in the queue group.
	AllRegistry = "mesh.registry.>"
	// AllBatches is answered by routers and agents, in the queue group.
	AllBatches = "mesh.batch.*"
	// AllAdmin is answered by agents, in the queue group.
	AllAdmin = "mesh.admin.>"
	// AllHeartbeats is every node's heartbeat.
	AllHeartbeats = "mesh.hb.*"
	// AllChunks is what the chunk stream covers.
	AllChunks = "mesh.chunks.>"
	// ChunksTransform and LiveTransform are source and destination of the
	// chunk stream's republish.
	ChunksTransform = "mesh.chunks.>"
	LiveTransform   = "mesh.live.>"
	// AllTools is what no stream may cover.
	AllTools = "tools.>"
	// UserInfo answers any ordinary client of the broker with, among other
	// things, the server's time.
	UserInfo = "$SYS.REQ.USER.INFO"
	// UserAuth is where the broker asks for who has a key that is not in its
	// configuration (auth callout of the NATS documentation), in the queue group.
	UserAuth = "$SYS.REQ.USER.AUTH"
)

// ToolAnySession is the subscription for an index tool.
func ToolAnySession(id ToolID) (string, error) {
	token, err := encodeToolID(id)
	if err != nil {
		return "", err
	}
	return "tools.*." + token, nil
}

// NodeTools is the subscription for all directed calls of one node.
func NodeTools(node NodeID) (string, error) { return nodePattern(node, ".tools.>") }

// NodeCtls is the subscription for all control messages of one node.
func NodeCtls(node NodeID) (string, error) { return nodePattern(node, ".ctl.>") }

// NodeBatches is the subscription for the batches that other nodes pass on to one node.
func NodeBatches(node NodeID) (string, error) { return nodePattern(node, ".batch.*") }

// NodeAdmins is the subscription for the administrative requests of one node.
func NodeAdmins(node NodeID) (string, error) { return nodePattern(node, ".admin.>") }

func nodePattern(node NodeID, rest string) (string, error) {
	token, err := EncodeToken(string(node))
	if err != nil {
		return "", err
	}
	return "mesh.node." + token + rest, nil
}

// RegistryChanges is where the changes of one bucket are republished.
func RegistryChanges(bucket string) string { return "mesh.reg." + bucket + ".>" }

// InboxPrefix is the inbox prefix of a session's own credentials, without the
// final dot.
func InboxPrefix(session SessionID) (string, error) {
	token, err := EncodeToken(string(session))
	if err != nil {
		return "", err
	}
	return "_INBOX_" + token, nil
}

// Overlap reports whether some subject matches both patterns.
func Overlap(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; ; i++ {
		switch {
		case i == len(x) && i == len(y):
			return true
		case i < len(x) && x[i] == ">":
			return i < len(y)
		case i < len(y) && y[i] == ">":
			return i < len(x)
		case i == len(x) || i == len(y):
			return false
		case x[i] != y[i] && x[i] != "*" && y[i] != "*":
			return false
		}
	}
}
