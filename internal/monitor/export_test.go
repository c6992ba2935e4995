package monitor

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/router/standby"
)

// Names are those of all metrics of ours, sorted.
func Names() []string {
	all := make(chan prometheus.Metric, 100)
	collector{&Monitor{}}.Collect(all)
	out := metrics(all)
	out.pool(Demand{})
	out.workers(executor.Workers{})
	out.held(&standby.Outcomes{Ended: map[toolmesh.Code]uint64{"ok": 1}})
	out.node(&host.Figures{})
	close(all)
	var names []string
	for m := range all {
		_, rest, _ := strings.Cut(m.Desc().String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
