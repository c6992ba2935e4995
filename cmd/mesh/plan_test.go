package main

import (
	"slices"
	"testing"

	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// TestConfirmedRevisionIsInstalled: the second request names the revision that the first one found.
func TestConfirmedRevisionIsInstalled(t *testing.T) {
	for source, want := range map[string]string{
		"owner/repo":                         "owner/repo",
		"owner/repo@v1":                      "owner/repo",
		"https://bob:p%40ss@h.example/x@v1":  "https://bob:p%40ss@h.example/x",
		"https://token@h.example/x.git":      "https://token@h.example/x.git",
		"git@h.example:x.git@main":           "git@h.example:x.git",
		"ssh://git@h.example/x@feature/main": "ssh://git@h.example/x",
	} {
		r := installRequest{Request: deploy.Request{Source: source, Rev: "branch", NoBuild: true}}.at("c0ffee")
		if r.Source != want || r.Rev != "c0ffee" || r.NoBuild {
			t.Errorf("%s: asked for %q at %q, no_build %t", source, r.Source, r.Rev, r.NoBuild)
		}
	}
	folder := deploy.Request{Source: "/home/me@work/x", Bundle: "digest", NoBuild: true}
	if r := (installRequest{Request: folder}).at("c0ffee"); r.Source != folder.Source || r.Rev != "" || r.Bundle != "digest" {
		t.Errorf("a folder: %+v", r.Request)
	}
}

func TestPlansCountTheLooserToolsThatTheyOmit(t *testing.T) {
	facts := planFacts(&deploy.Plan{
		Tools: []subjects.ToolID{"i.z"}, Sandbox: tool.SandboxStrict, Sandboxes: map[subjects.ToolID]tool.Sandbox{"i.z": tool.SandboxNone},
		Omitted: map[string]int{"tools": 12}, Looser: 3,
	})
	if want := "i.z (none), and 12 more (3 of them confined less than strict)"; !slices.Contains(facts, want) {
		t.Errorf("%q, not %q", facts, want)
	}
}
