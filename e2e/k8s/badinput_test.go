package k8s

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// events are what the cluster says of an object, one a line.
func (r *rig) events(name string) (string, error) {
	list, err := r.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var lines []string
	for _, e := range list.Items {
		if strings.HasPrefix(e.InvolvedObject.Name, name) {
			lines = append(lines, e.Reason+": "+e.Message)
		}
	}
	return strings.Join(lines, "\n"), nil
}

// says waits until what is read has all of some texts.
func says(t *testing.T, what string, read func() (string, error), texts ...string) {
	t.Helper()
	said := until(t, what, read, func(said string) bool {
		for _, text := range texts {
			if !strings.Contains(said, text) {
				return false
			}
		}
		return true
	})
	lines := strings.Split(said, "\n")
	for _, line := range lines {
		if strings.Contains(line, texts[0]) {
			t.Logf("%s: %s", what, line)
			break
		}
	}
}

// TestBadInput installs as somebody does who leaves out step after step. Each time something says what is missing, and
// once it is there the mesh gets on without a pod being made anew by hand.
func TestBadInput(t *testing.T) {
	r := newRig(t)
	events := func(name string) func() (string, error) { return func() (string, error) { return r.events(name) } }
	logs := func(of string) func() (string, error) {
		return func() (string, error) { return r.shell(t.Context(), "kubectl -n toolmesh logs --tail 1 "+of) }
	}
	r.volumes(t, 0)
	r.must(t, "kubectl apply -f k8s/rendered/dev.yaml")
	says(t, "agent without keys", events("mesh-agent"), "FailedMount", `"mesh-node" not found`)
	says(t, "router without keys", events("mesh-router"), "FailedMount", "not found")
	says(t, "volume that is not there", events("nats-0"), "FailedScheduling", "persistent volume")
	says(t, "claim that does not bind", events("data-nats-0"), "WaitFor")

	r.must(t, "mesh auth template --nats-conf --data-dir k8s/credentials > k8s/credentials/mesh.conf && kubectl apply -k k8s/credentials")
	says(t, "agent without NATS", logs("deployment/mesh-agent"), "nats:4222")
	says(t, "router without NATS", logs("deployment/mesh-router"), "nats:4222")

	r.volumes(t, 1)
	r.allReady(t, "nats", 1)
	r.allReady(t, "mesh-agent", 1)
	r.allReady(t, "mesh-router", 1)

	r.must(t, "kubectl -n toolmesh set image deployment/mesh-agent agent=toolmesh/mesh-agent:bare && kubectl -n toolmesh rollout status deployment/mesh-agent --timeout 5m")
	r.allReady(t, "mesh-agent", 1)
	r.begin(t, "kubectl -n toolmesh port-forward service/nats 4222")
	t.Setenv("MESH_NATS_NKEY", filepath.Join(r.home, "k8s/credentials/keys/admin.nk"))
	says(t, "image without an interpreter", func() (string, error) {
		said, _ := r.shell(t.Context(), "mesh install ./examples/indexes/weather")
		return said, nil
	}, "Python")
}
