package agent

import (
	"slices"
	"testing"
	"testing/fstest"

	"github.com/toolmesh/toolmesh/internal/index"
)

// A module may need what an earlier one has set up.
func TestModulesAreImportedInTheOrderOfTheManifest(t *testing.T) {
	m, err := index.LoadFS(fstest.MapFS{"tools.toml": {Data: []byte("[index]\ntools = [\"setup.start\", \"analysis.run\", \"setup.stop\"]\n")}})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := functionsOf(m, m.Tools); !slices.Equal(got, m.Tools) {
		t.Errorf("got %q", got)
	}
}
