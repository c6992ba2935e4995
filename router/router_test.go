package router_test

import (
	"context"
	"iter"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

func TestMain(m *testing.M) { meshtest.Main(m) }

type query struct {
	Text string `json:"text"`
}

func search(_ context.Context, q query) ([]string, error) { return []string{"found " + q.Text}, nil }

func watch(_ context.Context, q query) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, c := range q.Text {
			if !yield(string(c), nil) {
				return
			}
		}
	}
}

// The third example of DESIGN section 2.
func TestEmbeddedRouter(t *testing.T) {
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	r, err := router.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := r.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Handle("search", host.Func(search)); err != nil {
		t.Fatal(err)
	}
	res, err := s.Call(t.Context(), "search", query{Text: "x"})
	if err != nil || string(res.Value) != `["found x"]` {
		t.Fatalf("search: %v %v", res, err)
	}
	// What the registry has been told is heard by those who answer for it a moment later.
	meshtest.Until(t, "the session's tool is listed as served", func() bool {
		all, err := s.Client().List(t.Context())
		if err != nil || len(all) > 1 || len(all) == 1 && all[0].ID != "search" {
			t.Fatalf("the session's tools: %+v, %v", all, err)
		}
		return len(all) == 1 && all[0].State == "serving" && len(all[0].Nodes) == 1
	})
	if _, err := s.Client().Describe(t.Context(), "search"); err != nil {
		t.Errorf("the session's tool: %v", err)
	}
	// Another session does not see it.
	_, err = r.Call(t.Context(), "search", query{Text: "x"})
	if toolmesh.CodeOf(err) != toolmesh.CodeToolNotFound {
		t.Errorf("foreign session: %v", err)
	}
	if err := s.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	meshtest.Until(t, "the session's tool is gone", func() bool {
		_, err := s.Call(t.Context(), "search", query{Text: "x"})
		return err != nil
	})
	if err := s.End(t.Context()); toolmesh.CodeOf(err) != toolmesh.CodeSessionNotFound {
		t.Errorf("ending it twice: %v", err)
	}
}

// The first two examples of DESIGN section 2.
func TestClientAndHost(t *testing.T) {
	broker := meshtest.Broker(t)
	h, err := host.New(broker.Connect(t), &host.Options{Index: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Handle("search", host.Func(search)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Handle("watch", host.Stream(watch)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	mesh, err := client.New(broker.Connect(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer mesh.Close()
	meshtest.Until(t, "billing is served", func() bool {
		_, err := mesh.Call(t.Context(), "billing.search", map[string]any{"text": "x"})
		return err == nil
	})
	got := ""
	for chunk, err := range mesh.Stream(t.Context(), "billing.watch", query{Text: "abc"}) {
		if err != nil {
			t.Fatal(err)
		}
		var c string
		if err := chunk.Decode(&c); err != nil {
			t.Fatal(err)
		}
		got += c
	}
	if got != "abc" {
		t.Errorf("streamed %q", got)
	}
}
