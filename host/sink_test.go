package host_test

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/host"
)

// A handler that looks at nothing but the error of Send hears there that its
// call is over.
func TestSendAfterTheCallIsOver(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	started, release, sent := make(chan struct{}), make(chan struct{}), make(chan error)
	ignoring := func(ctx context.Context, call *host.Call, sink host.Sink) error {
		if err := sink.Send(ctx, json.RawMessage("1")); err != nil {
			return err
		}
		started <- struct{}{}
		<-release
		err := sink.Send(ctx, json.RawMessage("2"))
		sent <- err
		return err
	}
	open := host.Schema(json.RawMessage(`{"type":"object"}`), nil)
	if _, err := r.h.Handle("ignoring", host.HandlerFunc(ignoring), open); err != nil {
		t.Fatal(err)
	}
	for delivery, extra := range map[string][]string{"unary": nil, "live": {"Mesh-Stream", "1"}, "inbox": {"Mesh-Stream", "inbox"}} {
		in := r.inbox()
		r.send(in, "tools.default.desk.ignoring", "", append(extra, "Mesh-Rpc-Id", delivery)...)
		wait(t, "start", started)
		if a := r.ask("mesh.ctl.default."+delivery, ""); string(a.Data) != `{"cancelled":true}` {
			t.Errorf("%s: the cancel is answered %s", delivery, a.Data)
		}
		release <- struct{}{}
		if err := wait(t, "send", sent); toolmesh.CodeOf(err) != toolmesh.CodeCancelled {
			t.Errorf("%s: Send says %v after the call was cancelled", delivery, err)
		}
	}
}

// kept records the items of a handler.
type kept []string

func (k *kept) Send(_ context.Context, item json.RawMessage) error {
	*k = append(*k, string(item))
	return nil
}

func TestFunctionsThatReturnNil(t *testing.T) {
	t.Parallel()
	type out struct {
		Names []string       `json:"names"`
		Tags  map[string]int `json:"tags"`
	}
	call := &host.Call{Args: json.RawMessage("{}")}
	var sink kept
	for _, handler := range []host.Handler{
		host.Func(func(context.Context, struct{}) ([]string, error) { return nil, nil }),
		host.Func(func(context.Context, struct{}) (out, error) { return out{}, nil }),
		host.Func(func(context.Context, struct{}) (*out, error) { return nil, nil }),
		host.Func(func(context.Context, struct{}) (any, error) { return nil, nil }),
		host.Stream(func(context.Context, struct{}) iter.Seq2[[]int, error] {
			return func(yield func([]int, error) bool) { _ = yield(nil, nil) && yield([]int{1}, nil) }
		}),
	} {
		if err := handler.ServeTool(t.Context(), call, &sink); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{`[]`, `{"names":[],"tags":{}}`, `null`, `null`, `[]`, `[1]`}
	if len(sink) != len(want) {
		t.Fatalf("sent %v, want %v", sink, want)
	}
	for i := range want {
		if sink[i] != want[i] {
			t.Errorf("sent %s, want %s", sink[i], want[i])
		}
	}
}

// Handlers that write JSON themselves may send any JSON that encoding/json accepts.
func TestHandlersSendWhatIsJSON(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, text := range []string{
		`{"a":1,"a":2}`, `"\ud800"`, "\"\xff\"", ` [1.50e+3, null] `, deep(9_000), deep(11_000), // repeated name, half a surrogate, no UTF-8
		``, ` `, `01`, `+1`, `nul`, `{"a":1,}`, `{a:1}`, `1 2`, "\"\n\"", `"\x"`, "\ufeff1", `NaN`,
	} {
		var sink kept
		err := host.HandlerFunc(func(ctx context.Context, _ *host.Call, sink host.Sink) error {
			return sink.Send(ctx, json.RawMessage(text))
		}).ServeTool(t.Context(), &host.Call{}, &sink)
		if valid := json.Valid([]byte(text)); valid != (err == nil) || valid != (len(sink) == 1) {
			t.Errorf("%.40q: valid is %v, sent %d, error %v", text, valid, len(sink), err)
		}
	}
}
