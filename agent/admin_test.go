package agent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/meshtest"
)

// An invalid administrative request is refused before anything begins: one message with the error,
// then the empty one that ends every answer.
func TestAdministrativeRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	const fine, required, unreadable = "NATS/1.0\r\nX-Any: 1\r\n\r\n", "NATS/1.0\r\nMesh-Require: zz\r\n\r\n", "NATS/1.0\r\nbad\r\nMesh-Require: zz\r\n\r\n"
	for _, tt := range []struct {
		subject, header, body string
		code                  toolmesh.Code
		says                  string
	}{
		{"mesh.admin.uninstall", fine, `{}`, toolmesh.CodeInvalidRequest, "name is missing"},
		{"mesh.admin.uninstall", fine, ``, toolmesh.CodeInvalidRequest, "name is missing"},
		{"mesh.admin.uninstall", fine, `{"Name":"idx"}`, toolmesh.CodeInvalidRequest, "name is missing"},
		{"mesh.admin.uninstall", fine, `{"name":"a.b"}`, toolmesh.CodeInvalidRequest, `"a.b" has a dot`},
		{"mesh.admin.uninstall", fine, `{"name":7}`, toolmesh.CodeInvalidRequest, "name must be text"},
		{"mesh.admin.install", fine, `{}`, toolmesh.CodeInvalidRequest, "source is missing"},
		{"mesh.admin.install", fine, `{"source":"","name":"idx"}`, toolmesh.CodeInvalidRequest, "source is missing"},
		{"mesh.admin.install", fine, `{"source":"./x","name":"a b"}`, toolmesh.CodeInvalidRequest, `"a b" cannot be an index's name`},
		{"mesh.admin.install", fine, `{"source":"./x","env":["A"]}`, toolmesh.CodeInvalidRequest, "env must be an object of texts"},
		{"mesh.admin.install", fine, `[]`, toolmesh.CodeInvalidRequest, "the body must be an object"},
		{"mesh.node.one.admin.label", fine, `{"labels":{"a":1}}`, toolmesh.CodeInvalidRequest, "labels/a must be text"},
		{"mesh.admin.nothing", fine, `{}`, toolmesh.CodeInvalidRequest, "nothing"},
		{"mesh.admin.uninstall", required, `{"name":"idx"}`, toolmesh.CodeProtocolError, `"zz"`},
		{"mesh.admin.install", required, `{"source":"/x"}`, toolmesh.CodeProtocolError, `"zz"`},
		{"mesh.node.one.admin.label", required, `{"labels":{"a":"b"}}`, toolmesh.CodeProtocolError, `"zz"`},
		{"mesh.node.one.admin.drain", required, `{}`, toolmesh.CodeProtocolError, `"zz"`},
		{"mesh.node.one.admin.drain", "NATS/1.0\r\nMesh-Proto: 2\r\n\r\n", `{}`, toolmesh.CodeProtocolError, "version 2"},
		{"mesh.admin.uninstall", unreadable, `{"name":"idx"}`, toolmesh.CodeInvalidRequest, "header"},
		{"mesh.node.one.admin.drain", unreadable, ``, toolmesh.CodeInvalidRequest, "header"},
	} {
		what := fmt.Sprintf("%s %q %q", tt.subject, tt.header, tt.body)
		sub, err := nc.SubscribeSync(nc.NewInbox())
		if err == nil {
			err = nc.Flush()
		}
		if err != nil {
			t.Fatal(err)
		}
		s.PublishRaw(t, tt.subject, sub.Subject, tt.header, tt.body)
		m, err := sub.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Error *toolmesh.Error }
		if err := json.Unmarshal(m.Data, &answer); err != nil || answer.Error == nil {
			t.Errorf("%s: %s", what, m.Data)
		} else if e := answer.Error; e.Code != tt.code || e.Started != toolmesh.StartedNo || !strings.Contains(e.Message, tt.says) || m.Header.Get("Mesh-Error-Code") != string(tt.code) {
			t.Errorf("%s: %v %s, want %s with %q", what, m.Header, m.Data, tt.code, tt.says)
		}
		if m, err = sub.NextMsgWithContext(t.Context()); err != nil || len(m.Data) > 0 {
			t.Errorf("%s: %v %v, want the empty message", what, m, err)
		}
	}
}
