package codec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/subjects"
)

// question has a field of each kind that bodies have.
type question struct {
	Tool   subjects.ToolID   `json:"tool,omitempty"`
	Limit  int               `json:"limit"`
	Env    map[string]string `json:"env"`
	Listed []string          `json:"listed"`
	Whole  bool              `json:"whole"`
}

func TestBodiesOfOtherRequests(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]question{
		``: {}, " \n": {}, `{}`: {}, ` { } `: {},
		`{"tool":"a.b","limit":3,"env":{"K":"v"},"listed":["x"],"whole":true}`: {Tool: "a.b", Limit: 3, Env: map[string]string{"K": "v"}, Listed: []string{"x"}, Whole: true},
		`{"later":[1,{"tool":"x"}],"tool":"a"}`:                                {Tool: "a"},
		`{"TOOL":"a","Limit":1,"LIMIT":2}`:                                     {}, // names are exact, as in an envelope
		`{"\u0074ool":"a"}`:                                                    {Tool: "a"},
		`{"tool":"a","tool":"b"}`:                                              {Tool: "b"},
		`{"tool":"a","tool":null,"limit":null}`:                                {},
	} {
		var got question
		if err := ParseBody(nil, []byte(body), &got); err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
	for body, want := range map[string]string{
		`[]`: "the body must be an object", `null`: "the body must be an object", `"x"`: "the body must be an object", `7`: "the body must be an object",
		`{`: "the body is not valid JSON", `{"tool":"a"} x`: "the body is not valid JSON", "x": "the body is not valid JSON",
		`{"tool":7}`: "tool must be text", `{"limit":"7"}`: "limit must be a whole number", `{"limit":1.5}`: "limit must be a whole number",
		`{"limit":99999999999999999999}`: "limit must be a whole number",
		`{"env":[]}`:                     "env must be an object of texts", `{"env":{"K":1}}`: "env/K must be text",
		`{"listed":{}}`: "listed must be a list of texts", `{"whole":1}`: "whole must be true or false",
	} {
		var got question
		err := ParseBody(nil, []byte(body), &got)
		if err == nil || err.Code != toolmesh.CodeInvalidRequest || err.Started != toolmesh.StartedNo || err.Message != want {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// The required features of every kind of request are checked before its body.
func TestVersionOfEveryRequest(t *testing.T) {
	t.Parallel()
	parsers := map[string]func(Header, []byte) *toolmesh.Error{
		"body":    func(h Header, body []byte) *toolmesh.Error { return ParseBody(h, body, &question{}) },
		"replay":  func(h Header, body []byte) *toolmesh.Error { _, err := ParseReplay(h, body); return err },
		"control": func(h Header, body []byte) *toolmesh.Error { _, err := ParseControl(h, body); return err },
	}
	bodies := map[string]string{"body": `{}`, "replay": `{"from_seq":1}`, "control": `{"type":"cancel"}`}
	for name, parse := range parsers {
		for _, good := range []Header{
			nil, {}, {HeaderProto: {"1"}}, {HeaderRequire: {"stream", "cancel, credit"}}, {"mesh-require": {"unary"}, HeaderRequire: {"drain"}}, {"X-Any": {"1", "2"}},
		} {
			if err := parse(good, []byte(bodies[name])); err != nil {
				t.Errorf("%s with %v: %v", name, good, err)
			}
		}
		for _, tt := range []struct {
			h    Header
			code toolmesh.Code
			text string
		}{
			{Header{HeaderProto: {"2"}}, toolmesh.CodeProtocolError, "version 2"},
			{Header{"mesh-proto": {"9"}}, toolmesh.CodeProtocolError, "version 9"},
			{Header{HeaderProto: {"x"}}, toolmesh.CodeInvalidRequest, HeaderProto},
			{Header{HeaderProto: {"1", "2"}}, toolmesh.CodeInvalidRequest, "twice"},
			{Header{HeaderRequire: {"zz"}}, toolmesh.CodeProtocolError, `"zz"`},
			{Header{HeaderRequire: {"stream", "zz"}}, toolmesh.CodeProtocolError, `"zz"`},
			{Header{HeaderRequire: {"stream"}, "MESH-REQUIRE": {"zz"}}, toolmesh.CodeProtocolError, `"zz"`},
		} {
			for _, body := range []string{bodies[name], "rubbish"} {
				err := parse(tt.h, []byte(body))
				if err == nil || err.Code != tt.code || err.Started != toolmesh.StartedNo || !strings.Contains(err.Message, tt.text) {
					t.Errorf("%s with %v and %s: %v, want %s with %s", name, tt.h, body, err, tt.code, tt.text)
				}
			}
		}
	}
}
