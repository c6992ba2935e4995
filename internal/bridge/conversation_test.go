package bridge_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/internal/bridge"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// The recorded conversations, in the format of testdata/README.md, hold in both
// encodings.
func TestConversations(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		for _, packed := range []bool{false, true} {
			name := strings.TrimSuffix(filepath.Base(file), ".txtar")
			if packed {
				name += " packed"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				m := newMesh(t)
				p := &player{t: t, m: m, p: m.start(t, bridge.Options{MessagePack: packed}), known: map[string]any{}}
				for _, step := range txtar.Parse(data).Files {
					p.play(step.Name, strings.TrimSpace(string(step.Data)))
				}
			})
		}
	}
}

// player plays the program and the mesh of a conversation.
type player struct {
	t     *testing.T
	m     *mesh
	p     *program
	known map[string]any // by placeholder
	calls []chan any     // answers of the mesh that were not compared yet
	rpc   subjects.RPCID // of the last call of the mesh
}

func (p *player) play(step, body string) {
	p.t.Helper()
	words := strings.Fields(step)
	switch words[0] {
	case "program":
		for name, value := range p.known {
			text, _ := json.Marshal(value)
			body = strings.ReplaceAll(body, `"`+name+`"`, string(text))
		}
		p.p.write(body)
	case "bridge":
		got, err := p.p.next()
		if err != nil {
			p.t.Fatalf("want %s: the bridge says nothing more: %v", body, err)
		}
		p.compare(step, body, got)
	case "call", "stream":
		p.rpc = subjects.NewRPCID("rpc_")
		answer := make(chan any, 1)
		p.calls = append(p.calls, answer)
		session := client.WithSession("default")
		if len(words) > 2 {
			session = client.WithSession(subjects.SessionID(words[2]))
		}
		go p.call(words[0], subjects.ToolID(words[1]), json.RawMessage(body), answer, session, client.WithRPCID(p.rpc))
	case "answer":
		p.compare(step, body, mustJSON(p.t, <-p.calls[0]))
		p.calls = p.calls[1:]
	case "cancel":
		if done, err := p.m.client.Cancel(p.t.Context(), p.rpc); err != nil || !done {
			p.t.Fatalf("cancel: %v, %v", done, err)
		}
	case "gone":
		if err := p.p.to.Close(); err != nil {
			p.t.Fatal(err)
		}
	case "end":
		for {
			got, err := p.p.next()
			if err != nil {
				break
			}
			p.t.Errorf("before the end the bridge says %s", got)
		}
		if code := toolmesh.CodeOf(p.p.end()); string(code) != body {
			p.t.Errorf("the bridge ended with %q, want %q", code, body)
		}
	case "unknown": // to the mesh
		meshtest.Until(p.t, "the mesh has forgotten "+words[1], func() bool {
			_, err := p.m.client.Call(p.t.Context(), subjects.ToolID(words[1]), nil)
			return toolmesh.CodeOf(err) == toolmesh.CodeToolNotFound || toolmesh.CodeOf(err) == toolmesh.CodeUnavailable
		})
	default:
		p.t.Fatalf("there is no step %q", step)
	}
}

// call calls for the mesh: the answer is the value, the items, or {"error":…}.
func (p *player) call(kind string, id subjects.ToolID, args json.RawMessage, to chan<- any, opts ...client.CallOption) {
	if kind == "call" {
		r, err := p.m.client.Call(p.t.Context(), id, args, opts...)
		if err != nil {
			to <- map[string]any{"error": err}
			return
		}
		to <- r.Value
		return
	}
	items := []any{}
	for one, err := range p.m.client.Stream(p.t.Context(), id, args, opts...) {
		if err != nil {
			items = append(items, map[string]any{"error": err})
			break
		}
		items = append(items, one.Data)
	}
	to <- items
}

func mustJSON(t *testing.T, v any) json.RawMessage {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// compare compares JSON with a pattern: "$name" is the same everywhere, "$…" matches anything,
// and an object may have more members where the pattern has "…".
func (p *player) compare(step, pattern string, got json.RawMessage) {
	p.t.Helper()
	var want, have any
	if err := json.Unmarshal([]byte(pattern), &want); err != nil {
		p.t.Fatalf("%s: %s: %v", step, pattern, err)
	}
	if err := json.Unmarshal(got, &have); err != nil {
		p.t.Fatalf("%s: %s: %v", step, got, err)
	}
	if why := p.differs(want, have); why != "" {
		p.t.Fatalf("%s: %s\ngot  %s\nwant %s", step, why, got, pattern)
	}
}

func (p *player) differs(want, have any) string {
	switch want := want.(type) {
	case string:
		if want == "$…" {
			return ""
		}
		if strings.HasPrefix(want, "$") {
			if value, ok := p.known[want]; ok {
				return p.differs(value, have)
			}
			p.known[want] = have
			return ""
		}
	case map[string]any:
		have, ok := have.(map[string]any)
		if !ok {
			break
		}
		_, open := want["…"]
		for key, value := range want {
			if key == "…" {
				continue
			}
			if _, ok := have[key]; !ok {
				return "no " + key
			}
			if why := p.differs(value, have[key]); why != "" {
				return key + ": " + why
			}
		}
		for key := range maps.Keys(have) {
			if _, ok := want[key]; !ok && !open {
				return "further " + key
			}
		}
		return ""
	case []any:
		have, ok := have.([]any)
		if !ok || len(have) != len(want) {
			break
		}
		for i := range want {
			if why := p.differs(want[i], have[i]); why != "" {
				return fmt.Sprintf("%d: %s", i, why)
			}
		}
		return ""
	}
	if !reflect.DeepEqual(want, have) {
		return fmt.Sprintf("%v is not %v", have, want)
	}
	return ""
}
