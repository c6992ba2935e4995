package subjects

import (
	"fmt"
	"strings"
)

// QueueGroup is the one queue group of the mesh. Two different groups would run
// a call twice.
const QueueGroup = "mesh"

// Kind is the purpose of a [Subject].
type Kind uint8

// The kinds of subject of docs/protocol, section 2.
const (
	KindNone           Kind = iota
	KindTool                // tools.<session>.<id>
	KindNodeTool            // mesh.node.<node>.tools.<session>.<id>
	KindNodeCtl             // mesh.node.<node>.ctl.<session>.<rpc_id>
	KindCtl                 // mesh.ctl.<session>.<rpc_id>
	KindChunks              // mesh.chunks.<session>.<rpc_id>
	KindLive                // mesh.live.<session>.<rpc_id>
	KindReplay              // mesh.replay.<session>.<rpc_id>
	KindRegistry            // mesh.registry.<session>.<verb>
	KindBatch               // mesh.batch.<session>
	KindNodeBatch           // mesh.node.<node>.batch.<session>
	KindPayload             // mesh.payload.<session>.<payload>
	KindNodePayload         // mesh.node.<node>.payload.<session>.<payload>
	KindTaskVerb            // mesh.task.<session>.<verb>
	KindTask                // mesh.tasks.<priority>.<level>.<session>.<rpc_id>
	KindSchedule            // mesh.schedules.<at or due>.<session>.<rpc_id>
	KindJob                 // mesh.jobs.<index>
	KindLane                // mesh.node.<node>.lane.<session>
	KindAdmin               // mesh.admin.<verb>
	KindNodeAdmin           // mesh.node.<node>.admin.<verb>
	KindHeartbeat           // mesh.hb.<node>
	KindEvent               // mesh.evt.<kind>.<session>
	KindRegistryChange      // mesh.reg.<bucket>.<key>
)

// Subject is one parsed subject. Kind decides which fields are set; Verb is also the kind of an
// event, the priority of a queued task, and the purpose of a schedule's subject. For every valid
// Subject s, Parse(s.Build()) is s, apart from names that travel hashed.
type Subject struct {
	Kind    Kind
	Session SessionID
	Tool    ToolID
	Node    NodeID
	RPC     RPCID
	Payload PayloadID
	Index   IndexName
	Verb    string
	Level   string
	Bucket  string
	Key     string
}

// part is one variable part of a subject: its field, and how the field's value becomes a token and
// is read back.
type part struct {
	field  field
	encode func(value string) (token string, err error)
	decode func(token string) (value string, err error)
	rest   bool // it takes all that is left of the subject
}

// field numbers a variable field of a [Subject]. A function that returned a pointer to the field
// would allocate on each call.
type field uint8

const (
	fieldSession field = iota
	fieldNode
	fieldRPC
	fieldTool
	fieldIndex
	fieldVerb
	fieldLevel
	fieldBucket
	fieldKey
	fieldPayload
)

func (s *Subject) at(f field) *string {
	return [...]*string{
		(*string)(&s.Session), (*string)(&s.Node), (*string)(&s.RPC), (*string)(&s.Tool), (*string)(&s.Index),
		&s.Verb, &s.Level, &s.Bucket, &s.Key, (*string)(&s.Payload),
	}[f]
}

// literal makes a part that travels unchanged, if valid accepts it.
func literal(what string, valid func(token string) bool) func(token string) (string, error) {
	return func(token string) (string, error) {
		if !valid(token) {
			return "", fmt.Errorf("%w: %s %q", ErrInvalid, what, token)
		}
		return token, nil
	}
}

var (
	session = part{fieldSession, EncodeToken, DecodeToken, false}
	node    = part{fieldNode, EncodeToken, DecodeToken, false}
	rpc     = part{fieldRPC, EncodeToken, DecodeToken, false}
	tool    = part{fieldTool, encodeToolID[string], decodeToolID, true}
	index   = part{fieldIndex, encodeIndex[string], decodeIndex, false}
	verb    = part{fieldVerb, literal("verb", plainToken), literal("verb", plainToken), false}
	level   = part{fieldLevel, literal("level", plainToken), literal("level", plainToken), false}
	bucket  = part{fieldBucket, literal("bucket", plainToken), literal("bucket", plainToken), false}
	payload = part{fieldPayload, EncodeToken, DecodeToken, false}
	key     = part{fieldKey, literal("key", validKey), literal("key", validKey), true}
)

// form is the shape of one kind: a literal head, and the variable parts behind it.
// In a subject of one node, the node is in the middle of the head, and mid follows it.
type form struct {
	head  string // literal tokens at the beginning, with the dot
	mid   string // literal token behind the node, with its dots; "" for none
	parts []part
}

var forms = [...]form{
	KindTool:           {head: "tools.", parts: []part{session, tool}},
	KindNodeTool:       {"mesh.node.", ".tools.", []part{session, tool}},
	KindNodeCtl:        {"mesh.node.", ".ctl.", []part{session, rpc}},
	KindNodeBatch:      {"mesh.node.", ".batch.", []part{session}},
	KindNodePayload:    {"mesh.node.", ".payload.", []part{session, payload}},
	KindLane:           {"mesh.node.", ".lane.", []part{session}},
	KindNodeAdmin:      {"mesh.node.", ".admin.", []part{verb}},
	KindCtl:            {head: "mesh.ctl.", parts: []part{session, rpc}},
	KindChunks:         {head: "mesh.chunks.", parts: []part{session, rpc}},
	KindLive:           {head: "mesh.live.", parts: []part{session, rpc}},
	KindReplay:         {head: "mesh.replay.", parts: []part{session, rpc}},
	KindRegistry:       {head: "mesh.registry.", parts: []part{session, verb}},
	KindPayload:        {head: "mesh.payload.", parts: []part{session, payload}},
	KindBatch:          {head: "mesh.batch.", parts: []part{session}},
	KindTaskVerb:       {head: "mesh.task.", parts: []part{session, verb}},
	KindTask:           {head: "mesh.tasks.", parts: []part{verb, level, session, rpc}},
	KindSchedule:       {head: "mesh.schedules.", parts: []part{verb, session, rpc}},
	KindJob:            {head: "mesh.jobs.", parts: []part{index}},
	KindAdmin:          {head: "mesh.admin.", parts: []part{verb}},
	KindHeartbeat:      {head: "mesh.hb.", parts: []part{node}},
	KindEvent:          {head: "mesh.evt.", parts: []part{verb, session}},
	KindRegistryChange: {head: "mesh.reg.", parts: []part{bucket, key}},
}

// Build returns the subject's text. It refuses names that cannot travel, and an unknown Kind.
func (s Subject) Build() (string, error) {
	if s.Kind == KindNone || int(s.Kind) >= len(forms) {
		return "", fmt.Errorf("%w: a subject needs a kind", ErrInvalid)
	}
	f := &forms[s.Kind]
	b := append(make([]byte, 0, 96), f.head...)
	if f.mid != "" {
		token, err := EncodeToken(string(s.Node))
		if err != nil {
			return "", err
		}
		b = append(append(b, token...), f.mid...)
	}
	return s.join(b, f.parts)
}

// join appends the tokens of some parts, with dots between them.
func (s *Subject) join(b []byte, parts []part) (string, error) {
	for i, p := range parts {
		token, err := p.encode(*s.at(p.field))
		if err != nil {
			return "", err
		}
		if i > 0 {
			b = append(b, '.')
		}
		b = append(b, token...)
	}
	return string(b), nil
}

// Parse reads any subject of the mesh. It refuses wildcards, empty tokens, tokens that are not the
// canonical form of their name, and foreign subjects.
func Parse(subject string) (Subject, error) {
	for kind := range forms {
		f := &forms[kind]
		rest, ok := strings.CutPrefix(subject, f.head)
		if !ok || f.head == "" {
			continue
		}
		s := Subject{Kind: Kind(kind)} //nolint:gosec // there are 21
		if f.mid != "" {
			name, after, _ := strings.Cut(rest, ".")
			if rest, ok = strings.CutPrefix(after, f.mid[1:]); !ok {
				continue
			}
			id, err := DecodeToken(name)
			if s.Node = NodeID(id); err != nil {
				return Subject{}, fmt.Errorf("subject %q: %w", subject, err)
			}
		}
		if err := s.parse(f.parts, rest); err != nil {
			return Subject{}, fmt.Errorf("subject %q: %w", subject, err)
		}
		return s, nil
	}
	return Subject{}, fmt.Errorf("%w: %q is not a subject of the mesh", ErrInvalid, subject)
}

func (s *Subject) parse(parts []part, rest string) error {
	more := true
	for _, p := range parts {
		if !more {
			return fmt.Errorf("%w: too few tokens", ErrInvalid)
		}
		var token string
		if p.rest {
			token, more = rest, false
		} else {
			token, rest, more = strings.Cut(rest, ".")
		}
		value, err := p.decode(token)
		if err != nil {
			return err
		}
		*s.at(p.field) = value
	}
	if more {
		return fmt.Errorf("%w: too many tokens", ErrInvalid)
	}
	return nil
}

// Tool is the subject of a call through the queue group.
func Tool(session SessionID, id ToolID) (string, error) {
	return Subject{Kind: KindTool, Session: session, Tool: id}.Build()
}

// NodeTool is the subject of a call to one node.
func NodeTool(node NodeID, session SessionID, id ToolID) (string, error) {
	return Subject{Kind: KindNodeTool, Node: node, Session: session, Tool: id}.Build()
}

// NodeCtl is where one node takes cancels, credit and answers for a call.
func NodeCtl(node NodeID, session SessionID, id RPCID) (string, error) {
	return Subject{Kind: KindNodeCtl, Node: node, Session: session, RPC: id}.Build()
}

// Ctl is where every node takes a cancel from a caller that does not know the node.
func Ctl(session SessionID, id RPCID) (string, error) {
	return Subject{Kind: KindCtl, Session: session, RPC: id}.Build()
}

// Chunks is where a node stores the chunks of a call.
func Chunks(session SessionID, id RPCID) (string, error) {
	return Subject{Kind: KindChunks, Session: session, RPC: id}.Build()
}

// Live is where stored chunks are republished.
func Live(session SessionID, id RPCID) (string, error) {
	return Subject{Kind: KindLive, Session: session, RPC: id}.Build()
}

// Registry is a request to the registry: list, describe, resolve, candidates.
func Registry(session SessionID, verb string) (string, error) {
	return Subject{Kind: KindRegistry, Session: session, Verb: verb}.Build()
}

// NodeBatch is a batch of calls, to one node.
func NodeBatch(node NodeID, session SessionID) (string, error) {
	return Subject{Kind: KindNodeBatch, Node: node, Session: session}.Build()
}

// TaskVerb is a request about the durable tasks of a session: submit, show, ls, wait,
// cancel, retry.
func TaskVerb(session SessionID, verb string) (string, error) {
	return Subject{Kind: KindTaskVerb, Session: session, Verb: verb}.Build()
}

// The uses of subjects of [Schedule]: the schedule itself, and the task that it makes at its time.
const (
	ScheduleAt  = "at"
	ScheduleDue = "due"
)

// Schedule is where the schedule of a task is stored, or is due.
func Schedule(what string, session SessionID, id RPCID) (string, error) {
	return Subject{Kind: KindSchedule, Verb: what, Session: session, RPC: id}.Build()
}

// Heartbeat is where a node says each second that it lives.
func Heartbeat(node NodeID) (string, error) { return Subject{Kind: KindHeartbeat, Node: node}.Build() }
