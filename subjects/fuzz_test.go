package subjects

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// onAlphabet fails unless token is valid between two dots.
func onAlphabet(t *testing.T, token string) {
	t.Helper()
	if token == "" || len(token) > maxToken {
		t.Fatalf("token %q has %d characters", token, len(token))
	}
	for i := range len(token) {
		if !tokenByte(token[i]) {
			t.Fatalf("token %q holds %q", token, token[i])
		}
	}
}

func FuzzToken(f *testing.F) {
	v := readVectors(f)
	for _, c := range v.Tokens {
		f.Add(c.Name)
		f.Add(c.Token)
	}
	for _, c := range v.RefusedTokens {
		f.Add(c.Token)
	}
	f.Add("\xff")
	f.Fuzz(func(t *testing.T, s string) {
		// s as a name.
		token, err := EncodeToken(s)
		switch {
		case err != nil:
			if !errors.Is(err, ErrInvalid) || s != "" && utf8.ValidString(s) {
				t.Fatalf("EncodeToken(%q): %v", s, err)
			}
		default:
			onAlphabet(t, token)
			name, err := DecodeToken(token)
			if err != nil {
				t.Fatalf("DecodeToken(EncodeToken(%q)): %v", s, err)
			}
			if name != s && !(IsHashed(name) && name == token) {
				t.Fatalf("DecodeToken(EncodeToken(%q)) is %q", s, name)
			}
		}
		// s as a token: one name, and no second token of that name.
		name, err := DecodeToken(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || name != "" {
				t.Fatalf("DecodeToken(%q): %q, %v", s, name, err)
			}
			return
		}
		onAlphabet(t, s)
		if again, err := EncodeToken(name); err != nil || again != s {
			t.Fatalf("EncodeToken(DecodeToken(%q)): %q, %v", s, again, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	v := readVectors(f)
	for _, c := range v.Subjects {
		f.Add(c.Subject)
	}
	for _, c := range v.RefusedSubjects {
		f.Add(c.Subject)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || s != (Subject{}) {
				t.Fatalf("Parse(%q): %+v, %v", text, s, err)
			}
			return
		}
		if s.Kind == KindNone || int(s.Kind) >= len(forms) {
			t.Fatalf("Parse(%q) has kind %d", text, s.Kind)
		}
		for i, token := range strings.Split(text, ".") {
			// The key of a registry change is the bucket's, not a token.
			if s.Kind == KindRegistryChange && i >= 3 {
				if strings.ContainsAny(token, "*> \t\r\n") || token == "" {
					t.Fatalf("Parse(%q) accepted the key %q", text, s.Key)
				}
				continue
			}
			onAlphabet(t, token)
		}
		again, err := s.Build()
		if err != nil || again != text {
			t.Fatalf("Parse(%q).Build(): %q, %v", text, again, err)
		}
	})
}

func FuzzBuild(f *testing.F) {
	for _, c := range readVectors(f).Subjects {
		f.Add(uint8(kindNames[c.Kind]), string(c.Session), string(c.Tool), string(c.Node), string(c.RPC), string(c.Index), c.Verb, c.Level, c.Bucket, c.Key)
	}
	f.Fuzz(func(t *testing.T, kind uint8, session, tool, node, rpc, index, verb, level, bucket, key string) {
		s := only(Subject{
			Kind: Kind(kind), Session: SessionID(session), Tool: ToolID(tool), Node: NodeID(node), RPC: RPCID(rpc),
			Index: IndexName(index), Verb: verb, Level: level, Bucket: bucket, Key: key,
		})
		text, err := s.Build()
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%+v.Build(): %v", s, err)
			}
			return
		}
		got, err := Parse(text)
		if err != nil {
			t.Fatalf("Parse(%+v.Build()), which is %q: %v", s, text, err)
		}
		hashed := func(name string) string {
			token, err := EncodeToken(name)
			if err == nil && IsHashed(token) {
				return token
			}
			return name
		}
		want := s
		want.Session, want.Node = SessionID(hashed(session)), NodeID(hashed(node))
		want.RPC, want.Index = RPCID(hashed(rpc)), IndexName(hashed(index))
		names := strings.Split(tool, ".")
		for i, name := range names {
			names[i] = hashed(name)
		}
		want.Tool = ToolID(strings.Join(names, "."))
		if want = only(want); got != want {
			t.Fatalf("Parse(%q): got %+v, want %+v", text, got, want)
		}
	})
}

// only clears the fields that s's kind does not use.
func only(s Subject) Subject {
	if s.Kind == KindNone || int(s.Kind) >= len(forms) {
		return s
	}
	kept := Subject{Kind: s.Kind}
	switch s.Kind {
	case KindNodeAdmin, KindAdmin, KindJob, KindHeartbeat, KindRegistryChange:
	default:
		kept.Session = s.Session
	}
	switch s.Kind {
	case KindNodeTool, KindNodeCtl, KindNodeBatch, KindLane, KindNodeAdmin, KindHeartbeat:
		kept.Node = s.Node
	}
	switch s.Kind {
	case KindTool, KindNodeTool:
		kept.Tool = s.Tool
	case KindNodeCtl, KindCtl, KindChunks, KindLive, KindReplay:
		kept.RPC = s.RPC
	case KindTask, KindSchedule:
		kept.RPC, kept.Verb = s.RPC, s.Verb
		if s.Kind == KindTask {
			kept.Level = s.Level
		}
	case KindJob:
		kept.Index = s.Index
	case KindNodeAdmin, KindRegistry, KindAdmin, KindEvent, KindTaskVerb:
		kept.Verb = s.Verb
	case KindRegistryChange:
		kept.Bucket, kept.Key = s.Bucket, s.Key
	}
	return kept
}

func FuzzKeys(f *testing.F) {
	v := readVectors(f)
	for _, c := range v.ToolsKeys {
		f.Add(c.Key)
	}
	for _, c := range v.RefusedToolsKeys {
		f.Add(c.Key)
	}
	for _, c := range v.IndexKeys {
		f.Add(c.Key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if k, err := ParseToolsKey(key); err == nil {
			if !validKey(key) {
				t.Fatalf("ParseToolsKey(%q) accepted what no bucket takes", key)
			}
			if again, err := k.Build(); err != nil || again != key {
				t.Fatalf("ParseToolsKey(%q).Build(): %q, %v", key, again, err)
			}
		} else if !errors.Is(err, ErrInvalid) || k != (ToolsKey{}) {
			t.Fatalf("ParseToolsKey(%q): %+v, %v", key, k, err)
		}
		if index, session, err := ParseIndexKey(key); err == nil {
			if again, err := IndexKey(index, session); err != nil || again != key {
				t.Fatalf("IndexKey(ParseIndexKey(%q)): %q, %v", key, again, err)
			}
		} else if !errors.Is(err, ErrInvalid) {
			t.Fatalf("ParseIndexKey(%q): %v", key, err)
		}
	})
}

// gatewayPrefix is the length of the prefix that the broker cuts off a reply across gateways: _GR_.
// and any two hashes of 6 characters.
const gatewayPrefix = len("_GR_.123456.123456.")

func FuzzReplyAllowed(f *testing.F) {
	for _, c := range readVectors(f).Replies {
		f.Add(c.Reply, string(c.Session), c.Credentials)
	}
	f.Fuzz(func(t *testing.T, reply, session string, credentials bool) {
		if !ReplyAllowed(reply, SessionID(session), credentials) {
			return
		}
		if strings.ContainsAny(reply, "*> \t\r\n") {
			t.Fatalf("%q was allowed", reply)
		}
		// The final subject, to which the broker delivers, is an inbox.
		target := reply
		if strings.HasPrefix(target, "_GR_.") {
			if len(target) <= gatewayPrefix {
				t.Fatalf("%q was allowed: nothing is behind the gateway's prefix", reply)
			}
			target = target[gatewayPrefix:]
		}
		own := false
		if token, err := EncodeToken(session); err == nil {
			own = strings.HasPrefix(target, "_INBOX_"+token+".")
		}
		switch {
		case strings.HasPrefix(target, "_R_."), strings.HasPrefix(target, "_INBOX_mesh_"), own:
		case strings.HasPrefix(target, "_INBOX.") && !credentials:
		default:
			t.Fatalf("%q was allowed for session %q (credentials %t): it ends at %q", reply, session, credentials, target)
		}
	})
}
