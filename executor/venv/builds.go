package venv

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/toolmesh/toolmesh"
)

type withoutBuilds struct{}

// WithoutBuilds returns a context in which no package is built, as that runs its code: what
// would have to be fails instead, with install_failed, the reason "builds" and their names.
func WithoutBuilds(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutBuilds{}, true)
}

func refusesBuilds(ctx context.Context) bool { return ctx.Value(withoutBuilds{}) != nil }

// wantsBuild finds in what uv says with --no-build what it would build.
var (
	wantsBuild = regexp.MustCompile("(?:required for|attempted to build|distributions for) `([^`]+)`")
	buildsNone = regexp.MustCompile(`(?i)building [^\n]* disabled`)
)

// wouldBuild is the failure of what uv did not build; nil if it failed for another reason.
func wouldBuild(said string) *toolmesh.Error {
	if !buildsNone.MatchString(said) {
		return nil
	}
	var names []string
	for _, m := range wantsBuild.FindAllStringSubmatch(said, -1) {
		names = append(names, m[1])
	}
	if len(names) == 0 {
		names = []string{"packages"}
	}
	slices.Sort(names)
	return builds(slices.Compact(names)...)
}

func builds(names ...string) *toolmesh.Error {
	return failed(nil, "", "these must be built from source, which runs code of theirs: %s", strings.Join(names, ", ")).
		WithDetail("reason", "builds").WithDetail("builds", names)
}
