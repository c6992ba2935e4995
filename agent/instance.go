package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/host"
	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// instance is one imported index.
type instance struct {
	a           *Agent
	build       deploy.Build
	env         *executor.Env
	warnings    []string
	index       *executor.Index    // nil for an index of commands alone
	commands    *executor.Commands // nil for an index without commands
	tools       []host.Tool
	unavailable []host.Unavailable

	redactor func() func(string) string // of the index's secrets

	noticesMu sync.Mutex
	notices   map[string]string // by function: the reason that callers read
	noticed   atomic.Bool       // they have changed since they were published
}

// userOf returns the number of the user that a tool runs as; empty if it cannot be found out.
func (i *instance) userOf(d *tool.Descriptor) string {
	id, err := i.a.executor.User(accountOf(i.build), d.Annotations.Sandbox)
	if err != nil {
		return ""
	}
	return strconv.Itoa(id)
}

// describe merges the import's descriptors with the manifest; names are the tools of each function.
func (i *instance) describe(names map[string][]string) {
	workers := rand.Text()
	for _, t := range i.index.Tools() {
		for _, name := range names[t.Name] {
			d, err := i.build.Manifest.Descriptor(refOf(i.build), name, codeOf(t))
			if err != nil {
				i.lose(name, toolmesh.AsError(err).Message, d)
				continue
			}
			i.tools = append(i.tools, host.Tool{Descriptor: d, Handler: &pythonTool{i: i, name: t.Name}, User: i.userOf(d), Sessions: workers, MaxArgs: i.a.executor.MaxArgs()})
		}
	}
	for _, u := range i.index.Unavailable() {
		for _, name := range names[u.Name] {
			var d *tool.Descriptor
			if u.Documentation != "" {
				d, _ = i.build.Manifest.Descriptor(refOf(i.build), name, sourceOf(u)) // its reason is listed all the same
			}
			i.lose(name, i.missing(u.Reason), d)
		}
	}
}

// lose notes that a declared tool is not served, with the known part of its description.
func (i *instance) lose(name, reason string, d *tool.Descriptor) {
	i.unavailable = append(i.unavailable, host.Unavailable{ID: toolID(i.build.Name, name), Reason: reason, Descriptor: d})
}

func (i *instance) service() host.Service {
	s := host.Service{
		Index: i.build.Name, Session: i.build.Session, Revision: i.build.Revision, Tools: slices.Clone(i.tools), Unavailable: i.unavailable,
	}
	i.noticesMu.Lock()
	for n := range s.Tools {
		s.Tools[n].Notice = i.notices[i.build.Manifest.Tool(s.Tools[n].Descriptor.Name).Function]
	}
	i.noticesMu.Unlock()
	return s
}

// Build implements [deploy.Instance].
func (i *instance) Build() deploy.Build { return i.build }

// Descriptors implements [deploy.Instance].
func (i *instance) Descriptors() []*tool.Descriptor {
	all := make([]*tool.Descriptor, len(i.tools))
	for n, t := range i.tools {
		all[n] = t.Descriptor
	}
	return all
}

// Unavailable implements [deploy.Instance].
func (i *instance) Unavailable() []deploy.NotServed {
	all := make([]deploy.NotServed, len(i.unavailable))
	for n, u := range i.unavailable {
		all[n] = deploy.NotServed{ID: u.ID, Reason: u.Reason}
	}
	return all
}

// Warnings implements [deploy.Instance].
func (i *instance) Warnings() []string { return i.warnings }

// Close implements [deploy.Instance].
func (i *instance) Close(ctx context.Context) error {
	i.a.instances.Lock()
	delete(i.a.instances.open, i)
	i.a.instances.Unlock()
	defer i.a.executor.Release(i.env) // its processes have ended
	var err error
	if i.index != nil {
		err = i.index.Close(ctx)
	}
	return errors.Join(err, i.closeCommands(ctx))
}

// pythonTool is one Python function as a [host.Handler].
type pythonTool struct {
	i    *instance
	name string
}

// Redact implements [host.Redactor].
func (p *pythonTool) Redact(text string) string { return p.i.redact(text) }

// redact takes the secrets of the agent's indexes out of a text: a tool may give those of its own to another.
func (i *instance) redact(text string) string {
	text = i.redactor()(text)
	for _, other := range i.a.open() {
		text = other.redactor()(text)
	}
	return text
}

// ServeTool implements [host.Handler].
func (p *pythonTool) ServeTool(ctx context.Context, call *host.Call, sink host.Sink) error {
	s := &pythonSink{sink: sink, log: p.i.a.log, call: call}
	nested := host.NewNestedCalls(p.i.a.member.Client, call)
	defer nested.Close()
	result, err := p.i.index.Call(ctx, executor.Call{
		Nested: nested, Lane: call.Lane, Deserted: call.Deserted, Depth: call.Depth,
		Tool: p.name, RPCID: string(call.RPCID), Isolation: call.Isolation,
		Session: string(call.Session), Account: string(subjects.Account(call.Session, call.Epoch)),
		Epoch: call.Epoch, Home: call.Home, Args: call.Args, VarArgs: call.VarArgs, Stream: call.Stream, Collect: call.Collect,
	}, s)
	return deliver(ctx, call, sink, result, err)
}

// progressOf converts a worker's report of the progress of a call.
func progressOf(r *executor.Record) codec.Progress {
	var at struct {
		Fraction *float64 `json:"fraction"`
	}
	_ = json.Unmarshal(r.Fields, &at) // the worker of a tool that says nothing of that writes none
	return codec.NewProgress(at.Fraction, r.Message)
}

// deliver sends the result of a call that is no stream.
func deliver(ctx context.Context, call *host.Call, sink host.Sink, result json.RawMessage, err error) error {
	if err != nil || call.Stream {
		return err
	}
	if whole, ok := sink.(host.ResultSink); ok {
		return whole.SendResult(ctx, result)
	}
	return sink.Send(ctx, result)
}

// pythonSink receives the output of a worker.
type pythonSink struct {
	sink host.Sink
	log  *slog.Logger
	call *host.Call
}

// Item implements [executor.Output].
func (s *pythonSink) Item(ctx context.Context, data json.RawMessage) error {
	return s.sink.Send(ctx, data)
}

// Log implements [executor.Output]: it logs the output of a tool under the call's id.
func (s *pythonSink) Log(r executor.Record) {
	level := slog.LevelInfo
	switch r.Stream {
	case executor.StreamLog:
		level = r.Level
	case executor.StreamProgress:
		level = slog.LevelDebug
		s.call.Report(progressOf(&r))
	case executor.StreamStdout, executor.StreamStderr:
	}
	if !s.log.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("rpc_id", string(s.call.RPCID)), slog.String("tool", string(s.call.Tool)),
		slog.String("stream", string(r.Stream)), slog.String("text", r.Message),
	}
	if r.Logger != "" {
		attrs = append(attrs, slog.String("logger", r.Logger))
	}
	if r.Stream == executor.StreamProgress && len(r.Fields) > 0 {
		attrs = append(attrs, slog.String("fields", string(r.Fields)))
	}
	s.log.LogAttrs(context.Background(), level, "tool output", attrs...)
}
