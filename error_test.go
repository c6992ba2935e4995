package toolmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The numbers travel, so docs/protocol/vectors.json has them and this package
// is held to it, in both directions.
func TestCodesAreThoseOfTheVectors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("docs/protocol/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Codes map[Code]int `json:"codes"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	got := make(map[Code]int)
	for _, c := range Codes() {
		if !c.Valid() {
			t.Errorf("%s: Valid is false", c)
		}
		got[c] = c.Number()
	}
	if diff := cmp.Diff(v.Codes, got); diff != "" {
		t.Errorf("codes (-vectors.json +code):\n%s", diff)
	}
	if c := Code("teapot"); c.Valid() || c.Number() != 500 {
		t.Errorf("an unknown code: Valid %t, Number %d, want false and 500", c.Valid(), c.Number())
	}
}

func TestErrorJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{&Error{Code: CodeToolError, Message: "no such city"}, `{"code":"tool_error","message":"no such city","retryable":false}`},
		{
			Errorf(CodeBusy, "all %d slots are taken", 4).WithOrigin(OriginAgent).WithStarted(StartedNo).WithDetail("slots", 4),
			`{"code":"busy","message":"all 4 slots are taken","details":{"slots":4},"origin":"agent","retryable":true,"started":false}`,
		},
		{
			&Error{Code: CodeToolError, Message: "x", Started: StartedYes, Type: "ValueError", Stacktrace: "a.py:1"},
			`{"code":"tool_error","message":"x","retryable":false,"started":true,"type":"ValueError","stacktrace":"a.py:1"}`,
		},
	} {
		got, err := json.Marshal(c.err)
		if err != nil || string(got) != c.want {
			t.Errorf("got %s, %v, want %s", got, err, c.want)
		}
		var back Error
		if err := json.Unmarshal(got, &back); err != nil {
			t.Errorf("%s does not read back: %v", got, err)
		}
		if back.Started != c.err.Started || back.Code != c.err.Code || back.Retryable != c.err.Retryable {
			t.Errorf("%s read back as %+v", got, back)
		}
	}
	for text, want := range map[string]Started{"null": StartedUnknown, "true": StartedYes, "false": StartedNo} {
		var s Started
		if err := json.Unmarshal([]byte(text), &s); err != nil || s != want {
			t.Errorf("started %s: got %d, %v, want %d", text, s, err, want)
		}
		if back, err := json.Marshal(want); err != nil || string(back) != text {
			t.Errorf("started %d: got %s, %v, want %s", want, back, err, text)
		}
	}
	var s Started
	if err := json.Unmarshal([]byte(`"no"`), &s); err == nil {
		t.Error(`started "no" was accepted`)
	}
}

func TestCodeOf(t *testing.T) {
	t.Parallel()
	tool := &Error{Code: CodeToolError, Message: "boom"}
	for _, c := range []struct {
		err  error
		want Code
	}{
		{nil, ""},
		{tool, CodeToolError},
		{fmt.Errorf("call weather.today: %w", tool), CodeToolError},
		{context.Canceled, CodeCancelled},
		{fmt.Errorf("call: %w", context.DeadlineExceeded), CodeDeadlineExceeded},
		{io.EOF, CodeInternal},
		{fmt.Errorf("%w after %w", context.Canceled, tool), CodeToolError},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("CodeOf(%v): got %q, want %q", c.err, got, c.want)
		}
	}
	if AsError(nil) != nil {
		t.Error("AsError(nil) is not nil")
	}
	if e := AsError(io.EOF); !errors.Is(e, io.EOF) {
		t.Errorf("AsError(io.EOF) lost its cause: %v", e)
	}
}

func TestErrorf(t *testing.T) {
	t.Parallel()
	e := Errorf(CodeUnavailable, "ask the registry: %w", io.EOF)
	if !errors.Is(e, io.EOF) {
		t.Errorf("the %%w operand is not the cause of %v", e)
	}
	if got, want := e.Error(), "unavailable: ask the registry: EOF"; got != want {
		t.Errorf("Error: got %q, want %q", got, want)
	}
	if !e.Retryable || Errorf(CodeToolError, "x").Retryable {
		t.Error("what is unavailable is retryable, a tool's error is not")
	}
	if got, want := (&Error{Code: CodeToolError, Type: "ValueError", Message: "x"}).Error(), "tool_error: ValueError: x"; got != want {
		t.Errorf("Error: got %q, want %q", got, want)
	}
}

// Several callers may hold one Error: the With methods never write to it.
func TestWithMethodsCopy(t *testing.T) {
	t.Parallel()
	e := Errorf(CodeBusy, "x").WithDetail("a", 1)
	before, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	changed := e.WithDetail("b", 2).WithDetail("a", 3).WithOrigin(OriginTool).WithStarted(StartedYes).WithRetryable(false)
	after, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Errorf("the error changed from %s to %s", before, after)
	}
	if diff := cmp.Diff(map[string]any{"a": 3, "b": 2}, changed.Details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
}
