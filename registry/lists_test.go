package registry_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// alike is the record of an index of many tools, the same from each node.
func alike(revision string) registry.ToolsRecord {
	r := registry.ToolsRecord{Index: "big", Revision: revision, Alike: true}
	for i := range 40 {
		r.Tools = append(r.Tools, registry.ToolRoute{ID: subjects.ToolID(fmt.Sprintf("big.tool%02d", i)), Digest: "d-" + revision})
	}
	return r
}

// listKey is where the list of a record's tools is stored.
func listKey(t *testing.T, r registry.ToolsRecord) (key store.Key, tools []byte) {
	t.Helper()
	tools, err := json.Marshal(r.Tools)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(tools)
	return store.Key{Bucket: subjects.BucketSchemas, Name: hex.EncodeToString(sum[:])}, tools
}

func say(t *testing.T, l *registry.Lease, r registry.ToolsRecord) {
	t.Helper()
	if err := l.Publish(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// Equal lists of tools are stored once, records name them, and views know the nodes of each tool:
// those that exist, and those that come later.
func TestListsOfToolsAreStoredOnce(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	early := view(t, open(t, s.Connect(t)))
	one, two := acquire(t, b, record("n1", "boot1")), acquire(t, b, record("n2", "boot2"))
	beat(t, b, "n1", "boot1", 0)
	beat(t, b, "n2", "boot2", 0)
	r := alike("r1")
	say(t, one, r)
	say(t, two, r)
	key, tools := listKey(t, r)
	if e, err := store.Of(b).Get(t.Context(), key); err != nil || !bytes.Equal(e.Value, tools) {
		t.Errorf("the list is not stored: %v", err)
	}
	for _, node := range []string{"n1", "n2"} {
		e, err := store.Of(b).Get(t.Context(), store.Key{Bucket: subjects.BucketTools, Name: node + ".=.i.big"})
		if err != nil || len(e.Value) > 400 || bytes.Contains(e.Value, []byte("tool01")) {
			t.Errorf("the record of %s: %s, %v", node, e.Value, err)
		}
	}
	late := view(t, open(t, s.Connect(t)))
	expect := func(what, want string) {
		t.Helper()
		for _, v := range []*registry.View{early, late} {
			for _, id := range []string{"big.tool00", "big.tool39"} {
				meshtest.Until(t, what, func() bool { return nodesOf(v, "s", id) == want })
			}
		}
	}
	expect("both serve", "n1/boot1 n2/boot2 ")

	// One takes up another revision, with a tool less.
	next := alike("r2")
	next.Tools = next.Tools[1:]
	say(t, one, next)
	for _, v := range []*registry.View{early, late} {
		meshtest.Until(t, "one has another revision", func() bool {
			return nodesOf(v, "s", "big.tool00") == "n2/boot2 " && nodesOf(v, "s", "big.tool39") == "n1/boot1 n2/boot2 "
		})
	}
	if err := two.Withdraw(t.Context(), subjects.ToolsKey{Index: "big"}); err != nil {
		t.Fatal(err)
	}
	for _, v := range []*registry.View{early, late} {
		meshtest.Until(t, "nobody has the first one", func() bool {
			_, known := v.Route("s", "big.tool00")
			return !known && nodesOf(v, "s", "big.tool39") == "n1/boot1 "
		})
	}
	small := registry.ToolsRecord{Index: "small", Revision: "r1", Alike: true, Tools: []registry.ToolRoute{{ID: "small.a", Digest: "d"}}}
	say(t, two, small)
	if e, err := store.Of(b).Get(t.Context(), store.Key{Bucket: subjects.BucketTools, Name: "n2.=.i.small"}); err != nil || !bytes.Contains(e.Value, []byte("small.a")) {
		t.Errorf("a list that is smaller than its name is worth: %s, %v", e.Value, err)
	}
}

// A missing list delays only the records that name it, until it comes. Other content in its place
// is refused, and the node repairs it.
func TestListsThatAreMissing(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	beat(t, b, "n1", "boot1", 0)
	r := alike("r1")
	key, tools := listKey(t, r)
	if _, err := store.Of(b).Put(t.Context(), key, []byte(`[{"id":"big.tool00","digest":"of another"}]`), 0); err != nil {
		t.Fatal(err)
	}
	say(t, l, r)
	if e, err := store.Of(b).Get(t.Context(), key); err != nil || !bytes.Equal(e.Value, tools) {
		t.Fatalf("a list that is not what its name says was left: %s, %v", e.Value, err)
	}
	say(t, l, registry.ToolsRecord{Index: "small", Revision: "r1", Tools: []registry.ToolRoute{{ID: "small.a", Digest: "d"}}})

	for name, bad := range map[string]string{"gone": "", "another": `[{"id":"big.tool00","digest":"of another"}]`} {
		err := store.Of(b).Delete(t.Context(), key, 0)
		if bad != "" {
			_, err = store.Of(b).Put(t.Context(), key, []byte(bad), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		late := open(t, s.Connect(t))
		v, err := registry.OpenView(t.Context(), late, registry.Checking(100*time.Millisecond, registry.ViewOptions{}))
		if err != nil {
			t.Fatalf("%s: no view for want of a list: %v", name, err)
		}
		t.Cleanup(v.Close)
		if got := nodesOf(v, "s", "small.a"); got != "n1/boot1 " {
			t.Errorf("%s: another index is served by %q", name, got)
		}
		if _, known := v.Route("s", "big.tool00"); known {
			t.Errorf("%s: a tool is known whose list is not there", name)
		}
		if _, err := store.Of(b).Put(t.Context(), key, tools, 0); err != nil {
			t.Fatal(err)
		}
		meshtest.Until(t, name+": the list has come", func() bool { return nodesOf(v, "s", "big.tool39") == "n1/boot1 " })
		v.Close()
	}
}

// A later record replaces one that waits for its list, in any order of arrival.
func TestLaterRecordsDoNotWait(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	l := acquire(t, b, record("n1", "boot1"))
	beat(t, b, "n1", "boot1", 0)
	v := testmesh.View(t, open(t, s.Connect(t)), registry.Checking(100*time.Millisecond, registry.ViewOptions{}))
	t.Cleanup(v.Close)
	r := alike("r1")
	key, tools := listKey(t, r)
	record := store.Key{Bucket: subjects.BucketTools, Name: "n1.=.i.big"}
	waits := []byte(`{"node":"n1","boot":"boot1","index":"big","revision":"r1","list":"` + key.Name + `"}`)
	if _, err := store.Of(b).Put(t.Context(), record, waits, 0); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the list is missed", func() bool { return v.Stale() > 0 })
	say(t, l, registry.ToolsRecord{Index: "big", Revision: "r2", Tools: []registry.ToolRoute{{ID: "big.only", Digest: "d"}}})
	meshtest.Until(t, "the later record counts", func() bool { return nodesOf(v, "s", "big.only") == "n1/boot1 " && v.Stale() == 0 })
	if _, err := store.Of(b).Put(t.Context(), key, tools, 0); err != nil {
		t.Fatal(err)
	}
	say(t, l, registry.ToolsRecord{Index: "last", Revision: "r2", Tools: []registry.ToolRoute{{ID: "last.a", Digest: "d"}}})
	meshtest.Until(t, "what comes after the list is known", func() bool { return nodesOf(v, "s", "last.a") == "n1/boot1 " })
	if _, known := v.Route("s", "big.tool00"); known || nodesOf(v, "s", "big.only") != "n1/boot1 " {
		t.Error("an earlier record has replaced a later one")
	}
}

// Names of lists that name none are damage of one record.
func TestMalformedNamesOfListsAreIgnored(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	acquire(t, b, record("n1", "boot1"))
	for _, name := range []string{"x", "ZZ", "00", "..", "*"} {
		record := []byte(`{"node":"n1","boot":"boot1","index":"big","list":"` + name + `"}`)
		if _, err := store.Of(b).Put(t.Context(), store.Key{Bucket: subjects.BucketTools, Name: "n1.=.i.big"}, record, 0); err != nil {
			t.Fatal(err)
		}
		v := view(t, open(t, s.Connect(t)))
		if all, _ := v.List("s", "", 0); len(all) > 0 || v.Stale() > 0 {
			t.Errorf("%q: %v", name, all)
		}
	}
}

// A process that publishes a tool puts its descriptor right where the store has another value.
func TestDamagedDescriptorsAreRepaired(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	d := &tool.Descriptor{ID: "demo.a", InputSchema: json.RawMessage(`{"type":"object"}`)}
	digest, err := d.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Of(b).Put(t.Context(), store.Key{Bucket: subjects.BucketSchemas, Name: digest}, []byte("damaged"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := testmesh.Store(t, b).PutDescriptors(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if got, err := testmesh.Store(t, b).Descriptor(t.Context(), digest); err != nil || got.ID != d.ID {
		t.Fatalf("the descriptor that was published: %+v, %v", got, err)
	}
}
