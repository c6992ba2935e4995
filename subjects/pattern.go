package subjects

import "strings"

// Patterns that a serving side or a reader subscribes. None of them is per call.
const (
	// Requests that routers and agents answer, in the queue group; AllPayloads all nodes, AllAdmin
	// agents.
	AllReplay    = "mesh.replay.>"
	AllRegistry  = "mesh.registry.>"
	AllBatches   = "mesh.batch.*"
	AllTaskVerbs = "mesh.task.*.*"
	AllPayloads  = "mesh.payload.>"
	AllAdmin     = "mesh.admin.>"

	AllCtl        = "mesh.ctl.>"                             // cancels of callers that do not know the node
	AllHeartbeats = "mesh.hb.*"                              // of every node
	AllCallEvents = "mesh.evt." + EventCall + ".*"           // for an audit
	AllTasks      = "mesh.tasks.*.*.*.*"                     // the stream of tasks
	AllSchedules  = "mesh.schedules.*.*.*"                   // that of schedules
	AllDue        = "mesh.schedules." + ScheduleDue + ".*.*" // the schedules that are due
	AllChunks     = "mesh.chunks.>"                          // the stream of chunks
	// ChunksTransform and LiveTransform are source and destination of the
	// chunk stream's republish.
	ChunksTransform = "mesh.chunks.>"
	LiveTransform   = "mesh.live.>"
	// AllTools must not be covered by any stream.
	AllTools = "tools.>"
	// UserInfo answers any ordinary client of the broker with, among other
	// things, the server's time.
	UserInfo = "$SYS.REQ.USER.INFO"
	// UserAuth is where the broker asks for the user of a key that is not in its
	// configuration (auth callout of the NATS documentation), in the queue group.
	UserAuth = "$SYS.REQ.USER.AUTH"
)

// EventCall is the kind of the event that a call ended on a node.
const EventCall = "call"

// CallEvents are the events of the calls of a session; of all sessions for an empty one.
func CallEvents(session SessionID) (string, error) {
	if session == "" {
		return AllCallEvents, nil
	}
	return Subject{Kind: KindEvent, Verb: EventCall, Session: session}.Build()
}

// TaskLane is the filter of a consumer of tasks of one priority and level.
func TaskLane(priority, level string) string { return "mesh.tasks." + priority + "." + level + ".*.*" }

// QueuedTasks are the tasks of a session, and of a priority, that are queued or run; of all
// sessions for an empty one.
func QueuedTasks(priority string, session SessionID) (string, error) {
	if session == "" {
		return "mesh.tasks." + priority + ".*.*.*", nil
	}
	token, err := EncodeToken(string(session))
	return "mesh.tasks." + priority + ".*." + token + ".*", err
}

// QueuedTask is one task in any lane.
func QueuedTask(session SessionID, id RPCID) (string, error) {
	key, err := TaskKey(session, id)
	return "mesh.tasks.*.*." + key, err
}

// ToolAnySession is the subscription for an index tool.
func ToolAnySession(id ToolID) (string, error) {
	token, err := encodeToolID(id)
	return "tools.*." + token, err
}

// SessionChunks are the subjects of all streams of a session.
func SessionChunks(session SessionID) (string, error) {
	token, err := EncodeToken(string(session))
	return "mesh.chunks." + token + ".>", err
}

// IndexTools is the subscription for all tools of an index: of one session, or where that
// is empty of every one.
func IndexTools(session SessionID, name IndexName) (string, error) {
	if session == "" {
		token, err := EncodeToken(string(name))
		return "tools.*." + token + ".>", err
	}
	both, err := tokens(string(session), string(name))
	return "tools." + both + ".>", err
}

// NodeTools is the subscription for all directed calls of one node.
func NodeTools(node NodeID) (string, error) { return nodePattern(node, ".tools.>") }

// NodeCtls is the subscription for all control messages of one node.
func NodeCtls(node NodeID) (string, error) { return nodePattern(node, ".ctl.>") }

// NodeBatches is the subscription for the batches that other nodes pass on to one node.
func NodeBatches(node NodeID) (string, error) { return nodePattern(node, ".batch.*") }

// NodeLanes is the subscription for requests about the lanes that one node owns.
func NodeLanes(node NodeID) (string, error) { return nodePattern(node, ".lane.*") }

// NodePayloads is the subscription for the payloads that one node takes.
func NodePayloads(node NodeID) (string, error) { return nodePattern(node, ".payload.>") }

// NodeAdmins is the subscription for the administrative requests of one node.
func NodeAdmins(node NodeID) (string, error) { return nodePattern(node, ".admin.>") }

func nodePattern(node NodeID, rest string) (string, error) {
	token, err := EncodeToken(string(node))
	return "mesh.node." + token + rest, err
}

// RegistryChanges is where the changes of one bucket are republished.
func RegistryChanges(bucket string) string { return "mesh.reg." + bucket + ".>" }

// RegistryChange is where the changes of one key of a bucket are republished.
func RegistryChange(bucket, key string) string { return "mesh.reg." + bucket + "." + key }

// ScheduleOf is the schedule of one task, and the tasks that it has made.
func ScheduleOf(session SessionID, id RPCID) (string, error) {
	key, err := TaskKey(session, id)
	return "mesh.schedules.*." + key, err
}

// InboxPrefix is the inbox prefix of a session's own credentials, without the
// final dot.
func InboxPrefix(session SessionID) (string, error) {
	token, err := EncodeToken(string(session))
	return "_INBOX_" + token, err
}

// keyMark begins the token in an inbox that names the key of its connection.
const keyMark = "k-"

// KeyedInbox is an inbox prefix below another, without the final dot, which names the digest of the
// connection's public key. A connection that may subscribe the other prefix may use this one.
func KeyedInbox(prefix, digest string) string { return prefix + "." + keyMark + digest }

// InboxKey is the digest that a reply subject below a [KeyedInbox] names; empty for others.
func InboxKey(reply string) string {
	if !strings.HasPrefix(reply, "_INBOX_") {
		return ""
	}
	_, rest, _ := strings.Cut(reply, ".")
	name, _, _ := strings.Cut(rest, ".")
	digest, ok := strings.CutPrefix(name, keyMark)
	if !ok || len(digest) > maxToken {
		return ""
	}
	return digest
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
