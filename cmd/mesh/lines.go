package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/subjects"
)

const (
	linesAtOnce = 64       // calls of call --lines in flight
	longestLine = 64 << 20 // bytes
)

// lineCall is one line of call --lines.
type lineCall struct {
	ID      json.RawMessage    `json:"id"`
	Tool    subjects.ToolID    `json:"tool"`
	Args    json.RawMessage    `json:"args"`
	Timeout string             `json:"timeout"`
	Session subjects.SessionID `json:"session"`
	Stream  bool               `json:"stream"`
	Key     string             `json:"key"`
}

// lines is one execution of call --lines.
type lines struct {
	*app
	link  *link
	tool  subjects.ToolID // of lines without a tool
	flags callFlags       // with the timeout of lines without one

	mu     sync.Mutex // guards the output and the fields below
	status int        // the highest of the failed lines
}

// callLines calls a tool for each line of stdin, many concurrently, and writes results as they
// arrive.
func (a *app) callLines(ctx context.Context, id subjects.ToolID, f callFlags) error {
	return a.withMesh(ctx, func(ctx context.Context, l *link) error {
		all := &lines{app: a, link: l, tool: id, flags: f}
		var calls sync.WaitGroup
		places := make(chan struct{}, linesAtOnce)
		scan := bufio.NewScanner(a.stdin(ctx))
		scan.Buffer(nil, longestLine)
		for last := 0; !all.lost() && scan.Scan(); {
			line := scan.Bytes()
			if last == 0 {
				line = bytes.TrimPrefix(line, byteOrderMark)
			}
			line = bytes.TrimSpace(line)
			if len(line) == 0 {
				continue
			}
			last++
			number := last
			line = bytes.Clone(line)
			places <- struct{}{}
			calls.Go(func() {
				defer func() { <-places }()
				all.one(ctx, number, line)
			})
		}
		calls.Wait()
		switch {
		case process.Interrupted(ctx):
			return &reported{process.StatusInterrupted}
		case all.lost():
			return &reported{process.StatusMesh} // stdout has no reader any more
		}
		switch err := scan.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			return usage(nil, "stdin has a line of more than %d bytes", longestLine)
		case err != nil:
			return usage(nil, "stdin cannot be read: %v", err)
		case all.status != 0:
			return &reported{all.status}
		}
		return nil
	})
}

func (a *lines) lost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out.lost != nil
}

// put writes a line of output, and reports whether a reader may read it.
func (a *lines) put(v any) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.printJSON(v)
	return a.out.lost == nil
}

// lineAnswer is the result of a line, or an item or the end of its stream.
type lineAnswer struct {
	ID json.RawMessage `json:"id"`
	callAnswer
}

// fail writes the failure of a line.
func (a *lines) fail(id json.RawMessage, rpc subjects.RPCID, err error) {
	e := toolmesh.AsError(err)
	a.put(lineAnswer{id, callAnswer{RPCID: rpc, Status: "error", Error: e}})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = max(a.status, process.Status(e.Code))
}

// one makes the call of a line; number is its default id.
func (a *lines) one(ctx context.Context, number int, line []byte) {
	call := lineCall{Tool: a.tool}
	id, _ := json.Marshal(number)
	options, err := a.read(line, &call)
	if call.ID != nil {
		id = call.ID
	}
	rpc := newRPCID(call.Stream)
	if err != nil {
		a.fail(id, rpc, err)
		return
	}
	options = append(options, client.WithRPCID(rpc))
	if call.Stream {
		err = a.link.stream(ctx, id, call.Tool, call.Args, options, a.put)
	} else {
		var result *client.Result
		if result, err = a.link.client.Call(ctx, call.Tool, call.Args, options...); err == nil {
			a.put(lineAnswer{id, answerOf(rpc, result)})
		}
	}
	if err != nil {
		a.fail(id, rpc, err)
	}
}

// read decodes a line into call and returns its options.
func (a *lines) read(line []byte, call *lineCall) ([]client.CallOption, error) {
	bad := func(format string, args ...any) error {
		return refused(toolmesh.OriginCaller, toolmesh.CodeInvalidRequest, format, args...)
	}
	err := decodeStrictly(line, call)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		err = fmt.Errorf("%s is a JSON %s", cmp.Or(wrong.Field, "the line"), wrong.Value)
	}
	if err != nil {
		return nil, bad(`the line is not {"id","tool","args","timeout","session","stream","key"}: %w`, err)
	}
	if call.Tool == "" {
		return nil, bad("the line names no tool, and the command names none")
	}
	if err := call.Tool.Validate(); err != nil {
		return nil, bad("%q is not a tool id: %w", call.Tool, err)
	}
	most := a.flags.timeout
	if call.Timeout != "" {
		if most, err = time.ParseDuration(call.Timeout); err != nil || most < time.Millisecond {
			return nil, bad(`timeout is %q: it is a time such as "2s", at least 1ms`, call.Timeout)
		}
	}
	options := []client.CallOption{client.WithIdempotencyKey(call.Key), client.WithTimeout(most)}
	if call.Session != "" {
		options = append(options, client.WithSession(call.Session))
	}
	if a.flags.noCache {
		options = append(options, client.NoCache())
	}
	return options, nil
}
