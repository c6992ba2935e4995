package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
)

func (a *app) indexCommand() *cobra.Command {
	return group("index", "List and show indexes", a.indexes().ls("ls", "List the indexes"), a.indexes().shows())
}

func (a *app) indexes() noun[inventory.Index] {
	return noun[inventory.Index]{
		a: a, name: "index", one: "an index", plural: "indexes",
		id: func(x inventory.Index) string { return string(x.Name) }, missing: noIndex,
		of: func(l *link, view *registry.View) []inventory.Index { return inventory.Indexes(view, l.session) },
		fresh: func(l *link, ctx context.Context, all []inventory.Index) ([]inventory.Index, error) {
			return inventory.Declared(ctx, l.bus, all)
		},
		none:    "no indexes; install one with mesh install ./dir or owner/repo",
		columns: []string{"INDEX", "REVISION", "STATE", "SESSION", "ON", "TOOLS", "NODES", "SOURCE"},
		row: func(x inventory.Index) []string {
			return []string{
				cmp.Or(string(x.Name), "-"), cmp.Or(short(x.Revision), "-"), x.State, cmp.Or(string(x.Session), "all"), cmp.Or(x.On.String(), everywhere),
				strconv.Itoa(len(x.Tools)), strconv.Itoa(len(x.Nodes)), x.Source,
			}
		},
		note: func(x inventory.Index) {
			if x.Reason != "" {
				fmt.Fprintf(a.err, "%s: %s\n", cmp.Or(string(x.Name), x.Source), x.Reason)
			}
		},
		show: func(x inventory.Index) {
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

func noIndex(name string, known []string) error {
	return refused(toolmesh.OriginMesh, toolmesh.CodeNotFound, "there is no index %q%s", name, didYouMean(name, known))
}
