package subjects

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Streams, buckets and object stores of the mesh.
const (
	StreamChunks    = "MESH_CHUNKS"
	StreamTasks     = "MESH_TASKS"
	StreamSchedules = "MESH_SCHEDULES"
	StreamAudit     = "MESH_AUDIT"
	BucketNodes     = "MESH_NODES"
	BucketTools     = "MESH_TOOLS"
	BucketSchemas   = "MESH_SCHEMAS"
	BucketIndexes   = "MESH_INDEXES"
	BucketSessions  = "MESH_SESSIONS"
	BucketIdem      = "MESH_IDEM"
	BucketLanes     = "MESH_LANES"
	BucketTaskState = "MESH_TASKSTATE"
	ObjectBundles   = "MESH_BUNDLES"
	ObjectPayloads  = "MESH_PAYLOADS"
	ObjectTasks     = "MESH_TASKVALUES"
)

// RegistryBuckets are the buckets with republished changes.
func RegistryBuckets() []string {
	return []string{BucketNodes, BucketTools, BucketSchemas, BucketIndexes, BucketSessions}
}

// KVSubject is the subject below which a bucket's keys are stored.
func KVSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// KVAll covers the stream of a bucket.
func KVAll(bucket string) string { return "$KV." + bucket + ".>" }

// KVStream is the name of a bucket's stream.
func KVStream(bucket string) string { return "KV_" + bucket }

// KVKey returns the key behind a subject of [KVSubject].
func KVKey(bucket, subject string) (string, bool) {
	return strings.CutPrefix(subject, "$KV."+bucket+".")
}

// JetStreamAPI is the prefix of JetStream's requests, with its last dot; domain
// is empty for the broker's own.
func JetStreamAPI(domain string) string {
	if domain == "" {
		return "$JS.API."
	}
	return "$JS." + domain + ".API."
}

// validKey reports whether NATS accepts a key, which must not have wildcards.
func validKey(key string) bool {
	if key == "" || key[0] == '.' || key[len(key)-1] == '.' || strings.Contains(key, "..") {
		return false
	}
	for i := 0; i < len(key); i++ {
		if c := key[i]; !tokenByte(c) && c != '.' && c != '=' && c != '/' {
			return false
		}
	}
	return true
}

// NodeKey is a node's key in MESH_NODES.
func NodeKey(node NodeID) (string, error) { return EncodeToken(string(node)) }

// SessionKey is a session's key in MESH_SESSIONS.
func SessionKey(session SessionID) (string, error) { return EncodeToken(string(session)) }

// Keys are built and read as the variable parts of subjects are.
var (
	tokenKey   = []part{session, verb}
	taskKey    = []part{session, rpc}
	indexKey   = []part{index}
	privateKey = []part{index, session}
	toolsKey   = []part{node, scope, verb, index}
	partKey    = []part{node, scope, verb, index, level}
)

// TokenKey is the key in MESH_SESSIONS of a further key of a session: no key of [SessionKey].
func TokenKey(session SessionID, id string) (string, error) {
	return (&Subject{Session: session, Verb: id}).join(nil, tokenKey)
}

// ParseTokenKey reads a key of [TokenKey].
func ParseTokenKey(key string) (SessionID, string, error) {
	var s Subject
	err := s.parse(tokenKey, key)
	return s.Session, s.Verb, err
}

// LaneKey is the key in MESH_LANES of the lanes of a session, or with an empty one of
// those of the whole mesh.
func LaneKey(session SessionID) (string, error) {
	if session == "" {
		return "m", nil
	}
	token, err := EncodeToken(string(session))
	return "s." + token, err
}

// HomeKey is the key in MESH_LANES of the node that has the worker of a session for an index:
// no key of [LaneKey]. epoch is the session's; empty for one that was not created.
func HomeKey(session SessionID, epoch string, index IndexName) (string, error) {
	key, err := tokens(string(session), string(index), cmp.Or(epoch, "-"))
	return "w." + key, err
}

// DeclaredKey is the key in MESH_LANES of the process that keeps the indexes of a file: no
// key of [LaneKey].
const DeclaredKey = "indexes"

// maxIdempotencyKey bounds a key that a caller makes, in bytes.
const maxIdempotencyKey = 512

// IdempotencyKey is a call's key in MESH_IDEM: its session, and the key that its caller
// gave it.
func IdempotencyKey(session SessionID, key string) (string, error) {
	if len(key) > maxIdempotencyKey {
		return "", fmt.Errorf("%w: it has %d bytes, at most %d are possible", ErrInvalid, len(key), maxIdempotencyKey)
	}
	return tokens(string(session), key)
}

// TaskKey is a task's key in MESH_TASKSTATE.
func TaskKey(session SessionID, id RPCID) (string, error) {
	return tokens(string(session), string(id))
}

// ParseTaskKey reads a key of [TaskKey]. Of names that travel hashed it returns the
// hashed form.
func ParseTaskKey(key string) (SessionID, RPCID, error) {
	var s Subject
	err := s.parse(taskKey, key)
	return s.Session, s.RPC, err
}

// SessionTasks are the keys of all tasks of a session in MESH_TASKSTATE.
func SessionTasks(session SessionID) (string, error) {
	of, err := EncodeToken(string(session))
	return of + ".*", err
}

// PayloadName is the name of a payload in MESH_PAYLOADS: its session and its id. A session reads
// and writes no other names.
func PayloadName(session SessionID, id PayloadID) (string, error) {
	if id == "" {
		return "", fmt.Errorf("%w: the name of a payload is empty", ErrInvalid)
	}
	of, err := EncodeToken(string(session))
	return of + "." + string(id), err
}

// ParsePayloadName reads a name of [PayloadName]; the one of its session may be hashed.
func ParsePayloadName(name string) (SessionID, PayloadID, error) {
	head, id, _ := strings.Cut(name, ".")
	session, err := DecodeToken(head)
	if err == nil && id == "" {
		err = fmt.Errorf("%w: the payload %q has no session before a dot", ErrInvalid, name)
	}
	return SessionID(session), PayloadID(id), err
}

// ObjectMetas is the prefix of the descriptions in an object store, followed by the name in
// base64url; ObjectParts that of the content, followed by the object's own id (ADR-20 of the NATS
// architecture).
func ObjectMetas(bucket string) string { return "$O." + bucket + ".M." }

// ObjectParts: see [ObjectMetas].
func ObjectParts(bucket string) string { return "$O." + bucket + ".C." }

// ObjectStream is the name of an object store's stream.
func ObjectStream(bucket string) string { return "OBJ_" + bucket }

// IndexKey is an index's key in MESH_INDEXES: its name, and behind it the
// session it is private to, if any. A listing of one name therefore shows every
// claim to it.
func IndexKey(name IndexName, session SessionID) (string, error) {
	parts := indexKey
	if session != "" {
		parts = privateKey
	}
	return (&Subject{Index: name, Session: session}).join(nil, parts)
}

// ParseIndexKey reads a key of [IndexKey].
func ParseIndexKey(key string) (IndexName, SessionID, error) {
	parts := indexKey
	if strings.Contains(key, ".") {
		parts = privateKey
	}
	var s Subject
	err := s.parse(parts, key)
	return s.Index, s.Session, err
}

// anySession means "every session" in a key of MESH_TOOLS.
const anySession = "="

// scope is the session of such a key, empty for every one.
var scope = part{
	field: fieldSession,
	encode: func(name string) (string, error) {
		if name == "" {
			return anySession, nil
		}
		return EncodeToken(name)
	},
	decode: func(token string) (string, error) {
		if token == anySession {
			return "", nil
		}
		return DecodeToken(token)
	},
}

// ToolsKey is a key of MESH_TOOLS: the tools that one node serves of one index (Index set), or one
// tool of a session (Tool set). An empty Session means all sessions; only an index can serve those.
type ToolsKey struct {
	Node    NodeID
	Session SessionID
	Index   IndexName
	Tool    ToolID
	// Part numbers the records of an index that needs more than one. The first is 0, which is left
	// out: an index of few tools has that key alone.
	Part int
}

// maxPart bounds the number of a part.
const maxPart = 999_999

// Build returns the key's text.
func (k ToolsKey) Build() (string, error) {
	s := Subject{Node: k.Node, Session: k.Session, Verb: "i", Index: k.Index, Level: strconv.Itoa(k.Part)}
	parts := toolsKey
	switch {
	case (k.Index == "") == (k.Tool == "") || k.Tool != "" && k.Session == "":
		return "", fmt.Errorf("%w: a key of %s names an index, or a tool and its session", ErrInvalid, BucketTools)
	case k.Part < 0 || k.Part > maxPart || k.Part > 0 && k.Index == "":
		return "", fmt.Errorf("%w: part %d of a key of %s: an index has parts 0 to %d, a tool has none", ErrInvalid, k.Part, BucketTools, maxPart)
	case k.Tool != "":
		s.Verb, s.Index = "t", IndexName(k.Tool)
	case k.Part > 0:
		parts = partKey
	}
	return s.join(nil, parts)
}

// ParseToolsKey reads a key of [ToolsKey.Build].
func ParseToolsKey(key string) (ToolsKey, error) {
	parts := toolsKey
	if strings.Count(key, ".") == len(toolsKey) {
		parts = partKey
	}
	var s Subject
	err := s.parse(parts, key)
	k := ToolsKey{Node: s.Node, Session: s.Session, Index: s.Index}
	if s.Verb == "t" {
		k.Index, k.Tool = "", ToolID(s.Index)
	}
	k.Part, _ = strconv.Atoi(s.Level) // no number: the key that is built is another
	if again, bad := k.Build(); err != nil || bad != nil || again != key {
		return ToolsKey{}, fmt.Errorf("%w: key %q of %s", ErrInvalid, key, BucketTools)
	}
	return k, nil
}
