package monitor

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/router/standby"
)

// figure is a metric of the node, without labels.
type figure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*host.Figures) float64
}

func newFigure(kind prometheus.ValueType, name, help string, of func(*host.Figures) float64) figure {
	return figure{prometheus.NewDesc("toolmesh_"+name, help, nil, nil), kind, of}
}

var figures = []figure{
	newFigure(prometheus.GaugeValue, "slots", "Calls that this node runs at once.",
		func(f *host.Figures) float64 { return float64(f.Slots) }),
	newFigure(prometheus.GaugeValue, "calls_in_flight", "Calls that have a slot of this node.",
		func(f *host.Figures) float64 { return float64(f.InFlight) }),
	newFigure(prometheus.GaugeValue, "calls_queued", "Calls in flight that wait for a worker.",
		func(f *host.Figures) float64 { return float64(f.Queued) }),
	newFigure(prometheus.GaugeValue, "calls_waiting", "Calls that wait for their turn in a lane, without a slot.",
		func(f *host.Figures) float64 { return float64(f.Waiting) }),
	newFigure(prometheus.GaugeValue, "tools", "Tools that this node serves.",
		func(f *host.Figures) float64 { return float64(f.Tools) }),
	newFigure(prometheus.CounterValue, "call_seconds_total", "Time that all ended calls took together.",
		func(f *host.Figures) float64 { return f.Took.Seconds() }),
	newFigure(prometheus.CounterValue, "calls_relayed_total", "Calls that another node ran, as this one had no slot.",
		func(f *host.Figures) float64 { return float64(f.Relayed) }),
	newFigure(prometheus.CounterValue, "busy_total", "Callers that were answered busy, as there was no slot.",
		func(f *host.Figures) float64 { return float64(f.Busy) }),
	newFigure(prometheus.CounterValue, "replies_refused_total", "Requests without an answer, as their reply subject is no inbox.",
		func(f *host.Figures) float64 { return float64(f.RefusedReplies) }),
}

// demanded is a metric of a pool.
type demanded struct {
	desc *prometheus.Desc
	of   func(*Demand) float64
}

func newDemanded[N int | float64](name, help string, of func(*Demand) N) demanded {
	return demanded{prometheus.NewDesc("toolmesh_pool_"+name, help+" The same from every process.", []string{"pool"}, nil), func(d *Demand) float64 { return float64(of(d)) }}
}

var demands = []demanded{
	newDemanded("nodes", "Nodes of the pool that serve.", func(d *Demand) int { return d.Nodes }),
	newDemanded("slots", "Calls that these run at once.", func(d *Demand) int { return d.Slots }),
	newDemanded("in_flight", "Calls that have a slot of these.", func(d *Demand) int { return d.InFlight }),
	newDemanded("queued", "Calls in flight that wait for a worker.", func(d *Demand) int { return d.Queued }),
	newDemanded("waiting", "Calls that wait for their turn in a lane.", func(d *Demand) int { return d.Waiting }),
	newDemanded("busy", "Callers that were answered busy in the last second.", func(d *Demand) int { return d.Busy }),
	newDemanded("awaiting", "Calls that wait at routers for a node of the pool.", func(d *Demand) int { return d.Awaiting }),
	newDemanded("tasks", "Durable tasks that are queued for want of a node of the pool.", func(d *Demand) int { return d.Tasks }),
	newDemanded("oldest_wait_seconds", "For how long the oldest of these has waited.", func(d *Demand) float64 { return float64(d.OldestWaitMS) / 1000 }),
	newDemanded("wanted_slots", "Slots that the pool would have to have.", func(d *Demand) int { return d.WantedSlots }),
}

var (
	callsDesc    = prometheus.NewDesc("toolmesh_calls_total", "Calls that have ended on this node, by code: ok, or that of the error.", []string{"code"}, nil)
	workersDesc  = prometheus.NewDesc("toolmesh_workers", "Workers of this agent: those that take calls, those that start; and calls that have one (busy).", []string{"state"}, nil)
	heldDesc     = prometheus.NewDesc("toolmesh_held_calls_total", "Calls that do not wait for a node at this router any more, by code: ok, one took it; or that of the error.", []string{"code"}, nil)
	heldTimeDesc = prometheus.NewDesc("toolmesh_held_seconds_total", "Time that all of these waited together.", nil, nil)
	readyDesc    = prometheus.NewDesc("toolmesh_ready", "1 while /readyz says so, else 0.", nil, nil)
	buildDesc    = prometheus.NewDesc("toolmesh_build_info", "Always 1: the versions are the labels.", []string{"version", "goversion"}, nil)
)

// collector makes metrics of what its monitor sees at the time of a scrape.
type collector struct{ m *Monitor }

// Describe implements [prometheus.Collector].
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, f := range figures {
		out <- f.desc
	}
	for _, d := range demands {
		out <- d.desc
	}
	for _, d := range []*prometheus.Desc{callsDesc, workersDesc, heldDesc, heldTimeDesc, readyDesc, buildDesc} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	count := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...)
	}
	gauge(buildDesc, 1, c.m.version, runtime.Version())
	ready := 0
	if _, err := c.m.condition(); err == nil {
		ready = 1
	}
	gauge(readyDesc, ready)
	if all, err := c.m.demands(); err == nil {
		for i := range all {
			for _, d := range demands {
				out <- prometheus.MustNewConstMetric(d.desc, prometheus.GaugeValue, d.of(&all[i]), all[i].Pool)
			}
		}
	}
	member := c.m.member()
	if member == nil {
		return
	}
	if w, ok := member.(interface{ Workers() executor.Workers }); ok {
		all := w.Workers()
		gauge(workersDesc, all.Workers, "ready")
		gauge(workersDesc, all.Starting, "starting")
		gauge(workersDesc, all.Busy, "busy")
	}
	if r, ok := member.(interface{ Standby() *standby.Figures }); ok {
		if f := r.Standby(); f != nil {
			for code, n := range f.Ended {
				count(heldDesc, float64(n), string(code))
			}
			count(heldTimeDesc, f.Waited.Seconds())
		}
	}
	f := member.Figures()
	if f == nil {
		return
	}
	for _, one := range figures {
		out <- prometheus.MustNewConstMetric(one.desc, one.kind, one.of(f))
	}
	calls := func(code string, n uint64) { count(callsDesc, float64(n), code) }
	failed := uint64(0)
	for code, n := range f.Failures {
		calls(string(code), n)
		failed += n
	}
	calls("ok", f.Calls-min(f.Calls, failed))
}
