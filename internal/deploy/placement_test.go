package deploy_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// labelled is a manager on a node of the registry with labels.
type labelled struct {
	*node
	id     subjects.NodeID
	lease  *registry.Lease
	labels atomic.Pointer[map[string]string]
}

// startOn starts a manager on a node with labels; the registry has its tools once they are
// published.
func startOn(t *testing.T, s *meshtest.Server, id subjects.NodeID, labels map[string]string) *labelled {
	t.Helper()
	l := &labelled{id: id}
	l.labels.Store(&labels)
	l.node = startWith(t, s, "", deploy.Options{Node: id, Labels: func() map[string]string { return *l.labels.Load() }})
	var err error
	if l.lease, err = registry.Acquire(t.Context(), l.bus, registry.NodeRecord{
		Node: id, Boot: subjects.BootID("boot-" + id), State: registry.StateServing, Slots: 1, Proto: [2]int{1, 1}, Labels: labels,
		Sandbox: registry.SandboxState{Asked: "guard", Effective: "guard"}, Started: time.Now(),
	}, nil, nil); err != nil {
		t.Fatal(err)
	}
	subject, err := subjects.Heartbeat(id)
	if err != nil {
		t.Fatal(err)
	}
	beat := codec.Encode(codec.Heartbeat{Node: string(id), Boot: "boot-" + string(id), State: "serving", Slots: 1})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			_ = l.bus.Conn().Publish(subject, beat)
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		_ = l.lease.Release(ctx)
	})
	l.workshop.set(nil, l.tell)
	return l
}

// tell has the registry know that the node serves a build.
func (l *labelled) tell(b deploy.Build) error {
	r := registry.ToolsRecord{Index: b.Name, Session: b.Session, Revision: b.Revision}
	for _, name := range b.Manifest.Tools {
		r.Tools = append(r.Tools, registry.ToolRoute{ID: subjects.ToolID(string(b.Name) + "." + name), Digest: "d"})
	}
	return l.lease.Publish(context.Background(), r)
}

// label changes the node's labels.
func (l *labelled) label(t *testing.T, labels map[string]string) {
	t.Helper()
	l.labels.Store(&labels)
	if err := l.lease.Update(t.Context(), func(r *registry.NodeRecord) { r.Labels = labels }); err != nil {
		t.Fatal(err)
	}
}

// built lists the node's imports, in order.
func (l *labelled) built() (names []string) {
	l.workshop.mu.Lock()
	defer l.workshop.mu.Unlock()
	for _, b := range l.workshop.opened {
		names = append(names, string(b.Name))
	}
	return names
}

func (l *labelled) left(t *testing.T, name string) {
	t.Helper()
	l.workshop.await(t, string(l.id)+" serves "+name+" no more", func() bool { return slices.Contains(l.workshop.withdrawn, name) })
}

var gpu = registry.Labels{"gpu": "true"}

// knows waits until an install is refused at a node because it knows which others fit.
func (l *labelled) knows(t *testing.T, r deploy.Request, fit ...subjects.NodeID) *toolmesh.Error {
	t.Helper()
	var e *toolmesh.Error
	meshtest.Until(t, "the node knows the others", func() bool {
		_, err := l.install(t, r)
		e = toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeInstallFailed || e.Details["reason"] != "placement" || e.Started != toolmesh.StartedNo {
			t.Fatalf("install at %s: %v, want that it is refused there", l.id, err)
		}
		return slices.Equal(e.Details["nodes"].([]subjects.NodeID), fit)
	})
	return e
}

// An index is built only on nodes with its labels; another node that is asked to install it names
// them.
func TestAnIndexIsBroughtToTheNodesThatItIsFor(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	big := startOn(t, s, "big", map[string]string{"gpu": "true", "zone": "b"})
	more := startOn(t, s, "more", map[string]string{"gpu": "true"})
	small := startOn(t, s, "small", map[string]string{"zone": "b"})
	url, _ := source(t, "idx")
	all, _ := source(t, "all")

	e := small.knows(t, deploy.Request{Source: url, On: gpu}, "big", "more")
	for _, part := range []string{"gpu=true", "small has zone=b", "ask big, more"} {
		if !strings.Contains(e.Message, part) {
			t.Errorf("%q does not say %q", e.Message, part)
		}
	}
	e = small.knows(t, deploy.Request{Source: url, On: registry.Labels{"gpu": "true", "zone": "c"}})
	for _, part := range []string{"gpu=true,zone=c", "no node has that", "small has zone=b", "big has gpu=true,zone=b", "mesh node label"} {
		if !strings.Contains(e.Message, part) {
			t.Errorf("%q does not say %q", e.Message, part)
		}
	}
	for _, bad := range []registry.Labels{{"gpu": ""}, {"": "x"}, {"a": "b,c"}} {
		if _, err := big.install(t, deploy.Request{Source: url, On: bad}); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("install on %q: %v", bad, err)
		}
	}
	if r := big.record(t, "idx"); r != nil {
		t.Fatalf("what was refused has the record %+v", r)
	}

	big.mustInstall(t, deploy.Request{Source: url, On: gpu})
	big.mustInstall(t, deploy.Request{Source: all})
	revision, everywhere := big.record(t, "idx").Revision, big.record(t, "all").Revision
	more.workshop.serves(t, "idx", revision)
	for _, n := range []*labelled{more, small} {
		n.workshop.serves(t, "all", everywhere)
		if err := n.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := small.built(); !slices.Equal(got, []string{"all"}) {
		t.Errorf("a node without the label has built %v", got)
	}
	if building, failed := small.Outstanding(); len(building)+len(failed) > 0 {
		t.Errorf("a node has outstanding what is not for it: %v %v", building, failed)
	}

	// Installed again without labels, an index keeps its own, and a node without them says so.
	small.knows(t, deploy.Request{Source: url}, "big", "more")
	big.mustInstall(t, deploy.Request{Source: url})
	if r := big.record(t, "idx"); r.On.String() != "gpu=true" {
		t.Errorf("installed again it is on %q", r.On)
	}
	// No labels, said, are every node.
	small.mustInstall(t, deploy.Request{Source: url, On: registry.Labels{}})
	if r := big.record(t, "idx"); len(r.On) > 0 {
		t.Errorf("for every node it is on %q", r.On)
	}
}

// A node that gets the label builds the index; the only node that has it stops at once when it
// loses the label.
func TestLabelMovesIndexes(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	one, two := startOn(t, s, "one", map[string]string{"gpu": "true"}), startOn(t, s, "two", nil)
	url, _ := source(t, "idx")
	one.mustInstall(t, deploy.Request{Source: url, On: gpu})
	revision := one.record(t, "idx").Revision
	two.label(t, map[string]string{"gpu": "true"})
	two.workshop.serves(t, "idx", revision)
	one.label(t, nil)
	one.left(t, "idx")
	two.label(t, map[string]string{"gpu": "false"})
	two.left(t, "idx")
	two.awaitFolders(t)
	if r := one.record(t, "idx"); r == nil || r.On.String() != "gpu=true" {
		t.Errorf("the index is no longer installed as it was: %+v", r)
	}
	one.label(t, map[string]string{"gpu": "true"})
	one.workshop.serves(t, "idx", revision)
}

// A node that no longer matches serves the old revision until a matching node serves the new one.
func TestNodeWithoutTheLabelServesUntilOthersDo(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	one, two := startOn(t, s, "one", nil), startOn(t, s, "two", map[string]string{"gpu": "true"})
	url, dir := source(t, "idx")
	other, _ := source(t, "other")
	one.mustInstall(t, deploy.Request{Source: url})
	before := one.record(t, "idx").Revision
	two.workshop.serves(t, "idx", before)
	testmesh.Commit(t, dir, map[string]string{"t.py": "def tool(): return 2\n"})
	reached, let := make(chan struct{}), make(chan struct{})
	two.workshop.set(nil, func(b deploy.Build) error {
		if b.Name == "idx" { // its record is written
			close(reached)
			<-let
		}
		return two.tell(b)
	})
	moved := make(chan error, 1)
	go func() {
		moved <- two.Install(context.Background(), deploy.Request{Source: url, On: gpu}, func(deploy.Line) {})
	}()
	<-reached
	two.mustInstall(t, deploy.Request{Source: other}) // the node sees this install after the one before
	one.workshop.serves(t, "other", two.record(t, "other").Revision)
	if err := one.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.workshop.mu.Lock()
	still, gone := one.workshop.published["idx"].Revision, slices.Clone(one.workshop.withdrawn)
	one.workshop.mu.Unlock()
	if still != before || len(gone) > 0 {
		t.Errorf("while nobody serves what is installed now the node serves %q and has withdrawn %v, want %q and nothing", still, gone, before)
	}
	close(let)
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	one.left(t, "idx")
	if got := one.built(); !slices.Equal(got, []string{"idx", "other"}) {
		t.Errorf("a node that it is not for has built %v", got)
	}
}
