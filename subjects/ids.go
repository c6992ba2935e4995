package subjects

import (
	"fmt"
	"strconv"
	"strings"
)

// Ids of the mesh. They are string types, so constants need no constructor; the
// builders validate them.
type (
	// SessionID names a namespace of tools; any non-empty UTF-8 text.
	SessionID string
	// ToolID names a tool: names joined by dots. An index tool has at least two
	// (<index>.<module>.<function>), a session's own tool exactly one.
	ToolID string
	// NodeID names a process that serves tools.
	NodeID string
	// BootID names one start of a node.
	BootID string
	// RPCID names one call.
	RPCID string
	// PayloadID names a payload in its session; any non-empty UTF-8 text.
	PayloadID string
	// IndexName names an index; the first name of its tools' ids.
	IndexName string
)

// DefaultSession is the session of callers that name none.
const DefaultSession SessionID = "default"

// Account returns the account of a session in common stores: its own name, or the empty one for all
// sessions that were not created, which have an empty epoch: their names cost nothing.
func Account(session SessionID, epoch string) SessionID {
	if epoch == "" && session != DefaultSession {
		return ""
	}
	return session
}

// Index returns the index of an index tool, and false for a session's own tool.
func (id ToolID) Index() (IndexName, bool) {
	index, _, ok := strings.Cut(string(id), ".")
	return IndexName(index), ok
}

// Local returns the id without its index: the tool's name within the index.
func (id ToolID) Local() string {
	_, local, ok := strings.Cut(string(id), ".")
	if !ok {
		return string(id)
	}
	return local
}

// SameTool reports whether two ids are one tool on the wire: equal, or one of
// them holds the hashed form of the other's names.
func SameTool(a, b ToolID) bool {
	if a == b {
		return true
	}
	x, errX := encodeToolID(a)
	y, errY := encodeToolID(b)
	return errX == nil && errY == nil && x == y
}

// SameName is [SameTool] for single names: sessions, nodes, rpc ids.
func SameName[T ~string](a, b T) bool {
	if a == b {
		return true
	}
	x, errX := EncodeToken(string(a))
	y, errY := EncodeToken(string(b))
	return errX == nil && errY == nil && x == y
}

// Validate reports whether the id can be a subject.
func (id ToolID) Validate() error { _, err := encodeToolID(id); return err }

// plainToolID reports whether every name of an id is its own token.
func plainToolID(id string) bool {
	for name := range strings.SplitSeq(id, ".") {
		if !plainToken(name) {
			return false
		}
	}
	return true
}

func encodeToolID[T ~string](id T) (string, error) {
	if plainToolID(string(id)) {
		return string(id), nil
	}
	names := strings.Split(string(id), ".")
	for i, name := range names {
		token, err := EncodeToken(name)
		if err != nil {
			return "", fmt.Errorf("tool id %q: %w", id, err)
		}
		names[i] = token
	}
	return strings.Join(names, "."), nil
}

// encodeIndex returns the token of an index name, which has no dot: it is the
// first name of its tools' ids.
func encodeIndex[T ~string](name T) (string, error) {
	if strings.Contains(string(name), ".") {
		return "", fmt.Errorf("%w: %q has a dot: a session's own tool and an index have one name", ErrInvalid, name)
	}
	return EncodeToken(string(name))
}

func decodeIndex(token string) (string, error) {
	name, err := DecodeToken(token)
	if err == nil && strings.Contains(name, ".") {
		return "", fmt.Errorf("%w: token %q hides a dot", ErrInvalid, token)
	}
	return name, err
}

func decodeToolID(tokens string) (string, error) {
	if plainToolID(tokens) {
		return tokens, nil
	}
	names := strings.Split(tokens, ".")
	for i, token := range names {
		name, err := DecodeToken(token)
		if err != nil {
			return "", err
		}
		// A name with a dot inside would read as two names.
		if strings.Contains(name, ".") {
			return "", fmt.Errorf("%w: token %q hides a dot", ErrInvalid, token)
		}
		names[i] = name
	}
	return strings.Join(names, "."), nil
}

// WireTool returns the id as it is read off a subject: itself, but for names
// that travel hashed. It is the key under which a serving side finds a tool.
func WireTool(id ToolID) (ToolID, error) {
	tokens, err := encodeToolID(id)
	if err != nil {
		return "", err
	}
	wire, err := decodeToolID(tokens)
	return ToolID(wire), err
}

// WireName is [WireTool] for single names: sessions, nodes, rpc ids. A name that
// cannot travel is returned as it is.
func WireName[T ~string](name T) T {
	if plainToken(string(name)) {
		return name
	}
	token, err := EncodeToken(string(name))
	if err != nil || !hashedToken(token) {
		return name
	}
	return T(token)
}

// Again is the id of the n-th repetition, from 1 to [MaxAgain], of a call after its node was lost.
// A cancel of the call reaches it as well.
func (id RPCID) Again(n int) RPCID { return WireName(id) + again + RPCID(strconv.Itoa(n)) }

// First is the call that an id of [RPCID.Again] makes anew; of another it is the id itself.
func (id RPCID) First() RPCID {
	if i := len(id) - len(again) - 1; i > 0 && id[i:len(id)-1] == again && id[len(id)-1]-'1' < MaxAgain {
		return id[:i]
	}
	return id
}

const again = ".again"

// MaxAgain is how often a call is made anew.
const MaxAgain = 2
