package task_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
)

// BenchmarkTask is a task from its submission to its result, with its tool in another process,
// and BenchmarkTwoPublishes is the lower bound to compare with.
func BenchmarkTask(b *testing.B) {
	broker := meshtest.Broker(b)
	d := newDesk()
	d.serve(b, broker.Connect(b), host.Options{})
	runs(b, broker.Connect(b), 0)
	c := calls(b, broker.Connect(b), "")
	for b.Loop() {
		handle, err := c.Submit(b.Context(), "jobs.echo", job{"x"}, nil)
		if err == nil {
			_, err = handle.Wait(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
		<-d.began
	}
}

func BenchmarkTwoPublishes(b *testing.B) {
	js, err := jetstream.New(meshtest.Broker(b).Connect(b))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "RAW", Subjects: []string{"raw"}}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for range 2 {
			if _, err := js.Publish(b.Context(), "raw", []byte(`{"key":"x"}`)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
