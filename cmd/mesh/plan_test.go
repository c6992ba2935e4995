package main

import (
	"testing"

	"github.com/toolmesh/toolmesh/internal/deploy"
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
