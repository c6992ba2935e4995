package k8s

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// events are the cluster's events about an object, one per line.
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

// says waits until the output has all of some texts.
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

// An installation leaves out step after step. Each time an error names the missing part, and once it is added the mesh
// goes on without a manually restarted pod.
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

// Two pods get one node's name, and nodes get callers' keys. Running nodes go on, and a refused pod names the reason in
// its last line at each start.
func TestBadIdentity(t *testing.T) {
	r := newRig(t)
	r.volumes(t, 1)
	r.must(t, "mesh auth template --nats-conf --data-dir k8s/credentials > k8s/credentials/mesh.conf && kubectl apply -k k8s/credentials && kubectl apply -f k8s/rendered/dev.yaml")
	r.allReady(t, "nats", 1)
	r.allReady(t, "mesh-router", 1)
	r.allReady(t, "mesh-agent", 1)
	r.begin(t, "kubectl -n toolmesh port-forward service/nats 4222")
	t.Setenv("MESH_NATS_NKEY", filepath.Join(r.home, "k8s/credentials/keys/admin.nk"))
	calls := func(t *testing.T) {
		t.Helper()
		if said, err := r.shell(t.Context(), "mesh call weather.forecast.today city=Oslo"); err != nil || !strings.Contains(said, `"Oslo: `) {
			t.Errorf("a call: %v, %s", err, said)
		}
	}
	// again waits until a pod was started twice, with the same reason in its last line each time.
	again := func(name, what string, texts ...string) {
		t.Helper()
		for n := range int32(2) {
			pod := until(t, what+": "+name+" is started again", func() (*v1.Pod, error) {
				pods, err := r.pods(name)
				for i := range pods {
					if s := pods[i].Status.ContainerStatuses; !ready(&pods[i]) && len(s) == 1 && s[0].RestartCount > n && s[0].LastTerminationState.Terminated != nil {
						return &pods[i], err
					}
				}
				return nil, err
			}, func(p *v1.Pod) bool { return p != nil })
			says(t, what, func() (string, error) {
				return r.shell(t.Context(), "kubectl -n toolmesh logs --previous --tail 1 "+pod.Name)
			}, texts...)
		}
	}
	r.must(t, "mesh install ./examples/indexes/weather")

	r.must(t, "kubectl -n toolmesh set env deployment/mesh-agent MESH_NODE=fixed && kubectl -n toolmesh rollout status deployment/mesh-agent --timeout 5m")
	r.allReady(t, "mesh-agent", 1)
	first := r.must(t, "mesh nodes --json")
	r.must(t, "kubectl -n toolmesh scale deployment/mesh-agent --replicas 2")
	again("mesh-agent", "name that repeats", `node "fixed" is running already`, "--node")
	if now := r.must(t, "mesh nodes --json"); bootOf(t, now, "fixed") != bootOf(t, first, "fixed") {
		t.Errorf("the name is another process's now:\n%s\n%s", first, now)
	}
	calls(t)
	r.must(t, "kubectl -n toolmesh scale deployment/mesh-agent --replicas 1 && kubectl -n toolmesh set env deployment/mesh-agent MESH_NODE='$(NODE_ID)'")
	r.must(t, "kubectl -n toolmesh rollout status deployment/mesh-agent --timeout 5m")
	r.allReady(t, "mesh-agent", 1)

	r.must(t, "kubectl -n toolmesh create secret generic mesh-node --from-file node.nk=k8s/credentials/keys/caller.nk --dry-run=client -o yaml | kubectl apply -f - && kubectl -n toolmesh rollout restart deployment")
	again("mesh-agent", "agent with a caller's key", "it needs the key of one", "docs/operations/nats.md")
	again("mesh-router", "router with a caller's key", "it needs the key of a node", "docs/operations/nats.md")
	calls(t)
	r.must(t, "kubectl apply -k k8s/credentials")
	r.must(t, "kubectl -n toolmesh rollout status deployment/mesh-agent --timeout 5m && kubectl -n toolmesh rollout status deployment/mesh-router --timeout 5m")
	calls(t)
}

// bootOf finds the boot of a node in the output of mesh nodes --json.
func bootOf(t *testing.T, said, node string) string {
	t.Helper()
	var of struct{ Nodes []struct{ ID, Boot string } }
	if err := json.Unmarshal([]byte(said), &of); err != nil {
		t.Fatal(err)
	}
	for _, n := range of.Nodes {
		if n.ID == node {
			return n.Boot
		}
	}
	t.Fatalf("there is no node %s:\n%s", node, said)
	return ""
}
