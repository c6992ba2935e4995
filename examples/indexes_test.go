package examples_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh/examples"
	"github.com/toolmesh/toolmesh/internal/index"
)

// Every example is written as it stands in the repository, and is an index.
func TestIndexes(t *testing.T) {
	t.Parallel()
	manifests, err := filepath.Glob(filepath.Join("indexes", "*", "tools.toml"))
	if err != nil || len(manifests) < 3 {
		t.Fatalf("examples are %q, %v, want at least three", manifests, err)
	}
	for _, manifest := range manifests {
		name := filepath.Base(filepath.Dir(manifest))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), name)
			if err := examples.Write(name, dir); err != nil {
				t.Fatal(err)
			}
			manifest, err := index.Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			if len(manifest.Tools) == 0 || len(manifest.Warnings) > 0 {
				t.Errorf("tools %q, warnings %q; want tools and no warnings", manifest.Tools, manifest.Warnings)
			}
			want, err := os.ReadFile(filepath.Join("indexes", name, "tools.toml"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, "tools.toml"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("tools.toml (-repository +written):\n%s", diff)
			}
		})
	}
	if err := examples.Write("no-such", t.TempDir()); err == nil {
		t.Error("an example that is not there was written")
	}
}
