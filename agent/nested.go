package agent

import (
	"context"
	"encoding/json"
	"iter"

	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/subjects"
)

// nestedCalls makes the calls of one call's tool, over the mesh like anyone's:
// in the session of the call, one deeper, and within the time that it has left,
// which ctx says. It is what a [pythonTool] hands to the executor.
type nestedCalls struct {
	client *client.Client
	call   *host.Call
}

func (n *nestedCalls) options() []client.CallOption {
	return []client.CallOption{
		client.WithSession(n.call.Session), client.WithParent(n.call.RPCID, n.call.Depth+1),
	}
}

// Call implements [executor.Nested].
func (n *nestedCalls) Call(ctx context.Context, id string, args json.RawMessage) (json.RawMessage, error) {
	result, err := n.client.Call(ctx, subjects.ToolID(id), args, n.options()...)
	if err != nil {
		return nil, err
	}
	return result.Value, nil
}

// Stream implements [executor.Nested].
func (n *nestedCalls) Stream(ctx context.Context, id string, args json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for chunk, err := range n.client.Stream(ctx, subjects.ToolID(id), args, n.options()...) {
			if !yield(chunk.Data, err) {
				return
			}
		}
	}
}
