package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// locked is a text that several write.
type locked struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *locked) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.String()
}

// heedless is a sink that drops its errors.
type heedless struct{ host.Sink }

func (s heedless) Send(ctx context.Context, item json.RawMessage) error {
	_ = s.Sink.Send(ctx, item)
	return nil
}

// A result that does not fit its tool's schema gives a warning in the log, next to the result and
// in the tool's description; or the call fails, if the tool declares that.
func TestResultsAreChecked(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	log := &locked{}
	h := testmesh.Host(t, broker.Connect(t), &host.Options{Index: "desk", Logger: slog.New(slog.NewTextHandler(log, nil))})
	returns := json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"},"at":{"type":"string","format":"date-time"}},"required":["n"],"additionalProperties":false}`)
	echo := host.HandlerFunc(func(ctx context.Context, call *host.Call, sink host.Sink) error {
		var args struct{ Items []json.RawMessage }
		if err := json.Unmarshal(call.Args, &args); err != nil {
			return err
		}
		for _, item := range args.Items {
			if err := sink.Send(ctx, item); err != nil {
				return err
			}
		}
		return nil
	})
	const fits, wrong = `{"n":1,"at":"2026-01-01T00:00:00"}`, `{"n":"x"}`
	large := `{"n":1,"pad":"` + strings.Repeat("x", 16<<10) + `"}`
	kinds := map[string]tool.Annotations{
		"usual": {}, "off": {Results: tool.ResultOff}, "strict": {Results: tool.ResultStrict},
		"items": {Streaming: true}, "list": {Streaming: true, Collect: true}, "exact": {Streaming: true, Results: tool.ResultStrict},
	}
	// Each has a tool of its own: after a check that fits the next one waits.
	cases := []struct {
		kind, items, warning string
		code                 toolmesh.Code
	}{
		{"usual", wrong, `: /n must be integer, not string "x"`, ""},
		{"usual", fits, "", ""},
		{"usual", `{"m":1}`, `: "m" is not a field of the result`, ""},
		{"usual", large, "", ""},
		{"off", wrong, "", ""},
		{"strict", fits, "", ""},
		{"strict", wrong, "", toolmesh.CodeToolError},
		{"strict", large, "", toolmesh.CodeToolError},
		{"items", fits, "", ""},
		{"items", fits + `,` + wrong, `/n must`, ""},
		{"items", "", "", ""},
		{"list", fits, "", ""},
		{"list", wrong + `,` + fits, `/n must`, ""},
		{"exact", wrong, "", toolmesh.CodeToolError},
	}
	nameOf := func(i int) string { return fmt.Sprint(cases[i].kind, i) }
	var tools []host.Tool
	for i, one := range cases {
		tools = append(tools, host.Tool{Handler: echo, Descriptor: &tool.Descriptor{
			ID: subjects.ToolID("desk." + nameOf(i)), Name: nameOf(i), InputSchema: json.RawMessage(`{"type":"object"}`), OutputSchema: returns, Annotations: kinds[one.kind], Source: tool.SourceGo,
		}})
	}
	deaf := *tools[13].Descriptor
	deaf.ID, deaf.Name = "desk.deaf", "deaf"
	tools = append(tools, host.Tool{Descriptor: &deaf, Handler: host.HandlerFunc(func(ctx context.Context, call *host.Call, sink host.Sink) error {
		return echo(ctx, call, heedless{sink})
	})})
	if err := h.Publish(t.Context(), host.Service{Index: "desk", Tools: tools}); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	c := testmesh.Client(t, broker.Connect(t), nil)
	responding(t, broker)
	for i, one := range cases {
		result, err := c.Call(t.Context(), subjects.ToolID("desk."+nameOf(i)), json.RawMessage(`{"items":[`+one.items+`]}`))
		if toolmesh.CodeOf(err) != one.code {
			t.Errorf("%s of %.60s: %v", one.kind, one.items, err)
			continue
		}
		if err != nil {
			if e := toolmesh.AsError(err); e.Type != "ResultMismatch" || !strings.Contains(e.Message, "output schema") || e.Started != toolmesh.StartedYes {
				t.Errorf("%s of %.60s: %+v", one.kind, one.items, e)
			}
			continue
		}
		if (result.Warning == "") != (one.warning == "") || !strings.Contains(result.Warning, one.warning) {
			t.Errorf("%s of %.60s: the warning is %q, want %q", one.kind, one.items, result.Warning, one.warning)
		}
		if want := "[" + one.items + "]"; one.kind == "list" && string(result.Value) != want {
			t.Errorf("the list is %s, want %s", result.Value, want)
		}
	}
	// Of a stream the log has it, and strict ends it: also where the handler goes on.
	for _, id := range []subjects.ToolID{"desk.exact13", "desk.deaf"} {
		count := 0
		var last error
		for _, err := range c.Stream(t.Context(), id, json.RawMessage(`{"items":[`+fits+`,`+wrong+`,`+fits+`]}`)) {
			if last = err; err == nil {
				count++
			}
		}
		if e := toolmesh.AsError(last); count != 1 || e == nil || e.Type != "ResultMismatch" {
			t.Errorf("%s: %d items, then %v", id, count, last)
		}
	}
	// Once for a tool, however often it happens.
	for range 3 {
		if result, err := c.Call(t.Context(), "desk.usual0", json.RawMessage(`{"items":[`+wrong+`]}`)); err != nil || result.Warning == "" {
			t.Errorf("again: %+v, %v", result, err)
		}
	}
	if n := strings.Count(log.text(), "level=WARN msg=\"a result does not fit the output schema\" tool=desk.usual0"); n != 1 {
		t.Errorf("the log has it %d times\n%s", n, log.text())
	}
	meshtest.Until(t, "the registry warns of the tool", func() bool {
		raw, err := c.Describe(t.Context(), "desk.usual0")
		if err != nil {
			return false
		}
		var d registry.DescribeAnswer
		return json.Unmarshal(raw, &d) == nil && len(d.Descriptor.Warnings) == 1 && strings.Contains(d.Descriptor.Warnings[0], "#/properties/n: expected integer, got a string")
	})
}

// A wrong result of a session's call is shown to its caller only: neither its texts nor its keys
// are in the log or in other sessions' view of the tool.
func TestResultOfASessionStaysItsOwn(t *testing.T) {
	t.Parallel()
	broker := meshtest.Broker(t)
	log := &locked{}
	h := testmesh.Host(t, broker.Connect(t), &host.Options{Index: "desk", Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	results := map[subjects.ToolID]string{
		"desk.text": `{"n":"secret"}`, "desk.key": `{"secret":["x"]}`, "desk.name": `{"n":1,"closed":{"secret":1}}`,
		"desk.names": `{"short":{"secret":1}}`, "desk.either": `{"either":{"secret":{}}}`, "desk.twice": `{"secret":1,"secret":2}`,
	}
	var tools []host.Tool
	for id, result := range results {
		_, name, _ := strings.Cut(string(id), ".")
		tools = append(tools, host.Tool{
			Handler: host.HandlerFunc(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
				return sink.Send(ctx, json.RawMessage(result))
			}),
			Descriptor: &tool.Descriptor{ID: id, Name: name, Source: tool.SourceGo, InputSchema: json.RawMessage(`{"type":"object"}`), OutputSchema: json.RawMessage(`{"type":"object",
				"properties":{"n":{"type":"integer"},"closed":{"additionalProperties":false},"short":{"propertyNames":{"maxLength":3}},
					"either":{"anyOf":[{"additionalProperties":{"type":"integer"}},{"additionalProperties":{"type":"string"}}]}},
				"additionalProperties":{"items":{"type":"integer"}}}`)},
		})
	}
	if err := h.Publish(t.Context(), host.Service{Index: "desk", Tools: tools}); err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	responding(t, broker)
	of := func(session subjects.SessionID) *client.Client {
		c := testmesh.Client(t, broker.Connect(t), &client.Options{Session: session})
		return c
	}
	one, other := of("one"), of("other")
	for id := range results {
		for range 2 { // the log has the first at warn, the second at debug
			if result, err := one.Call(t.Context(), id, nil); err != nil || !strings.Contains(result.Warning, "secret") {
				t.Errorf("%s: its caller hears %+v, %v", id, result, err)
			}
		}
		var said string
		meshtest.Until(t, "the registry warns of the tool", func() bool {
			raw, err := other.Describe(t.Context(), id)
			said = string(raw)
			return err == nil && strings.Contains(said, "does not fit the output schema")
		})
		if strings.Contains(said, "secret") {
			t.Errorf("another session reads of %s: %s", id, said)
		}
	}
	if text := log.text(); strings.Contains(text, "secret") || strings.Count(text, "a result does not fit") != 2*len(results) {
		t.Errorf("the log says\n%s", text)
	}
}
