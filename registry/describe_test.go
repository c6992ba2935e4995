package registry_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// names returns the keys of the JSON object of v.
func names(t *testing.T, v any) []string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	for name, value := range object {
		if string(value) == "null" {
			t.Errorf("%s is null", name)
		}
	}
	return slices.Sorted(maps.Keys(object))
}

// `mesh info --json` and `mesh ls --json` print the answers of the registry: scripts find every key
// in each of them.
func TestAnswersHaveTheKeysThatScriptsRead(t *testing.T) {
	t.Parallel()
	bare := registry.DescribeAnswer{
		Descriptor: &tool.Descriptor{ID: "weather.now", Name: "now", Source: tool.SourceStatic, Index: &tool.IndexRef{Name: "weather", Revision: "r1"}},
		Served:     registry.Served{Digest: "d", Nodes: []subjects.NodeID{}},
	}
	all := []string{"annotations", "description", "digest", "id", "index", "input_schema", "metadata", "name", "nodes", "source", "warnings"}
	if diff := cmp.Diff(all, names(t, bare)); diff != "" {
		t.Errorf("describe (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"name", "revision"}, names(t, bare.Descriptor.Index)); diff != "" {
		t.Errorf("index (-want +got):\n%s", diff)
	}
	served := bare
	served.Users = []registry.UserOnNodes{{Nodes: []subjects.NodeID{"one"}, User: "1"}}
	if diff := cmp.Diff(slices.Sorted(slices.Values(append(slices.Clone(all), "users"))), names(t, served)); diff != "" {
		t.Errorf("describe (-want +got):\n%s", diff)
	}
	full := bare
	d := *bare.Descriptor
	d.OutputSchema, d.Warnings, d.Source = json.RawMessage(`{"type":"string"}`), []string{"w"}, tool.SourceImport
	full.Descriptor = &d
	want := slices.Sorted(slices.Values(append(slices.Clone(all), "output_schema")))
	if diff := cmp.Diff(want, names(t, full)); diff != "" {
		t.Errorf("describe (-want +got):\n%s", diff)
	}
	listed := registry.ListedTool{ID: "weather.now", State: registry.ToolServing, Nodes: []subjects.NodeID{}}
	if diff := cmp.Diff([]string{"description", "id", "index", "nodes", "reason", "session", "state", "streaming"}, names(t, listed)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

// A tool whose module cannot even be read has no descriptor to show.
func TestDescribingAToolThatCouldNotBeReadSaysWhy(t *testing.T) {
	t.Parallel()
	_, err := registry.DescriptorOf(t.Context(), nil, registry.Route{ID: "shop.broken.gone", Reason: "No module named 'there'"})
	if toolmesh.CodeOf(err) != toolmesh.CodeUnavailable || !strings.Contains(err.Error(), "shop.broken.gone") || !strings.Contains(err.Error(), "No module named 'there'") {
		t.Errorf("got %v", err)
	}
}
