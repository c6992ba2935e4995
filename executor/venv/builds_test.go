package venv

import (
	"slices"
	"testing"
)

// What uv says with --no-build, and what it says of other failures.
func TestWhatWouldBeBuilt(t *testing.T) {
	for said, want := range map[string][]string{
		"error: No solution found when resolving dependencies\n  cause: Because docopt==0.6.2 has no usable wheels and you require docopt==0.6.2, we can conclude that your requirements are unsatisfiable.\n\n" +
			"hint: Wheels are required for `docopt` because building from source is disabled for all packages (i.e., with `--no-build`)\n" +
			"hint: Wheels are required for `apt` because building from source is disabled for all packages (i.e., with `--no-build`)": {"apt", "docopt"},
		"error: Building source distributions is disabled, but attempted to build `lib`":                    {"lib"},
		"error: building something is disabled":                                                             {"packages"},
		"error: No solution found\n  cause: Because nonexistent was not found in the package registry":      nil,
		"error: Network connectivity is disabled but the requested data wasn't found in the cache for: `x`": nil,
	} {
		refused := wouldBuild(said)
		if refused == nil != (want == nil) {
			t.Errorf("%q: %v", said, refused)
		} else if want != nil && (!slices.Equal(refused.Details["builds"].([]string), want) || refused.Details["reason"] != "builds") {
			t.Errorf("%q: %v %v", said, refused, refused.Details)
		}
	}
}
