package k8s

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// The pods of a pool share a volume of environments: an environment is built once, also for the first pod after all
// were removed, and tools cannot change it.
func TestSharedEnvironments(t *testing.T) {
	r := newRig(t)
	if err := os.CopyFS(filepath.Join(r.home, "testdata", "packaged"), os.DirFS("testdata/packaged")); err != nil {
		t.Fatal(err)
	}
	r.install(t, "overlay-environments", 1)
	r.must(t, "mesh install ./testdata/packaged")
	answers := func() {
		t.Helper()
		if said := strings.TrimSpace(r.must(t, "mesh call packaged.work.answer")); said != "42" {
			t.Fatalf("the tool answers %s", said)
		}
	}
	answers()
	first := r.allReady(t, "mesh-agent", 1)
	took := r.built(t, first)
	if len(took) != 1 {
		t.Fatalf("the first pod has built %d environments of packages", len(took))
	}
	figure("shared environments: the first pod builds that of one small package", took[0])
	if said := strings.TrimSpace(r.must(t, "mesh call packaged.work.change")); said != `"PermissionError"` && said != `"OSError"` {
		t.Errorf("a tool that changes what all pods share: %s", said)
	}

	scale := func(n int) []v1.Pod {
		t.Helper()
		r.must(t, fmt.Sprintf("kubectl -n toolmesh scale deployment/mesh-agent --replicas %d", n))
		return r.allReady(t, "mesh-agent", n)
	}
	if took := r.built(t, scale(3)); len(took) != 1 {
		t.Errorf("three pods have built %d environments of packages", len(took))
	}
	answers()
	scale(0)
	at := time.Now()
	fresh := scale(1)
	figure("shared environments: a pod that finds them is ready, from `kubectl scale`", time.Since(at))
	if took := r.built(t, fresh); len(took) != 0 {
		t.Errorf("a pod has built what another one had: %v", took)
	}
	answers()
}

// built are the durations of builds of shared environments, from the logs of pods.
func (r *rig) built(t *testing.T, pods []v1.Pod) (took []time.Duration) {
	t.Helper()
	for _, pod := range pods {
		for line := range strings.Lines(r.must(t, "kubectl -n toolmesh logs "+pod.Name)) {
			var said struct {
				Message string        `json:"msg"`
				Shared  bool          `json:"shared"`
				Took    time.Duration `json:"took"`
			}
			if err := json.Unmarshal([]byte(line), &said); err != nil {
				t.Fatalf("a line of the log of %s: %v: %s", pod.Name, err, line)
			}
			if said.Message == "environment built" && said.Shared {
				took = append(took, said.Took)
			}
		}
	}
	return took
}
