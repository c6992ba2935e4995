package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/subjects"
)

type callFlags struct {
	timeout time.Duration
	stream  bool
	lines   bool
	key     string
	rpcID   string
	noCache bool
	out     string
}

const argumentForms = `Arguments are given by name:
  city=Oslo              typed by the tool's schema; the path of a file, where the tool takes one
  days:=3  'when:={}'    as JSON
  '{"city":"Oslo"}'      all of them as one JSON object, first
  @file  or  -           the same from a file or from stdin`

func (a *app) callCommand() *cobra.Command {
	cmd, f := a.calling("call", "Call a tool and print its result", "Call a tool and print its result as JSON. Ctrl-C cancels the call.")
	cmd.Example = `  mesh call weather.forecast.today city=Oslo
  mesh call weather.forecast.daily '{"city":"Lima","days":2}' --timeout 2s
  echo '{"text":"one two"}' | mesh call --stream lab.streams.words -
  mesh call --lines < calls.jsonl     {"id":1,"tool":"weather.forecast.today","args":{"city":"Oslo"}} a line each`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if f.lines {
			return takes(0, 1, "a tool, for lines that name none")(cmd, args)
		}
		return takes(1, -1, "a tool")(cmd, args)
	}
	wordFlag(cmd, &f.key, "key", "idempotency key, a `NAME` for the effect of the call: it runs once in a day, and each further call under the key gets its outcome")
	cmd.Flags().BoolVar(&f.lines, "lines", false, "make a call for each line of stdin, many at once, and print each result as it comes:\n"+
		"{\"id\",\"tool\",\"args\",\"timeout\",\"session\",\"stream\",\"key\"}; all but tool may be left out")
	cmd.Flags().BoolVar(&f.stream, "stream", false, "print items as they come, as mesh stream does")
	wordFlag(cmd, &f.out, "out", "write the result to this `FILE`: the bytes of a returned file, else JSON")
	cmd.Flags().BoolVar(&f.noCache, "no-cache", false, "run the tool even if the result of an earlier call is kept")
	return cmd
}

func (a *app) streamCommand() *cobra.Command {
	cmd, f := a.calling("stream", "Call a tool and print its items as they come",
		"Call a tool and print each item that it yields, a line of JSON each, as it comes.\nCtrl-C cancels the call.")
	f.stream = true
	return cmd
}

// calling returns a command that calls a tool.
func (a *app) calling(verb, short, long string) (*cobra.Command, *callFlags) {
	f := new(callFlags)
	cmd := &cobra.Command{
		Use: verb + " TOOL [JSON|-|@file] [name=value|name:=json]…", Short: short, Long: long + "\n\n" + argumentForms,
		Args: takes(1, -1, "a tool"),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if f.lines && (f.stream || f.rpcID != "" || f.key != "") {
				return usage(cmd, "--lines excludes --stream, --rpc-id and --key: each line has its own")
			}
			if f.out != "" && (f.stream || f.lines) {
				return usage(cmd, "--out is for calls with one result, not for --stream and --lines")
			}
			if f.stream && f.key != "" {
				return usage(cmd, "--key is for calls with one result, not for --stream")
			}
			return nil
		},
		RunE: runE(func(ctx context.Context, args []string) error { return a.call(ctx, args, *f) }),
	}
	durationFlag(cmd, &f.timeout, "timeout", time.Millisecond, "the call's total `TIME` (default what the tool declares, else 30s; none for a stream)")
	wordFlag(cmd, &f.rpcID, "rpc-id", "name the call: the same `ID` again is the same call (default a new one)")
	return cmd, f
}

func (a *app) call(ctx context.Context, args []string, f callFlags) error {
	if f.lines && len(args) == 0 {
		return a.callLines(ctx, "", f)
	}
	id := subjects.ToolID(args[0])
	if err := id.Validate(); err != nil {
		return usage(nil, "%q is not a tool id: %s", id, err.Error())
	}
	if f.lines {
		return a.callLines(ctx, id, f)
	}
	g, err := parseArguments(args[1:], a.stdin(ctx))
	if err != nil {
		return err
	}
	return a.withMesh(ctx, func(ctx context.Context, l *link) error {
		rpc := subjects.RPCID(f.rpcID)
		if rpc == "" {
			rpc = newRPCID(f.stream)
		}
		body, err := l.body(ctx, &id, g)
		if toolmesh.CodeOf(err) == toolmesh.CodeToolNotFound {
			// A service that is no node may serve it without a description. Otherwise the call
			// fails with the reason.
			body, err = g.merge(nil)
		}
		if err != nil {
			return a.callFailed(ctx, l, rpc, f.stream, err)
		}
		options := []client.CallOption{client.WithRPCID(rpc), client.WithIdempotencyKey(f.key), client.WithTimeout(f.timeout)}
		if f.noCache {
			options = append(options, client.NoCache())
		}
		if f.stream {
			return a.printStream(ctx, l, id, rpc, body, options)
		}
		return a.printCall(ctx, l, id, rpc, body, f.out, options)
	})
}

// newRPCID returns the id of a new call.
func newRPCID(stream bool) subjects.RPCID {
	if stream {
		return subjects.NewRPCID("rpc_stream_")
	}
	return subjects.NewRPCID("rpc_")
}

// body builds the arguments object. It asks for the schema only if a value has to be typed by it;
// id then becomes the full id.
func (l *link) body(ctx context.Context, id *subjects.ToolID, g given) (json.RawMessage, error) {
	if !g.typed() {
		return g.merge(nil)
	}
	d, err := inventory.Describe(ctx, l.client, *id)
	if err != nil {
		return nil, err
	}
	*id = d.ID
	if g, err = l.putFiles(ctx, g, d.InputSchema); err != nil {
		return nil, err
	}
	return g.merge(d.InputSchema)
}

func isUsage(err error) bool {
	var wrong *usageError
	return errors.As(err, &wrong)
}

// callAnswer is the output of call --json.
type callAnswer struct {
	RPCID      subjects.RPCID   `json:"rpc_id"`
	Status     string           `json:"status"`
	Result     json.RawMessage  `json:"result,omitempty"`
	Node       *subjects.NodeID `json:"node,omitempty"`
	DurationMS *float64         `json:"duration_ms,omitempty"`
	Cache      string           `json:"cache,omitempty"`
	Warning    string           `json:"warning,omitempty"`
	LaneWaitMS float64          `json:"lane_wait_ms,omitempty"`
	NodeWaitMS float64          `json:"node_wait_ms,omitempty"`
	Out        string           `json:"out,omitempty"` // the file that has the result instead
	Error      *toolmesh.Error  `json:"error,omitempty"`
}

func answerOf(rpc subjects.RPCID, r *client.Result) callAnswer {
	return callAnswer{
		RPCID: rpc, Status: "ok", Result: orNull(r.Value), Node: &r.Node, DurationMS: new(milliseconds(r.Took)), Cache: r.Cache, Warning: r.Warning,
		LaneWaitMS: milliseconds(r.LaneWait), NodeWaitMS: milliseconds(r.NodeWait),
	}
}

func (a *app) printCall(ctx context.Context, l *link, id subjects.ToolID, rpc subjects.RPCID, body json.RawMessage, out string, options []client.CallOption) error {
	if out != "" {
		options = append(options, client.ByReference())
	}
	done := a.running(string(rpc)+" runs", "; Ctrl-C cancels it")
	begun := time.Now()
	var result *client.Result
	call := func(to io.Writer) (err error) {
		if result, err = l.client.Call(ctx, id, body, options...); err == nil && out != "" {
			err = l.save(ctx, result, to)
		}
		return err
	}
	var err error
	if out == "" {
		err = call(nil)
	} else { // no tool runs for a file that cannot be written
		err = replace(out, call)
	}
	done()
	if toolmesh.CodeOf(err) == toolmesh.CodeDeadlineExceeded && !a.json {
		e := *toolmesh.AsError(err)
		e.Message = fmt.Sprintf("%s, after %s", e.Message, time.Since(begun).Round(10*time.Millisecond))
		return &e
	}
	return a.printResult(ctx, l, rpc, result, out, err)
}

// printResult prints the end of a call or a task. The file out has the result, unless it is "".
func (a *app) printResult(ctx context.Context, l *link, rpc subjects.RPCID, result *client.Result, out string, err error) error {
	if err != nil {
		return a.callFailed(ctx, l, rpc, false, err)
	}
	if a.json {
		answer := answerOf(rpc, result)
		if answer.Out = out; out != "" {
			answer.Result = nil
		}
		a.printJSON(answer)
		return nil
	}
	if out == "" {
		a.printValue(result.Value)
	}
	if result.Warning != "" {
		fmt.Fprintf(a.err, "mesh: warning: %s\n", result.Warning)
	}
	return nil
}

// callFailed prints a failed call with --json. If the mesh has no node at all, the error says so.
func (a *app) callFailed(ctx context.Context, l *link, rpc subjects.RPCID, stream bool, err error) error {
	if !a.json || isUsage(err) {
		return err
	}
	if ctx.Err() == nil {
		err = l.explained(ctx, err)
	}
	e := toolmesh.AsError(err)
	if stream {
		a.printError(e)
	} else {
		a.printJSON(callAnswer{RPCID: rpc, Status: "error", Error: e})
	}
	// A call cancelled by another process was not interrupted.
	if e.Code == toolmesh.CodeCancelled && process.Interrupted(ctx) {
		return &reported{process.StatusInterrupted}
	}
	return &reported{process.Status(e.Code)}
}

// itemAnswer is an item of a stream as JSON, endAnswer the end of one. ID is that of a line of call
// --lines.
type itemAnswer struct {
	ID   json.RawMessage `json:"id,omitempty"`
	Seq  int64           `json:"seq"`
	Data json.RawMessage `json:"data"`
}

type endAnswer struct {
	ID       json.RawMessage `json:"id,omitempty"`
	Complete bool            `json:"complete"`
	Count    int64           `json:"count"`
}

func (a *app) printStream(ctx context.Context, l *link, id subjects.ToolID, rpc subjects.RPCID, body json.RawMessage, options []client.CallOption) error {
	done := a.running(string(rpc)+" runs", "; Ctrl-C cancels it")
	err := l.stream(ctx, nil, id, body, options, func(v any) bool {
		done()
		if item, ok := v.(itemAnswer); ok && !a.json {
			a.printJSON(item.Data)
		} else if a.json {
			a.printJSON(v)
		}
		return a.out.lost == nil
	})
	done()
	switch {
	case a.out.lost != nil:
		return &reported{process.StatusMesh} // stdout has no reader any more
	case err != nil:
		return a.callFailed(ctx, l, rpc, true, err)
	}
	return nil
}

// stream makes a streaming call and passes on its items and its end, until put returns false. The error is that of
// the call.
func (l *link) stream(ctx context.Context, line json.RawMessage, id subjects.ToolID, body json.RawMessage, options []client.CallOption, put func(any) bool) error {
	var count int64
	for chunk, err := range l.client.Stream(ctx, id, body, options...) {
		if err != nil {
			return err
		}
		if count++; !put(itemAnswer{line, chunk.Seq, orNull(chunk.Data)}) {
			return nil
		}
	}
	put(endAnswer{line, true, count})
	return nil
}

func orNull(value json.RawMessage) json.RawMessage {
	if len(value) == 0 {
		return json.RawMessage("null")
	}
	return value
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

func (a *app) cancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel RPC_ID",
		Short: "Stop a call, wherever it runs",
		Args:  takes(1, 1, "the rpc_id of a call"),
		RunE: a.onMesh(func(ctx context.Context, l *link, args []string) error {
			id := subjects.RPCID(args[0])
			cancelled, err := l.client.Cancel(ctx, id)
			if err == nil && !cancelled {
				if err = l.noMesh(ctx); err == nil {
					err = toolmesh.Errorf(toolmesh.CodeNotFound, "no node runs call %s in session %s: it has ended, or it has another id or session", id, l.session)
				}
			}
			if err == nil {
				a.tell(map[string]any{"rpc_id": id, "cancelled": true}, "cancelled %s", id)
			}
			return err
		}),
	}
}
