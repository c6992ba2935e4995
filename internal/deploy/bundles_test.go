package deploy_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

// soon removes unused bundles after 50 ms.
func soon(m *deploy.Manager) { m.SetBundleAge(50 * time.Millisecond) }

// bundles lists the bundles in the mesh.
func (n *node) bundles(t *testing.T) []string {
	t.Helper()
	all, err := store.Of(n.bus).Bundles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	digests := make([]string, 0, len(all))
	for _, b := range all {
		digests = append(digests, b.Name)
	}
	slices.Sort(digests)
	return digests
}

func (n *node) awaitBundles(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	await(t, "only what is needed is in the mesh", func() []string { return n.bundles(t) }, want)
}

// The agent that takes a record away or changes it removes the bundle that no
// record names any more: no other look for it is due for a quarter of an hour.
func TestABundleGoesWithItsLastRecord(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, dir := source(t, "idx")
	n.mustInstall(t, deploy.Request{Source: url})
	first := n.record(t, "idx").Bundle
	// The same content under another name is the same bundle.
	n.mustInstall(t, deploy.Request{Source: url, Name: "again"})
	if got := n.record(t, "again").Bundle; got != first {
		t.Fatalf("bundles %s and %s of one revision", first, got)
	}
	testmesh.Commit(t, dir, map[string]string{"t.py": "def tool(): return 2\n"})
	n.mustInstall(t, deploy.Request{Source: url})
	second := n.record(t, "idx").Bundle
	n.awaitBundles(t, first, second)
	n.mustInstall(t, deploy.Request{Source: url, Name: "again"}) // an upgrade
	n.awaitBundles(t, second)
	for _, name := range []subjects.IndexName{"idx", "again"} {
		if err := n.Uninstall(t.Context(), name, ""); err != nil {
			t.Fatal(err)
		}
	}
	n.awaitBundles(t)
}

// Unused bundles are removed at a start and periodically: uploads, and those of an agent that was
// killed between storing and publishing.
func TestUnusedBundleIsRemoved(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	n := start(t, s, "")
	url, _ := source(t, "idx")
	n.mustInstall(t, deploy.Request{Source: url})
	needed := n.record(t, "idx").Bundle
	if _, err := store.Of(n.bus).PutBundle(t.Context(), "left", strings.NewReader("behind")); err != nil {
		t.Fatal(err)
	}
	slow := start(t, s, "")
	slow.workshop.serves(t, "idx", n.record(t, "idx").Revision)
	if got, want := n.bundles(t), []string{needed, "left"}; !slices.Equal(got, want) {
		t.Errorf("bundles %v, want %v: a new one may be about to be used", got, want)
	}
	startWith(t, s, "", deploy.Options{}, soon)
	n.awaitBundles(t, needed)
}

// An install fails after its record was written, and the earlier one comes back:
// its bundle is there.
func TestTheBundleOfARecordThatComesBackIsThere(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, dir := source(t, "idx")
	n.mustInstall(t, deploy.Request{Source: url})
	first := n.record(t, "idx")
	testmesh.Commit(t, dir, map[string]string{"t.py": "def tool(): return 2\n"})
	n.workshop.set(nil, func(b deploy.Build) error {
		if b.Revision != first.Revision {
			return errors.New("not now")
		}
		return nil
	})
	if _, err := n.install(t, deploy.Request{Source: url}); err == nil {
		t.Fatal("the upgrade did not fail")
	}
	n.awaitBundles(t, first.Bundle)
}

// Nodes install and uninstall the same content and sweep unused bundles at the same time: no record
// ever lacks its bundle.
func TestARacingInstallKeepsItsBundle(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	nodes := []*node{startWith(t, s, "", deploy.Options{}, soon), startWith(t, s, "", deploy.Options{}, soon)}
	url, _ := source(t, "idx")
	rounds := 15
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		var wg sync.WaitGroup
		for i, n := range nodes {
			name := subjects.IndexName([]string{"one", "two"}[i])
			wg.Go(func() {
				if err := n.Install(t.Context(), deploy.Request{Source: url, Name: name}, func(deploy.Line) {}); err != nil {
					t.Errorf("install %s: %v", name, err)
				}
				if i == 0 {
					if err := n.Uninstall(t.Context(), name, ""); err != nil {
						t.Errorf("uninstall %s: %v", name, err)
					}
				}
			})
		}
		wg.Wait()
		r := nodes[0].record(t, "two")
		if r == nil {
			t.Fatal("index two is not installed")
		}
		if _, err := store.Of(nodes[0].bus).Bundle(t.Context(), r.Bundle); err != nil {
			t.Fatalf("the bundle of index two: %v", err)
		}
		if err := nodes[1].Uninstall(t.Context(), "two", ""); err != nil {
			t.Fatal(err)
		}
	}
	nodes[0].awaitBundles(t)
}

// A bundle that is taken away between its storing and the record, as a node that
// saw no record may do, is there when the install is done.
func TestInstallChecksItsBundle(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, _ := source(t, "idx")
	cancel := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-cancel:
				return
			default:
			}
			all, err := store.Of(n.bus).Bundles(t.Context())
			if err != nil {
				continue
			}
			named, err := n.store.Bundles(t.Context())
			if err != nil {
				continue
			}
			for _, b := range all {
				if !named[b.Name] {
					_ = store.Of(n.bus).DropBundle(t.Context(), b)
				}
			}
		}
	})
	defer func() { close(cancel); wg.Wait() }()
	for range 10 {
		n.mustInstall(t, deploy.Request{Source: url})
		var r *registry.IndexRecord
		if r = n.record(t, "idx"); r == nil {
			t.Fatal("it is not installed")
		}
		if _, err := store.Of(n.bus).Bundle(t.Context(), r.Bundle); errors.Is(err, store.ErrNoKey) {
			t.Fatal("an installed index has no bundle")
		}
		if err := n.Uninstall(t.Context(), "idx", ""); err != nil {
			t.Fatal(err)
		}
	}
}
