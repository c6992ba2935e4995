package deploy_test

import (
	"context"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func TestUninstallOfAMissingIndex(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, _ := source(t, "idx")
	n.mustInstall(t, deploy.Request{Source: url})
	for _, name := range []subjects.IndexName{"", "a.b", "a\xff"} {
		if err := n.Uninstall(t.Context(), name, ""); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("uninstall of %q: %v", name, err)
		}
	}
	err := n.Uninstall(t.Context(), "idxs", "")
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeNotFound || !strings.Contains(e.Message, "idx") {
		t.Errorf("uninstall: %v", err)
	}
	// Of a session: the mesh's own index of that name is no answer.
	err = n.Uninstall(t.Context(), "idx", "bob")
	if e := toolmesh.AsError(err); e == nil || e.Code != toolmesh.CodeNotFound || !strings.Contains(e.Message, `session "bob"`) || strings.Contains(e.Message, "did you mean") {
		t.Errorf("uninstall: %v", err)
	}
}

// An uninstall cancels the install of its name, with an error to its callers, and the build of the
// installed index.
func TestUninstallEndsABuild(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, _ := source(t, "idx")
	g := newGate("idx")
	n.workshop.set(g.hold, nil)
	jobs, waits := make(chan string, 100), make(chan deploy.Line, 100)
	ended, second := make(chan error, 1), make(chan error, 1)
	go func() {
		ended <- n.Install(t.Context(), deploy.Request{Source: url}, func(l deploy.Line) { jobs <- l.Job })
	}()
	<-g.entered
	go func() {
		second <- n.Install(t.Context(), deploy.Request{Source: url}, func(l deploy.Line) {
			if l.Step == "wait" {
				waits <- l
			}
		})
	}()
	if l, job := <-waits, <-jobs; job == "" || l.For != job {
		t.Errorf("another install waits for %q, the first one is %q", l.For, job)
	}
	uninstalled := make(chan error, 1)
	go func() { uninstalled <- n.Uninstall(t.Context(), "idx", "") }()
	if err := <-ended; toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
		t.Errorf("the install ends with %v", err)
	}
	close(g.leave)
	if err := <-second; err != nil {
		t.Errorf("the other install: %v", err)
	}
	if err := <-uninstalled; err != nil {
		t.Errorf("uninstall: %v", err)
	}

	g = newGate("held")
	n.workshop.set(g.hold, nil)
	n.copyRecord(t, "idx", "held")
	<-g.entered
	if err := n.Uninstall(t.Context(), "held", ""); err != nil {
		t.Errorf("uninstall of what is being built: %v", err)
	}
	n.workshop.mu.Lock()
	defer n.workshop.mu.Unlock()
	if _, served := n.workshop.published["held"]; served {
		t.Error("what was uninstalled while it was being built is served")
	}
}

// A node ends the build of a record that another node has removed or replaced.
func TestRemovedRecordEndsItsBuild(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	n := start(t, s, "")
	url, _ := source(t, "idx")
	n.mustInstall(t, deploy.Request{Source: url})
	over := make(chan error, 10)
	entered := make(chan struct{}, 10)
	n.workshop.set(func(ctx context.Context, b deploy.Build) error {
		if b.Name != "held" {
			return nil
		}
		entered <- struct{}{}
		<-ctx.Done()
		over <- ctx.Err()
		return ctx.Err()
	}, nil)
	n.copyRecord(t, "idx", "held")
	<-entered
	r := n.record(t, "held")
	r.Revision += "0"
	if err := n.store.ReplaceIndex(t.Context(), *r); err != nil {
		t.Fatal(err)
	}
	<-over
	<-entered // the build of the other revision
	if err := n.store.DeleteIndex(t.Context(), "held", ""); err != nil {
		t.Fatal(err)
	}
	<-over
}

// Nodes go on serving an index of which a registry that was made anew knows nothing. One that is
// installed there again, and then uninstalled, leaves all nodes.
func TestIndexesOfALostRegistry(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	n, other := start(t, s, ""), start(t, s, "")
	url, _ := source(t, "idx")
	gone, _ := source(t, "gone")
	n.mustInstall(t, deploy.Request{Source: url})
	n.mustInstall(t, deploy.Request{Source: gone})
	revision := n.record(t, "idx").Revision
	other.workshop.serves(t, "idx", revision)
	other.workshop.serves(t, "gone", n.record(t, "gone").Revision)
	if err := n.bus.JetStream().DeleteStream(t.Context(), subjects.KVStream(subjects.BucketIndexes)); err != nil {
		t.Fatal(err)
	}
	if err := store.Of(n.bus).Ensure(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	probe, _ := source(t, "probe")
	n.mustInstall(t, deploy.Request{Source: probe})
	other.workshop.serves(t, "probe", n.record(t, "probe").Revision)
	n.mustInstall(t, deploy.Request{Source: url})
	if err := n.Uninstall(t.Context(), "idx", ""); err != nil {
		t.Fatal(err)
	}
	for _, each := range []*node{n, other} {
		each.workshop.await(t, "idx is withdrawn", func() bool { return each.workshop.published["idx"].Revision == "" })
		each.workshop.await(t, "gone is served", func() bool { return each.workshop.published["gone"].Revision != "" })
	}
}
