package registry_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
)

// The bundles named by live records, and no others: all others are deleted.
func TestBundlesNamedByRecords(t *testing.T) {
	t.Parallel()
	b := ready(t, meshtest.Broker(t).Connect(t))
	store := testmesh.Store(t, b)
	named := func(want ...string) {
		t.Helper()
		got, err := store.Bundles(t.Context())
		if err != nil || !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
			t.Errorf("bundles %v %v, want %q", got, err, want)
		}
	}
	named()
	for _, r := range []registry.IndexRecord{
		{Name: "one", Source: "a", Bundle: "x"}, {Name: "two", Source: "b", Bundle: "x", Session: "s"},
		{Name: "three", Source: "c", Bundle: "y"},
		{Name: "served", Source: registry.ServiceSource + "served"},
	} {
		if err := store.ClaimIndex(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	named("x", "y")
	if err := store.DeleteIndex(t.Context(), "one", ""); err != nil {
		t.Fatal(err)
	}
	named("x", "y") // two has x as well
	if err := store.DeleteIndex(t.Context(), "two", "s"); err != nil {
		t.Fatal(err)
	}
	named("y")
}
