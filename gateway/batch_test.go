package gateway_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/gateway"
	"github.com/toolmesh/toolmesh/internal/access"
)

// A batch answers each call in its place, and one that fails hurts no other.
func TestBatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var got struct {
		Results []struct {
			RPCID  string `json:"rpc_id"`
			Status string
			Result json.RawMessage
			Error  *struct{ Code string }
		}
	}
	for _, parallel := range []string{"false", "true"} {
		r.do(t, "POST", "/v1/calls:batch", `{"calls":[{"tool":"lab.add","args":{"a":1,"b":2},"timeout":"5s"},{"tool":"lab.fail"},{"tool":"lab.add","args":{"a":"1","b":2}},{"tool":"lab.ad"},{"tool":"lab.wait","args":null,"timeout":"20ms"}],"parallel":`+parallel+`}`, as(r.token)).decode(t, 200, &got)
		want := []string{"", "tool_error", "invalid_arguments", "tool_not_found", "deadline_exceeded"}
		if len(got.Results) != len(want) {
			t.Fatalf("%+v", got)
		}
		for i, one := range got.Results {
			ok := want[i] == ""
			if ok != (one.Status == "ok") || ok != (string(one.Result) == "3") || !ok && (one.Status != "error" || one.Error.Code != want[i]) || one.RPCID == "" {
				t.Errorf("%d: %+v", i, one)
			}
		}
	}
	for body, want := range map[string]struct {
		status int
		code   string
	}{
		`{}`: {400, "invalid_request"}, `[]`: {400, "invalid_request"}, `{"calls":[{"tool":"lab.add","timeout":"soon"}]}`: {400, "invalid_request"},
		`{"calls":[` + strings.Repeat(`{"tool":"lab.add"},`, 1001) + `5]}`: {413, "payload_too_large"},
	} {
		if a := r.do(t, "POST", "/v1/calls:batch", body, nil); a.status != want.status || a.problem(t)["code"] != want.code {
			t.Errorf("%.40s: %d %s", body, a.status, a.body)
		}
	}
	for h, want := range map[string]string{"Mesh-Timeout: bogus": "Mesh-Timeout is", "Idempotency-Key: k1": "Idempotency-Key is for"} {
		name, value, _ := strings.Cut(h, ": ")
		if a := r.do(t, "POST", "/v1/calls:batch", `{"calls":[{"tool":"lab.fail"}]}`, headers{name: value}); a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s", h, a.status, a.body)
		}
	}
	for _, h := range []headers{{"Mesh-Timeout": "100ms"}, {"Mesh-Timeout": "100ms", "Authorization": "Bearer " + r.token}} {
		if a := r.do(t, "POST", "/v1/calls:batch", `{"calls":[{"tool":"lab.wait"}]}`, h); !strings.Contains(a.body, `"deadline_exceeded"`) {
			t.Errorf("%v: %d %s", h, a.status, a.body)
		}
	}
	if a := r.do(t, "POST", "/v1/calls:batch", `<a/>`, headers{"Content-Type": "text/xml"}); a.status != 415 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// The calls of a model's turn come back as the messages that its provider takes.
func TestToolCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const results = `[{"rpc_id":"?","status":"ok","result":5,"changed":["/a"]},{"rpc_id":"?","status":"error","error":"tool_error"},{"status":"error","error":"tool_not_found"}]`
	for provider, c := range map[string]struct{ calls, messages string }{
		"openai": {
			`[{"id":"c1","type":"function","function":{"name":"lab-add","arguments":"{\"a\":\"2\",\"b\":3}"}},{"id":"c2","type":"function","function":{"name":"lab-fail","arguments":"{}"}},{"id":"c3","function":{"name":"nothing","arguments":"{}"}}]`,
			`[{"content":"5","role":"tool","tool_call_id":"c1"},{"content":"FAILED","role":"tool","tool_call_id":"c2"},{"content":"UNKNOWN","role":"tool","tool_call_id":"c3"}]`,
		},
		"openai-responses": {
			`[{"type":"function_call","id":"fc_1","call_id":"c1","name":"Lab_Add","arguments":"{\"a\":\"2\",\"b\":3}"},{"call_id":"c2","name":"lab-fail","arguments":""},{"call_id":"c3","name":"nothing","arguments":"{}"}]`,
			`[{"call_id":"c1","output":"5","type":"function_call_output"},{"call_id":"c2","output":"FAILED","type":"function_call_output"},{"call_id":"c3","output":"UNKNOWN","type":"function_call_output"}]`,
		},
		"anthropic": {
			`[{"type":"tool_use","id":"c1","name":"lab-add","input":{"a":"2","b":3}},{"type":"tool_use","id":"c2","name":"lab-fail","input":{}},{"type":"tool_use","id":"c3","name":"nothing","input":{}}]`,
			`[{"content":[{"content":"5","is_error":false,"tool_use_id":"c1","type":"tool_result"},{"content":"FAILED","is_error":true,"tool_use_id":"c2","type":"tool_result"},{"content":"UNKNOWN","is_error":true,"tool_use_id":"c3","type":"tool_result"}],"role":"user"}]`,
		},
		"gemini": {
			`[{"functionCall":{"name":"lab-add","args":{"a":"2","b":3}}},{"name":"lab-fail"},{"function_call":{"id":"c3","name":"nothing","args":{}}}]`,
			`[{"parts":[{"functionResponse":{"name":"lab-add","response":{"output":5}}},{"functionResponse":{"name":"lab-fail","response":{"error":"FAILED"}}},{"functionResponse":{"id":"c3","name":"nothing","response":{"error":"UNKNOWN"}}}],"role":"user"}]`,
		},
	} {
		a := r.do(t, "POST", "/v1/tool-calls", `{"provider":"`+provider+`","calls":`+c.calls+`}`, nil)
		var got struct {
			Messages any
			Results  []map[string]any
		}
		a.decode(t, 200, &got)
		wanted := c.messages
		for _, one := range got.Results {
			if e, ok := one["error"].(map[string]any); ok {
				text, _ := json.Marshal(e["message"])
				if one["error"] = e["code"]; e["code"] == "tool_error" {
					wanted = strings.Replace(wanted, `"FAILED"`, `"out of paper"`, 1)
				} else {
					wanted = strings.Replace(wanted, `"UNKNOWN"`, string(text), 1)
				}
			}
			if one["rpc_id"] != nil {
				one["rpc_id"] = "?"
			}
		}
		var want any
		_ = json.Unmarshal([]byte(results), &want)
		if !equalJSON(got.Results, want) {
			t.Errorf("%s: results %v", provider, got.Results)
		}
		text, _ := json.Marshal(got.Messages)
		plain := string(text)
		if plain != wanted {
			t.Errorf("%s:\n%s\nwant\n%s", provider, plain, wanted)
		}
	}
	// Names that no tool has cost one list of the tools in a second, not one each.
	lists, err := r.As(t, access.Node).SubscribeSync("mesh.registry.default.list")
	if err != nil {
		t.Fatal(err)
	}
	unknown := strings.TrimSuffix(strings.Repeat(`{"name":"nothing"},`, 50), ",")
	if a := r.do(t, "POST", "/v1/tool-calls", `{"provider":"gemini","calls":[`+unknown+`]}`, nil); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if n, _, err := lists.Pending(); err != nil || n >= 25 {
		t.Errorf("50 unknown names made %d lists, %v", n, err)
	}
	for _, body := range []string{
		`{}`, `{"provider":"cobol","calls":[{}]}`, `{"provider":"openai","calls":[]}`, `{"provider":"openai","calls":[{"id":"c1"}]}`, `{"provider":"anthropic","calls":["x"]}`, `{"provider":"gemini","calls":[null]}`,
	} {
		if a := r.do(t, "POST", "/v1/tool-calls", body, nil); a.status != 400 || a.problem(t)["code"] != "invalid_request" {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
}

func equalJSON(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// One small request does not have the gateway hold any number of large results.
func TestResultsOfABatchAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.MaxBody = 1 << 20 }) // the results of a request may have eight times that
	for what, h := range map[string]headers{"a session's key": as(r.token), "without a key": nil} {
		var got struct {
			Results []struct {
				Status string
				Error  struct {
					Code    string
					Started bool
				}
			}
		}
		calls := strings.TrimSuffix(strings.Repeat(`{"tool":"lab.large"},`, 5), ",")
		r.do(t, "POST", "/v1/calls:batch", `{"calls":[`+calls+`]}`, h).decode(t, 200, &got)
		for i, one := range got.Results { // of 3 MiB each
			if ok := i < 2; ok != (one.Status == "ok") || !ok && (one.Error.Code != "payload_too_large" || !one.Error.Started) {
				t.Errorf("%s: %d: %+v", what, i, one)
			}
		}
	}
}
