package monitor

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Names are those of all metrics of ours, sorted.
func Names() []string {
	all := make(chan *prometheus.Desc, 100)
	collector{}.Describe(all)
	close(all)
	var names []string
	for d := range all {
		_, rest, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
