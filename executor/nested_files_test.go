package executor_test

import (
	"context"
	"encoding/json"
	"iter"
)

func (*loopback) File(context.Context, string, []byte) ([]byte, error) { return nil, nil }

func (*loopback) ReadFile(context.Context, json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(func(json.RawMessage, error) bool) {}
}
