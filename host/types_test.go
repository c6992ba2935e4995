package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/testmesh"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// grade writes its text by a method of its pointer.
type grade int

func (g *grade) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "grade %d", int(*g)), nil }

func (g *grade) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "grade %d", (*int)(g))
	return err
}

// own writes JSON of its own.
type own struct{ text string }

func (o own) MarshalJSON() ([]byte, error) { return json.Marshal([]string{o.text}) }

func (o *own) UnmarshalJSON(data []byte) error {
	var list []string
	if err := json.Unmarshal(data, &list); err != nil || len(list) == 0 {
		return err
	}
	o.text = list[0]
	return nil
}

type values struct {
	Big    big.Int       `json:"big"`
	Grade  grade         `json:"grade"`
	Grades [2]grade      `json:"grades"`
	List   []grade       `json:"list"`
	Count  int           `json:"count"`
	Took   time.Duration `json:"took"`
	Text   string        `json:"text"`
}

// office is a host and a client of it.
func office(t *testing.T, opts *host.Options) (*host.Host, *client.Client) {
	t.Helper()
	nc := meshtest.Broker(t).Connect(t)
	h, err := host.New(nc, opts)
	if err != nil {
		t.Fatal(err)
	}
	testmesh.Start(t, h)
	joined(t, nc, h)
	c, err := client.New(nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		meshtest.End(t, h)
	})
	return h, c
}

func handle(t *testing.T, h *host.Host, name string, handler host.Handler, opts ...host.ToolOption) subjects.ToolID {
	t.Helper()
	id, err := h.Handle(name, handler, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A function's arguments and results fit its schemas: a value may have its JSON methods on its
// pointer, and an integer may be written as a decimal.
func TestValuesFitTheSchema(t *testing.T) {
	t.Parallel()
	h, c := office(t, &host.Options{Index: "types"})
	echo := func(_ context.Context, v values) (values, error) { return v, nil }
	unary := handle(t, h, "unary", host.Func(echo))
	stream := handle(t, h, "stream", host.Stream(func(_ context.Context, v values) iter.Seq2[values, error] {
		return func(yield func(values, error) bool) { yield(v, nil) }
	}))
	schema, err := tool.For[values]()
	if err != nil {
		t.Fatal(err)
	}
	fits, err := tool.Compile(schema)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"big":1230000000000000000000000,"grade":"grade 3","grades":["grade 1","grade 2"],"list":["grade 4"],"count":3,"took":2000000000,"text":"-1.0 \"2e3\""}`
	for _, args := range []string{want, strings.NewReplacer(`1230000000000000000000000`, `1.23E+24`, `:3,`, `: 3.0,`, `2000000000`, `2e9`).Replace(want)} {
		res, err := c.Call(t.Context(), unary, json.RawMessage(args))
		if err != nil || string(res.Value) != want {
			t.Errorf("%s\nis %v, %v", args, res, err)
			continue
		}
		if err := fits.Validate(res.Value); err != nil {
			t.Errorf("%s does not fit %s: %v", res.Value, schema, err)
		}
		for item, err := range c.Stream(t.Context(), stream, json.RawMessage(args)) {
			if err != nil || string(item.Data) != want {
				t.Errorf("%s\nyields %s, %v", args, item.Data, err)
			}
		}
	}
	_, err = c.Call(t.Context(), unary, json.RawMessage(strings.Replace(want, `:3,`, `:3e30,`, 1)))
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments || len(tool.Problems(err)) == 0 {
		t.Errorf("a number that is too large: %v %v, want invalid_arguments with details.errors", err, tool.Problems(err))
	}
}

// A type that writes its own JSON is served with a schema of the author's.
func TestSchemaOfATypeWithItsOwnJSON(t *testing.T) {
	t.Parallel()
	h, c := office(t, &host.Options{Index: "types"})
	type in struct {
		V own `json:"v"`
	}
	f := host.Func(func(_ context.Context, v in) (own, error) { return v.V, nil })
	_, err := h.Handle("bare", f)
	if toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest || !strings.Contains(err.Error(), "give the schema") {
		t.Errorf("without schemas: %v, want invalid_request that says what to do", err)
	}
	list := json.RawMessage(`{"type":"array","items":{"type":"string"}}`)
	object := json.RawMessage(`{"type":"object","properties":{"v":` + string(list) + `}}`)
	if _, err := h.Handle("half", f, host.Schema(object, nil)); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
		t.Errorf("without an output schema: %v", err)
	}
	id := handle(t, h, "own", f, host.Schema(object, list))
	res, err := c.Call(t.Context(), id, json.RawMessage(`{"v":["a"]}`))
	if err != nil || string(res.Value) != `["a"]` {
		t.Errorf("%v, %v", res, err)
	}
}

// A function that no call could reach is refused at its registration.
func TestFunctionsThatCannotBeCalled(t *testing.T) {
	t.Parallel()
	h, err := host.New(meshtest.Broker(t).Connect(t), &host.Options{Index: "types"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Stop(t.Context()) }()
	for name, handler := range map[string]host.Handler{
		"number": host.Func(func(context.Context, int) (int, error) { return 0, nil }),
		"list":   host.Stream(func(context.Context, []string) iter.Seq2[int, error] { return nil }),
		"time":   host.Func(func(context.Context, *time.Time) (int, error) { return 0, nil }),
		"none":   nil,
	} {
		if _, err := h.Handle(name, handler); toolmesh.CodeOf(err) != toolmesh.CodeInvalidRequest {
			t.Errorf("%s: %v, want invalid_request", name, err)
		}
	}
	for name, handler := range map[string]host.Handler{
		"map":     host.Func(func(context.Context, map[string]int) (int, error) { return 0, nil }),
		"pointer": host.Func(func(context.Context, *values) (int, error) { return 0, nil }),
		"any":     host.Func(func(context.Context, any) (int, error) { return 0, nil }),
		"raw":     host.Func(func(context.Context, json.RawMessage) (int, error) { return 0, nil }),
	} {
		if _, err := h.Handle(name, handler); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
