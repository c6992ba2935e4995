package k8s

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/toolmesh/toolmesh/client"
)

// logged is when a log has a message for the first time.
func logged(t *testing.T, said, message string) time.Time {
	t.Helper()
	for line := range strings.Lines(said) {
		var of struct {
			Time time.Time
			Msg  string
		}
		if json.Unmarshal([]byte(line), &of) == nil && of.Msg == message {
			return of.Time
		}
	}
	t.Fatalf("the log has no %q:\n%s", message, said)
	return time.Time{}
}

// An idle pool goes to zero; a call and a durable task of a tool that no pod serves then start one pod, which runs them.
func TestToZeroAndBack(t *testing.T) {
	r := newRig(t)
	if err := os.CopyFS(filepath.Join(r.home, "testdata", "overlay-hpa"), os.DirFS("testdata/overlay-hpa")); err != nil {
		t.Fatal(err)
	}
	r.install(t, "overlay-zero", 1)
	r.provider(t)
	c := r.connect(t)
	args := map[string]int{"n": 7, "ms": 0}
	toZero := func() {
		t.Helper()
		until(t, "an idle pool has no agent", func() (int, error) {
			pods, err := r.pods("mesh-agent")
			return len(pods), err
		}, func(n int) bool { return n == 0 })
	}
	is := func(result *client.Result, err error) {
		t.Helper()
		var got int
		if err == nil {
			err = result.Decode(&got)
		}
		if err != nil || got != args["n"] {
			t.Fatalf("%d, %v", got, err)
		}
	}

	at := time.Now()
	toZero()
	figure("autoscaler: an idle pool at zero, from its first metric", time.Since(at))
	agents := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=mesh-agent"}
	none, err := r.CoreV1().Pods(namespace).List(t.Context(), agents)
	if err != nil || len(none.Items) > 0 {
		t.Fatalf("%d pods, %v", len(none.Items), err)
	}
	agents.ResourceVersion = none.ResourceVersion // events from now on, not those in a cache
	watch, err := r.CoreV1().Pods(namespace).Watch(t.Context(), agents)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	var result *client.Result
	answered := make(chan error, 1)
	sent := time.Now()
	go func() {
		var err error
		result, err = c.Call(t.Context(), "load.work.echo", args, client.WithTimeout(waitTimeout))
		answered <- err
	}()
	<-watch.ResultChan()
	created := time.Now()
	err = <-answered
	end := time.Now()
	is(result, err)
	if result.NodeWait == 0 {
		t.Errorf("the call has not waited for a node: %+v", result)
	}
	r.allReady(t, "mesh-agent", 1)
	said := r.must(t, "kubectl -n toolmesh logs deployment/mesh-agent")
	began, ready := logged(t, said, "starting"), logged(t, said, "ready")
	figure("autoscaler: 0 to 1 agent, from a call to its answer", end.Sub(sent))
	figure("… the autoscaler: from the call to the pod's creation", created.Sub(sent))
	figure("… scheduler, kubelet and image: to the start of its process", began.Sub(created))
	figure("… connection and environments: to the agent's `ready`", ready.Sub(began))
	figure("… the call: to its answer", end.Sub(ready))

	toZero()
	task, err := c.Submit(t.Context(), "load.work.echo", args, nil)
	if err != nil {
		t.Fatal(err)
	}
	is(task.Wait(t.Context()))
	if info, err := task.Show(t.Context()); err != nil || info.Attempts != 1 {
		t.Errorf("the task took %+v attempts, %v", info, err)
	}
	d, err := r.AppsV1().Deployments(namespace).Get(t.Context(), "mesh-agent", metav1.GetOptions{})
	if err != nil || d.Status.Replicas != 1 {
		t.Errorf("one task brought %d pods, %v", d.Status.Replicas, err)
	}
}
