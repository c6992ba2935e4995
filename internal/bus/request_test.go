package bus

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
)

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
