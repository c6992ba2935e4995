package subjects

import (
	"fmt"
	"strings"
)

// QueueGroup is the one queue group of the mesh. Two different groups would run
// a call twice.
const QueueGroup = "mesh"

// Kind says what a [Subject] is for.
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
	KindTask                // mesh.tasks.<session>.<rpc_id>
	KindJob                 // mesh.jobs.<index>
	KindLane                // mesh.node.<node>.lane.<session>
	KindAdmin               // mesh.admin.<verb>
	KindNodeAdmin           // mesh.node.<node>.admin.<verb>
	KindHeartbeat           // mesh.hb.<node>
	KindEvent               // mesh.evt.<kind>.<session>
	KindRegistryChange      // mesh.reg.<bucket>.<key>
)

// Subject is one parsed subject. Which fields are set depends on Kind; Verb is
// also the kind of an event. For every valid Subject s, Parse(s.Build()) is s,
// apart from names that travel hashed.
type Subject struct {
	Kind    Kind
	Session SessionID
	Tool    ToolID
	Node    NodeID
	RPC     RPCID
	Index   IndexName
	Verb    string
	Bucket  string
	Key     string
}

// part is one variable part of a subject.
type part uint8

const (
	session part = iota
	node
	rpc
	index
	verb
	tool // the rest of the subject
	bucket
	key // the rest of the subject, as it is
)

// form is the shape of one kind: literals and variable parts between them.
type form struct {
	head  string // literal tokens at the beginning, with the dot
	first []part
	mid   string // literal token between the two groups, "" for none
	rest  []part
}

var forms = [...]form{
	KindTool:           {"tools.", []part{session, tool}, "", nil},
	KindNodeTool:       {"mesh.node.", []part{node}, "tools", []part{session, tool}},
	KindNodeCtl:        {"mesh.node.", []part{node}, "ctl", []part{session, rpc}},
	KindLane:           {"mesh.node.", []part{node}, "lane", []part{session}},
	KindNodeAdmin:      {"mesh.node.", []part{node}, "admin", []part{verb}},
	KindCtl:            {"mesh.ctl.", []part{session, rpc}, "", nil},
	KindChunks:         {"mesh.chunks.", []part{session, rpc}, "", nil},
	KindLive:           {"mesh.live.", []part{session, rpc}, "", nil},
	KindReplay:         {"mesh.replay.", []part{session, rpc}, "", nil},
	KindRegistry:       {"mesh.registry.", []part{session, verb}, "", nil},
	KindBatch:          {"mesh.batch.", []part{session}, "", nil},
	KindTask:           {"mesh.tasks.", []part{session, rpc}, "", nil},
	KindJob:            {"mesh.jobs.", []part{index}, "", nil},
	KindAdmin:          {"mesh.admin.", []part{verb}, "", nil},
	KindHeartbeat:      {"mesh.hb.", []part{node}, "", nil},
	KindEvent:          {"mesh.evt.", []part{verb, session}, "", nil},
	KindRegistryChange: {"mesh.reg.", []part{bucket, key}, "", nil},
}

// Build returns the subject's text. It refuses names that cannot travel, and a
// Kind that is none.
func (s Subject) Build() (string, error) {
	if s.Kind == KindNone || int(s.Kind) >= len(forms) {
		return "", fmt.Errorf("%w: a subject needs a kind", ErrInvalid)
	}
	f := &forms[s.Kind]
	b := make([]byte, 0, 96)
	b = append(b, f.head...)
	b, err := s.appendParts(b, f.first)
	if err != nil {
		return "", err
	}
	if f.mid != "" {
		b = append(b, '.')
		b = append(b, f.mid...)
		b = append(b, '.')
		if b, err = s.appendParts(b, f.rest); err != nil {
			return "", err
		}
	}
	return string(b), nil
}

func (s *Subject) appendParts(b []byte, parts []part) ([]byte, error) {
	for i, p := range parts {
		if i > 0 {
			b = append(b, '.')
		}
		var token string
		var err error
		switch p {
		case session:
			token, err = EncodeToken(string(s.Session))
		case node:
			token, err = EncodeToken(string(s.Node))
		case rpc:
			token, err = EncodeToken(string(s.RPC))
		case index:
			token, err = encodeIndex(s.Index)
		case verb:
			if token = s.Verb; !plainToken(token) {
				err = fmt.Errorf("%w: verb %q", ErrInvalid, token)
			}
		case tool:
			token, err = encodeToolID(s.Tool)
		case bucket:
			if token = s.Bucket; !plainToken(token) {
				err = fmt.Errorf("%w: bucket %q", ErrInvalid, token)
			}
		case key:
			if token = s.Key; !validKey(token) {
				err = fmt.Errorf("%w: key %q", ErrInvalid, token)
			}
		}
		if err != nil {
			return nil, err
		}
		b = append(b, token...)
	}
	return b, nil
}

// Parse reads any subject of the mesh. It refuses wildcards, empty tokens,
// tokens that are not the one right form of their name, and what is not ours.
func Parse(subject string) (Subject, error) {
	var s Subject
	if rest, ok := strings.CutPrefix(subject, "tools."); ok {
		s.Kind = KindTool
		return s.parsed(subject, rest)
	}
	rest, ok := strings.CutPrefix(subject, "mesh.")
	if !ok {
		return Subject{}, fmt.Errorf("%w: %q is not a subject of the mesh", ErrInvalid, subject)
	}
	head, rest, _ := strings.Cut(rest, ".")
	switch head {
	case "node":
		name, after, _ := strings.Cut(rest, ".")
		mid, _, _ := strings.Cut(after, ".")
		switch mid {
		case "tools":
			s.Kind = KindNodeTool
		case "ctl":
			s.Kind = KindNodeCtl
		case "lane":
			s.Kind = KindLane
		case "admin":
			s.Kind = KindNodeAdmin
		default:
			return Subject{}, fmt.Errorf("%w: %q is not a subject of node %q", ErrInvalid, subject, name)
		}
	case "ctl":
		s.Kind = KindCtl
	case "chunks":
		s.Kind = KindChunks
	case "live":
		s.Kind = KindLive
	case "replay":
		s.Kind = KindReplay
	case "registry":
		s.Kind = KindRegistry
	case "batch":
		s.Kind = KindBatch
	case "tasks":
		s.Kind = KindTask
	case "jobs":
		s.Kind = KindJob
	case "admin":
		s.Kind = KindAdmin
	case "hb":
		s.Kind = KindHeartbeat
	case "evt":
		s.Kind = KindEvent
	case "reg":
		s.Kind = KindRegistryChange
	default:
		return Subject{}, fmt.Errorf("%w: %q is not a subject of the mesh", ErrInvalid, subject)
	}
	return s.parsed(subject, rest)
}

// parsed reads the rest of a subject whose kind is known.
func (s Subject) parsed(subject, rest string) (Subject, error) {
	if err := s.parseGroups(&forms[s.Kind], rest); err != nil {
		return Subject{}, fmt.Errorf("subject %q: %w", subject, err)
	}
	return s, nil
}

func (s *Subject) parseGroups(f *form, rest string) error {
	rest, more, err := s.parseParts(f.first, rest)
	if err != nil {
		return err
	}
	if f.mid == "" {
		if more {
			return fmt.Errorf("%w: too many tokens", ErrInvalid)
		}
		return nil
	}
	_, rest, ok := strings.Cut(rest, ".")
	if !more || !ok {
		return fmt.Errorf("%w: too few tokens", ErrInvalid)
	}
	if _, more, err = s.parseParts(f.rest, rest); err != nil {
		return err
	}
	if more {
		return fmt.Errorf("%w: too many tokens", ErrInvalid)
	}
	return nil
}

func (s *Subject) parseParts(parts []part, rest string) (after string, more bool, err error) {
	more = true
	for _, p := range parts {
		if !more {
			return "", false, fmt.Errorf("%w: too few tokens", ErrInvalid)
		}
		var token string
		if p == tool || p == key {
			token, rest, more = rest, "", false
		} else {
			token, rest, more = strings.Cut(rest, ".")
		}
		var name string
		switch p {
		case session:
			name, err = DecodeToken(token)
			s.Session = SessionID(name)
		case node:
			name, err = DecodeToken(token)
			s.Node = NodeID(name)
		case rpc:
			name, err = DecodeToken(token)
			s.RPC = RPCID(name)
		case index:
			s.Index, err = decodeIndex(token)
		case verb:
			if s.Verb = token; !plainToken(token) {
				err = fmt.Errorf("%w: verb %q", ErrInvalid, token)
			}
		case bucket:
			if s.Bucket = token; !plainToken(token) {
				err = fmt.Errorf("%w: bucket %q", ErrInvalid, token)
			}
		case tool:
			s.Tool, err = decodeToolID(token)
		case key:
			if s.Key = token; !validKey(token) {
				err = fmt.Errorf("%w: key %q", ErrInvalid, token)
			}
		}
		if err != nil {
			return "", false, err
		}
	}
	return rest, more, nil
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

// Replay is where stored chunks are asked for again.
func Replay(session SessionID, id RPCID) (string, error) {
	return Subject{Kind: KindReplay, Session: session, RPC: id}.Build()
}

// Registry is a request to the registry: list, describe, resolve, candidates.
func Registry(session SessionID, verb string) (string, error) {
	return Subject{Kind: KindRegistry, Session: session, Verb: verb}.Build()
}

// Admin is an administrative request to any one node: install, uninstall.
func Admin(verb string) (string, error) { return Subject{Kind: KindAdmin, Verb: verb}.Build() }

// NodeAdmin is an administrative request to one node: drain, label.
func NodeAdmin(node NodeID, verb string) (string, error) {
	return Subject{Kind: KindNodeAdmin, Node: node, Verb: verb}.Build()
}

// Heartbeat is where a node says each second that it lives.
func Heartbeat(node NodeID) (string, error) {
	return Subject{Kind: KindHeartbeat, Node: node}.Build()
}
