package bus

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
)

func TestSeldom(t *testing.T) {
	t.Parallel()
	var s seldom
	start := time.Unix(1_700_000_000, 0)
	for i, tt := range []struct {
		after time.Duration
		n     int64
	}{
		{0, 1}, {0, 0}, {time.Millisecond, 0}, {999 * time.Millisecond, 0}, {time.Second, 4}, {time.Second, 0}, {5 * time.Second, 2},
		{-time.Hour, 1}, {-time.Hour, 0}, {2 - time.Hour, 0}, {time.Second - time.Hour, 3},
	} {
		if n, due := s.due(start.Add(tt.after)); n != tt.n || due != (tt.n > 0) {
			t.Errorf("%d: after %v it tells of %d (%v), want %d", i, tt.after, n, due, tt.n)
		}
	}
}

func TestRequestsThatWereNotReceived(t *testing.T) {
	t.Parallel()
	for _, m := range []*nats.Msg{
		{Subject: "s", Reply: "r", Data: []byte("{}")}, {Subject: "s"}, {Subject: "s", Header: nats.Header{}}, {Subject: "s", Header: nats.Header{"A": {"b"}}},
	} {
		if h, err := RequestHeader(m); err != nil || len(h) != len(m.Header) {
			t.Errorf("%+v: %v, %v", m, h, err)
		}
	}
	var into struct {
		Name string `json:"name"`
	}
	if err := ReadRequest(&nats.Msg{Subject: "s", Data: []byte(`{"name":"x","Name":"y"}`)}, &into); err != nil || into.Name != "x" {
		t.Errorf("%+v, %v", into, err)
	}
	if err := ReadRequest(&nats.Msg{Subject: "s", Header: nats.Header{"Mesh-Require": {"zz"}}}, &into); toolmesh.CodeOf(err) != toolmesh.CodeProtocolError {
		t.Errorf("%v", err)
	}
}
