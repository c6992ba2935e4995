package host_test

import (
	"encoding/base32"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func names(h nats.Header) []string { return slices.Sorted(maps.Keys(h)) }

func TestPlainForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{Revision: "r1", Slots: 7}})

	t.Run("without headers", func(t *testing.T) {
		a := r.call("add", `{"a":1,"b":2}`)
		if got := string(a.Data); got != "3" {
			t.Errorf("result = %s, want 3", got)
		}
		want := []string{"Mesh-Boot", "Mesh-Node", "Mesh-Proto", "Mesh-Revision", "Mesh-Rpc-Id"}
		if diff := cmp.Diff(want, names(a.Header)); diff != "" {
			t.Errorf("headers (-want +got):\n%s", diff)
		}
		if id := a.Header.Get("Mesh-Rpc-Id"); !regexp.MustCompile(`^rpc_[0-9a-f]{32}$`).MatchString(id) {
			t.Errorf("Mesh-Rpc-Id = %q", id)
		}
		if a.Header.Get("Mesh-Node") != string(r.h.Node()) || a.Header.Get("Mesh-Boot") != string(r.h.Boot()) ||
			a.Header.Get("Mesh-Revision") != "r1" || a.Header.Get("Mesh-Proto") != "1" {
			t.Errorf("identity = %v", a.Header)
		}
	})
	t.Run("the id comes back", func(t *testing.T) {
		if got := r.call("add", `{"a":1,"b":2}`, "Mesh-Rpc-Id", "my call, the 1st").Header.Get("Mesh-Rpc-Id"); got != "my call, the 1st" {
			t.Errorf("Mesh-Rpc-Id = %q", got)
		}
	})
	t.Run("header names in any case", func(t *testing.T) {
		a := r.call("add", `{"a":1,"b":2}`, "mesh-rpc-id", "lower", "MESH-WANT-LOAD", "1", "mEsH-Something-Else", "ignored")
		if a.Header.Get("Mesh-Rpc-Id") != "lower" || a.Header.Get("Mesh-Load") != "0/7" {
			t.Errorf("headers = %v, want the id and a load of 0/7", a.Header)
		}
	})
	t.Run("empty body", func(t *testing.T) {
		for _, body := range []string{"", " \n"} {
			if a := r.call("note", body); string(a.Data) != "{}" {
				t.Errorf("body %q: the tool got %s, want {}", body, a.Data)
			}
		}
	})
	t.Run("arguments that look like an envelope", func(t *testing.T) {
		for _, body := range []string{
			`{"type":"rpc_tool_call","key":"x"}`,         // no rpc_id
			`{"rpc_id":"a","key":"x"}`,                   // no type
			`{"rpc_id":"a","type":"rpc_something"}`,      // none of the list
			`{"rpc_id":"a","type":["rpc_tool_call"]}`,    // not even text
			`{"inner":{"rpc_id":"a","type":"rpc_call"}}`, // not at the top
		} {
			if a := r.call("note", body); string(a.Data) != body {
				t.Errorf("%s: the tool got %s", body, a.Data)
			}
		}
		// With a header of ours the body is never looked at.
		body := `{"type":"rpc_tool_call","rpc_id":"a","tool_id":"other","kwargs":5}`
		if a := r.call("note", body, "mesh-want-load", "1"); string(a.Data) != body {
			t.Errorf("with a header: the tool got %s", a.Data)
		}
		// Any other header does not make it plain.
		if a := r.call("note", body, "X-Mesh", "1"); !strings.Contains(string(a.Data), "rpc_tool_response") {
			t.Errorf("with a foreign header: %s", a.Data)
		}
	})
	t.Run("a busy tool answers once", func(t *testing.T) {
		// The keepalives of one call say when the other would have had one.
		quiet, asked := r.inbox(), r.inbox()
		r.send(quiet, "tools.default.desk.hold", `{"key":"quiet"}`)
		wait(t, "start", r.gate("quiet").started)
		r.send(asked, "tools.default.desk.hold", `{"key":"asked"}`, "Mesh-Keepalive", "1", "Mesh-Rpc-Id", "asked")
		for range 2 {
			k := asked.next()
			want := []string{"Mesh-Boot", "Mesh-Keepalive", "Mesh-Node", "Mesh-Proto", "Mesh-Revision", "Mesh-Rpc-Id"}
			if diff := cmp.Diff(want, names(k.Header)); diff != "" || len(k.Data) > 0 || k.Header.Get("Mesh-Rpc-Id") != "asked" {
				t.Fatalf("keepalive %v %q (-want +got):\n%s", k.Header, k.Data, diff)
			}
		}
		close(r.gate("quiet").release)
		close(r.gate("asked").release)
		if a := quiet.next(); string(a.Data) != `"released quiet"` {
			t.Errorf("first message = %v %s, want the result", a.Header, a.Data)
		}
		wait(t, "end", r.gate("asked").ended)
		r.settled()
		quiet.none("after the result")
	})
}

// envelope is a reply of the envelope form.
type envelope struct {
	Type   string     `json:"type"`
	RPCID  any        `json:"rpc_id"`
	Status string     `json:"status"`
	Result any        `json:"result"`
	Error  *wireError `json:"error"`
}

func TestEnvelopeForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range []struct {
		name, tool, body string
		want             string // the whole reply
	}{
		{
			"by name", "add", `{"type":"rpc_tool_call","rpc_id":"e1","tool_id":"desk.add","args":[],"kwargs":{"a":1,"b":2}}`,
			`{"type":"rpc_tool_response","rpc_id":"e1","status":"ok","result":3}`,
		},
		{
			"by position", "add", `{"type":"rpc_tool_call","rpc_id":"e2","tool_id":"desk.add","args":[1],"kwargs":{"b":5}}`,
			`{"type":"rpc_tool_response","rpc_id":"e2","status":"ok","result":6}`,
		},
		{
			"a number for an id", "add", `{"type":"rpc_tool_call","rpc_id":7,"tool_id":"desk.add","kwargs":{"a":1,"b":2}}`,
			`{"type":"rpc_tool_response","rpc_id":7,"status":"ok","result":3}`,
		},
		{
			"any number comes back as it came", "add", `{"type":"rpc_tool_call","rpc_id":-1.50e1,"tool_id":"desk.add","kwargs":{"a":1,"b":2}}`,
			`{"type":"rpc_tool_response","rpc_id":-1.50e1,"status":"ok","result":3}`,
		},
		{
			"the older type", "add", `{"type":"rpc_call","rpc_id":"e3","tool_id":"desk.add","args":[1,2]}`,
			`{"type":"rpc_response","rpc_id":"e3","status":"ok","result":3}`,
		},
		{
			"no arguments", "note", `{"type":"rpc_tool_call","rpc_id":"e4","tool_id":"desk.note","args":null,"kwargs":null}`,
			`{"type":"rpc_tool_response","rpc_id":"e4","status":"ok","result":{}}`,
		},
		{
			"written with escapes", "note", `{"type":"rpc_tool_call","\u0072pc_id":"e5","tool_id":"desk.note"}`,
			`{"type":"rpc_tool_response","rpc_id":"e5","status":"ok","result":{}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := r.call(c.tool, c.body)
			if diff := cmp.Diff(c.want, string(a.Data)); diff != "" || len(a.Header) > 0 {
				t.Errorf("headers %v, body (-want +got):\n%s", a.Header, diff)
			}
		})
	}
	for _, c := range []struct {
		name, tool, body, code, started string
	}{
		{"a failing tool", "fail", `{"type":"rpc_tool_call","rpc_id":"f1","tool_id":"desk.fail","kwargs":{"code":"plain"}}`, "tool_error", "true"},
		{"another tool's id", "add", `{"type":"rpc_tool_call","rpc_id":"f2","tool_id":"desk.note"}`, "invalid_request", "false"},
		{"no tool's id", "add", `{"type":"rpc_tool_call","rpc_id":"f3"}`, "invalid_request", "false"},
		{"an empty id", "note", `{"type":"rpc_tool_call","rpc_id":"","tool_id":"desk.note"}`, "invalid_request", "false"},
		{"an id that is neither number nor text", "note", `{"type":"rpc_tool_call","rpc_id":{},"tool_id":"desk.note"}`, "invalid_request", "false"},
		{"args that are no list", "add", `{"type":"rpc_tool_call","rpc_id":"f4","tool_id":"desk.add","args":{}}`, "invalid_request", "false"},
		{"kwargs that are no object", "add", `{"type":"rpc_tool_call","rpc_id":"f5","tool_id":"desk.add","kwargs":[]}`, "invalid_request", "false"},
		{"too many by position", "add", `{"type":"rpc_tool_call","rpc_id":"f6","tool_id":"desk.add","args":[1,2,3]}`, "invalid_arguments", "false"},
		{"twice the same", "add", `{"type":"rpc_tool_call","rpc_id":"f7","tool_id":"desk.add","args":[1],"kwargs":{"a":1,"b":2}}`, "invalid_arguments", "false"},
		{"an unknown one", "add", `{"type":"rpc_tool_call","rpc_id":"f8","tool_id":"desk.add","kwargs":{"a":1,"b":2,"c":3}}`, "invalid_arguments", "false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := r.call(c.tool, c.body)
			var e envelope
			mustJSON(t, a.Data, &e)
			if len(a.Header) > 0 || e.Type != "rpc_tool_response" || e.Status != "error" || e.Error == nil {
				t.Fatalf("reply = %v %s", a.Header, a.Data)
			}
			if e.Error.Code != c.code || e.Error.started() != c.started || e.Error.Type == "" || e.Error.Message == "" || e.Error.Retryable == nil {
				t.Errorf("error = %s, want %s, started %s, with type, message and retryable", a.Data, c.code, c.started)
			}
		})
	}
}

func TestEveryCodeTravels(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, code := range toolmesh.Codes() {
		a := r.call("fail", fmt.Sprintf(`{"code":%q}`, code), "Mesh-Rpc-Id", "code "+string(code), "Mesh-Want-Load", "1")
		started := []string{"true", "true"}
		want := []string{
			"Mesh-Boot", "Mesh-Error-Code", "Mesh-Load", "Mesh-Node", "Mesh-Proto", "Mesh-Rpc-Id", "Mesh-Started",
			"Nats-Service-Error", "Nats-Service-Error-Code",
		}
		if code == toolmesh.CodeWorkerCrashed || code == toolmesh.CodeWorkerOutOfMemory {
			// Its handler does not say whether the tool's code had begun.
			started = []string{"", "unknown"}
			want = slices.Delete(want, 6, 7)
		}
		if diff := cmp.Diff(want, names(a.Header)); diff != "" {
			t.Errorf("%s: headers (-want +got):\n%s", code, diff)
		}
		got := []string{
			a.code(), a.Header.Get("Mesh-Error-Code"), a.Header.Get("Mesh-Started"), a.Error.started(),
			a.Header.Get("Nats-Service-Error-Code"), a.Header.Get("Nats-Service-Error"), a.Error.Message, fmt.Sprint(a.Error.Details["asked"]),
		}
		expected := []string{string(code), string(code), "true", "true", strconv.Itoa(code.Number()), "as asked", "as asked", string(code)}
		copy(expected[2:], started)
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", code, diff)
		}
	}
}

// A header in any other script ends the reader of jnats, which then hears nothing more.
func TestHeadersOfAFailureAreASCII(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for value, want := range map[string]string{
		"größer":                 `header Mesh-Isolation is "gr\u00f6\u00dfer": it is warm, session, fork or fresh`,
		strings.Repeat("a", 600): `header Mesh-Isolation is "` + strings.Repeat("a", 486) + "...",
	} {
		a := r.call("fail", `{}`, "Mesh-Isolation", value)
		if got := a.Header.Get("Nats-Service-Error"); got != want {
			t.Errorf("the header says %q, want %q", got, want)
		}
		if a.Error == nil || !strings.Contains(a.Error.Message, value) {
			t.Errorf("the body says %+v, want all of %q", a.Error, value)
		}
	}
}

// strict knows the sessions "default" and "kept".
type strict struct{}

func (strict) Ended(subjects.SessionID, time.Time) bool { return false }

func (strict) Admit(s subjects.SessionID) (string, error) {
	switch s {
	case "default":
		return "", nil
	case "kept":
		return "epoch-1", nil
	}
	return "", toolmesh.Errorf(toolmesh.CodeSessionNotFound, "session %q does not exist", s)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{
		host:   host.Options{Revision: "r1", Sessions: strict{}, Slots: 1},
		broker: []meshtest.Option{meshtest.MaxPayload(64 << 10)},
	})
	at := func(session, id string) string { return directed(r.h, session, id) }
	// Needlessly encoded names: any host with a wildcard subscription gets them, and permissions
	// for "default" do not cover them.
	encoded := func(name string) string {
		return "x--" + strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte(name)))
	}
	for _, c := range []struct {
		name          string
		subject, body string
		headers       []string
		code          string
		number        string
		started       string
	}{
		{"tool not on the node", at("default", "desk.missing"), "", nil, "tool_not_found", "404", "false"},
		{"unknown session", "tools.nobody.desk.note", "", nil, "session_not_found", "404", "false"},
		{"arguments that do not fit", "tools.default.desk.add", `{"a":"x"}`, nil, "invalid_arguments", "422", "false"},
		{"arguments that are no object", "tools.default.desk.note", `[1]`, nil, "invalid_arguments", "422", "false"},
		{"arguments that are no JSON", "tools.default.desk.note", `{"a":`, nil, "invalid_arguments", "422", "false"},
		{"result that is no JSON", "tools.default.desk.nojson", "", nil, "result_not_serializable", "500", "true"},
		{"tool that panics", "tools.default.desk.fail", `{"code":"panic"}`, nil, "tool_error", "500", "true"},
		{"tool that fails", "tools.default.desk.fail", `{"code":"plain"}`, nil, "tool_error", "500", "true"},
		{"header names another tool", "tools.default.desk.note", "", []string{"Mesh-Tool", "desk.add"}, "invalid_request", "400", "false"},
		{"header names another session", "tools.default.desk.note", "", []string{"Mesh-Session", "other"}, "invalid_request", "400", "false"},
		{"empty id", "tools.default.desk.note", "", []string{"Mesh-Rpc-Id", ""}, "invalid_request", "400", "false"},
		{"unknown stream form", "tools.default.desk.gen", "", []string{"Mesh-Stream", "yes"}, "invalid_request", "400", "false"},
		{"timeout that is no number", "tools.default.desk.note", "", []string{"Mesh-Timeout-Ms", "soon"}, "invalid_request", "400", "false"},
		{"unknown content type", "tools.default.desk.note", "", []string{"Content-Type", "application/xml", "Mesh-Proto", "1"}, "invalid_request", "400", "false"},
		{"alias of a session", "tools." + encoded("default") + ".desk.note", "", nil, "invalid_request", "400", "false"},
		{"alias of a tool", at("default", "desk."+encoded("note")), "", nil, "invalid_request", "400", "false"},
		{"alias in capitals", "tools." + strings.ToUpper(encoded("été")[3:]) + ".desk.note", "", nil, "session_not_found", "404", "false"},
		{"encoding in capitals", "tools.x--" + strings.ToUpper(encoded("été")[3:]) + ".desk.note", "", nil, "invalid_request", "400", "false"},
		{"unknown requirement", "tools.default.desk.note", "", []string{"Mesh-Require", "unary, telepathy"}, "protocol_error", "502", "false"},
		{"requirement of later", "tools.default.desk.note", "", []string{"Mesh-Require", "Mesh-Accept-Pack"}, "protocol_error", "502", "false"},
		{"version of later", "tools.default.desk.note", "", []string{"Mesh-Proto", "2"}, "protocol_error", "502", "false"},
		{"version that is none", "tools.default.desk.note", "", []string{"Mesh-Proto", "0"}, "invalid_request", "400", "false"},
		{"another revision", "tools.default.desk.note", "", []string{"Mesh-Revision", "r2"}, "unavailable", "503", "false"},
		{"another boot", "tools.default.desk.note", "", []string{"Mesh-Boot", "of-yesterday"}, "node_lost", "502", "unknown"},
		{"no time left", "tools.default.desk.note", "", []string{"Mesh-Timeout-Ms", "0"}, "deadline_exceeded", "504", "false"},
		{"less than none", "tools.default.desk.note", "", []string{"Mesh-Timeout-Ms", "-5"}, "deadline_exceeded", "504", "false"},
		{"deadline passed", "tools.default.desk.note", "", []string{"Mesh-Deadline", fmt.Sprint(time.Now().Add(-time.Minute).UnixMilli())}, "deadline_exceeded", "504", "false"},
		{"result too large", "tools.default.desk.note", `{"x":"` + strings.Repeat("x", 64<<10-120) + `"}`, nil, "payload_too_large", "413", "true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := r.ask(c.subject, c.body, c.headers...)
			got := []string{a.code(), a.Header.Get("Mesh-Error-Code"), a.Header.Get("Nats-Service-Error-Code"), a.Error.started()}
			if diff := cmp.Diff([]string{c.code, c.code, c.number, c.started}, got); diff != "" {
				t.Errorf("answer %v %s (-want +got):\n%s", a.Header, a.Data, diff)
			}
			if a.Error != nil && (a.Error.Message == "" || a.Error.Origin == "" || a.Header.Get("Nats-Service-Error") == "") {
				t.Errorf("answer %v %s: without message or origin", a.Header, a.Data)
			}
			started := a.Header.Get("Mesh-Started")
			if started == "" {
				started = "unknown"
			}
			if started != c.started {
				t.Errorf("Mesh-Started = %q", a.Header.Get("Mesh-Started"))
			}
			// The end of an answer that may be a stream, too.
			in := r.inbox()
			r.send(in, c.subject, c.body, append(slices.Clone(c.headers), "Mesh-Stream", "inbox")...)
			if len(c.headers) > 0 && c.headers[0] == "Mesh-Stream" {
				return
			}
			for m := in.next(); !isEmpty(m.Msg); m = in.next() {
			}
		})
	}
	if n := r.ran(""); n > 6 {
		t.Errorf("%d executions, want the four tools that were started by their name", n)
	}
	t.Run("busy", func(t *testing.T) {
		in := r.inbox()
		r.send(in, "tools.default.desk.hold", `{"key":"only"}`)
		wait(t, "start", r.gate("only").started)
		a := r.call("note", `{"key":"second"}`, "Mesh-Want-Load", "1")
		if a.code() != "busy" || a.Error.started() != "false" || a.Header.Get("Mesh-Load") != "1/1" || !*a.Error.Retryable {
			t.Errorf("second call: %v %s", a.Header, a.Data)
		}
		close(r.gate("only").release)
		in.next()
		if n := r.ran("second"); n != 0 {
			t.Errorf("the refused call ran %d times", n)
		}
	})
}

func TestUnusualRequestsAreAccepted(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{Revision: "r1"}})
	for _, h := range [][]string{
		{"Mesh-Require", "unary,stream, inbox,replay,credit,cancel,keepalive,envelope,drain"},
		{"Mesh-Require", "Mesh-Timeout-Ms", "Mesh-Timeout-Ms", "5000"},
		{"Mesh-Proto", "1"},
		{"Mesh-Revision", "r1"},
		{"Mesh-Boot", string(r.h.Boot())},
		{"Mesh-Tool", "desk.note", "Mesh-Session", "default"},
		{"Mesh-Deadline", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli())},
		{"Mesh-Something", "of later"},
		{"Content-Type", "application/json; charset=utf-8", "traceparent", "00-1-2-3"},
	} {
		if a := r.call("note", `{}`, h...); a.code() != "ok" {
			t.Errorf("%q: %v %s", h, a.Header, a.Data)
		}
	}
}

func TestNamesThatTravelHashed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	long := strings.TrimSpace(strings.Repeat("Gespräch ", 9))
	token := tokenOf(t, long)
	if !strings.HasPrefix(token, "x--h-") {
		t.Fatalf("token of a long name = %q", token)
	}
	if a := r.ask("tools."+token+".desk.session", "{}", "Mesh-Session", long); string(a.Data) != strconv.Quote(long) {
		t.Errorf("with the real name: %s", a.Data)
	}
	if a := r.ask("tools."+token+".desk.session", "{}"); string(a.Data) != strconv.Quote(token) {
		t.Errorf("without it: %s, want the token", a.Data)
	}
	if a := r.ask("tools."+token+".desk.session", "{}", "Mesh-Session", long+"!"); a.code() != "invalid_request" {
		t.Errorf("with another name: %s", a.Data)
	}
	short := "été" // encoded, not hashed
	if a := r.ask("tools."+tokenOf(t, short)+".desk.session", "{}"); string(a.Data) != strconv.Quote(short) {
		t.Errorf("encoded name: %s", a.Data)
	}
	// A tool of a name that does not fit, called by its token and by an envelope.
	name := strings.Repeat("werkzeug", 9)
	id, err := r.h.Handle(name, host.HandlerFunc(r.note))
	if err != nil {
		t.Fatal(err)
	}
	subject := "tools.default.desk." + tokenOf(t, name)
	for _, h := range [][]string{nil, {"Mesh-Tool", string(id)}} {
		if a := r.ask(subject, "{}", h...); string(a.Data) != "{}" {
			t.Errorf("tool of a long name, headers %v: %s", h, a.Data)
		}
	}
	if a := r.ask(subject, fmt.Sprintf(`{"type":"rpc_tool_call","rpc_id":"h1","tool_id":%q}`, id)); !strings.Contains(string(a.Data), `"ok"`) {
		t.Errorf("tool of a long name, envelope: %s", a.Data)
	}
	// A call of a long rpc id is cancelled by its token.
	rpc := strings.TrimSpace(strings.Repeat("aufruf ", 20))
	in := r.inbox()
	r.send(in, "tools.default.desk.hold", `{"key":"long"}`, "Mesh-Rpc-Id", rpc)
	wait(t, "start", r.gate("long").started)
	if a := r.ask("mesh.ctl.default."+tokenOf(t, rpc), ""); string(a.Data) != `{"cancelled":true}` {
		t.Errorf("cancel = %s", a.Data)
	}
	if a := in.next(); a.code() != "cancelled" || a.Header.Get("Mesh-Rpc-Id") != rpc {
		t.Errorf("cancelled call: %v %s", a.Header, a.Data)
	}
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{MaxTimeout: 60 * time.Second}})
	for _, c := range []struct {
		tool   string
		budget string
		want   time.Duration // 0: no total
		stream bool
	}{
		{"budget", "", 30 * time.Second, false},
		{"budget", "10000", 10 * time.Second, false},
		{"budget", "50000", 50 * time.Second, false},
		{"budget", "90000", 60 * time.Second, false},
		{"budget20", "", 20 * time.Second, false},
		{"budget20", "10000", 10 * time.Second, false},
		{"budget20", "90000", 20 * time.Second, false},
		{"budget", "", 0, true},
		{"budget", "10000", 10 * time.Second, true},
		{"budget", "90000", 60 * time.Second, true},
		{"budget20", "", 20 * time.Second, true},
		{"budget20", "90000", 20 * time.Second, true},
	} {
		var h []string
		if c.budget != "" {
			h = append(h, "Mesh-Timeout-Ms", c.budget)
		}
		var text string
		if c.stream {
			in := r.inbox()
			r.send(in, "tools.default.desk."+c.tool, "", append(h, "Mesh-Stream", "inbox")...)
			text = in.chunks()[0].body
		} else {
			text = string(r.call(c.tool, "", h...).Data)
		}
		ms, err := strconv.ParseInt(text, 10, 64)
		got := time.Duration(ms) * time.Millisecond
		// A busy machine may be seconds late, never early.
		if err != nil || got > c.want || got < c.want-8*time.Second {
			t.Errorf("%s with Mesh-Timeout-Ms %q, stream %v: %v, want %v", c.tool, c.budget, c.stream, got, c.want)
		}
	}
	// The budget holds, and says which limit it was.
	a := r.call("hold", `{"key":"late"}`, "Mesh-Timeout-Ms", "50")
	if a.code() != "deadline_exceeded" || a.Error.started() != "true" || a.Error.Details["limit"] != "time" {
		t.Errorf("a call over its time: %v %s", a.Header, a.Data)
	}
	// Also where the tool does not listen.
	a = r.call("hold", `{"key":"ignoring","ignoring":true}`, "Mesh-Timeout-Ms", "50")
	if a.code() != "deadline_exceeded" || a.Error.started() != "true" {
		t.Errorf("a ignoring call over its time: %v %s", a.Header, a.Data)
	}
	if n := r.h.Figures().InFlight; n != 1 {
		t.Errorf("%d calls in flight, want the ignoring one: it keeps its slot", n)
	}
	close(r.gate("ignoring").release)
	wait(t, "end", r.gate("ignoring").ended)
}

// Whatever depths its callers tell, a node runs its slots, as many nested calls and
// one more for each depth.
func TestDepthOfCallersIsNotTrusted(t *testing.T) {
	t.Parallel()
	const slots, each = 2, 4
	r := newRig(t, &rigOptions{host: host.Options{Slots: slots}})
	in := r.inbox()
	send := func(depth int) {
		r.send(in, "tools.default.desk.hold", `{"key":"deep"}`, "Mesh-Depth", strconv.Itoa(depth))
	}
	for range slots {
		send(0)
		wait(t, "start", r.gate("deep").started)
	}
	for depth := range host.DefaultMaxDepth + 1 {
		for range each {
			send(depth)
		}
	}
	const run = slots + slots + host.DefaultMaxDepth
	for range slots + each*(host.DefaultMaxDepth+1) - run {
		if a := in.next(); a.code() != "busy" || a.Error.Details["limit"] != toolmesh.LimitSlots || a.Error.started() != "false" {
			t.Errorf("one call too many: %s", a.Data)
		}
	}
	for range run - slots {
		wait(t, "start", r.gate("deep").started)
	}
	close(r.gate("deep").release)
	for range run {
		if a := in.next(); string(a.Data) != `"released deep"` {
			t.Errorf("a call that runs: %s", a.Data)
		}
	}
	if n := r.ran("deep"); n != run {
		t.Errorf("%d calls ran, want %d", n, run)
	}
}

// Calls in a circle end at the limit, for every kind of caller.
func TestDepthIsLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t, &rigOptions{host: host.Options{MaxDepth: 3}})
	for depth, want := range []string{"", "", "", "", "invalid_request", "invalid_request"} {
		a := r.call("add", `{"a":1,"b":2}`, "Mesh-Depth", strconv.Itoa(depth), "Mesh-Parent", "rpc_above")
		if got := a.Header.Get("Mesh-Error-Code"); got != want {
			t.Errorf("depth %d: error %q, want %q", depth, got, want)
		}
		if want == "" {
			continue
		}
		if e := a.Error; e == nil || e.Details["limit"] != "depth" || fmt.Sprint(e.Details["max"]) != "3" || e.Started == nil || *e.Started {
			t.Errorf("depth %d: %s, want details of the limit and started false", depth, a.Data)
		}
	}
}

// nats micro stats counts a node's calls.
func TestFiguresOfANode(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.call("add", `{"a":1,"b":2}`)
	r.call("fail", `{"code":"plain"}`)
	r.call("add", `{"a":1}`)
	var stats struct {
		Type      string `json:"type"`
		Name      string `json:"name"`
		Endpoints []struct {
			Name           string `json:"name"`
			Subject        string `json:"subject"`
			NumRequests    int    `json:"num_requests"`
			NumErrors      int    `json:"num_errors"`
			ProcessingTime int64  `json:"processing_time"`
			Data           struct {
				Node  string `json:"node"`
				Slots int    `json:"slots"`
			} `json:"data"`
		} `json:"endpoints"`
	}
	mustJSON(t, r.ask("$SRV.STATS.desk", "").Data, &stats)
	if stats.Type != "io.nats.micro.v1.stats_response" || stats.Name != "desk" || len(stats.Endpoints) != 1 {
		t.Fatalf("stats = %+v", stats)
	}
	e := stats.Endpoints[0]
	if e.Name != "calls" || e.Subject != "mesh.node."+string(r.h.Node())+".tools.>" || e.NumRequests != 3 || e.NumErrors != 2 ||
		e.ProcessingTime <= 0 || e.Data.Node != string(r.h.Node()) || e.Data.Slots != host.DefaultSlots {
		t.Errorf("endpoint = %+v, want 3 calls, 2 of them failed", e)
	}
}
