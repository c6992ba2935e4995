package k8s

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/toolmesh/toolmesh/client"
)

// startLeaf starts a NATS server outside of the cluster's pods, which goes on until the test ends, and returns a function
// that reads its log.
func (r *rig) startLeaf(t *testing.T, name, config, exports string) func() (string, error) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.home, name+".conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := r.command(ctx, exports+" exec nats-server -c "+name+".conf -l "+name+".log")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	return func() (string, error) {
		said, err := os.ReadFile(filepath.Join(r.home, name+".log"))
		return string(said), err
	}
}

// The steps under "From outside of the cluster" of docs/operations/kubernetes.md work, and so do all kinds of calls
// through a leaf node, also while a NATS server of the cluster is evicted. A leaf node without a key of the mesh has no
// access.
func TestLeafNode(t *testing.T) {
	r := newRig(t)
	page := blocks(t, "From outside of the cluster", 3)
	here, config, there := strings.Split(page[0], "\n"), page[1], strings.Split(page[2], "\n")
	if len(here) != 5 || len(there) != 4 || !strings.HasPrefix(here[2], "kubectl apply -k YOUR/OVERLAY") || !strings.HasPrefix(there[1], "nats-server -c leaf.conf") {
		t.Fatalf("the page has other commands:\n%s\n%s", page[0], page[2])
	}
	r.must(t, "kubectl apply -f k8s/namespace/namespace.yaml && mkdir -p -m 700 k8s/credentials/keys")
	r.must(t, strings.Replace(here[0], "DNS:mesh.example.com", "IP:"+r.Address, 1))
	r.must(t, here[1])
	r.install(t, "overlay-leafnodes", 1)
	r.must(t, "mesh install ./examples/indexes/weather && cp k8s/credentials/keys/tls.crt k8s/credentials/keys/caller.nk .")
	if said := r.must(t, here[3]); !strings.Contains(said, "7422:") {
		t.Errorf("%s: %s", here[3], said)
	}
	service, err := r.CoreV1().Services(namespace).Get(t.Context(), "nats-leafnodes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Without a load balancer: the machine's port to which one would lead.
	config = strings.Replace(config, "mesh.example.com:7422", fmt.Sprintf("%s:%d", r.Address, service.Spec.Ports[0].NodePort), 1)
	t.Setenv("MESH_NATS_URL", "nats://127.0.0.1:4222")
	t.Setenv("MESH_NATS_NKEY", "")

	at := time.Now()
	leaf := r.startLeaf(t, "leaf", config, there[0]+";")
	said := until(t, "a call through the leaf node", func() (string, error) { return r.shell(t.Context(), there[2]) },
		func(said string) bool { return strings.Contains(said, `"Oslo: `) })
	figure("leaf node: from its start to a call's answer", time.Since(at))
	t.Log(said)

	nc, c := callOn(t, os.Getenv("MESH_NATS_URL"))
	if answer, err := nc.Request("tools.default.load.work.echo", []byte(`{"n":3,"ms":1}`), waitTimeout); err != nil || string(answer.Data) != "3" {
		t.Errorf("a plain client's call: %+v, %v", answer, err)
	}
	next := 0
	for chunk, err := range c.Stream(t.Context(), "load.work.count", map[string]int{"n": 50, "ms": 1}) {
		var got int
		if err == nil {
			err = chunk.Decode(&got)
		}
		if err != nil || got != next {
			t.Fatalf("item %d of a stream is %d, %v", next, got, err)
		}
		next++
	}
	calls := make([]client.BatchCall, 5)
	for i := range calls {
		calls[i] = client.BatchCall{Tool: "load.work.echo", Args: map[string]int{"n": i, "ms": 1}}
	}
	results, err := c.Batch(t.Context(), calls)
	if err != nil || next != 50 || len(results) != len(calls) {
		t.Fatalf("%d items of a stream, %d results of a batch, %v", next, len(results), err)
	}
	for i := range results {
		var got int
		if err := results[i].Decode(&got); err != nil || got != i {
			t.Errorf("call %d of a batch: %d, %v", i, got, err)
		}
	}
	// A client behind the leaf node has no more rights than a caller.
	for _, subject := range []string{"mesh.admin.install", "tools.other.load.work.echo", "$JS.API.STREAM.NAMES"} {
		if _, err := nc.Request(subject, []byte("{}"), waitTimeout); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%s goes out: %v", subject, err)
		}
	}

	l := startLoad(t, c)
	l.goesOn(t)
	r.evict(t, "nats", 3)
	l.goesOn(t)
	r.must(t, "kubectl -n toolmesh rollout restart statefulset/nats && kubectl -n toolmesh rollout status statefulset/nats --timeout 15m")
	l.goesOn(t)
	l.settle(t)
	if said, err := leaf(); err != nil || strings.Contains(said, "Permissions Violation") {
		t.Errorf("the leaf node says, %v:\n%s", err, said)
	}

	r.must(t, "mesh auth template --nats-conf --data-dir stranger > /dev/null")
	for name, exports := range map[string]string{"unkeyed": "", "stranger": "export MESH_LEAF_KEY=$(grep ^SU stranger/keys/admin.nk);"} {
		of := strings.Replace(config, "127.0.0.1:4222", "127.0.0.1:-1", 1)
		if exports == "" {
			of = strings.Replace(of, "nkey: $MESH_LEAF_KEY, ", "", 1)
		}
		log := r.startLeaf(t, name, of, exports)
		says(t, "a leaf node that is "+name, log, "Authorization Violation")
		if said, err := log(); err != nil || strings.Contains(said, "JetStream using domains") {
			t.Errorf("it is admitted, %v:\n%s", err, said)
		}
	}
}
