package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh/meshtest"
)

// served starts a command that is to say where it answers over HTTP, in a home of its
// own, and returns that once it has. The command is not waited for.
func served(t *testing.T, env []string, name string, args ...string) (cmd *exec.Cmd, address string, log *watch) {
	t.Helper()
	home := t.TempDir()
	cmd = exec.CommandContext(t.Context(), name, args...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_DATA_HOME=" + filepath.Join(home, "data")}, env...)
	log = newWatch("http=127.0.0.1:")
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-log.seen:
	case <-time.After(time.Minute):
		t.Fatalf("%s does not say where it answers:\n%s", name, log.text())
	}
	found := regexp.MustCompile(`http=(127\.0\.0\.1:[0-9]+)\n`)
	meshtest.Until(t, "the whole line", func() bool { return found.MatchString(log.text()) })
	return cmd, found.FindStringSubmatch(log.text())[1], log
}

// get returns the answer of a page; a refused connection has status 0.
func get(t *testing.T, address, path string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	res, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// says waits for an answer.
func says(t *testing.T, address, path string, status int, line string) {
	t.Helper()
	meshtest.Until(t, fmt.Sprintf("%s answers %d %s", path, status, line), func() bool {
		got, body := get(t, address, path)
		return got == status && strings.HasPrefix(body, line)
	})
}

// Both servers answer probes from before there is a broker until their end, by a flag or
// a variable; an address that is taken ends a process before it serves, with the flag.
func TestServersReportTheirHealth(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	broker.Stop() // its address is known, and nothing is there yet
	a, agentAt, agentLog := served(t, []string{"MESH_HTTP_LISTEN=127.0.0.1:0", "MESH_LABELS=pool=gpu", "MESH_SLOTS=3"}, "mesh-agent", "--server", broker.URL)
	r, routerAt, routerLog := served(t, nil, "mesh-router", "--server", broker.URL, "--http-listen=127.0.0.1:0")
	for _, at := range []string{agentAt, routerAt} {
		says(t, at, "/healthz", http.StatusOK, "alive")
		says(t, at, "/readyz", http.StatusServiceUnavailable, "not ready: the process is starting, or waits for the NATS server")
		says(t, at, "/metrics", http.StatusOK, "# HELP go_")
	}
	for _, name := range []string{"mesh-agent", "mesh-router"} {
		cmd := exec.CommandContext(t.Context(), name, "--server", broker.URL, "--http-listen", agentAt)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
		out, err := cmd.CombinedOutput()
		if got := exitStatus(err); got != 3 || !strings.Contains(string(out), agentAt+" is taken: choose another address with --http-listen") || strings.Contains(string(out), "msg=starting") {
			t.Errorf("%s at an address that is taken: status %d\n%s", name, got, out)
		}
	}

	broker.Start(t)
	for _, at := range []string{agentAt, routerAt} {
		says(t, at, "/readyz", http.StatusOK, "ready\n")
		// Each answers for the whole mesh.
		says(t, at, "/demand/gpu", http.StatusOK, `{"pool":"gpu","nodes":1,"slots":3,"in_flight":0,`)
		if _, body := get(t, at, "/metrics"); !strings.Contains(body, `toolmesh_build_info{goversion="go`) || !strings.Contains(body, `version="test"} 1`) || !strings.Contains(body, "\nprocess_start_time_seconds ") {
			t.Errorf("metrics:\n%s", body)
		}
	}

	// It drains for two seconds at least.
	if err := a.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	says(t, agentAt, "/readyz", http.StatusServiceUnavailable, "not ready: the node is draining")
	if status, body := get(t, agentAt, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz while it drains: %d %s", status, body)
	}
	if err := a.Wait(); err != nil {
		t.Errorf("end of mesh-agent: %v\n%s", err, agentLog.text())
	}
	if status, _ := get(t, agentAt, "/healthz"); status != 0 {
		t.Errorf("a process that has ended answers %d", status)
	}
	says(t, routerAt, "/demand/gpu", http.StatusOK, `{"pool":"gpu","nodes":0,"slots":0,`)
	if err := r.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(); err != nil {
		t.Errorf("end of mesh-router: %v\n%s", err, routerLog.text())
	}
}
