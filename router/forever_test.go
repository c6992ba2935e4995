package router_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/router"
)

// "For ever" is a time like any other, in every form of a call, and for a session.
func TestVeryLongTimesAreBounded(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	nc := broker.Connect(t)
	r := testmesh.Router(t, nc, nil)
	s, err := r.CreateSession(t.Context(), &router.SessionOptions{ID: "ever", TTL: 2562047 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for name, function := range map[string]host.Handler{"search": host.Func(search), "watch": host.Stream(watch)} {
		if _, err := s.Handle(name, function); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Session("ever").Call(t.Context(), "search", query{Text: "x"}); err != nil {
		t.Fatal(err)
	}
	b := testmesh.Bus(t, nc, nil)
	if record, err := testmesh.Store(t, b).Session(t.Context(), "ever"); err != nil || record.ID != "ever" {
		t.Errorf("the session is not there: %+v %v", record, err)
	}
	c, err := client.NewOn(b, &client.Options{Session: "ever"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := b.FreshTime(t.Context()); err != nil || !b.Time().Measured {
		t.Fatalf("the time is not known: %v", err)
	}
	for _, ever := range []time.Duration{math.MaxInt64, math.MaxInt64 - time.Second} {
		args, told := query{Text: "xyz"}, client.WithTimeout(ever)
		if _, err := c.Call(t.Context(), "search", args, told); err != nil {
			t.Errorf("a call: %v", err)
		}
		if _, err := c.Call(t.Context(), "search", args, told, client.WithIdempotencyKey(ever.String())); err != nil {
			t.Errorf("with a key: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), ever)
		if _, err := c.Call(ctx, "search", args); err != nil {
			t.Errorf("with a context: %v", err)
		}
		cancel()
		results, err := c.Batch(t.Context(), []client.BatchCall{{Tool: "search", Args: args, Timeout: ever}}, told)
		if err != nil || results[0].Err != nil {
			t.Errorf("in a batch: %v %+v", err, results)
		}
		n := 0
		for _, err := range c.Stream(t.Context(), "watch", args, told) {
			if n++; err != nil {
				t.Errorf("a stream: %v", err)
			}
		}
		if n != 3 {
			t.Errorf("a stream of %d items", n)
		}
	}
	for _, ms := range []string{"9007199254740991", "9223372036854775807"} {
		for header, value := range map[string]string{"Mesh-Timeout-Ms": ms, "Mesh-Deadline": ms} {
			m, err := nc.RequestMsgWithContext(t.Context(), &nats.Msg{Subject: "tools.ever.search", Data: []byte(`{"text":"x"}`), Header: nats.Header{header: {value}, "Mesh-Idempotency-Key": {header + ms}}})
			if err != nil || string(m.Data) != `["found x"]` {
				t.Errorf("%s %s: %v %s", header, value, err, m.Data)
			}
		}
		m, err := nc.RequestWithContext(t.Context(), "mesh.batch.ever", []byte(`{"type":"rpc_batch_call","batch_id":"`+ms+`","requests":[{"index":0,"tool_id":"search","kwargs":{"text":"x"},"timeout_ms":`+ms+`}]}`))
		if err != nil || !json.Valid(m.Data) || !strings.Contains(string(m.Data), `"result":["found x"]`) {
			t.Errorf("timeout_ms %s: %v %s", ms, err, m.Data)
		}
	}
}
