package registry_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

func respond(t testing.TB, b *bus.Bus, v *registry.View, store *registry.Store) *registry.Responder {
	t.Helper()
	r, err := registry.NewResponder(b, v, store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if err := b.Ping(t.Context()); err != nil { // the broker has its subscription
		t.Fatal(err)
	}
	return r
}

// A session with as many requests as it may have leaves others theirs.
func TestRequestsOfASessionLeaveOthersTheirs(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	v := view(t, b)
	r := respond(t, b, v, testmesh.Store(t, b))
	r.Occupy("") // as of sessions that were not created
	var answer registry.ListAnswer
	client := open(t, s.Connect(t))
	err := ask(t, client, "made-up", registry.VerbList, nil, &answer)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeBusy || e.Started != toolmesh.StartedNo || e.Details["limit"] != "requests" {
		t.Errorf("one more request: %v", err)
	}
	if err := ask(t, client, "default", registry.VerbList, nil, &answer); err != nil {
		t.Errorf("another session: %v", err)
	}
}

// ask sends a registry request as a client does.
func ask(t testing.TB, b *bus.Bus, session, verb string, question, answer any) error {
	t.Helper()
	subject, err := subjects.Registry(subjects.SessionID(session), verb)
	if err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg(subject)
	switch q := question.(type) {
	case nil:
	case string:
		m.Data = []byte(q)
	default:
		if m.Data, err = json.Marshal(q); err != nil {
			t.Fatal(err)
		}
	}
	r, err := b.Request(t.Context(), m)
	if err != nil {
		return err
	}
	parsed := codec.ParseReply(codec.Header(r.Header), r.Data)
	if parsed.Kind == codec.ReplyError {
		return parsed.Err
	}
	if err := json.Unmarshal(parsed.Body, answer); err != nil {
		t.Fatalf("%s: %s: %v", verb, parsed.Body, err)
	}
	return nil
}

func TestRegistryIsAnsweredInEveryTopology(t *testing.T) {
	t.Parallel()
	meshtest.Topologies(t, func(t *testing.T, top *meshtest.Topology) {
		b := ready(t, top.Serve(t))
		store := testmesh.Store(t, b)
		v := view(t, b)
		respond(t, b, v, testmesh.Store(t, b))
		l := acquire(t, b, record("n1", "boot1"))
		beat(t, b, "n1", "boot1", 1)
		publish(t, store, l, "weather", "r7", "weather.forecast.today", "weather.forecast.week", "weather.now")
		meshtest.Until(t, "the view knows the tools", func() bool { return nodesOf(v, "s1", "weather.now") == "n1/boot1 " })
		meshtest.Until(t, "the view knows the load", func() bool { n, _ := v.Node("n1"); return n.InFlight == 1 })
		client := open(t, top.Call(t))
		meshtest.Until(t, "the registry is heard", func() bool {
			var a registry.ResolveAnswer
			return ask(t, client, "s1", registry.VerbResolve, registry.Request{Name: "now"}, &a) == nil && a.ID == "weather.now"
		})

		var resolved registry.ResolveAnswer
		for question, want := range map[string]subjects.ToolID{
			"weather.forecast.today": "weather.forecast.today", "forecast.week": "weather.forecast.week", "today": "weather.forecast.today",
		} {
			if err := ask(t, client, "s1", registry.VerbResolve, registry.Request{Name: question}, &resolved); err != nil || resolved.ID != want {
				t.Errorf("resolve %s: %s, %v", question, resolved.ID, err)
			}
		}
		err := ask(t, client, "s1", registry.VerbResolve, registry.Request{Name: "weather.nwo"}, &resolved)
		wantCode(t, err, toolmesh.CodeToolNotFound)
		if got := fmt.Sprint(toolmesh.AsError(err).Details["nearest"]); got != "[weather.now]" {
			t.Errorf("nearest %s", got)
		}

		var candidates registry.CandidatesAnswer
		if err := ask(t, client, "s1", registry.VerbCandidates, registry.Request{Tool: "weather.now"}, &candidates); err != nil {
			t.Fatal(err)
		}
		if len(candidates.Nodes) != 1 || candidates.Nodes[0].Boot != "boot1" || candidates.Nodes[0].InFlight != 1 || !candidates.Idempotent || candidates.StaleMS != 0 {
			t.Errorf("candidates %+v", candidates)
		}

		var stats registry.StatsAnswer
		if err := ask(t, client, "s1", registry.VerbStats, registry.Request{}, &stats); err != nil {
			t.Fatal(err)
		}
		if want := []registry.NodeStats{{Node: "n1", State: "serving", Slots: 4, NodeLoad: registry.NodeLoad{InFlight: 1, Calls: 9, Errors: 3, Relayed: 5}}}; !slices.Equal(stats.Nodes, want) {
			t.Errorf("stats %+v, want %+v", stats.Nodes, want)
		}

		var described registry.DescribeAnswer
		if err := ask(t, client, "s1", registry.VerbDescribe, registry.Request{Tool: "now"}, &described); err != nil {
			t.Fatal(err)
		}
		d := described.Descriptor
		if d.ID != "weather.now" || d.Description != "Does weather.now" || d.Index == nil || d.Index.Revision != "r7" ||
			!slices.Equal(described.Nodes, []subjects.NodeID{"n1"}) || described.Digest == "" {
			t.Errorf("described %+v %+v", described, d)
		}

		var listed registry.ListAnswer
		if err := ask(t, client, "s1", registry.VerbList, registry.Request{Limit: 2}, &listed); err != nil {
			t.Fatal(err)
		}
		want := registry.ListAnswer{Next: "weather.forecast.week", Tools: []registry.ListedTool{
			{ID: "weather.forecast.today", Index: "weather", Description: "Does weather.forecast.today", State: registry.ToolServing, Nodes: []subjects.NodeID{"n1"}},
			{ID: "weather.forecast.week", Index: "weather", Description: "Does weather.forecast.week", State: registry.ToolServing, Nodes: []subjects.NodeID{"n1"}},
		}}
		if diff := cmp.Diff(want, listed); diff != "" {
			t.Errorf("page 1:\n%s", diff)
		}
		var tags [2]registry.ListAnswer
		for i, after := range []subjects.ToolID{"", listed.Next} {
			if err := ask(t, client, "s1", registry.VerbList, registry.Request{After: after, Limit: 1, ETag: true}, &tags[i]); err != nil {
				t.Fatal(err)
			}
		}
		if tags[0].ETag == "" || tags[0].ETag != tags[1].ETag {
			t.Errorf("the tags of two pages: %q and %q", tags[0].ETag, tags[1].ETag)
		}
		if err := ask(t, client, "s1", registry.VerbList, registry.Request{After: "weather.forecast.week", Limit: 1, Digests: true}, &listed); err != nil {
			t.Fatal(err)
		}
		if len(listed.Tools) != 1 || listed.Tools[0].ID != d.ID || listed.Tools[0].Digest != described.Digest {
			t.Errorf("a list with digests: %+v, want that of %s: %s", listed.Tools, d.ID, described.Digest)
		}
	})
}

func TestRegistryRefuses(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	respond(t, b, view(t, b), testmesh.Store(t, b))
	client := open(t, s.Connect(t))
	var answer any
	for name, tt := range map[string]struct {
		verb string
		body any
		code toolmesh.Code
		text string // in the message
	}{
		"unknown verb":   {"zz", nil, toolmesh.CodeInvalidRequest, `"zz"`},
		"no JSON":        {registry.VerbList, "[", toolmesh.CodeInvalidRequest, "the body is not valid JSON"},
		"no object":      {registry.VerbList, "[]", toolmesh.CodeInvalidRequest, "the body must be an object"},
		"negative limit": {registry.VerbList, `{"limit":-1}`, toolmesh.CodeInvalidRequest, "limit is -1"},
		"limit as text":  {registry.VerbList, `{"limit":"1"}`, toolmesh.CodeInvalidRequest, "limit must be a whole number"},
		"unknown tool":   {registry.VerbDescribe, `{"tool":"no.such"}`, toolmesh.CodeToolNotFound, "no.such"},
		"unknown name":   {registry.VerbResolve, `{"name":"nope"}`, toolmesh.CodeToolNotFound, "nope"},
		"nowhere":        {registry.VerbCandidates, `{"tool":"nope"}`, toolmesh.CodeToolNotFound, "nope"},
		"no tool":        {registry.VerbCandidates, `{}`, toolmesh.CodeInvalidRequest, "tool is missing"},
		"no body":        {registry.VerbDescribe, nil, toolmesh.CodeInvalidRequest, "tool is missing"},
		"an empty tool":  {registry.VerbDescribe, `{"tool":""}`, toolmesh.CodeInvalidRequest, "tool is missing"},
		"another case":   {registry.VerbDescribe, `{"Tool":"x"}`, toolmesh.CodeInvalidRequest, "tool is missing"},
		"no name":        {registry.VerbResolve, `{}`, toolmesh.CodeInvalidRequest, "name is missing"},
		"another field":  {registry.VerbResolve, `{"tool":"x"}`, toolmesh.CodeInvalidRequest, "name is missing"},
		"a number":       {registry.VerbResolve, `{"name":7}`, toolmesh.CodeInvalidRequest, "name must be text"},
	} {
		err := ask(t, client, "s1", tt.verb, tt.body, &answer)
		if toolmesh.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, tt.code, tt.text)
		}
		if nearest, ok := toolmesh.AsError(err).Details["nearest"].([]any); tt.code == toolmesh.CodeToolNotFound && (!ok || len(nearest) != 0) {
			t.Errorf("%s: details %v, want an empty list of names", name, toolmesh.AsError(err).Details)
		}
		if e := toolmesh.AsError(err); e.Started != toolmesh.StartedNo || e.Origin != toolmesh.OriginMesh {
			t.Errorf("%s: %+v", name, e)
		}
	}
	// It answers no request that is invalid or that it does not support.
	for _, verb := range []string{registry.VerbList, registry.VerbDescribe, registry.VerbResolve, registry.VerbCandidates, registry.VerbRender} {
		for header, code := range map[string]toolmesh.Code{
			"NATS/1.0\r\nMesh-Require: zz\r\n\r\n": toolmesh.CodeProtocolError, "NATS/1.0\r\nMesh-Proto: 2\r\n\r\n": toolmesh.CodeProtocolError,
			"NATS/1.0\r\nbad\r\nMesh-Require: zz\r\n\r\n": toolmesh.CodeInvalidRequest,
		} {
			inbox := client.Conn().NewInbox()
			in, err := client.Conn().SubscribeSync(inbox)
			if err != nil {
				t.Fatal(err)
			}
			if err := client.Conn().Flush(); err != nil {
				t.Fatal(err)
			}
			s.PublishRaw(t, "mesh.registry.s1."+verb, inbox, header, `{"name":"nope","tool":"nope"}`)
			r, err := in.NextMsgWithContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if e := codec.ParseReply(codec.Header(r.Header), r.Data).Err; e == nil || e.Code != code || e.Started != toolmesh.StartedNo {
				t.Errorf("%s with %q: %s", verb, header, r.Data)
			}
		}
	}
	// A request with a reply that is not an inbox is dropped: the registry must not publish for a
	// caller.
	victim, err := s.Connect(t).SubscribeSync(subjects.KVSubject(subjects.BucketNodes, "victim"))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := subjects.Registry("s1", registry.VerbList)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Conn().PublishRequest(subject, subjects.KVSubject(subjects.BucketNodes, "victim"), nil); err != nil {
		t.Fatal(err)
	}
	if err := client.Conn().Publish(subject, nil); err != nil { // no reply at all
		t.Fatal(err)
	}
	if err := ask(t, client, "s1", registry.VerbList, nil, &answer); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := victim.Pending(); n != 0 {
		t.Fatal("a registry request was answered into a bucket")
	}
}

func TestSessionsSeeTheirOwnToolsFirst(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	respond(t, b, v, store)
	l := acquire(t, b, record("n1", "boot1"))
	publish(t, store, l, "web", "r1", "web.search", "web.fetch")
	publish(t, store, l, "alt", "r1", "alt.search")
	own := func(epoch string) {
		t.Helper()
		if err := l.Publish(t.Context(), registry.ToolsRecord{Session: "s1", Epoch: epoch, Tools: []registry.ToolRoute{{ID: "search", Digest: "d"}}}); err != nil {
			t.Fatal(err)
		}
	}
	own("")
	if err := l.Publish(t.Context(), registry.ToolsRecord{Session: "s1", Index: "mine", Tools: []registry.ToolRoute{{ID: "mine.note", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the view knows them", func() bool {
		return nodesOf(v, "s1", "search") != "unknown" && nodesOf(v, "s1", "mine.note") != "unknown" && nodesOf(v, "s1", "alt.search") != "unknown"
	})
	// The tools of an index that is installed and not served yet are unknown.
	for _, r := range []registry.IndexRecord{
		{Name: "coming", Source: "git:x", State: registry.IndexInstalled},
		{Name: "hers", Source: "git:z", Session: "s1", State: registry.IndexInstalled}, {Name: "web", Source: "git:w", State: registry.IndexInstalled},
	} {
		if err := store.ClaimIndex(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Until(t, "the view knows the indexes", func() bool { return len(v.Indexes()) == 3 })
	resolve := func(session, name string) string {
		id, err := v.Resolve(subjects.SessionID(session), name)
		if err != nil {
			return fmt.Sprintf("%s %v", toolmesh.CodeOf(err), toolmesh.AsError(err).Details["nearest"])
		}
		return string(id)
	}
	for _, tt := range []struct{ session, name, want string }{
		{"s1", "search", "search"},
		{"s2", "search", "tool_not_found [alt.search web.search]"}, // ambiguous
		{"s1", "note", "mine.note"},
		{"s2", "note", "tool_not_found []"},
		{"s2", "mine.note", "tool_not_found []"},
		{"s2", "fetch", "web.fetch"},
		{"s2", "", "tool_not_found []"},
		{"s2", "coming.mod.f", "unavailable <nil>"},
		{"s2", "coming", "tool_not_found []"},
		{"s1", "hers.mod.f", "unavailable <nil>"},
		{"s2", "hers.mod.f", "tool_not_found []"},
		{"s2", "web.serch", "tool_not_found [web.search web.fetch alt.search]"},
	} {
		if got := resolve(tt.session, tt.name); got != tt.want {
			t.Errorf("%s resolves %q to %q, want %q", tt.session, tt.name, got, tt.want)
		}
	}
	var ids []string
	for after := subjects.ToolID(""); ; {
		page, next := v.List("s1", after, 2)
		for _, r := range page {
			ids = append(ids, string(r.ID))
		}
		if next == "" {
			break
		}
		after = next
	}
	if got, want := strings.Join(ids, " "), "alt.search mine.note search web.fetch web.search"; got != want {
		t.Fatalf("listed %q, want %q", got, want)
	}
	// A session of that name is created: it does not get the old one's tools.
	if err := store.CreateSession(t.Context(), registry.SessionRecord{ID: "s1", Epoch: "e1", Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "tools of another epoch are hidden", func() bool { return nodesOf(v, "s1", "search") == "unknown" })
	if page, _ := v.List("s1", "", 0); len(page) != 3 {
		t.Fatalf("%d tools listed, want 3", len(page))
	}
	if got, want := resolve("s1", "serch"), "tool_not_found [alt.search web.search]"; got != want {
		t.Errorf("a name near to one of the old session is %s, want %s", got, want)
	}
	for _, name := range []string{"Mine-Note", "mine-note"} {
		err := ask(t, b, "s1", registry.VerbArguments, registry.Request{Tool: name}, nil)
		if e := toolmesh.AsError(err); toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound || strings.Contains(fmt.Sprint(e.Details), "mine.note") {
			t.Errorf("%s, the name of a tool of the old session: %v %v", name, err, e.Details)
		}
	}
	own("e1")
	meshtest.Until(t, "tools of its epoch are seen", func() bool { return nodesOf(v, "s1", "search") != "unknown" })
}

func TestNamesThatTravelHashed(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	v := view(t, b)
	node, session := strings.Repeat("node ", 20), subjects.SessionID(strings.Repeat("session ", 20))
	l := acquire(t, b, record(node, "boot1"))
	if err := l.Publish(t.Context(), registry.ToolsRecord{Session: session, Tools: []registry.ToolRoute{{ID: "search", Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	hashed, err := subjects.EncodeToken(string(session))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []subjects.SessionID{session, subjects.SessionID(hashed)} {
		meshtest.Until(t, "the tool is found", func() bool {
			r, ok := v.Route(name, "search")
			return ok && r.Session == session && len(r.Nodes) == 1 && string(r.Nodes[0].Node) == node
		})
	}
	if n, ok := v.Node(subjects.NodeID(node)); !ok || !n.Alive {
		t.Fatalf("node %+v, %v", n, ok)
	}
}

// An id with a long name that travels hashed can be called in that form: the registry knows it,
// too.
func TestHashedIdsAreKnown(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	respond(t, b, v, store)
	long := subjects.ToolID("web." + strings.Repeat("very_long_", 10))
	own := subjects.ToolID(strings.Repeat("note_", 20))
	wire := func(id subjects.ToolID) string {
		t.Helper()
		w, err := subjects.WireTool(id)
		if err != nil || w == id {
			t.Fatalf("%s travels as %s, %v", id, w, err)
		}
		return string(w)
	}
	l := acquire(t, b, record("n1", "boot1"))
	publish(t, store, l, "web", "r1", string(long), "web.short")
	if err := l.Publish(t.Context(), registry.ToolsRecord{Session: "s1", Tools: []registry.ToolRoute{{ID: own, Digest: "d"}}}); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the view knows them", func() bool {
		return nodesOf(v, "s1", string(long)) != "unknown" && nodesOf(v, "s1", string(own)) != "unknown"
	})
	for _, id := range []subjects.ToolID{long, own} {
		var resolved registry.ResolveAnswer
		if err := ask(t, b, "s1", registry.VerbResolve, registry.Request{Name: wire(id)}, &resolved); err != nil || string(resolved.ID) != wire(id) {
			t.Errorf("%s resolves to %s, %v", wire(id), resolved.ID, err)
		}
		var candidates registry.CandidatesAnswer
		if err := ask(t, b, "s1", registry.VerbCandidates, registry.Request{Tool: wire(id)}, &candidates); err != nil || candidates.ID != id {
			t.Errorf("%s is served as %+v, %v", wire(id), candidates, err)
		}
	}
	var described registry.DescribeAnswer
	if err := ask(t, b, "s1", registry.VerbDescribe, registry.Request{Tool: wire(long)}, &described); err != nil || described.Descriptor.ID != long {
		t.Errorf("described %+v, %v", described, err)
	}
	for session, name := range map[string]string{"s2": wire(own), "s1": "web." + wire(own)} {
		err := ask(t, b, session, registry.VerbResolve, registry.Request{Name: name}, &registry.ResolveAnswer{})
		if toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound {
			t.Errorf("%s resolves %s: %v", session, name, err)
		}
	}
	// A withdrawn tool is unknown, in either form of its id.
	publish(t, store, l, "web", "r2", "web.short")
	meshtest.Until(t, "it is gone", func() bool { _, ok := v.Route("s1", long); return !ok })
	if _, ok := v.Route("s1", subjects.ToolID(wire(long))); ok {
		t.Error("it is known as it travels, and not by its name")
	}
}

// A tool may be served, and yet there is something to know of it: if there is on
// each node that serves it.
func TestToolThatIsServedWithANotice(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	v := view(t, b)
	l1, l2 := acquire(t, b, record("n1", "boot1")), acquire(t, b, record("n2", "boot1"))
	put := func(l *registry.Lease, notice string) {
		t.Helper()
		if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "demo", Revision: "r1", Tools: []registry.ToolRoute{
			{ID: "demo.a", Digest: "d", Notice: notice}}}); err != nil {
			t.Fatal(err)
		}
	}
	is := func(nodes int, reason string) {
		t.Helper()
		meshtest.Until(t, fmt.Sprintf("%d nodes, reason %q", nodes, reason), func() bool {
			r, _ := v.Route("s", "demo.a")
			return len(r.Nodes) == nodes && r.Reason == reason
		})
	}
	put(l1, "in quarantine")
	is(1, "in quarantine")
	put(l2, "")
	is(2, "")
	put(l2, "in quarantine too")
	meshtest.Until(t, "both say so", func() bool {
		r, _ := v.Route("s", "demo.a")
		return len(r.Nodes) == 2 && strings.HasPrefix(r.Reason, "in quarantine")
	})
	put(l1, "")
	is(2, "")
}

func TestUnavailableToolIsNoCandidate(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	v := view(t, b)
	l1, l2 := acquire(t, b, record("n1", "boot1")), acquire(t, b, record("n2", "boot1"))
	put := func(l *registry.Lease, digest string, state registry.ToolState) {
		t.Helper()
		if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "demo", Revision: digest, Tools: []registry.ToolRoute{
			{ID: "demo.a", Digest: digest, State: state, Reason: "no GPU here"}}}); err != nil {
			t.Fatal(err)
		}
	}
	put(l1, "r1", registry.ToolUnavailable)
	meshtest.Until(t, "it is known, with its reason", func() bool {
		r, ok := v.Route("s", "demo.a")
		return ok && len(r.Nodes) == 0 && r.Reason == "no GPU here"
	})
	put(l2, "r2", "")
	meshtest.Until(t, "the node that can is the candidate, and its digest counts", func() bool {
		r, _ := v.Route("s", "demo.a")
		return len(r.Nodes) == 1 && r.Nodes[0].Node == "n2" && r.Digest == "r2" && r.Reason == ""
	})
	put(l1, "r3", registry.ToolUnavailable)
	meshtest.Until(t, "a later record of one that cannot does not count", func() bool {
		r, _ := v.Route("s", "demo.a")
		return len(r.Nodes) == 1 && r.Digest == "r2"
	})
	put(l1, "r4", "")
	meshtest.Until(t, "the latest of those that can counts", func() bool {
		r, _ := v.Route("s", "demo.a")
		return len(r.Nodes) == 2 && r.Digest == "r4"
	})
}

func TestListIsCutToAMessage(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t, meshtest.MaxPayload(8<<10))
	b := ready(t, s.Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	respond(t, b, v, store)
	l := acquire(t, b, record("n1", "boot1"))
	const n = 60
	for i := range n {
		publish(t, store, l, subjects.IndexName(fmt.Sprintf("ix%02d", i)), "r1", fmt.Sprintf("ix%02d.a_function_with_a_long_name", i))
	}
	meshtest.Until(t, "all are known", func() bool { all, _ := v.List("s", "", 0); return len(all) == n })
	client := open(t, s.Connect(t))
	seen := 0
	for q := (registry.Request{}); ; {
		var a registry.ListAnswer
		if err := ask(t, client, "s", registry.VerbList, q, &a); err != nil {
			t.Fatal(err)
		}
		seen += len(a.Tools)
		if q.After = a.Next; a.Next == "" {
			break
		}
	}
	if seen != n {
		t.Fatalf("%d tools over all pages, want %d", seen, n)
	}
}

// An answer that no message holds is an error of a request that has started nothing.
func TestAnswerThatFitsIntoNoMessage(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t, meshtest.MaxPayload(8<<10))
	b := ready(t, s.Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	respond(t, b, v, store)
	l := acquire(t, b, record("n1", "boot1"))
	d := &tool.Descriptor{
		ID: "ix.f", Name: "f", Description: strings.Repeat("d", 7<<10),
		InputSchema: json.RawMessage(`{"type":"object"}`), Source: tool.SourceGo,
	}
	digests, err := store.PutDescriptors(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Publish(t.Context(), registry.ToolsRecord{Index: "ix", Revision: "r1", Tools: []registry.ToolRoute{{ID: d.ID, Digest: digests[0]}}}); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "it is known", func() bool { all, _ := v.List("s", "", 0); return len(all) == 1 })
	err = ask(t, open(t, s.Connect(t)), "s", registry.VerbDescribe, registry.Request{Tool: "ix.f"}, nil)
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodePayloadTooLarge || e.Started != toolmesh.StartedNo {
		t.Errorf("%v, want payload_too_large, not started", err)
	}
}

func TestDescriptorsAreCachedAndBounded(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	writer := testmesh.Store(t, b)
	l := acquire(t, b, record("n1", "boot1"))
	publish(t, writer, l, "demo", "r1", "demo.a", "demo.b")
	v := view(t, b)
	meshtest.Until(t, "known", func() bool { return nodesOf(v, "s", "demo.b") != "unknown" })
	a, _ := v.Route("s", "demo.a")
	c, _ := v.Route("s", "demo.b")
	reader := testmesh.Store(t, open(t, s.Connect(t)))
	d, err := reader.Descriptor(t.Context(), a.Digest)
	if err != nil || d.ID != "demo.a" {
		t.Fatalf("%+v, %v", d, err)
	}
	all, err := reader.Descriptors(t.Context(), []string{a.Digest, c.Digest, "missing", "not a key", ""})
	if err != nil || len(all) != 2 || all[a.Digest] != d {
		t.Fatalf("%d descriptors, %v; the first cached: %v", len(all), err, all[a.Digest] == d)
	}
	_, err = reader.Descriptor(t.Context(), "missing")
	wantCode(t, err, toolmesh.CodeToolNotFound)
	// A cache that holds one descriptor still answers both.
	small := testmesh.Store(t, b)
	small.LimitCache(1)
	for range 2 {
		for _, digest := range []string{a.Digest, c.Digest} {
			if _, err := small.Descriptor(t.Context(), digest); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.Stop()
	if _, err := reader.Descriptor(t.Context(), a.Digest); err != nil {
		t.Fatalf("a cached descriptor needs the broker: %v", err)
	}
}

// A caller that hears nothing for a while asks again. While a question waits for the store, its
// copies take no places of other questions, and get no answers of their own.
func TestQuestionThatIsRepeatedIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	publish(t, testmesh.Store(t, b), acquire(t, b, record("n1", "boot1")), "demo", "r1", "demo.a", "demo.b")
	v := view(t, b)
	meshtest.Until(t, "known", func() bool { return nodesOf(v, "s", "demo.b") != "unknown" })
	proxy := meshtest.NewProxy(t, s)
	respond(t, b, v, testmesh.Store(t, open(t, proxy.Connect(t))))
	proxy.Blackhole()

	nc := s.Connect(t)
	answers, err := nc.SubscribeSync(nats.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if err := nc.PublishRequest("mesh.registry.s.describe", answers.Subject, []byte(`{"tool":"demo.a"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.PublishRequest("mesh.registry.s.describe", answers.Subject, []byte(`{"tool":"demo.b"}`)); err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest("mesh.registry.s.time", answers.Subject, nil); err != nil { // the answer to the last comes first
		t.Fatal(err)
	}
	first, err := answers.NextMsg(time.Minute)
	if err != nil || !strings.Contains(string(first.Data), "now_ms") {
		t.Fatalf("%s, %v", first.Data, err)
	}
	proxy.Heal()
	var got []string
	for range 2 {
		m, err := answers.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		var a registry.DescribeAnswer
		if err := json.Unmarshal(m.Data, &a); err != nil {
			t.Fatalf("%s: %v", m.Data, err)
		}
		got = append(got, string(a.Descriptor.ID))
	}
	if slices.Sort(got); !slices.Equal(got, []string{"demo.a", "demo.b"}) {
		t.Errorf("answers about %v", got)
	}
}

// The limits in effect are the tool's, bounded by those of its nodes.
func TestDescribedLimitsAreThoseInEffect(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	respond(t, b, v, store)
	d := &tool.Descriptor{
		ID: "web.get", Name: "get", Source: tool.SourceImport, Annotations: tool.Annotations{Limits: tool.Limits{Memory: 3e9, Output: 1e3}},
	}
	digests, err := store.PutDescriptors(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	standard := tool.Limits{Memory: 1e9, Pids: 256, OpenFiles: 1024, TempFiles: 1e9}
	for node, most := range map[string]tool.Limits{"n1": {}, "n2": {Memory: 2e9, Pids: 40}, "n3": {Memory: 8e9}, "n4": {}} {
		r := record(node, "boot1")
		if node != "n4" { // a service, say
			r.Limits, r.MaxLimits = standard, most
		}
		l := acquire(t, b, r)
		beat(t, b, node, "boot1", 0)
		err := l.Publish(t.Context(), registry.ToolsRecord{Index: "web", Revision: "r1", Tools: []registry.ToolRoute{{ID: d.ID, Digest: digests[0]}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Until(t, "the view knows the nodes", func() bool { r, _ := v.Route("s1", d.ID); return len(r.Nodes) == 4 })
	var described registry.DescribeAnswer
	if err := ask(t, b, "s1", registry.VerbDescribe, registry.Request{Tool: "web.get"}, &described); err != nil {
		t.Fatal(err)
	}
	got := map[string]tool.Limits{}
	for _, one := range described.Limits {
		got[fmt.Sprint(one.Nodes)] = one.Limits
	}
	want := map[string]tool.Limits{
		"[n1 n3]": {Memory: 3e9, Pids: 256, OpenFiles: 1024, TempFiles: 1e9, Output: 1e3},
		"[n2]":    {Memory: 2e9, Pids: 40, OpenFiles: 1024, TempFiles: 1e9, Output: 1e3},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

// A call that was lost may have run on any node: a tool is idempotent if all say so.
func TestIdempotentOnEveryNode(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	v := view(t, b)
	one, two := acquire(t, b, record("n1", "boot1")), acquire(t, b, record("n2", "boot2"))
	beat(t, b, "n1", "boot1", 0)
	beat(t, b, "n2", "boot2", 0)
	d := &tool.Descriptor{ID: "weather.now", Name: "now", Description: "Old", InputSchema: json.RawMessage(`{"type":"object"}`), Source: tool.SourceGo}
	digests, err := store.PutDescriptors(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	old := registry.ToolsRecord{Index: "weather", Revision: "r1", Tools: []registry.ToolRoute{{ID: d.ID, Digest: digests[0]}}}
	if err := one.Publish(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	publish(t, store, two, "weather", "r2", "weather.now")
	route := func() registry.Route { r, _ := v.Route("default", "weather.now"); return r }
	meshtest.Until(t, "both serve it", func() bool { return len(route().Nodes) == 2 })
	if r := route(); r.Revision != "r2" || r.Idempotent {
		t.Errorf("with a node of a revision that is not idempotent: %+v", r)
	}
	publish(t, store, one, "weather", "r2", "weather.now")
	meshtest.Until(t, "it is idempotent when all say so", func() bool { return route().Idempotent })
}
