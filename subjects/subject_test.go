package subjects

import (
	"strings"
	"testing"
)

func TestNamesThatAreNotUTF8AreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"\xff", "a\xc3", "\xed\xa0\x80", strings.Repeat("a", 100) + "\xff"} {
		_, err := EncodeToken(name)
		refusal(t, err, "name", "it is not UTF-8")
		_, err = Tool(SessionID(name), "a")
		refusal(t, err, "session", "it is not UTF-8")
		_, err = Tool("s", ToolID("a."+name))
		refusal(t, err, "tool", "it is not UTF-8")
	}
}

func TestBuildRefusesValuesThatCannotBeSent(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]Subject{
		"no kind":             {},
		"a kind out of range": {Kind: Kind(len(forms)), Session: "s"},
		"an empty session":    {Kind: KindTool, Tool: "a"},
		"an empty tool":       {Kind: KindTool, Session: "s"},
		"an empty rpc id":     {Kind: KindCtl, Session: "s"},
		"an empty node":       {Kind: KindHeartbeat},
		"a verb with a dot":   {Kind: KindAdmin, Verb: "a.b"},
		"a verb to encode":    {Kind: KindAdmin, Verb: "ä"},
		"an empty verb":       {Kind: KindRegistry, Session: "s"},
		"a bucket with a dot": {Kind: KindRegistryChange, Bucket: "A.B", Key: "k"},
		"a key with a star":   {Kind: KindRegistryChange, Bucket: "A", Key: "a.*"},
		"a key with a dot":    {Kind: KindRegistryChange, Bucket: "A", Key: "a."},
		"a key with > in it":  {Kind: KindRegistryChange, Bucket: "A", Key: "a.>"},
		"an empty key":        {Kind: KindRegistryChange, Bucket: "A"},
	} {
		text, err := s.Build()
		refusal(t, err, name, "it built "+text)
	}
	for _, k := range []ToolsKey{
		{}, {Node: "n"}, {Node: "n", Tool: "t"}, {Node: "n", Session: "s", Tool: "t", Index: "i"},
		{Node: "n", Index: "a.b"}, {Node: "n", Session: "s", Tool: "a.b"}, {Session: "s", Tool: "t"},
	} {
		text, err := k.Build()
		refusal(t, err, "tools key", "it built "+text)
	}
}

func TestBuildersOfSubjects(t *testing.T) {
	t.Parallel()
	got := func(s string, err error) string {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		return s
	}
	for want, text := range map[string]string{
		"tools.s.i.t":               got(Tool("s", "i.t")),
		"mesh.node.n.tools.s.i.t":   got(NodeTool("n", "s", "i.t")),
		"mesh.node.n.ctl.s.r":       got(NodeCtl("n", "s", "r")),
		"mesh.ctl.s.r":              got(Ctl("s", "r")),
		"mesh.chunks.s.r":           got(Chunks("s", "r")),
		"mesh.live.s.r":             got(Live("s", "r")),
		"mesh.replay.s.r":           got(Subject{Kind: KindReplay, Session: "s", RPC: "r"}.Build()),
		"mesh.registry.s.describe":  got(Registry("s", "describe")),
		"mesh.batch.s":              got(Subject{Kind: KindBatch, Session: "s"}.Build()),
		"mesh.node.n.batch.s":       got(NodeBatch("n", "s")),
		"mesh.node.n.batch.*":       got(NodeBatches("n")),
		"mesh.admin.install":        got(Subject{Kind: KindAdmin, Verb: "install"}.Build()),
		"mesh.node.n.admin.drain":   got(Subject{Kind: KindNodeAdmin, Node: "n", Verb: "drain"}.Build()),
		"mesh.hb.n":                 got(Heartbeat("n")),
		"_INBOX_s":                  got(InboxPrefix("s")),
		"mesh.reg.MESH_NODES.>":     RegistryChanges(BucketNodes),
		"$KV.MESH_NODES.n":          KVSubject(BucketNodes, got(NodeKey("n"))),
		"$KV.MESH_SESSIONS.s":       KVSubject(BucketSessions, got(SessionKey("s"))),
		"$KV.MESH_TOOLS.>":          KVAll(BucketTools),
		"KV_MESH_TOOLS":             KVStream(BucketTools),
		"$JS.API.":                  JetStreamAPI(""),
		"$JS.hub.API.":              JetStreamAPI("hub"),
		"tools.*.i.t":               got(ToolAnySession("i.t")),
		"mesh.node.n.admin.>":       got(NodeAdmins("n")),
		"mesh.node.n.tools.>":       got(NodeTools("n")),
		"mesh.node.n.ctl.>":         got(NodeCtls("n")),
		"mesh.node.x--5o.tools.s.t": got(NodeTool(".", "s", "t")),
	} {
		if text != want {
			t.Errorf("got %q, want %q", text, want)
		}
	}
	if key, ok := KVKey(BucketNodes, "$KV.MESH_NODES.n"); !ok || key != "n" {
		t.Errorf("KVKey: got %q, %t, want n, true", key, ok)
	}
	if key, ok := KVKey(BucketNodes, "$KV.MESH_NODESX.n"); ok {
		t.Errorf("KVKey of another bucket: got %q, true", key)
	}
}

// Every subject of a kind is taken by the subscription that is meant for it,
// and by no other: a request that two groups take would run twice.
func TestSubscriptionsTakeTheirKinds(t *testing.T) {
	t.Parallel()
	must := func(s string, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	patterns := map[string][]Kind{
		AllCtl: {KindCtl}, AllReplay: {KindReplay}, AllRegistry: {KindRegistry}, AllAdmin: {KindAdmin}, AllBatches: {KindBatch},
		AllTaskVerbs: {KindTaskVerb}, AllTasks: {KindTask}, AllSchedules: {KindSchedule}, TaskLane("normal", "0"): {KindTask},
		AllHeartbeats: {KindHeartbeat}, AllChunks: {KindChunks}, LiveTransform: {KindLive}, AllTools: {KindTool},
		must(ToolAnySession("weather.forecast.today")): {KindTool},
		must(NodeTools("gpu-1")):                       {KindNodeTool},
		must(NodeCtls("gpu-1")):                        {KindNodeCtl},
		must(NodeAdmins("gpu-1")):                      {KindNodeAdmin},
		must(NodeBatches("gpu-1")):                     {KindNodeBatch},
		RegistryChanges(BucketTools):                   {KindRegistryChange},
	}
	examples := make(map[Kind]string)
	for _, c := range readVectors(t).Subjects {
		kind := kindNames[c.Kind]
		if examples[kind] == "" {
			examples[kind] = c.Subject
		}
	}
	for pattern, kinds := range patterns {
		for kind, subject := range examples {
			want := false
			for _, k := range kinds {
				want = want || k == kind
			}
			if got := matches(pattern, subject); got != want {
				t.Errorf("matches(%q, %q): got %t, want %t", pattern, subject, got, want)
			}
		}
	}
}

func TestToolIDParts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		id    ToolID
		index IndexName
		ok    bool
		local string
	}{
		{"weather.forecast.today", "weather", true, "forecast.today"},
		{"weather.today", "weather", true, "today"},
		{"search", "search", false, "search"},
	} {
		index, ok := c.id.Index()
		if index != c.index || ok != c.ok || c.id.Local() != c.local {
			t.Errorf("%q: got %q, %t, %q, want %q, %t, %q", c.id, index, ok, c.id.Local(), c.index, c.ok, c.local)
		}
	}
}

func TestSameName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("l", 70)
	token, err := EncodeToken(long)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := EncodeToken("oslo.no")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"a", "a", true}, {"a", "b", false}, {long, token, true}, {token, long, true},
		{long, long + "l", false}, {"oslo.no", encoded, false}, {"", "", true}, {"", "a", false},
		{"\xff", "\xfe", false},
	} {
		if got := SameName(SessionID(c.a), SessionID(c.b)); got != c.same {
			t.Errorf("SameName(%q, %q): got %t, want %t", c.a, c.b, got, c.same)
		}
	}
	for _, c := range []struct {
		a, b ToolID
		same bool
	}{
		{"i.t", "i.t", true}, {"i.t", "i.u", false}, {ToolID("i." + long), ToolID("i." + token), true},
		{ToolID(long), ToolID("i." + token), false}, {"i.t", "", false}, {"i.ü", "i.x--oeu0", false},
	} {
		if got := SameTool(c.a, c.b); got != c.same {
			t.Errorf("SameTool(%q, %q): got %t, want %t", c.a, c.b, got, c.same)
		}
	}
}

func BenchmarkToolSubject(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NodeTool("gpu-1", "default", "weather.forecast.today"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseNodeTool(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("mesh.node.gpu-1.tools.default.weather.forecast.today"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReplyAllowed(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if !ReplyAllowed("_INBOX.5Kq2Vn0bYyJ3kX8wR1tZpL.x7Yb2Q", "default", false) {
			b.Fatal("refused")
		}
	}
}
