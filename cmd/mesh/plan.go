package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/internal/index"
)

// askInstall has an agent run an install. On a terminal it first asks the person if code of the
// index or its packages would run.
func (a *app) askInstall(ctx context.Context, l *link, r installRequest, f installFlags, p *steps) error {
	asks := a.term.in && a.term.err && !a.json && !f.yes && !f.detach && !f.dryRun
	r.NoBuild = asks
	err := a.runInstall(ctx, l, r, f, p)
	plan := planIn(err)
	if !asks || plan == nil {
		return err
	}
	writeFacts(a.err, planFacts(plan))
	switch {
	case a.confirm(ctx, "Continue?"):
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		fmt.Fprintln(a.err, "mesh: nothing was installed")
		return &reported{process.StatusFailed}
	}
	f.yes = true
	return a.runInstall(ctx, l, r.at(plan.Revision), f, p)
}

// at pins the request to the revision that the person agreed to, whatever was pushed since. A
// bundle has one revision only.
func (r installRequest) at(revision string) installRequest {
	if r.NoBuild = false; r.Bundle == "" {
		if src, err := index.Parse(r.Source); err == nil && src.Rev != "" {
			r.Source = strings.TrimSuffix(r.Source, "@"+src.Rev)
		}
		r.Rev = revision
	}
	return r
}

// planIn returns the plan in the error of an install that must not build; nil for other errors.
func planIn(err error) *deploy.Plan {
	e := toolmesh.AsError(err)
	if e == nil || e.Details["reason"] != "builds" {
		return nil
	}
	data, _ := json.Marshal(e.Details["plan"])
	var plan *deploy.Plan
	if json.Unmarshal(data, &plan) != nil {
		return nil
	}
	return plan
}

// initMost is the max characters of an init command in a plan: its author could push the rest off the screen.
const initMost = 2000

// planFacts returns a plan for people as alternating names and values.
func planFacts(p *deploy.Plan) []string {
	user := "the user " + p.User
	switch {
	case p.User == "own":
		user = "a user of its own"
	case p.User == "agent" && p.Root:
		user = "root, the agent's user"
	case p.User == "agent":
		user = "the agent's user"
	}
	var tools, variables, paths []string
	for _, id := range p.Tools {
		level := p.Sandboxes[id]
		tools = append(tools, string(id)+map[bool]string{true: " (" + string(level) + ")"}[level != ""])
	}
	for _, v := range p.Variables {
		variables = append(variables, v.Name+map[bool]string{true: " (required)"}[v.Required])
	}
	for _, one := range p.Paths {
		paths = append(paths, oneLine([]string{one.Path, ""}, "")+map[bool]string{true: " (to write)", false: " (to read)"}[one.Write])
	}
	var init []string
	for _, word := range p.Init {
		init = append(init, shellQuote(word))
	}
	command := oneLine([]string{strings.Join(init, " ")}, "")
	if n := utf8.RuneCountInString(command); n > initMost {
		command = fmt.Sprintf("%s (%d characters; mesh install --dry-run --json shows all)", cut(command, initMost), n)
	}
	return []string{
		"index", string(p.Index) + " @ " + short(p.Revision), "tools", join(tools, "-"), "run as", user, "sandbox", string(p.Sandbox),
		"network", map[bool]string{true: "yes", false: "no"}[p.Network], "builds", join(p.Builds, "-"), "init", cmp.Or(command, "-"), "variables", join(variables, "-"), "folders", join(paths, "-"),
	}
}

// confirm asks the person a question; no answer is no.
func (a *app) confirm(ctx context.Context, question string) bool {
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(a.stdin(ctx)).ReadString('\n')
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}

// runs are the warnings for steps that run code of strangers.
var runs = map[string]string{
	"builds": "packages are built from source, which runs their code: mesh install --dry-run lists them and their user",
	"init":   "the index's init command runs: mesh install --dry-run shows it and its user",
}
