package router_test

import (
	"context"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
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

// A service that embeds the router calls its own session's tool.
func TestEmbeddedRouter(t *testing.T) {
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	r := testmesh.Router(t, nc, nil)
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
	// A registration reaches the processes that answer for the registry a moment later.
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
	// Any NATS client has it rendered, and a model's arguments for it read.
	for verb, want := range map[string]string{
		`render {"provider":"anthropic","tools":["search"]}`:                             `"names":{"search":"search"}`,
		`arguments {"provider":"openai","tool":"search","arguments":"{\"text\":\"x\"}"}`: `"arguments":{"text":"x"}`,
	} {
		verb, body, _ := strings.Cut(verb, " ")
		answer, err := nc.RequestWithContext(t.Context(), "mesh.registry."+string(s.ID())+"."+verb, []byte(body))
		if err != nil || !strings.Contains(string(answer.Data), want) {
			t.Errorf("%s: %v, %v", verb, answer, err)
		}
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

// A service and its caller: the examples of README.
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
	mesh := testmesh.Client(t, broker.Connect(t), nil)
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

// Every Stop waits for the one stop, so that its caller may close the
// connection: the calls that run are answered before.
func TestStopWaits(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	r, err := router.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	began, release := make(chan struct{}), make(chan struct{})
	id, err := r.Handle("slow", "wait", host.Func(func(context.Context, struct{}) (int, error) {
		close(began)
		<-release
		return 1, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	mesh := testmesh.Client(t, broker.Connect(t), nil)
	answer := make(chan error, 1)
	go func() {
		_, err := mesh.Call(t.Context(), id, nil)
		answer <- err
	}()
	<-began
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- r.Close() }()
	meshtest.Until(t, "the router is closed", func() bool { return r.Start(t.Context()) != nil })
	go func() { second <- r.Close() }()
	select {
	case err := <-second:
		t.Errorf("the second Close returned with a call in flight: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	close(release)
	if err := <-answer; err != nil {
		t.Errorf("the call: %v", err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// A cancelled Run is no error, also before it began, and leaves nothing of the router on the connection.
func TestRunWithAnEndedContext(t *testing.T) {
	t.Parallel()
	nc := meshtest.Broker(t).Connect(t)
	r, err := router.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := r.Start(t.Context()); toolmesh.CodeOf(err) != toolmesh.CodeUnavailable {
		t.Errorf("Start after Run: %v, want unavailable", err)
	}
	_ = r.Close()
}
