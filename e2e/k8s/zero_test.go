package k8s

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/toolmesh/toolmesh/client"
)

// TestToZeroAndBack has an idle pool go to zero; a call and a durable task of a tool that no pod serves then bring one
// pod, which runs them.
func TestToZeroAndBack(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"overlay", "overlay-hpa"} {
		if err := os.CopyFS(filepath.Join(r.home, "testdata", name), os.DirFS(filepath.Join("testdata", name))); err != nil {
			t.Fatal(err)
		}
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
	result, err := c.Call(t.Context(), "load.work.echo", args, client.WithTimeout(waitTimeout))
	is(result, err)
	if result.NodeWait == 0 {
		t.Errorf("the call has not waited for a node: %+v", result)
	}
	figure("autoscaler: 0 to 1 agent, from a call to its answer", result.Took)
	pods := r.allReady(t, "mesh-agent", 1)
	created := pods[0].CreationTimestamp.Time
	for _, condition := range pods[0].Status.Conditions {
		if condition.Status == "True" && condition.LastTransitionTime.After(created) {
			figure(fmt.Sprintf("… of that, from the pod's creation to `%s`, to the second", condition.Type), condition.LastTransitionTime.Sub(created))
		}
	}
	figure("… of that, the call waited at a router", result.NodeWait)

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
