package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/store"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) indexCommand() *cobra.Command {
	return group("index", "List and show indexes", a.indexes().ls("ls", "List the indexes"), a.indexes().shows())
}

func (a *app) indexes() noun[installed] {
	return noun[installed]{
		a: a, name: "index", one: "an index", plural: "indexes",
		id: func(x installed) string { return string(x.Name) }, of: (*link).indexesOf, fresh: (*link).declared, missing: noIndex,
		none:    "no indexes; install one with mesh install ./dir or owner/repo",
		columns: []string{"INDEX", "REVISION", "STATE", "SESSION", "ON", "TOOLS", "NODES", "SOURCE"},
		row: func(x installed) []string {
			return []string{
				cmp.Or(string(x.Name), "-"), cmp.Or(short(x.Revision), "-"), x.State, cmp.Or(string(x.Session), "all"), cmp.Or(x.On.String(), everywhere),
				strconv.Itoa(len(x.Tools)), strconv.Itoa(len(x.Nodes)), x.Source,
			}
		},
		note: func(x installed) {
			if x.Reason != "" {
				fmt.Fprintf(a.err, "%s: %s\n", cmp.Or(string(x.Name), x.Source), x.Reason)
			}
		},
		show: func(x installed) {
			a.facts(
				"index", string(x.Name), "source", x.Source, "owner", cmp.Or(x.Owner, "-"), "revision", cmp.Or(x.Revision, "-"),
				"state", x.State, "reason", cmp.Or(x.Reason, "-"), "managed", strconv.FormatBool(x.Managed), "session", cmp.Or(string(x.Session), "all"), "on", cmp.Or(x.On.String(), everywhere), "nodes", join(x.Nodes, "none serves it now"), "env", join(x.Env, "-"))
			if len(x.Tools) > 0 {
				fmt.Fprintln(a.out)
			}
			for _, t := range x.Tools {
				fmt.Fprintln(a.out, strings.TrimRight(fmt.Sprintf("  %s  %s", t.ID, t.Reason), " "))
			}
		},
	}
}

// installed is a line of `mesh index ls --json`.
type installed struct {
	Name        subjects.IndexName `json:"name"`
	Source      string             `json:"source"`
	Owner       string             `json:"owner,omitempty"`
	Revision    string             `json:"revision"`
	Session     subjects.SessionID `json:"session"`
	InstalledAt time.Time          `json:"installed_at,omitzero"`
	Env         []string           `json:"env"`
	// On are the labels of the nodes that it is for; none: every node.
	On registry.Labels `json:"on,omitempty"`
	// State is "installed", or how its entry is in the file that a router keeps:
	// installing, removing, failed.
	State string `json:"state"`
	// Managed: it is installed for that file.
	Managed bool `json:"managed,omitempty"`
	// Code and Reason say what could not be done, Reason also that no node has the labels.
	Code   toolmesh.Code     `json:"code,omitempty"`
	Reason string            `json:"reason,omitempty"`
	Nodes  []subjects.NodeID `json:"nodes"`
	Tools  []listedTool      `json:"tools"`
}

type listedTool struct {
	ID     subjects.ToolID `json:"id"`
	State  string          `json:"state"`
	Reason string          `json:"reason"`
}

// indexesOf lists what is installed and what services offer, by name.
func (l *link) indexesOf(view *registry.View) []installed {
	all := make([]installed, 0, 8)
	tools, _ := view.List(l.session, "", 0)
	nodes := view.Loads()
	for _, r := range view.Indexes() {
		if r.Session != "" && r.Session != l.session {
			continue
		}
		i := installed{
			Name: r.Name, Source: r.Source, Owner: r.Owner, Revision: r.Revision, Session: r.Session, InstalledAt: r.InstalledAt,
			Env: append([]string{}, r.Env...), On: r.On, State: registry.DeclaredInstalled, Managed: r.Managed != "", Nodes: []subjects.NodeID{}, Tools: []listedTool{},
		}
		placed := func(n registry.NodeStatus) bool { return n.Installs() && r.Placed(n.Labels) }
		if len(r.On) > 0 && !slices.ContainsFunc(nodes, placed) {
			i.Reason = "no node has the labels " + r.On.String()
		}
		for _, t := range tools {
			if t.Index != r.Name {
				continue
			}
			one := listedTool{ID: t.ID, State: "serving", Reason: t.Reason}
			if len(t.Nodes) == 0 {
				one.State = "unavailable"
			}
			i.Tools = append(i.Tools, one)
			for _, n := range t.Nodes {
				if !slices.Contains(i.Nodes, n.Node) {
					i.Nodes = append(i.Nodes, n.Node)
				}
			}
		}
		slices.Sort(i.Nodes)
		all = append(all, i)
	}
	slices.SortFunc(all, func(x, y installed) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Session, y.Session))
	})
	return all
}

// declared adds how the entries are of the file that a router keeps, if one does: of an
// index, or of one that is not installed.
func (l *link) declared(ctx context.Context, all []installed) ([]installed, error) {
	file, _, err := registry.NewStore(l.bus).Declared(ctx)
	if errors.Is(err, store.ErrNoKey) || toolmesh.CodeOf(err) == toolmesh.CodePermissionDenied {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range file.Entries {
		if e.State == registry.DeclaredInstalled {
			continue
		}
		at := slices.IndexFunc(all, func(x installed) bool { return x.Name == e.Name && x.Session == "" })
		if at < 0 || e.Name == "" {
			at, all = len(all), append(all, installed{Name: e.Name, Source: e.Source, Env: []string{}, Nodes: []subjects.NodeID{}, Tools: []listedTool{}})
		}
		x := &all[at]
		x.State, x.Code, x.Reason = e.State, e.Code, cmp.Or(e.Reason, x.Reason)
	}
	return all, nil
}

func noIndex(name string, known []string) error {
	return toolmesh.Errorf(toolmesh.CodeToolNotFound, "there is no index %q%s", name, didYouMean(name, known)).
		WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}
