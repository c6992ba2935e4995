package agent_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// adminOf asks one node.
func adminOf(t *testing.T, nc *nats.Conn, node subjects.NodeID, verb string, body any) *toolmesh.Error {
	t.Helper()
	subject, err := subjects.Subject{Kind: subjects.KindNodeAdmin, Node: node, Verb: verb}.Build()
	if err != nil {
		t.Fatal(err)
	}
	_, failure, err := tryAdminAt(t.Context(), nc, subject, body)
	if err != nil {
		t.Fatal(err)
	}
	return failure
}

// An index moves from node to node, by its labels and by theirs,
// while callers call: it is where the labels say, and no call is lost. Plain clients are
// among the callers, because those never send a call again.
func TestPlacementUnderLoad(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	plain := t.TempDir()
	startIn(t, s, "gpu", t.TempDir(), func(o *agent.Options) { o.Labels = map[string]string{"gpu": "true"} })
	startIn(t, s, "plain", plain, func(o *agent.Options) { o.Labels = map[string]string{"gpu": "false"} })
	nc := s.Connect(t)
	dir := filepath.Join(t.TempDir(), "idx")
	testmesh.Commit(t, dir, revisionTools(1))
	on := func(labels map[string]string) map[string]any {
		return map[string]any{"source": "file://" + dir, "on": labels}
	}
	gpu := map[string]string{"gpu": "true"}
	c := newClient(t, nc, nil)
	served := func(want ...subjects.NodeID) {
		t.Helper()
		meshtest.Until(t, fmt.Sprintf("it is served by %v", want), func() bool { return slices.Equal(servedBy(t, c, "idx.t.fast"), want) })
	}

	failure := adminOf(t, nc, "plain", "install", on(gpu))
	if failure == nil || failure.Code != toolmesh.CodeInstallFailed || fmt.Sprint(failure.Details["nodes"]) != "[gpu]" || !strings.Contains(failure.Message, "plain has gpu=false") {
		t.Fatalf("install at a node that it is not for: %v", failure)
	}
	if failure := adminOf(t, nc, "gpu", "install", on(map[string]string{"gpu": ""})); failure == nil || failure.Code != toolmesh.CodeInvalidRequest {
		t.Errorf("install on a label without a value: %v", failure)
	}
	if failure := adminOf(t, nc, "gpu", "install", on(gpu)); failure != nil {
		t.Fatal(failure)
	}
	served("gpu")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var calls atomic.Int64
	seen := make(chan string, 1000)
	report := func(err error) {
		calls.Add(1)
		if err != nil && ctx.Err() == nil {
			select {
			case seen <- err.Error():
			default:
			}
		}
	}
	for range 2 {
		other := s.Connect(t)
		wg.Go(func() {
			for ctx.Err() == nil {
				m, err := other.RequestWithContext(ctx, "tools.default.idx.t.fast", nil)
				if err == nil && m.Header.Get("Mesh-Error-Code") != "" {
					err = fmt.Errorf("plain: %s %s", m.Header.Get("Mesh-Error-Code"), m.Data)
				}
				report(err)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				_, err := c.Call(ctx, "idx.t.slow", map[string]any{"seconds": 0.2})
				report(err)
			}
		})
	}
	// By the index's labels.
	if failure := adminOf(t, nc, "plain", "install", on(map[string]string{})); failure != nil {
		t.Fatal(failure)
	}
	served("gpu", "plain")
	testmesh.Commit(t, dir, revisionTools(2)) // moved and upgraded at once
	if failure := adminOf(t, nc, "plain", "install", on(map[string]string{"gpu": "false"})); failure != nil {
		t.Fatal(failure)
	}
	served("plain")
	if failure := adminOf(t, nc, "gpu", "install", on(gpu)); failure != nil {
		t.Fatal(failure)
	}
	served("gpu")
	// By the nodes'.
	label := func(node subjects.NodeID, value string) {
		t.Helper()
		if failure := adminOf(t, nc, node, "label", map[string]any{"labels": map[string]string{"gpu": value}}); failure != nil {
			t.Fatal(failure)
		}
	}
	label("plain", "true")
	served("gpu", "plain")
	label("gpu", "false")
	served("plain")
	label("gpu", "true")
	served("gpu", "plain")
	label("plain", "")
	served("gpu")
	cancel()
	wg.Wait()
	close(seen)
	for err := range seen {
		t.Error(err)
	}
	t.Logf("%d calls", calls.Load())

	// Where it is not for the node, nothing of it is left there.
	meshtest.Until(t, "nothing of it is left", func() bool { return len(halfDone(t, plain)) == 0 && len(processesOf(t, plain)) == 0 })
	// No node has the label any more: the index is not served.
	label("gpu", "")
	served()
}
