package host

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// NestedCalls makes the calls of one call's tool, for handlers that run it in another process:
// over the mesh like any other, in the call's session, one level deeper, and within the time left
// of its context. [NewNestedCalls] makes it, and its methods may be called concurrently.
//
// A tool may make more calls at once than the nodes have slots: they wait for slots as any
// client's calls do, but not for room for arguments, which the calls above hold as well. So they
// only wait for calls of the same depth, which end without them.
type NestedCalls struct {
	client *client.Client
	call   *Call
	files  nestedFiles
}

// NewNestedCalls returns the calls that the tool of a call may make.
func NewNestedCalls(c *client.Client, call *Call) *NestedCalls {
	return &NestedCalls{client: c, call: call}
}

func (n *NestedCalls) options() []client.CallOption {
	return []client.CallOption{client.WithSession(n.call.Session), client.WithLineage(n.call.below())}
}

// Call calls a tool; see [client.Client.Call].
func (n *NestedCalls) Call(ctx context.Context, id string, args json.RawMessage) (json.RawMessage, error) {
	result, err := n.client.Call(ctx, subjects.ToolID(id), args, n.options()...)
	if err != nil {
		return nil, err
	}
	return result.Value, nil
}

// Stream calls a tool and yields its items; see [client.Client.Stream].
func (n *NestedCalls) Stream(ctx context.Context, id string, args json.RawMessage) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for chunk, err := range n.client.Stream(ctx, subjects.ToolID(id), args, n.options()...) {
			if !yield(chunk.Data, err) {
				return
			}
		}
	}
}

// Batch makes several calls at once; see [client.Client.Batch]. calls is a list of
// {"tool_id","kwargs","timeout_ms"}, or {"parallel","requests"} with one; the result is a
// list of {"status","result"} and {"status","error"} in the same order.
func (n *NestedCalls) Batch(ctx context.Context, calls json.RawMessage) (json.RawMessage, error) {
	var asked struct {
		Parallel bool `json:"parallel"`
		Requests []struct {
			Tool    subjects.ToolID `json:"tool_id"`
			Args    json.RawMessage `json:"kwargs"`
			Timeout int64           `json:"timeout_ms"`
		} `json:"requests"`
	}
	into := any(&asked.Requests)
	if bytes.HasPrefix(calls, []byte("{")) {
		into = &asked
	}
	if err := json.Unmarshal(calls, into); err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the calls of a batch cannot be read: %w", err).WithStarted(toolmesh.StartedNo)
	}
	batch := make([]client.BatchCall, len(asked.Requests))
	for i, c := range asked.Requests {
		batch[i] = client.BatchCall{Tool: c.Tool, Args: c.Args, Timeout: toolmesh.Millis(c.Timeout)}
	}
	var opts []client.CallOption
	if asked.Parallel {
		opts = append(opts, client.Parallel())
	}
	results, err := n.client.Batch(ctx, batch, append(opts, n.options()...)...)
	if err != nil {
		return nil, err
	}
	type end struct {
		Status string          `json:"status"`
		Result json.RawMessage `json:"result,omitempty"`
		Error  *toolmesh.Error `json:"error,omitempty"`
	}
	ends := make([]end, len(results))
	for i, r := range results {
		if ends[i] = (end{Status: "ok", Result: r.Value}); r.Err != nil {
			ends[i] = end{Status: "error", Error: toolmesh.AsError(r.Err)}
		}
	}
	body, err := tool.MarshalPlain(ends)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeInternal, "the results of a batch: %w", err)
	}
	return body, nil
}

// Task makes a request about the durable tasks of the call's session; see
// [client.Client.TaskVerb].
func (n *NestedCalls) Task(ctx context.Context, verb string, request json.RawMessage) (json.RawMessage, error) {
	var q codec.TaskRequest
	if bad := codec.ParseBody(nil, request, &q); bad != nil {
		return nil, bad
	}
	q.Parent = n.call.RPCID
	var answer json.RawMessage
	err := n.client.In(n.call.Session).TaskVerb(ctx, verb, &q, &answer)
	return answer, err
}

// Describe returns a tool's descriptor in the call's session, as `mesh info --json` prints it.
func (n *NestedCalls) Describe(ctx context.Context, id string) (json.RawMessage, error) {
	return n.client.In(n.call.Session).Describe(ctx, subjects.ToolID(id))
}
