package deploy_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const planned = `[index]
tools = ["t.tool", "t.other"]
init = ["sh", "setup.sh"]
paths = [{ path = "/srv/data" }]
[[index.env]]
name = "API_KEY"
required = true
secret = true
`

// TestDryRunNamesItsStepsAndChangesNothing also checks that a missing variable is no error: the
// plan shows it.
func TestDryRunNamesItsStepsAndChangesNothing(t *testing.T) {
	n := start(t, meshtest.Broker(t), "")
	repo := testmesh.Repository(t, "stranger", map[string]string{"tools.toml": planned, "setup.py": "", "sdist": ""})
	last, err := n.install(t, deploy.Request{Source: "file://" + repo, DryRun: true, Paths: []index.Folder{{Path: "/srv/mine", Write: true}}})
	if err != nil || last.Plan == nil || last.Index != "" {
		t.Fatalf("dry run: %+v, %v", last, err)
	}
	want := deploy.Plan{
		Index: "stranger", Revision: last.Plan.Revision, Tools: []subjects.ToolID{"stranger.t.tool", "stranger.t.other"},
		User: "own", Sandbox: tool.SandboxGuard, Network: true, Builds: []string{"setup.py"}, Init: []string{"sh", "setup.sh"},
		Variables: []index.EnvVar{{Name: "API_KEY", Required: true, Secret: true}},
		Paths:     []index.Folder{{Path: "/srv/data"}, {Path: "/srv/mine", Write: true}},
	}
	if diff := cmp.Diff(want, *last.Plan); diff != "" || len(want.Revision) != 40 {
		t.Errorf("the plan (-want +got):\n%s", diff)
	}
	if n.record(t, "stranger") != nil || len(n.folders(t)) > 0 || len(n.workshop.opened) > 0 {
		t.Errorf("a dry run left %v, %q, %v", n.record(t, "stranger"), n.folders(t), n.workshop.opened)
	}
	if all, err := store.Of(n.bus).Bundles(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("a dry run stored %v, %v", all, err)
	}
}

func TestBuildsThatAreNotAllowedAreRefusedWithTheirPlan(t *testing.T) {
	n := start(t, meshtest.Broker(t), "")
	for name, files := range map[string]map[string]string{
		"lock":        {"tools.toml": oneTool, "setup.py": ""},
		"environment": {"tools.toml": oneTool, "sdist": ""},
		"init":        {"tools.toml": "[index]\ntools = [\"t.tool\"]\ninit = [\"sh\", \"setup.sh\"]\n"},
	} {
		source := "file://" + testmesh.Repository(t, name, files)
		_, err := n.install(t, deploy.Request{Source: source, NoBuild: true})
		e := toolmesh.AsError(err)
		if e == nil || e.Code != toolmesh.CodeInstallFailed || e.Details["reason"] != "builds" || e.Started != toolmesh.StartedNo {
			t.Fatalf("%s: %v", name, err)
		}
		plan, _ := e.Details["plan"].(deploy.Plan)
		want := map[string]deploy.Plan{"lock": {Builds: []string{"setup.py"}}, "environment": {Builds: []string{"sdist"}}, "init": {Init: []string{"sh", "setup.sh"}}}[name]
		if !slices.Equal(plan.Builds, want.Builds) || !slices.Equal(plan.Init, want.Init) || plan.User != "own" || !plan.Network {
			t.Errorf("%s: the plan is %+v", name, plan)
		}
		if n.record(t, name) != nil || len(n.workshop.opened) > 0 {
			t.Errorf("%s: something was installed", name)
		}
	}
	for _, r := range []deploy.Request{{NoBuild: true}, {}} {
		r.Source = "file://" + testmesh.Repository(t, "plain", map[string]string{"tools.toml": oneTool})
		r.Replace = true
		n.mustInstall(t, r)
	}
}

// TestIndexInstalledWithoutBuildsIsMadeWithoutThem: builds that the plan did not show are refused.
func TestIndexInstalledWithoutBuildsIsMadeWithoutThem(t *testing.T) {
	n := start(t, meshtest.Broker(t), "")
	seen := make(chan bool, 2)
	n.workshop.set(func(_ context.Context, b deploy.Build) error { seen <- b.NoBuild; return nil }, nil)
	n.mustInstall(t, deploy.Request{Source: "file://" + testmesh.Repository(t, "plain", map[string]string{"tools.toml": oneTool}), NoBuild: true})
	if !<-seen {
		t.Error("the environment was made with builds")
	}
}

// Lock builds where the source has a file setup.py, unless it must not.
func (w *workshop) Lock(_ context.Context, b deploy.Build, _ deploy.Progress) ([]byte, error) {
	if _, err := os.Stat(filepath.Join(b.Dir, "setup.py")); err == nil && b.NoBuild {
		return nil, builds("setup.py")
	}
	return []byte("{}\n"), nil
}

// Plan says that an environment builds where the source has a file sdist.
func (w *workshop) Plan(_ context.Context, b deploy.Build, _ deploy.Progress) (deploy.Plan, error) {
	p := deploy.Plan{User: "own", Sandbox: tool.SandboxGuard, Network: true}
	if _, err := os.Stat(filepath.Join(b.Dir, "sdist")); err == nil && b.Lock != nil {
		p.Builds = []string{"sdist"}
	}
	return p, nil
}

func builds(name string) error {
	return toolmesh.Errorf(toolmesh.CodeInstallFailed, "it is built: %s", name).WithDetail("reason", "builds").WithDetail("builds", []string{name})
}
