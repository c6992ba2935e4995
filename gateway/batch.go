package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// batchAtOnce is how many independent calls run at once where the mesh runs no batch.
const batchAtOnce = 16

// batchResult is the outcome of one call of a batch.
type batchResult struct {
	RPCID   subjects.RPCID  `json:"rpc_id,omitempty"`
	Status  string          `json:"status"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *toolmesh.Error `json:"error,omitempty"`
	Changed []string        `json:"changed,omitempty"`
}

func (l *link) batchResult(r client.BatchResult) batchResult {
	if r.Err != nil {
		return batchResult{RPCID: r.RPCID, Status: "error", Error: toolmesh.AsError(l.hide(r.Err))}
	}
	result := batchResult{RPCID: r.RPCID, Status: "ok", Result: withHrefs(orNull(r.Value))}
	if !json.Valid(result.Result) { // the others are to be read
		result = batchResult{RPCID: r.RPCID, Status: "error", Error: codec.NotJSON()}
	}
	return result
}

// batch answers POST /v1/calls:batch.
func (q *request) batch() (any, error) {
	var in struct {
		Calls callList[struct {
			Tool    subjects.ToolID `json:"tool"`
			Args    json.RawMessage `json:"args"`
			Timeout string          `json:"timeout"`
		}] `json:"calls"`
		Parallel bool `json:"parallel"`
	}
	if err := q.read(&in, `{"calls":[{"tool":"ID","args":{},"timeout":"5s"}],"parallel":false}`); err != nil {
		return nil, err
	}
	calls := make([]client.BatchCall, len(in.Calls))
	for i, one := range in.Calls {
		args := nullToNone(one.Args)
		calls[i] = client.BatchCall{Tool: one.Tool, Args: args}
		switch {
		case one.Tool == "":
			return nil, refused(toolmesh.CodeInvalidRequest, "call %d has no tool: send its id", i)
		case len(args) > 0 && args[0] != '{':
			return nil, refused(toolmesh.CodeInvalidRequest, "the args of call %d are not an object", i)
		}
		if one.Timeout != "" {
			d, err := time.ParseDuration(one.Timeout)
			if err != nil || d < time.Millisecond {
				return nil, refused(toolmesh.CodeInvalidRequest, `the timeout of call %d is %q: it is a duration such as "2s", at least 1ms`, i, one.Timeout)
			}
			calls[i].Timeout = d
		}
	}
	results, err := q.runBatch(calls, in.Parallel)
	if err != nil {
		return nil, err
	}
	all := make([]batchResult, len(results))
	for i, r := range results {
		all[i] = q.l.batchResult(r)
	}
	return object{"results": all}, nil
}

// runBatch makes several calls as one batch. It makes them one by one if the key may submit no batches or no node
// runs batches.
func (q *request) runBatch(calls []client.BatchCall, parallel bool) ([]client.BatchResult, error) {
	var all call
	if err := q.readHeaders(&all); err != nil {
		return nil, err
	}
	if all.key != "" {
		return nil, refused(toolmesh.CodeInvalidRequest, "Idempotency-Key is for POST /v1/tools/ID: a request of several calls takes none")
	}
	if err := q.l.spend(len(calls)); err != nil {
		return nil, err
	}
	admit, release := q.l.bounded() // or one small request would have the gateway hold a thousand of the largest results
	defer release()
	options := []client.CallOption{client.WithTimeout(all.timeout), client.WithTrace(all.trace), client.Admit(admit)}
	if parallel {
		options = append(options, client.Parallel())
	}
	results, err := q.c.Batch(q.ctx, calls, options...)
	e := toolmesh.AsError(err)
	if err == nil || e.Started != toolmesh.StartedNo || e.Code != toolmesh.CodePermissionDenied && e.Code != toolmesh.CodeUnavailable {
		return results, err
	}
	results = make([]client.BatchResult, len(calls))
	ctx, cancel := q.ctx, context.CancelFunc(func() {})
	if all.timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, all.timeout)
	}
	defer cancel()
	var work errgroup.Group
	if work.SetLimit(1); parallel {
		work.SetLimit(batchAtOnce)
	}
	batch := subjects.NewRPCID("batch_")
	for i, one := range calls {
		work.Go(func() error {
			rpc := subjects.RPCID(fmt.Sprintf("%s.%d", batch, i))
			r, err := q.c.Call(ctx, one.Tool, one.Args, client.WithRPCID(rpc), client.WithTimeout(one.Timeout), client.WithTrace(all.trace), client.Admit(admit))
			if err == nil && int64(len(r.Value)) <= q.l.bus.MaxPayload() { // it came in one message, so admit was not asked
				err = admit(int64(len(r.Value)))
			}
			if results[i] = (client.BatchResult{RPCID: rpc, Err: err}); err == nil {
				results[i].Value = r.Value
			}
			return nil
		})
	}
	_ = work.Wait()
	return results, nil
}

// callList are the calls of a request, and one more than it may have.
type callList[T any] []T

// UnmarshalJSON implements [json.Unmarshaler].
func (l *callList[T]) UnmarshalJSON(data []byte) (err error) {
	*l, err = codec.ReadItems[T](data, codec.MaxBatch+1)
	return err // encoding/json puts the name of the list before that of its member
}

func nullToNone(args json.RawMessage) json.RawMessage {
	if string(bytes.TrimSpace(args)) == "null" {
		return nil
	}
	return args
}

// modelCall is one call as a model made it.
type modelCall struct {
	id, name string
	args     json.RawMessage // an object, or JSON in a text
}

// given is one call in the form of any provider; each sets some of the members.
type given struct {
	ID, Name               string
	CallID                 string `json:"call_id"`
	Arguments, Input, Args json.RawMessage
	Function               struct {
		Name      string
		Arguments json.RawMessage
	}
	FunctionCall *given `json:"functionCall"`
	OfGenAI      *given `json:"function_call"` // model_dump of Google's Python SDK
}

// provider says how a provider writes calls and takes their results.
type provider struct {
	// read reads one call.
	read func(in *given) modelCall
	// anonymous says that a call may have no id.
	anonymous bool
	// message builds the model's view of one result: a message, or a part of the only message.
	message func(c modelCall, r *batchResult) any
	// wrap builds the only message from its parts; nil where each call has its own message.
	wrap func(parts []any) any
}

type object = map[string]any

// providers are the forms of POST /v1/tool-calls.
var providers = map[string]provider{
	"openai": {
		read: func(in *given) modelCall { return modelCall{in.ID, in.Function.Name, in.Function.Arguments} },
		message: func(c modelCall, r *batchResult) any {
			return object{"role": "tool", "tool_call_id": c.id, "content": r.text()}
		},
	},
	"openai-responses": {
		read: func(in *given) modelCall { return modelCall{in.CallID, in.Name, in.Arguments} },
		message: func(c modelCall, r *batchResult) any {
			return object{"type": "function_call_output", "call_id": c.id, "output": r.text()}
		},
	},
	"anthropic": {
		read: func(in *given) modelCall { return modelCall{in.ID, in.Name, in.Input} },
		message: func(c modelCall, r *batchResult) any {
			return object{"type": "tool_result", "tool_use_id": c.id, "content": r.text(), "is_error": r.Error != nil}
		},
		wrap: func(parts []any) any { return object{"role": "user", "content": parts} },
	},
	"gemini": {
		anonymous: true,
		read: func(in *given) modelCall {
			in = cmp.Or(in.FunctionCall, in.OfGenAI, in) // a part has the call in it
			return modelCall{in.ID, in.Name, in.Args}
		},
		message: func(c modelCall, r *batchResult) any {
			response := object{"name": c.name, "response": object{"output": r.Result}}
			if r.Error != nil {
				response["response"] = object{"error": r.text()}
			}
			if c.id != "" {
				response["id"] = c.id
			}
			return object{"functionResponse": response}
		},
		wrap: func(parts []any) any { return object{"role": "user", "parts": parts} },
	},
}

// text returns a result as a model reads it: a text without quotes, else JSON, or the failure's message.
func (r *batchResult) text() string {
	if e := r.Error; e != nil {
		text := e.Message
		if e.Code == toolmesh.CodeToolError && e.Type != "" {
			text = strings.TrimSuffix(e.Type+": "+e.Message, ": ")
		}
		for _, p := range tool.Problems(e) {
			if !strings.Contains(text, p.Message) {
				text += "\n" + p.Message
			}
		}
		return text
	}
	text := string(r.Result)
	_ = json.Unmarshal(r.Result, &text)
	return text
}

// toolCalls handles POST /v1/tool-calls: the calls of one turn of a model, in the provider's form.
func (q *request) toolCalls() (any, error) {
	var in struct {
		Provider string                    `json:"provider"`
		Calls    callList[json.RawMessage] `json:"calls"`
	}
	if err := q.read(&in, `{"provider":"openai","calls":[{}]}`); err != nil {
		return nil, err
	}
	p, ok := providers[in.Provider]
	switch {
	case !ok:
		return nil, refused(toolmesh.CodeInvalidRequest, "provider is %q: it is one of openai, openai-responses, anthropic and gemini", in.Provider)
	case len(in.Calls) == 0 || len(in.Calls) > codec.MaxBatch:
		return nil, refused(toolmesh.CodeInvalidRequest, "calls has none, or more than %d", codec.MaxBatch)
	}
	made := make([]modelCall, len(in.Calls))
	results := make([]batchResult, len(in.Calls))
	var calls []client.BatchCall
	var places []int // indexes of the calls in results
	for i, raw := range in.Calls {
		var one given
		err := json.Unmarshal(raw, &one)
		if made[i] = p.read(&one); err != nil || made[i].name == "" || made[i].id == "" && !p.anonymous {
			return nil, refused(toolmesh.CodeInvalidRequest, "call %d is not a tool call of %s", i, in.Provider)
		}
		id, args, changed, err := fit(q.ctx, q.c, q.l, subjects.ToolID(made[i].name), made[i].args)
		if err != nil {
			results[i] = q.l.batchResult(client.BatchResult{Err: err})
			continue
		}
		results[i].Changed = changed
		calls, places = append(calls, client.BatchCall{Tool: id, Args: args}), append(places, i)
	}
	if len(calls) > 0 {
		done, err := q.runBatch(calls, false)
		if err != nil {
			return nil, err
		}
		for n, i := range places {
			changed := results[i].Changed
			results[i] = q.l.batchResult(done[n])
			results[i].Changed = changed
		}
	}
	messages := make([]any, len(made))
	for i, c := range made {
		messages[i] = p.message(c, &results[i])
	}
	if p.wrap != nil {
		messages = []any{p.wrap(messages)}
	}
	return object{"messages": messages, "results": results}, nil
}
