package deploy_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// A shortened plan shows the tools that are confined less than the others.
func TestShortenedPlansKeepTheirLoosestTools(t *testing.T) {
	plan := func(none int) deploy.Plan {
		p := deploy.Plan{Sandbox: tool.SandboxStrict, Sandboxes: map[subjects.ToolID]tool.Sandbox{}}
		add := func(name string, count int, level tool.Sandbox) {
			for i := range count {
				id := subjects.ToolID(fmt.Sprintf("i.%s%04d", name, i))
				p.Tools = append(p.Tools, id)
				p.Sandboxes[id] = level
			}
		}
		add("a", 2000, tool.SandboxStrict)
		add("z", none, tool.SandboxNone)
		return p
	}
	ways := map[string]func(deploy.Plan) *deploy.Plan{
		"line": func(p deploy.Plan) *deploy.Plan { return (deploy.Line{Plan: &p}).Shorten(1000).Plan },
		"error": func(p deploy.Plan) (short *deploy.Plan) {
			e := deploy.ShortenError(toolmesh.Errorf(toolmesh.CodeInstallFailed, "no").WithDetail("plan", p), 1000)
			data, err := json.Marshal(e.Details["plan"])
			if err == nil {
				err = json.Unmarshal(data, &short)
			}
			if err != nil {
				t.Fatal(err)
			}
			return short
		},
	}
	for name, shorten := range ways {
		for _, none := range []int{1, 1003} {
			given := plan(none)
			p := shorten(given)
			shown := 0
			for _, id := range p.Tools {
				if p.Sandboxes[id] == "" {
					t.Fatalf("%s: %s is shown without its level", name, id)
				}
				if p.Sandboxes[id] == tool.SandboxNone {
					shown++
				}
			}
			if len(p.Tools) != 1000 || len(p.Sandboxes) != 1000 || p.Omitted["tools"] != 1000+none || shown != min(none, 1000) || p.Looser != none-shown {
				t.Errorf("%s: %d tools, %d levels, %v omitted; of %d tools at none %d are shown and %d counted", name, len(p.Tools), len(p.Sandboxes), p.Omitted, none, shown, p.Looser)
			}
			if !slices.Equal(given.Tools, plan(none).Tools) {
				t.Errorf("%s: the plan itself is changed", name)
			}
		}
	}
}
