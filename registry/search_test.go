package registry_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// offer has a node serve tools with these descriptions, in the index, or of the session where
// index is empty.
func offer(t testing.TB, store *registry.Store, l *registry.Lease, session subjects.SessionID, index subjects.IndexName, revision string, tools map[string]tool.Descriptor) {
	t.Helper()
	r := registry.ToolsRecord{Session: session, Index: index, Revision: revision}
	for id, d := range tools {
		d.ID, d.Source = subjects.ToolID(id), tool.SourceGo
		d.Name = d.ID.Local()
		digests, err := store.PutDescriptors(t.Context(), &d)
		if err != nil {
			t.Fatal(err)
		}
		r.Tools = append(r.Tools, registry.ToolRoute{ID: d.ID, Digest: digests[0]})
	}
	if err := l.Publish(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// found are the ids that a session finds, with a space behind each.
func found(t testing.TB, b *bus.Bus, session string, q registry.Request) string {
	t.Helper()
	var answer registry.SearchAnswer
	if err := ask(t, b, session, registry.VerbSearch, q, &answer); err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	var ids strings.Builder
	for _, one := range answer.Tools {
		ids.WriteString(string(one.ID) + " ")
	}
	return ids.String()
}

// A session finds the tools that it can call: those of all sessions and its own, in the served
// revision, and none of other sessions. A change shows at once.
func TestSearchFindsCallableTools(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	respond(t, b, v, store)
	lives, dead := acquire(t, b, record("n1", "boot1")), acquire(t, b, record("n2", "boot2"))
	beat(t, b, "n1", "boot1", 0)
	offer(t, store, lives, "", "sky", "r1", map[string]tool.Descriptor{
		"sky.forecast": {Description: "Tells the weather of the next days.", InputSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string","description":"town to look at"}}}`)},
		"sky.station":  {Description: "Sets up a station.", Annotations: tool.Annotations{ReadOnly: true}},
	})
	offer(t, store, dead, "", "gone", "r1", map[string]tool.Descriptor{"gone.forecast": {Description: "The forecast of earlier."}})
	offer(t, store, lives, "ann", "", "", map[string]tool.Descriptor{"ann_forecast": {Description: "Forecasts what Ann sells."}})
	if err := dead.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the view knows who serves what", func() bool {
		return nodesOf(v, "ann", "ann_forecast") == "n1/boot1 " && nodesOf(v, "", "sky.forecast") == "n1/boot1 " && nodesOf(v, "", "gone.forecast") != "n2/boot2 "
	})
	for _, c := range []struct {
		session string
		q       registry.Request
		want    string
	}{
		{"bob", registry.Request{Query: "Which forecasts are there for tomorrow?"}, "sky.forecast "},
		{"ann", registry.Request{Query: "forecast"}, "ann_forecast sky.forecast "},
		{"ann", registry.Request{Query: "forecast", Limit: 1}, "ann_forecast "},
		{"ann", registry.Request{Query: "forecast", Tools: []string{"sky.*"}}, "sky.forecast "},
		{"bob", registry.Request{Query: "town"}, "sky.forecast "},
		{"bob", registry.Request{Query: "sky"}, "sky.forecast sky.station "},
		{"bob", registry.Request{Query: "sky", ReadOnly: true}, "sky.station "},
		{"bob", registry.Request{Query: "ann sells"}, ""},
		{"bob", registry.Request{Query: "\xff\x00 🌦 ..."}, ""},
	} {
		if got := found(t, b, c.session, c.q); got != c.want {
			t.Errorf("%s, %+v: %q, want %q", c.session, c.q, got, c.want)
		}
	}
	var answer registry.SearchAnswer
	if err := ask(t, b, "bob", registry.VerbSearch, `{"query":"forecast","limit":5}`, &answer); err != nil || len(answer.Tools) != 1 || answer.Tools[0].Score <= 0 {
		t.Errorf("%+v, %v", answer, err)
	} else if diff := cmp.Diff("Tells the weather of the next days.", answer.Tools[0].Description); diff != "" {
		t.Error(diff)
	}

	// Another revision says something else, a tool of the session hides one of all sessions, and one goes.
	offer(t, store, lives, "", "sky", "r2", map[string]tool.Descriptor{"sky.forecast": {Description: "Predicts rain."}})
	offer(t, store, lives, "ann", "sky", "r1", map[string]tool.Descriptor{"sky.forecast": {Description: "Ann's own umbrella."}})
	meshtest.Until(t, "what was changed is found as it is now", func() bool {
		return found(t, b, "bob", registry.Request{Query: "rain"}) == "sky.forecast " && found(t, b, "bob", registry.Request{Query: "station"}) == "" &&
			found(t, b, "ann", registry.Request{Query: "umbrella"}) == "sky.forecast " && found(t, b, "ann", registry.Request{Query: "rain"}) == ""
	})
}

// Questions and descriptions that are made to cost much are refused or bounded.
func TestSearchIsBounded(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	respond(t, b, v, store)
	l := acquire(t, b, record("n1", "boot1"))
	beat(t, b, "n1", "boot1", 0)
	tools := map[string]tool.Descriptor{"good.mail": {Description: "Sends mail.", InputSchema: json.RawMessage(`{"properties":{"to":true}}`)}}
	for i := range 4 {
		tools[fmt.Sprintf("bad.t%d", i)] = tool.Descriptor{Description: strings.Repeat("mail ", 170_000) + "é"}
	}
	offer(t, store, l, "", "all", "r1", tools)
	meshtest.Until(t, "they are served", func() bool { return nodesOf(v, "", "good.mail") == "n1/boot1 " })
	var answer registry.SearchAnswer
	if err := ask(t, b, "s1", registry.VerbSearch, registry.Request{Query: "mail"}, &answer); err != nil || len(answer.Tools) != 5 || answer.Tools[0].ID != "good.mail" {
		t.Errorf("%d tools, %v; the one that repeats nothing is to be first", len(answer.Tools), err)
	}
	for _, one := range answer.Tools {
		if len(one.Description) > 3000 {
			t.Errorf("%s has a description of %d bytes in the answer", one.ID, len(one.Description))
		}
	}
	for what, c := range map[string]struct {
		q    any
		code toolmesh.Code
	}{
		"a long query":       {registry.Request{Query: strings.Repeat("mail ", 180_000)}, toolmesh.CodePayloadTooLarge},
		"no query":           {registry.Request{}, toolmesh.CodeInvalidRequest},
		"an empty query":     {registry.Request{Query: " \n"}, toolmesh.CodeInvalidRequest},
		"a limit of nothing": {registry.Request{Query: "mail", Limit: -1}, toolmesh.CodeInvalidRequest},
		"a large limit":      {registry.Request{Query: "mail", Limit: 1001}, toolmesh.CodeInvalidRequest},
		"long globs":         {registry.Request{Query: "mail", Tools: []string{strings.Repeat("*a", 500_000)}}, toolmesh.CodeInvalidRequest},
		"a query of numbers": {`{"query":[1]}`, toolmesh.CodeInvalidRequest},
	} {
		if err := ask(t, b, "s1", registry.VerbSearch, c.q, &answer); toolmesh.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %s", what, err, c.code)
		}
	}
}

// The index of tools that all sessions see is always cached. Those of sessions are cached up to a
// bound, and made again if missing.
func TestSearchKeepsIndexes(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	r := respond(t, b, v, store)
	r.KeepDocuments(2)
	l := acquire(t, b, record("n1", "boot1"))
	beat(t, b, "n1", "boot1", 0)
	offer(t, store, l, "", "lab", "r1", map[string]tool.Descriptor{"lab.paint": {Description: "Paints a wall."}})
	for i := range 5 {
		session, own := subjects.SessionID(fmt.Sprintf("s%d", i)), fmt.Sprintf("own%d", i)
		offer(t, store, l, session, "", "", map[string]tool.Descriptor{own: {Description: "Paints a picture."}})
		meshtest.Until(t, "it is served", func() bool { return nodesOf(v, string(session), own) == "n1/boot1 " })
	}
	shared := ""
	for i := range 10 {
		want := fmt.Sprintf("own%d ", i%5)
		if got := found(t, b, fmt.Sprintf("s%d", i%5), registry.Request{Query: "picture"}); got != want {
			t.Errorf("session %d finds %q, want %q", i%5, got, want)
		}
		at, sessions := r.Indexes()
		if shared != "" && at != shared || sessions > 3 {
			t.Errorf("the shared index is %s, it was %s; %d sessions have one", at, shared, sessions)
		}
		shared = at
	}
}

// A tool whose descriptor the store lacks is found by its id, and by its words once the store has
// them. Until then the words of all others are not read again.
func TestSearchRetriesMissingDescriptors(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	r := respond(t, b, v, store)
	l := acquire(t, b, record("n1", "boot1"))
	beat(t, b, "n1", "boot1", 0)
	late := tool.Descriptor{ID: "lab.dig", Name: "dig", Source: tool.SourceGo, Description: "Moves earth."}
	digests, err := testmesh.Store(t, b).PutDescriptors(t.Context(), &late)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := b.JetStream().KeyValue(t.Context(), subjects.BucketSchemas)
	if err != nil {
		t.Fatal(err)
	}
	value, err := kv.Get(t.Context(), digests[0])
	if err == nil {
		err = kv.Delete(t.Context(), digests[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	paint := tool.Descriptor{ID: "lab.paint", Name: "paint", Source: tool.SourceGo, Description: "Colours a wall."}
	there, err := store.PutDescriptors(t.Context(), &paint)
	if err == nil {
		err = l.Publish(t.Context(), registry.ToolsRecord{Index: "lab", Revision: "r1", Tools: []registry.ToolRoute{{ID: late.ID, Digest: digests[0]}, {ID: paint.ID, Digest: there[0]}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "they are served", func() bool { return nodesOf(v, "", "lab.dig") == "n1/boot1 " })
	words := ""
	for range 3 {
		if got := found(t, b, "bob", registry.Request{Query: "dig wall"}); got != "lab.dig lab.paint " {
			t.Errorf("found %q", got)
		}
		now := r.LooksAgain()
		if now == "" || words != "" && now != words {
			t.Errorf("the words are read anew: %q, before %q", now, words)
		}
		words = now
	}
	if _, err := kv.Put(t.Context(), digests[0], value.Value()); err != nil {
		t.Fatal(err)
	}
	if got := found(t, b, "bob", registry.Request{Query: "earth"}); got != "lab.dig " {
		t.Errorf("found %q", got)
	}
	if r.LooksAgain() != "" {
		t.Error("what is there is looked for again")
	}
}
