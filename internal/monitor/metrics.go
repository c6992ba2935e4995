package monitor

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/router/standby"
)

// collector makes metrics of its monitor's state at the time of a scrape.
type collector struct{ m *Monitor }

// Describe implements [prometheus.Collector]. It names no metric: the set depends on the process.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c collector) Collect(to chan<- prometheus.Metric) {
	out := metrics(to)
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc("toolmesh_build_info", "Always 1: the versions are the labels.", []string{"version", "goversion"}, nil),
		prometheus.GaugeValue, 1, c.m.version, runtime.Version())
	ready := 0
	if _, err := c.m.condition(); err == nil {
		ready = 1
	}
	out.gauge("ready", "1 while /readyz says so, else 0.", ready)
	pools, _ := c.m.demands() // none while this process cannot tell
	for _, d := range pools {
		out.pool(d)
	}
	member := c.m.member()
	if member == nil {
		return
	}
	if w, ok := member.(interface{ Workers() executor.Workers }); ok {
		out.workers(w.Workers())
	}
	if r, ok := member.(interface{ Standby() *standby.Outcomes }); ok {
		if f := r.Standby(); f != nil {
			out.held(f)
		}
	}
	if f := member.Figures(); f != nil {
		out.node(f)
	}
}

// metrics takes the metrics of one scrape.
type metrics chan<- prometheus.Metric

// put adds a metric with one label, or with none where that is empty.
func (out metrics) put(kind prometheus.ValueType, name, help string, value float64, label, of string) {
	var labels, values []string
	if label != "" {
		labels, values = []string{label}, []string{of}
	}
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc("toolmesh_"+name, help, labels, nil), kind, value, values...)
}

func (out metrics) gauge(name, help string, value int) {
	out.put(prometheus.GaugeValue, name, help, float64(value), "", "")
}

func (out metrics) count(name, help string, value float64) {
	out.put(prometheus.CounterValue, name, help, value, "", "")
}

func (out metrics) pool(d Demand) {
	put := func(name, help string, value float64) {
		out.put(prometheus.GaugeValue, "pool_"+name, help+" The same from every process.", value, "pool", d.Pool)
	}
	put("nodes", "Nodes of the pool that serve.", float64(d.Nodes))
	put("slots", "Calls that these run at once.", float64(d.Slots))
	put("in_flight", "Calls that have a slot of these.", float64(d.InFlight))
	put("queued", "Calls in flight that wait for a worker.", float64(d.Queued))
	put("waiting", "Calls that wait for a lane.", float64(d.Waiting))
	put("busy", "Callers that were answered busy in the last second.", float64(d.Busy))
	put("awaiting", "Calls that wait at routers for a node of the pool.", float64(d.Awaiting))
	put("tasks", "Durable tasks that are queued for want of a node of the pool.", float64(d.Tasks))
	put("oldest_wait_seconds", "For how long the oldest of these has waited.", float64(d.OldestWaitMS)/1000)
	put("wanted_slots", "Slots that the pool would have to have.", float64(d.WantedSlots))
}

func (out metrics) workers(all executor.Workers) {
	for state, n := range map[string]int{"ready": all.Workers, "starting": all.Starting, "busy": all.Busy} {
		out.put(prometheus.GaugeValue, "workers", "Workers of this agent: those that take calls, those that start; and calls that have one (busy).", float64(n), "state", state)
	}
}

func (out metrics) held(f *standby.Outcomes) {
	for code, n := range f.Ended {
		out.put(prometheus.CounterValue, "held_calls_total", "Calls whose wait for a node has ended at this router, by code: ok, one took it; or that of the error.", float64(n), "code", string(code))
	}
	out.count("held_seconds_total", "Time that all of these waited together.", f.Waited.Seconds())
}

func (out metrics) node(f *host.Figures) {
	out.gauge("slots", "Calls that this node runs at once.", f.Slots)
	out.gauge("calls_in_flight", "Calls that have a slot of this node.", f.InFlight)
	out.gauge("calls_queued", "Calls in flight that wait for a worker.", f.Queued)
	out.gauge("calls_waiting", "Calls that wait for a lane, without a slot.", f.Waiting)
	out.gauge("tools", "Tools that this node serves.", f.Tools)
	out.count("call_seconds_total", "Time that all ended calls took together.", f.Took.Seconds())
	out.count("calls_relayed_total", "Calls that another node ran, as this one had no slot.", float64(f.Relayed))
	out.count("busy_total", "Callers that were answered busy, as there was no slot.", float64(f.Busy))
	out.count("replies_refused_total", "Requests without an answer, as their reply subject is not an inbox.", float64(f.RefusedReplies))
	calls := func(code string, n uint64) {
		out.put(prometheus.CounterValue, "calls_total", "Calls that have ended on this node, by code: ok, or that of the error.", float64(n), "code", code)
	}
	failed := uint64(0)
	for code, n := range f.Failures {
		calls(string(code), n)
		failed += n
	}
	calls("ok", f.Calls-min(f.Calls, failed))
}
