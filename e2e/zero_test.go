package e2e_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/meshtest"
)

// demand is a process's demand for a pool.
type demand struct {
	Nodes    int   `json:"nodes"`
	Awaiting int   `json:"awaiting"`
	Tasks    int   `json:"tasks"`
	Oldest   int64 `json:"oldest_wait_ms"`
	Wanted   int   `json:"wanted_slots"`
}

func demandOf(t *testing.T, address, pool string) (d demand) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/demand/"+pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(body, &d) != nil {
		t.Fatalf("the demand of %s: %d %s %v", pool, resp.StatusCode, body, err)
	}
	return d
}

// The only agent of a pool is removed: calls of its index, by a plain NATS client and the command line, and a task
// wait, all routers report them as the pool's demand, and the next agent answers them.
func TestToZeroAndBack(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	u := newUser(t, "MESH_NATS_URL="+s.URL)
	first := u.pooled(t, s.URL)
	u.mesh(t, 0, "install", "--on=pool=x", "file://"+held(t))
	var addresses []string
	for range 2 {
		p, _ := u.start(t, t.TempDir(), "mesh-router", "--server="+s.URL, "--http-listen=127.0.0.1:0")
		addresses = append(addresses, p.await(t, p.logs, `http=(\S+)`)[1])
		p.await(t, p.logs, `msg=ready`)
	}
	if d := demandOf(t, addresses[0], "x"); d.Nodes != 1 || d.Wanted != 0 {
		t.Errorf("with a node: %+v", d)
	}
	first.signal(t, syscall.SIGTERM)
	if status := first.end(t); status != 0 {
		t.Errorf("the agent ended with %d", status)
	}
	nc := plain(t, s.URL)
	standsBy(t, nc)
	// Its tools are known; others are not found.
	if r := u.mesh(t, 0, "ls"); !strings.Contains(r.stdout, "held.t.fast") {
		t.Errorf("mesh ls: %v", r)
	}
	if r := u.mesh(t, 3, "call", "held.t.nosuch"); !strings.Contains(r.stderr, "no index or session offers") {
		t.Errorf("a tool that it has not: %v", r)
	}
	if r := u.mesh(t, 3, "call", "held.t.fast", "n=1", "--timeout=1s"); !strings.Contains(r.stderr, "pool=x") {
		t.Errorf("a call whose time is up: %v", r)
	}
	for _, address := range addresses {
		if d := demandOf(t, address, "x"); d.Nodes != 0 {
			t.Errorf("without nodes: %+v", d)
		}
	}
	type answer struct {
		text, wait string
	}
	answers := make(chan answer, 4)
	for i := range 3 {
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
			defer cancel()
			m, err := nc.RequestWithContext(ctx, "tools.default.held.t.fast", []byte(`{"n":`+strconv.Itoa(i)+`}`))
			if err != nil {
				answers <- answer{text: err.Error()}
				return
			}
			answers <- answer{string(m.Data), m.Header.Get("Mesh-Node-Wait-Ms")}
		}()
	}
	line := make(chan result, 1)
	go func() {
		r, err := finish(u.command(context.WithoutCancel(t.Context()), "mesh", "call", "held.t.fast", "n=7", "--json", "--timeout=2m"))
		if err != nil {
			r.stderr += err.Error()
		}
		line <- r
	}()
	u.mesh(t, 0, "task", "submit", "held.t.fast", "n=9", "--id=waits")
	for _, address := range addresses {
		meshtest.Until(t, "the demand shows what waits", func() bool {
			d := demandOf(t, address, "x")
			return d.Awaiting == 4 && d.Tasks >= 1 && d.Wanted >= 5 && d.Oldest > 0
		})
	}
	u.pooled(t, s.URL)
	for range 3 {
		a := <-answers
		if wait, err := strconv.Atoi(a.wait); len(a.text) != 1 || err != nil || wait <= 0 {
			t.Errorf("a plain client: %+v", a)
		}
	}
	var called struct {
		Result     int     `json:"result"`
		NodeWaitMS float64 `json:"node_wait_ms"`
		DurationMS float64 `json:"duration_ms"`
	}
	if r := <-line; json.Unmarshal([]byte(r.stdout), &called) != nil || called.Result != 7 || called.NodeWaitMS <= 0 || called.DurationMS < called.NodeWaitMS {
		t.Errorf("the command line: %v %+v", r, called)
	}
	if r := u.mesh(t, 0, "task", "wait", "waits", "--timeout=2m"); strings.TrimSpace(r.stdout) != "9" {
		t.Errorf("the task: %v", r)
	}
	var task struct{ Attempts int }
	if u.json(t, &task, "task", "show", "waits", "--json"); task.Attempts != 1 {
		t.Errorf("the task took %d attempts", task.Attempts)
	}
	meshtest.Until(t, "nothing waits", func() bool { d := demandOf(t, addresses[0], "x"); return d.Awaiting == 0 && d.Tasks == 0 })
}

// One of two routers is killed: the calls of our clients that waited there then wait at the other one, and each
// runs once.
func TestARouterIsKilledThatHoldsCalls(t *testing.T) {
	t.Parallel()
	const calls = 4
	s := meshtest.Broker(t)
	u := newUser(t, "MESH_NATS_URL="+s.URL)
	first := u.pooled(t, s.URL)
	u.mesh(t, 0, "install", "--on=pool=x", "file://"+held(t))
	var routers []*process
	addresses := make([]string, 2)
	for i := range addresses {
		p, _ := u.start(t, t.TempDir(), "mesh-router", "--server="+s.URL, "--http-listen=127.0.0.1:0")
		addresses[i] = p.await(t, p.logs, `http=(\S+)`)[1]
		p.await(t, p.logs, `msg=ready`)
		routers = append(routers, p)
	}
	first.signal(t, syscall.SIGTERM)
	if status := first.end(t); status != 0 {
		t.Errorf("the agent ended with %d", status)
	}
	standsBy(t, plain(t, s.URL))
	lines := make(chan result, calls)
	for i := range calls {
		go func() {
			r, err := finish(u.command(context.WithoutCancel(t.Context()), "mesh", "call", "held.t.fast", "n="+strconv.Itoa(i), "--timeout=2m"))
			if err != nil {
				r.stderr += err.Error()
			}
			lines <- r
		}()
	}
	all := func() bool { return demandOf(t, addresses[1], "x").Awaiting == calls }
	meshtest.Until(t, "all calls wait", func() bool { return all() && demandOf(t, addresses[1], "x").Oldest > 1500 })
	routers[0].kill(t)
	killed := time.Now()
	// The killed router's reported calls count for 2.5 s.
	meshtest.Until(t, "all calls wait at the other", func() bool { return time.Since(killed) > 3*time.Second && all() })
	u.pooled(t, s.URL)
	sum := 0
	for range calls {
		r := <-lines
		n, err := strconv.Atoi(strings.TrimSpace(r.stdout))
		if err != nil {
			t.Errorf("a call: %v", r)
		}
		sum += n
	}
	if sum != calls*(calls-1)/2 {
		t.Errorf("the answers come to %d", sum)
	}
}

// pooled starts an agent of the pool x.
func (u *user) pooled(t *testing.T, url string) *process {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "gpu")
	p, _ := u.start(t, dir, "mesh-agent", "--server="+url, "--node=gpu", "--labels=pool=x", "--data-dir="+dir)
	p.await(t, p.logs, `msg=ready`)
	return p
}

// standsBy waits until a router takes calls of the index "held".
func standsBy(t *testing.T, nc *nats.Conn) {
	t.Helper()
	meshtest.Until(t, "routers stand by", func() bool {
		m, err := nc.Request("tools.default.held.t.fast", []byte(`{"type":"rpc_tool_call","rpc_id":""}`), time.Second)
		return err == nil && len(m.Data) > 0
	})
}
