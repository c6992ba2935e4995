package k8s

import (
	"strings"
	"testing"
	"time"
)

// Each machine has one agent, whose node has the machine's name, also after it was replaced.
func TestMachines(t *testing.T) {
	r := newRig(t)
	r.install(t, "overlay-machines", 1)
	boot := bootOf(t, r.must(t, "mesh nodes --json"), NodeName)
	pod := r.allReady(t, "mesh-agent", 1)[0]
	for _, what := range []string{"`kubectl delete` of its pod", "the loss of its pod"} {
		at := time.Now()
		if strings.Contains(what, "loss") {
			killProcesses(t, &pod)
			r.must(t, "kubectl -n toolmesh delete pod --force --grace-period 0 "+pod.Name)
		} else {
			r.must(t, "kubectl -n toolmesh delete pod "+pod.Name)
		}
		until(t, "another pod is ready after "+what, func() (string, error) {
			pods, err := r.pods("mesh-agent")
			if err != nil || len(pods) != 1 || pods[0].UID == pod.UID || !ready(&pods[0]) {
				return "", err
			}
			pod = pods[0]
			return pod.Name, nil
		}, func(name string) bool { return name != "" })
		figure("machines: the next agent is ready, from "+what, time.Since(at))
		if n := pod.Status.ContainerStatuses[0].RestartCount; n != 0 {
			t.Errorf("it was started %d times more:\n%s", n, r.must(t, "kubectl -n toolmesh logs --previous --tail 1 "+pod.Name))
		}
		next := bootOf(t, r.must(t, "mesh nodes --json"), NodeName)
		if next == boot {
			t.Error("it is the same process")
		}
		boot = next
		if said := r.must(t, "mesh call load.work.echo n:=11 ms:=0"); strings.TrimSpace(said) != "11" {
			t.Errorf("a call: %s", said)
		}
	}
}
