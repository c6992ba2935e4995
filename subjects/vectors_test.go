package subjects

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vectors is docs/protocol/vectors.json, the contract that clients in other languages share.
type vectors struct {
	About  string `json:"about"`
	Tokens []struct {
		Name   string `json:"name"`
		Token  string `json:"token"`
		Hashed bool   `json:"hashed"`
	} `json:"tokens"`
	RefusedTokens []struct {
		Token string `json:"token"`
		Why   string `json:"why"`
	} `json:"refused_tokens"`
	RefusedNames []struct {
		Of   string `json:"of"`
		Name string `json:"name"`
		Why  string `json:"why"`
	} `json:"refused_names"`
	Subjects []struct {
		Kind string `json:"kind"`
		subjectFields
		Subject string         `json:"subject"`
		Parsed  *subjectFields `json:"parsed"`
	} `json:"subjects"`
	RefusedSubjects []struct {
		Subject string `json:"subject"`
		Why     string `json:"why"`
	} `json:"refused_subjects"`
	Patterns []struct {
		What    string    `json:"what"`
		Session SessionID `json:"session"`
		Tool    ToolID    `json:"tool"`
		Node    NodeID    `json:"node"`
		Pattern string    `json:"pattern"`
	} `json:"patterns"`
	Matches []struct {
		Pattern string `json:"pattern"`
		Subject string `json:"subject"`
		Match   bool   `json:"match"`
	} `json:"matches"`
	Overlaps []struct {
		A       string `json:"a"`
		B       string `json:"b"`
		Overlap bool   `json:"overlap"`
	} `json:"overlaps"`
	ToolsKeys []struct {
		Node    NodeID    `json:"node"`
		Session SessionID `json:"session"`
		Index   IndexName `json:"index"`
		Tool    ToolID    `json:"tool"`
		Part    int       `json:"part"`
		Key     string    `json:"key"`
	} `json:"tools_keys"`
	RefusedToolsKeys []refusedKey `json:"refused_tools_keys"`
	IndexKeys        []struct {
		Index   IndexName `json:"index"`
		Session SessionID `json:"session"`
		Key     string    `json:"key"`
	} `json:"index_keys"`
	RefusedIndexKeys []refusedKey `json:"refused_index_keys"`
	Replies          []struct {
		Reply       string    `json:"reply"`
		Session     SessionID `json:"session"`
		Credentials bool      `json:"session_credentials"`
		Allowed     bool      `json:"allowed"`
		Why         string    `json:"why"`
	} `json:"replies"`
	Batches []any          `json:"batches"` // codec's test reads these
	Codes   map[string]int `json:"codes"`   // the root package's test reads these
}

type refusedKey struct {
	Key string `json:"key"`
	Why string `json:"why"`
}

type subjectFields struct {
	Session SessionID `json:"session"`
	Tool    ToolID    `json:"tool"`
	Node    NodeID    `json:"node"`
	RPC     RPCID     `json:"rpc"`
	Index   IndexName `json:"index"`
	Verb    string    `json:"verb"`
	Level   string    `json:"level"`
	Bucket  string    `json:"bucket"`
	Key     string    `json:"key"`
	Payload PayloadID `json:"payload"`
}

func (f subjectFields) subject(kind Kind) Subject {
	return Subject{
		Kind: kind, Session: f.Session, Tool: f.Tool, Node: f.Node, RPC: f.RPC,
		Index: f.Index, Verb: f.Verb, Level: f.Level, Bucket: f.Bucket, Key: f.Key, Payload: f.Payload,
	}
}

var kindNames = map[string]Kind{
	"tool": KindTool, "node_tool": KindNodeTool, "node_ctl": KindNodeCtl, "ctl": KindCtl,
	"chunks": KindChunks, "live": KindLive, "replay": KindReplay, "payload": KindPayload, "node_payload": KindNodePayload, "registry": KindRegistry,
	"batch": KindBatch, "node_batch": KindNodeBatch, "task_verb": KindTaskVerb, "task": KindTask, "schedule": KindSchedule, "job": KindJob, "lane": KindLane, "admin": KindAdmin,
	"node_admin": KindNodeAdmin, "heartbeat": KindHeartbeat, "event": KindEvent,
	"registry_change": KindRegistryChange,
}

func readVectors(tb testing.TB) *vectors {
	tb.Helper()
	data, err := os.ReadFile("../docs/protocol/vectors.json")
	if err != nil {
		tb.Fatal(err)
	}
	var v vectors
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		tb.Fatalf("vectors.json: %v", err)
	}
	return &v
}

// refusal fails unless err is of this package's one kind.
func refusal(t *testing.T, err error, what, why string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s was accepted: %s", what, why)
	case !errors.Is(err, ErrInvalid):
		t.Errorf("%s: got error %v, want one that wraps ErrInvalid", what, err)
	}
}

func TestVectorsTokens(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	if len(v.Tokens) == 0 || len(v.RefusedTokens) == 0 {
		t.Fatal("vectors.json has no tokens")
	}
	for _, c := range v.Tokens {
		token, err := EncodeToken(c.Name)
		if err != nil || token != c.Token {
			t.Errorf("EncodeToken(%q): got %q, %v, want %q", c.Name, token, err, c.Token)
			continue
		}
		want := c.Name
		if c.Hashed {
			want = c.Token
		}
		name, err := DecodeToken(c.Token)
		if err != nil || name != want {
			t.Errorf("DecodeToken(%q): got %q, %v, want %q", c.Token, name, err, want)
		}
		if c.Hashed && !IsHashed(name) {
			t.Errorf("IsHashed(%q): got false, want true", name)
		}
		if again, err := EncodeToken(name); err != nil || again != c.Token {
			t.Errorf("EncodeToken(DecodeToken(%q)): got %q, %v", c.Token, again, err)
		}
	}
	for _, c := range v.RefusedTokens {
		_, err := DecodeToken(c.Token)
		refusal(t, err, "token "+c.Token, c.Why)
	}
	for _, c := range v.RefusedNames {
		var err error
		switch c.Of {
		case "token":
			_, err = EncodeToken(c.Name)
		case "tool":
			err = ToolID(c.Name).Validate()
			if _, build := Tool("s", ToolID(c.Name)); (build == nil) != (err == nil) {
				t.Errorf("tool %q: Validate says %v, Tool says %v", c.Name, err, build)
			}
		case "index":
			if _, err = IndexKey(IndexName(c.Name), ""); err == nil {
				t.Errorf("IndexKey accepted %q: %s", c.Name, c.Why)
			}
			_, err = Subject{Kind: KindJob, Index: IndexName(c.Name)}.Build()
		default:
			t.Fatalf("refused_names: unknown kind of name %q", c.Of)
		}
		refusal(t, err, c.Of+" name "+c.Name, c.Why)
	}
}

func TestVectorsSubjects(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	seen := make(map[Kind]bool)
	for _, c := range v.Subjects {
		kind, ok := kindNames[c.Kind]
		if !ok {
			t.Errorf("subject %s: unknown kind %q", c.Subject, c.Kind)
			continue
		}
		seen[kind] = true
		want := c.subjectFields.subject(kind)
		if got, err := want.Build(); err != nil || got != c.Subject {
			t.Errorf("Build(%+v): got %q, %v, want %q", want, got, err, c.Subject)
		}
		if c.Parsed != nil {
			want = c.Parsed.subject(kind)
		}
		got, err := Parse(c.Subject)
		if err != nil {
			t.Errorf("Parse(%q): %v", c.Subject, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Parse(%q) (-want +got):\n%s", c.Subject, diff)
		}
	}
	for kind := KindNone + 1; int(kind) < len(forms); kind++ {
		if !seen[kind] {
			t.Errorf("vectors.json has no subject of kind %d (%s…)", kind, forms[kind].head)
		}
	}
	for _, c := range v.RefusedSubjects {
		got, err := Parse(c.Subject)
		refusal(t, err, "subject "+c.Subject, c.Why)
		if got != (Subject{}) {
			t.Errorf("Parse(%q) failed and returned %+v, want the zero Subject", c.Subject, got)
		}
	}
}

func TestVectorsPatterns(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for _, c := range v.Patterns {
		var got string
		var err error
		switch {
		case c.Session != "":
			got, err = Tool(c.Session, c.Tool)
		case c.Tool != "":
			got, err = ToolAnySession(c.Tool)
		default:
			for _, build := range []func(NodeID) (string, error){NodeTools, NodeCtls, NodeAdmins, NodeBatches} {
				if got, err = build(c.Node); got == c.Pattern {
					break
				}
			}
		}
		if err != nil || got != c.Pattern {
			t.Errorf("%s: got %q, %v, want %q", c.What, got, err, c.Pattern)
		}
	}
	for _, c := range v.Matches {
		if got := matches(c.Pattern, c.Subject); got != c.Match {
			t.Errorf("matches(%q, %q): got %t, want %t", c.Pattern, c.Subject, got, c.Match)
		}
	}
	for _, c := range v.Overlaps {
		if got := Overlap(c.A, c.B); got != c.Overlap {
			t.Errorf("Overlap(%q, %q): got %t, want %t", c.A, c.B, got, c.Overlap)
		}
		if got := Overlap(c.B, c.A); got != c.Overlap {
			t.Errorf("Overlap(%q, %q): got %t, want %t", c.B, c.A, got, c.Overlap)
		}
	}
}

func TestVectorsKeys(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for _, c := range v.ToolsKeys {
		want := ToolsKey{Node: c.Node, Session: c.Session, Index: c.Index, Tool: c.Tool, Part: c.Part}
		if got, err := want.Build(); err != nil || got != c.Key {
			t.Errorf("%+v.Build(): got %q, %v, want %q", want, got, err, c.Key)
		}
		if got, err := ParseToolsKey(c.Key); err != nil || got != want {
			t.Errorf("ParseToolsKey(%q): got %+v, %v, want %+v", c.Key, got, err, want)
		}
	}
	for _, c := range v.RefusedToolsKeys {
		_, err := ParseToolsKey(c.Key)
		refusal(t, err, "key "+c.Key, c.Why)
	}
	for _, c := range v.IndexKeys {
		if got, err := IndexKey(c.Index, c.Session); err != nil || got != c.Key {
			t.Errorf("IndexKey(%q, %q): got %q, %v, want %q", c.Index, c.Session, got, err, c.Key)
		}
		index, session, err := ParseIndexKey(c.Key)
		if err != nil || index != c.Index || session != c.Session {
			t.Errorf("ParseIndexKey(%q): got %q, %q, %v", c.Key, index, session, err)
		}
	}
	for _, c := range v.RefusedIndexKeys {
		_, _, err := ParseIndexKey(c.Key)
		refusal(t, err, "key "+c.Key, c.Why)
	}
}

func TestVectorsReplies(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	if len(v.Replies) == 0 {
		t.Fatal("vectors.json has no replies")
	}
	for _, c := range v.Replies {
		if got := ReplyAllowed(c.Reply, c.Session, c.Credentials); got != c.Allowed {
			t.Errorf("ReplyAllowed(%q, %q, %t): got %t, want %t: %s", c.Reply, c.Session, c.Credentials, got, c.Allowed, c.Why)
		}
	}
}

// matches reports whether subject, which has no wildcard, matches pattern.
func matches(pattern, subject string) bool {
	return !strings.ContainsAny(subject, "*>") && Overlap(pattern, subject)
}
