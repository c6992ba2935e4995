package monitor_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/monitor"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/router"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

// site is a monitor as its readers see it.
type site struct {
	t *testing.T
	m *monitor.Monitor
	c *http.Client
}

func open(t *testing.T) *site {
	t.Helper()
	m, err := monitor.Start(t.Context(), "127.0.0.1:0", &monitor.Options{Version: "v1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Stop)
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	return &site{t, m, c}
}

func (s *site) do(method, path string) (status int, body string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.m.Address()+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := s.c.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// is checks an answer: its status and how its line begins.
func (s *site) is(path string, status int, line string) {
	s.t.Helper()
	got, body := s.do(http.MethodGet, path)
	if got != status || !strings.HasPrefix(body, line) || strings.Count(body, "\n") != 1 || !strings.HasSuffix(body, "\n") {
		s.t.Errorf("%s: %d %q, want %d and one line %q", path, got, body, status, line)
	}
}

// becomes waits for an answer.
func (s *site) becomes(path string, status int, line string) {
	s.t.Helper()
	meshtest.Until(s.t, path+" says "+line, func() bool {
		got, body := s.do(http.MethodGet, path)
		return got == status && strings.HasPrefix(body, line)
	})
}

// metrics scrapes and parses as Prometheus does.
func (s *site) metrics() map[string]*dto.MetricFamily {
	s.t.Helper()
	status, body := s.do(http.MethodGet, "/metrics")
	if status != http.StatusOK {
		s.t.Fatalf("/metrics: %d %s", status, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		s.t.Fatalf("/metrics: %v\n%s", err, body)
	}
	return all
}

// value is that of a metric with a label's value; -1 for one that is not there.
func value(all map[string]*dto.MetricFamily, name, label string) float64 {
	for _, m := range all[name].GetMetric() {
		if label != "" && (len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() != label) {
			continue
		}
		return m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return -1
}

func (s *site) demand(pool string) monitor.Demand {
	s.t.Helper()
	var d monitor.Demand
	status, body := s.do(http.MethodGet, "/demand/"+pool)
	if err := json.Unmarshal([]byte(body), &d); status != http.StatusOK || err != nil {
		s.t.Fatalf("/demand/%s: %d %s", pool, status, body)
	}
	return d
}

// gate is a tool that runs until it is let go.
type gate struct {
	begun chan struct{}
	let   chan struct{}
}

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (g *gate) hold(ctx context.Context, _ struct{}) (string, error) {
	g.begun <- struct{}{}
	select {
	case <-g.let:
		return "done", nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func fail(context.Context, struct{}) (string, error) { return "", errors.New("out of order") }

// serve starts a router that serves the tools of a gate with two slots.
func serve(t *testing.T, broker *meshtest.Server, g *gate) *router.Router {
	t.Helper()
	r, err := router.New(broker.Connect(t), &router.Options{Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r) })
	for name, f := range map[string]host.Handler{"hold": host.Func(g.hold), "fail": host.Func(fail)} {
		if _, err := r.Handle("lab", name, f); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// Figures follow the calls, every process shows the same mesh, and the pages of autoscalers and
// probes match the docs.
func TestFiguresFollowCalls(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	g := newGate()
	r := serve(t, broker, g)
	s := open(t)
	s.is("/healthz", http.StatusOK, "alive")
	s.is("/readyz", http.StatusServiceUnavailable, "not ready: the process is starting")
	s.is("/demand", http.StatusServiceUnavailable, "this process has no view of the mesh")
	if all := s.metrics(); value(all, "toolmesh_ready", "") != 0 || value(all, "toolmesh_slots", "") != -1 {
		t.Error("a process that starts has figures, or is ready")
	}
	s.m.Watch(r)
	s.is("/healthz", http.StatusOK, "alive")
	s.becomes("/readyz", http.StatusOK, "ready\n")

	// Another one, which serves nothing.
	other, err := router.New(broker.Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, other) })
	elsewhere := open(t)
	elsewhere.m.Watch(other)
	elsewhere.is("/readyz", http.StatusServiceUnavailable, "not ready: the router is starting")
	testmesh.Start(t, other)
	elsewhere.is("/readyz", http.StatusOK, "ready\n")
	if all := elsewhere.metrics(); value(all, "toolmesh_slots", "") != -1 || value(all, "toolmesh_ready", "") != 1 {
		t.Error("a router without functions has the figures of a node, or is not ready")
	}

	calls := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := r.Call(t.Context(), "lab.hold", nil)
			calls <- err
		}()
		<-g.begun
	}
	all := s.metrics()
	for name, want := range map[string]float64{
		"toolmesh_slots": 2, "toolmesh_calls_in_flight": 2, "toolmesh_calls_queued": 0, "toolmesh_calls_waiting": 0,
		"toolmesh_tools": 2, "toolmesh_ready": 1, "toolmesh_busy_total": 0,
	} {
		if got := value(all, name, ""); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if got := value(all, "toolmesh_calls_total", "ok"); got != 0 {
		t.Errorf("%v calls have ended", got)
	}
	if help := all["toolmesh_calls_in_flight"].GetHelp(); help == "" {
		t.Error("a metric says nothing of what it is")
	}

	// With its two slots taken the node turns callers away, which is demand. No call has
	// ended: each refusal counts for a second.
	busy := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := r.Call(ctx, "lab.hold", nil); err == nil {
			t.Error("a call has found a slot")
		}
	}
	for _, at := range []*site{s, elsewhere} {
		meshtest.Until(t, "callers that wait are demand", func() bool {
			busy()
			d := at.demand("default")
			return d.Nodes == 1 && d.Slots == 2 && d.InFlight == 2 && d.Busy > 0 && d.WantedSlots > 2
		})
	}
	if got := value(s.metrics(), "toolmesh_busy_total", ""); got < 1 {
		t.Errorf("%v callers were answered busy", got)
	}
	if got := value(elsewhere.metrics(), "toolmesh_pool_slots", "default"); got != 2 {
		t.Errorf("the pool has %v slots", got)
	}
	close(g.let)
	for range 2 {
		if err := <-calls; err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Call(t.Context(), "lab.fail", nil); toolmesh.CodeOf(err) != toolmesh.CodeToolError {
		t.Errorf("a call that fails: %v", err)
	}
	all = s.metrics()
	if ok, failed := value(all, "toolmesh_calls_total", "ok"), value(all, "toolmesh_calls_total", "tool_error"); ok != 2 || failed != 1 {
		t.Errorf("%v calls have ended well and %v with an error of the tool", ok, failed)
	}
	if took := value(all, "toolmesh_call_seconds_total", ""); took <= 0 {
		t.Errorf("the calls took %v s", took)
	}
	for _, at := range []*site{s, elsewhere} {
		meshtest.Until(t, "nothing is wanted any more", func() bool { return at.demand("default").WantedSlots == 0 })
	}

	if d := s.demand("no%2Fsuch%20one"); d != (monitor.Demand{Pool: "no/such one"}) {
		t.Errorf("a pool without nodes: %+v", d)
	}
	if _, body := s.do(http.MethodGet, "/demand/gpu"); body != `{"pool":"gpu","nodes":0,"slots":0,"in_flight":0,"queued":0,"waiting":0,"busy":0,"awaiting":0,"tasks":0,"oldest_wait_ms":0,"wanted_slots":0}`+"\n" {
		t.Errorf("a pool without nodes: %s", body)
	}
	if _, body := s.do(http.MethodGet, "/demand"); !strings.HasPrefix(body, `{"pools":[{"pool":"default","nodes":1,"slots":2,`) {
		t.Errorf("all pools: %s", body)
	}
	for path, want := range map[string]int{"/": http.StatusNotFound, "/debug/pprof/": http.StatusNotFound} {
		if status, _ := s.do(http.MethodGet, path); status != want {
			t.Errorf("GET %s: %d", path, status)
		}
	}
	if status, _ := s.do(http.MethodPost, "/demand"); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", status)
	}
}

// A drain shows in /readyz at once, while calls run on; the other pages are served until the
// monitor ends.
func TestDrainingIsNotReady(t *testing.T) {
	t.Parallel()
	g := newGate()
	r := serve(t, meshtest.Broker(t), g)
	s := open(t)
	s.m.Watch(r)
	s.becomes("/readyz", http.StatusOK, "ready\n")
	call, stopped := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := r.Call(t.Context(), "lab.hold", nil)
		call <- err
	}()
	<-g.begun
	go func() { stopped <- r.Close() }()
	s.becomes("/readyz", http.StatusServiceUnavailable, "not ready: the router is stopping")
	s.is("/healthz", http.StatusOK, "alive")
	s.is("/demand/default", http.StatusServiceUnavailable, "this process has no view of the mesh")
	if all := s.metrics(); value(all, "toolmesh_calls_in_flight", "") != 1 || value(all, "toolmesh_ready", "") != 0 {
		t.Error("the call that runs on is not seen, or the process is ready")
	}
	close(g.let)
	if err := errors.Join(<-call, <-stopped); err != nil {
		t.Fatal(err)
	}
	s.is("/healthz", http.StatusOK, "alive")
	if all := s.metrics(); value(all, "toolmesh_calls_total", "ok") != 1 {
		t.Error("the call is not counted")
	}
	s.m.Stop()
	s.m.Stop()
}

// An agent without its broker is alive and not ready, so that an outage restarts no fleet, and
// shows nothing of the mesh after a while. After the outage all is as before it.
func TestOutageOfTheBroker(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	a, err := agent.New(broker.Connect(t), t.TempDir(), &agent.Options{Node: "one", Labels: map[string]string{"pool": "gpu"}, Slots: 3, Environ: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t)
	s.m.Watch(a)
	s.is("/readyz", http.StatusServiceUnavailable, "not ready: the agent is starting")
	s.is("/demand", http.StatusServiceUnavailable, "this process has no view of the mesh")
	testmesh.Start(t, a)
	stop := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		return a.Stop(ctx)
	}
	t.Cleanup(func() { _ = stop() })
	s.becomes("/readyz", http.StatusOK, "ready\n")
	meshtest.Until(t, "the agent is a node of its pool", func() bool {
		d := s.demand("gpu")
		return d.Nodes == 1 && d.Slots == 3 && d.WantedSlots == 0
	})
	if all := s.metrics(); value(all, "toolmesh_workers", "ready") != 0 || value(all, "toolmesh_pool_nodes", "gpu") != 1 {
		t.Error("an agent without indexes has workers, or is in no pool")
	}
	broker.Stop()
	s.becomes("/readyz", http.StatusServiceUnavailable, "not ready: there is no connection to the NATS server")
	s.is("/healthz", http.StatusOK, "alive")
	s.becomes("/demand/gpu", http.StatusServiceUnavailable, "this process has heard nothing of the mesh for")
	s.is("/healthz", http.StatusOK, "alive")
	if all := s.metrics(); value(all, "toolmesh_pool_nodes", "gpu") != -1 || value(all, "toolmesh_slots", "") != 3 {
		t.Error("old figures of the mesh are shown, or those of the node are not")
	}
	broker.Start(t)
	s.becomes("/readyz", http.StatusOK, "ready\n")
	s.becomes("/demand/gpu", http.StatusOK, `{"pool":"gpu","nodes":1`)

	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	s.becomes("/readyz", http.StatusServiceUnavailable, "not ready: the node is draining")
	s.is("/healthz", http.StatusOK, "alive")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	s.is("/healthz", http.StatusOK, "alive")
	s.is("/demand/gpu", http.StatusServiceUnavailable, "this process has no view of the mesh")
	s.metrics()
}

// A broker that reads nothing, with all sockets full, blocks writers to it for a minute. Probes
// wait for none of that.
func TestABrokerThatReadsNothing(t *testing.T) {
	t.Parallel()
	proxy := meshtest.NewProxy(t, meshtest.Broker(t))
	nc := proxy.Connect(t)
	r, err := router.New(nc, &router.Options{Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r) })
	if _, err := r.Handle("lab", "fail", host.Func(fail)); err != nil {
		t.Fatal(err)
	}
	s := open(t)
	s.m.Watch(r)
	s.becomes("/readyz", http.StatusOK, "ready\n")
	proxy.Stall()
	meshtest.Clog(t, nc)
	began := time.Now()
	s.is("/healthz", http.StatusOK, "alive")
	if status, body := s.do(http.MethodGet, "/readyz"); strings.HasPrefix(body, "stuck") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if all := s.metrics(); value(all, "toolmesh_slots", "") != 2 {
		t.Error("there are no figures")
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the answers took %v", took)
	}
	proxy.Heal()
	s.becomes("/readyz", http.StatusOK, "ready\n")
}

// Behind a frozen broker all nodes are silent. An autoscaler must not read that as a mesh without work.
func TestFrozenBrokerHidesDemand(t *testing.T) {
	t.Parallel()
	proxy := meshtest.NewProxy(t, meshtest.Broker(t))
	r, err := router.New(proxy.Connect(t), &router.Options{Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meshtest.End(t, r) })
	if _, err := r.Handle("lab", "fail", host.Func(fail)); err != nil {
		t.Fatal(err)
	}
	s := open(t)
	s.m.Watch(r)
	s.becomes("/demand/default", http.StatusOK, `{"pool":"default","nodes":1`)
	proxy.Stall()
	meshtest.Until(t, "the demand is unknown", func() bool {
		status, body := s.do(http.MethodGet, "/demand/default")
		if status == http.StatusOK && !strings.Contains(body, `"nodes":1`) {
			t.Fatalf("a pool without nodes: %s", body)
		}
		return status == http.StatusServiceUnavailable
	})
	if all := s.metrics(); value(all, "toolmesh_pool_nodes", "default") != -1 {
		t.Error("old figures of the mesh are shown")
	}
	proxy.Heal()
	s.becomes("/demand/default", http.StatusOK, `{"pool":"default","nodes":1`)
}

// patient is a member that is how a test wants it.
type patient struct {
	stuck, unready error
	note           string
	held           chan struct{} // its figures are there once it is closed; nil: at once
}

func (p patient) Stuck() error               { return p.stuck }
func (p patient) Condition() (string, error) { return p.note, p.unready }
func (p patient) Seen() *registry.View       { return nil }
func (p patient) Figures() *host.Figures {
	if p.held != nil {
		<-p.held
	}
	return nil
}

func TestConditionsAreLines(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.m.Watch(patient{stuck: toolmesh.Errorf(toolmesh.CodeInternal, "the clock has stood\nfor 5m"), unready: errors.New("so\n\nit is")})
	s.is("/healthz", http.StatusServiceUnavailable, "stuck: the clock has stood for 5m\n")
	s.is("/readyz", http.StatusServiceUnavailable, "not ready: so it is\n")
	s.m.Watch(patient{note: "not served: lab"})
	s.is("/healthz", http.StatusOK, "alive\n")
	s.is("/readyz", http.StatusOK, "ready; not served: lab\n")

	held := make(chan struct{})
	s.m.Watch(patient{held: held}) // as if a lock were never let go
	s.is("/healthz", http.StatusServiceUnavailable, "stuck: the process cannot say how it is within 5s\n")
	close(held)
	s.is("/healthz", http.StatusOK, "alive\n")
}

// An address in use is known before anything is served there.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	s := open(t)
	if m, err := monitor.Start(t.Context(), s.m.Address(), nil); err == nil {
		m.Stop()
		t.Error("two listen on one address")
	} else if toolmesh.CodeOf(err) != toolmesh.CodeUnavailable || !strings.Contains(err.Error(), s.m.Address()) {
		t.Errorf("an address in use: %v", err)
	}
}

// The page lists the metrics that there are, and no others.
func TestPageListsMetrics(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../docs/operations/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(toolmesh_[a-z_]+)").FindAllStringSubmatch(string(data), -1) {
		listed = append(listed, row[1])
	}
	slices.Sort(listed)
	if there := monitor.Names(); !slices.Equal(listed, there) {
		t.Errorf("the page lists %q, there are %q", listed, there)
	}
}
