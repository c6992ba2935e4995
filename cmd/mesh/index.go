package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

func (a *app) indexCommand() *cobra.Command {
	return group("index", "List and show indexes", a.indexLs("ls"), a.completes(a.indexShow(), viewNames(indexNames)))
}

func (a *app) indexesCommand() *cobra.Command {
	cmd := a.indexLs("indexes")
	cmd.Short = "List the indexes (short for index ls)"
	return cmd
}

// installed is a line of `mesh index ls --json`.
type installed struct {
	Name        subjects.IndexName `json:"name"`
	Source      string             `json:"source"`
	Revision    string             `json:"revision"`
	Session     subjects.SessionID `json:"session"`
	InstalledAt time.Time          `json:"installed_at,omitzero"`
	Env         []string           `json:"env"`
	Nodes       []subjects.NodeID  `json:"nodes"`
	Tools       []listedTool       `json:"tools"`
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
	for _, r := range view.Indexes() {
		if r.State == registry.IndexRemoved || r.Session != "" && r.Session != l.session {
			continue
		}
		i := installed{
			Name: r.Name, Source: r.Source, Revision: r.Revision, Session: r.Session, InstalledAt: r.InstalledAt,
			Env: r.Env, Nodes: []subjects.NodeID{}, Tools: []listedTool{},
		}
		if i.Env == nil {
			i.Env = []string{}
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

func (a *app) indexLs(use string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: "List the indexes", Args: nothing,
		RunE: runE(func(ctx context.Context, _ []string) error {
			return a.withView(ctx, func(_ context.Context, l *link, view *registry.View) error {
				all := l.indexesOf(view)
				if a.json {
					a.printJSON(map[string]any{"indexes": all})
					return nil
				}
				if len(all) == 0 {
					fmt.Fprintln(a.err, "no indexes; install one with mesh install ./dir or owner/repo")
					return nil
				}
				rows := make([][]string, len(all))
				for i, x := range all {
					rows[i] = []string{
						string(x.Name), short(x.Revision), cmp.Or(string(x.Session), "all"),
						strconv.Itoa(len(x.Tools)), strconv.Itoa(len(x.Nodes)), x.Source,
					}
				}
				a.table([]string{"INDEX", "REVISION", "SESSION", "TOOLS", "NODES", "SOURCE"}, rows)
				return nil
			})
		}),
	}
}

func (a *app) indexShow() *cobra.Command {
	return &cobra.Command{
		Use: "show INDEX", Short: "Show one index", Args: takes(1, 1, "an index"),
		RunE: runE(func(ctx context.Context, args []string) error {
			return a.withView(ctx, func(_ context.Context, l *link, view *registry.View) error {
				all := l.indexesOf(view)
				at := slices.IndexFunc(all, func(x installed) bool { return string(x.Name) == args[0] })
				if at < 0 {
					return noIndex(args[0], all)
				}
				x := all[at]
				if a.json {
					a.printJSON(x)
					return nil
				}
				for _, f := range [][2]string{
					{"index", string(x.Name)}, {"source", x.Source}, {"revision", cmp.Or(x.Revision, "-")},
					{"session", cmp.Or(string(x.Session), "all")}, {"nodes", join(x.Nodes, "none serves it now")},
					{"env", join(x.Env, "-")},
				} {
					fmt.Fprintf(a.out, "%-9s %s\n", f[0], f[1])
				}
				if len(x.Tools) > 0 {
					fmt.Fprintln(a.out)
				}
				for _, t := range x.Tools {
					fmt.Fprintln(a.out, strings.TrimRight(fmt.Sprintf("  %s  %s", t.ID, t.Reason), " "))
				}
				return nil
			})
		}),
	}
}

func noIndex(name string, all []installed) error {
	known := make([]string, len(all))
	for i, x := range all {
		known[i] = string(x.Name)
	}
	text := fmt.Sprintf("there is no index %q", name)
	if near := tool.Nearest(name, known, 2); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return toolmesh.Errorf(toolmesh.CodeToolNotFound, "%s", text).WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)
}
