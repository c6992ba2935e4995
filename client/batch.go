package client

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
)

// BatchCall is one call of a [Client.Batch].
type BatchCall struct {
	Tool subjects.ToolID
	// Args is the arguments object, as [Client.Call] takes it.
	Args any
	// Timeout is the call's time from the batch's arrival, with its wait for other calls; the
	// batch's timeout counts as well. Defaults to the time that the tool declares, without the
	// wait.
	Timeout time.Duration
}

// BatchResult is the outcome of one call of a batch.
type BatchResult struct {
	RPCID subjects.RPCID // "<batch's id>.<index>"
	Value json.RawMessage
	Err   error // a [toolmesh.Error]; nil: the call succeeded
	// LaneWait is how long the call waited for other calls: see [Client.Batch].
	LaneWait time.Duration
}

// Decode reads the value into v, as json.Unmarshal does; the error of a call that
// failed is that one.
func (r *BatchResult) Decode(v any) error {
	if r.Err != nil {
		return r.Err
	}
	return json.Unmarshal(r.Value, v)
}

// Batch makes several calls, 1,000 at most, with one request, and returns their results in the
// order of the calls. A failed call does not affect the others.
//
// A tool that is not parallel_safe runs alone: after all calls before it, and before all calls
// behind it. Calls of parallel_safe tools run in parallel; those with the same resource key run
// in the order of the calls. [Parallel] says that the calls are independent.
//
// [WithRPCID] names the batch: sent again under the same name, no call of it runs twice.
// [WithTimeout] and ctx bound the whole batch; when ctx ends, its running calls are cancelled.
// [WithRevision], [WithIsolation] and [NoCache] hold for each of its calls; [Idempotent] has no
// effect. The error is that of the batch as a whole: invalid_request for a batch without calls or
// with an idempotency key, payload_too_large for one that is larger than a message, unavailable if
// no agent and no router runs batches.
func (c *Client) Batch(ctx context.Context, calls []BatchCall, opts ...CallOption) ([]BatchResult, error) {
	s, err := c.settings(ctx, opts, "batch_")
	if err != nil {
		return nil, err
	}
	ctx, stop := s.bound(ctx)
	defer stop()
	switch {
	case len(calls) == 0:
		return nil, callerError(toolmesh.CodeInvalidRequest, "the batch has no calls")
	case len(calls) > codec.MaxBatch:
		return nil, callerError(toolmesh.CodePayloadTooLarge, "the batch has %d calls, at most %d are taken", len(calls), codec.MaxBatch).WithDetail("limit", codec.MaxBatch)
	}
	members := make([]codec.Member, len(calls))
	for i, call := range calls {
		args, err := encodeArgs(call.Args)
		if err == nil && len(args) > 0 && !json.Valid(args) {
			err = callerError(toolmesh.CodeInvalidArguments, "the arguments are not JSON")
		}
		if err == nil && call.Timeout < 0 {
			err = callerError(toolmesh.CodeInvalidRequest, "the timeout is %v: it cannot be negative", call.Timeout)
		}
		if err != nil {
			return nil, toolmesh.AsError(err).WithDetail("index", i)
		}
		members[i] = codec.Member{Index: i, Tool: call.Tool, Args: args, Timeout: min(call.Timeout, toolmesh.MaxTime)}
	}
	body, err := c.refer(ctx, calls[0].Tool, s, codec.EncodeBatch(s.RPCID, members, s.parallel))
	if err != nil {
		return nil, err
	}
	defer c.release(s)
	s.queue = true
	var r *Result
	err = c.attempts(ctx, "", s, func(t target) (err error) {
		t.batch = true
		r, err = c.unary(ctx, t, s, body)
		switch {
		case errors.Is(err, errNoResponders):
			return final{toolmesh.Errorf(toolmesh.CodeUnavailable, "no node runs batches: start an agent, or a router that serves functions").
				WithOrigin(toolmesh.OriginMesh).WithStarted(toolmesh.StartedNo)}
		case err != nil && toolmesh.AsError(err).Started != toolmesh.StartedNo:
			return final{err} // some of its calls may have run
		}
		return err
	})
	if err == nil && r.Ref != nil {
		err = c.resolveResult(ctx, s, r)
	}
	if err != nil {
		return nil, err
	}
	return c.batchResults(ctx, s, r.Value, len(calls))
}

// batchResults reads the answer of a batch, and the objects of its references.
func (c *Client) batchResults(ctx context.Context, s *settings, body []byte, n int) ([]BatchResult, error) {
	answered, err := codec.ParseBatchResults(body)
	if err != nil {
		return nil, err
	}
	results := make([]BatchResult, n)
	for i := range results {
		results[i].Err = toolmesh.Errorf(toolmesh.CodeProtocolError, "the answer has no result for the call")
	}
	for _, r := range answered {
		if r.Index < 0 || r.Index >= n {
			continue
		}
		results[r.Index] = BatchResult{RPCID: r.RPCID, Value: r.Result, LaneWait: r.LaneWait}
		switch {
		case r.Err != nil:
			results[r.Index].Err = r.Err
		case r.Ref != nil:
			one := &Result{Ref: r.Ref}
			results[r.Index].Err = c.resolveResult(ctx, s, one)
			results[r.Index].Value = one.Value
		}
	}
	return results, nil
}
