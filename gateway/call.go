package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/internal/inventory"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// call is one request for a call.
type call struct {
	tool    subjects.ToolID
	exact   bool // the id comes from a list: similar names do not match
	args    json.RawMessage
	rpc     subjects.RPCID
	key     string
	timeout time.Duration
	trace   codec.Trace
	changed []string // what the lenient edge changed
	files   []tool.File
	report  func(codec.Progress)    // receives the call's progress at once; nil for most
	admit   func(bytes int64) error // admits what comes by reference; nil: all
	release func()                  // gives back what was admitted so far
}

// callTool answers POST /v1/tools/{id}.
func (q *request) callTool() (any, error) {
	live, lines := accepts(q.r, "text/event-stream"), accepts(q.r, "application/x-ndjson")
	prefix := "rpc_"
	if live || lines {
		prefix = "rpc_stream_"
	}
	in := call{tool: subjects.ToolID(q.r.PathValue("id")), rpc: subjects.NewRPCID(prefix)}
	err := q.l.spend(1)
	if err == nil {
		err = q.readCall(&in)
	}
	begins := err == nil
	switch {
	case err != nil:
	case prefersAsync(q.r.Header):
		err = q.submit(&in)
	case live || lines:
		err = q.stream(&in, lines)
	default:
		var result *client.Result
		if result, err = in.run(q.ctx, q.c, q.l, client.ByReference()); err == nil { // so it takes no room yet
			err = q.result(&in, result)
		}
	}
	if err != nil {
		if !begins || toolmesh.AsError(err).Started == toolmesh.StartedNo {
			for _, file := range in.files { // a call that has begun may still read them
				q.c.DropFile(file)
			}
		}
		failCall(q.w, q.explain(err), &in)
	}
	return nil, nil
}

// roomTime is how long a large result waits in the mesh's store until there is room to pass it on.
const roomTime = 5 * time.Second

// passTime is how long a reader may take for one large result: 64 MiB at a megabit a second. Others wait for its
// room.
const passTime = 10 * time.Minute

// result answers with the result of a call. A result by reference is streamed and never wholly in memory. The error
// is that of a call that has run.
func (q *request) result(in *call, result *client.Result) error {
	h := in.headers(q.w)
	h.Set("Mesh-Node", string(result.Node))
	h.Set("Server-Timing", timing(result))
	h.Set("Content-Type", "application/json")
	var err error
	if result.Ref == nil {
		err = q.send(http.StatusOK, withHrefs(orNull(result.Value)))
	} else {
		defer q.c.Forget(q.c.Session(), result.Ref)
		ctx, cancel := context.WithTimeout(q.ctx, roomTime)
		defer cancel()
		var release func()
		if release, err = q.l.wait(ctx, resultsPassed, 1); err == nil {
			defer release()
			q.w.until = time.Now().Add(passTime)
			err = q.pass(result.Node, result.Ref, hrefBytes)
		}
	}
	if err != nil {
		err = toolmesh.AsError(err).WithStarted(toolmesh.StartedYes)
	}
	return err
}

// readHeaders reads the headers that set options of the call.
func (q *request) readHeaders(in *call) error {
	if text := q.r.Header.Get("Mesh-Timeout"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return refused(toolmesh.CodeInvalidRequest, "Mesh-Timeout is %q: it is a duration above 0, such as 5s or 1m30s, and %v at most", text, toolmesh.MaxTime)
		}
		in.timeout = d
	}
	in.key = q.r.Header.Get("Idempotency-Key")
	if in.key == "" && q.r.Header.Values("Idempotency-Key") != nil {
		return refused(toolmesh.CodeInvalidRequest, "Idempotency-Key is empty: send a text that is unique to the call")
	}
	in.trace = codec.NewTrace(q.r.Header.Values)
	return nil
}

func (q *request) readCall(in *call) error {
	err := q.readHeaders(in)
	if err != nil {
		return err
	}
	if isMultipart(q.r) {
		return q.readParts(in)
	}
	in.args, err = q.body()
	return err
}

// failCall answers a call that failed.
func failCall(w http.ResponseWriter, err error, in *call) {
	in.headers(w)
	fail(w, err, in.rpc)
}

// headers sets the headers that every answer to a call has.
func (in *call) headers(w http.ResponseWriter) http.Header {
	h := w.Header()
	if in.rpc != "" {
		h["Mesh-Rpc-Id"] = []string{string(in.rpc)}
	}
	if len(in.changed) > 0 {
		h.Set("Mesh-Changed", strings.Join(in.changed, ","))
	}
	h.Set("Cache-Control", "no-store")
	return h
}

func timing(r *client.Result) string {
	text := fmt.Sprintf("call;dur=%.2f", float64(r.Took)/float64(time.Millisecond))
	if r.LaneWait > 0 {
		text += fmt.Sprintf(", lane;dur=%.2f", float64(r.LaneWait)/float64(time.Millisecond))
	}
	if r.NodeWait > 0 {
		text += fmt.Sprintf(", node;dur=%.2f", float64(r.NodeWait)/float64(time.Millisecond))
	}
	return text
}

func (in *call) options() []client.CallOption {
	return []client.CallOption{
		client.WithRPCID(in.rpc), client.WithTimeout(in.timeout), client.WithIdempotencyKey(in.key), client.WithTrace(in.trace),
		client.WithLiveProgress(in.report), client.Admit(in.admit),
	}
}

// run makes a unary call. If the mesh refuses its name or its arguments, run mends both and calls once more.
func (in *call) run(ctx context.Context, c *client.Client, l *link, more ...client.CallOption) (*client.Result, error) {
	result, err := c.Call(ctx, in.tool, in.args, append(in.options(), more...)...)
	if err == nil || !in.mend(ctx, c, l, err) {
		return result, err
	}
	return c.Call(ctx, in.tool, in.args, append(in.options(), more...)...)
}

// bounded returns admit, which admits bytes of results while there is room, and release, which gives back those so far.
func (l *link) bounded() (admit func(bytes int64) error, release func()) {
	var held atomic.Int64
	return func(bytes int64) error {
			_, full := l.take(answerBytes, bytes)
			switch {
			case full == nil:
				held.Add(bytes)
				return nil
			case held.Load()+bytes > l.rooms[answerBytes].size:
				full = refused(toolmesh.CodePayloadTooLarge, "the large results of one request may have %d bytes together: make fewer calls with one, or let the tool return a single one, or a file, and read that over HTTP", l.rooms[answerBytes].size)
			}
			return toolmesh.AsError(full).WithStarted(toolmesh.StartedYes)
		}, func() {
			l.release(answerBytes, held.Swap(0))
		}
}

// mend makes a call that was refused with err fit the tool if its meaning is plain, and reports whether it changed
// the call. The mesh itself takes exact names and arguments only.
func (in *call) mend(ctx context.Context, c *client.Client, l *link, err error) bool {
	e := toolmesh.AsError(err)
	// The broker knows a narrowed token's tools by their ids alone.
	unknown := e.Code == toolmesh.CodeToolNotFound || e.Code == toolmesh.CodePermissionDenied && l.key.Narrowed()
	if e.Started != toolmesh.StartedNo || !unknown && e.Code != toolmesh.CodeInvalidArguments || in.exact && unknown {
		return false
	}
	meant, fitted, changed, err := fit(ctx, c, l, in.tool, in.args)
	if err != nil || in.exact && meant != in.tool || meant == in.tool && len(changed) == 0 {
		return false
	}
	in.tool, in.args, in.changed = meant, fitted, changed
	in.rpc = subjects.NewRPCID(string(in.rpc)[:strings.LastIndexByte(string(in.rpc), '_')+1])
	return true
}

// fit returns the tool that a name means, its fitted arguments, and the JSON Pointers of the changes. The name is
// an id, a provider's name of the tool, or a text that differs from one tool's id in case and in . - _ only.
func fit(ctx context.Context, c *client.Client, l *link, name subjects.ToolID, args json.RawMessage) (subjects.ToolID, json.RawMessage, []string, error) {
	ask := registry.Request{Tool: string(name), Arguments: args, Tools: l.key.Tools}
	if len(args) > 0 && !json.Valid(args) {
		ask.Arguments, _ = json.Marshal(string(args)) // as a model's text, which the registry reads
	}
	var answer registry.ArgumentsAnswer
	err := c.Ask(ctx, registry.VerbArguments, ask, &answer)
	if err != nil {
		return "", nil, nil, err
	}
	var changed []string
	for _, text := range answer.Changed {
		pointer, _, _ := strings.Cut(text, ": ")
		changed = append(changed, strings.ReplaceAll(pointer, ",", "%2C"))
	}
	return answer.Tool, answer.Arguments, changed, nil
}

// submit submits a call as a durable task.
func (q *request) submit(in *call) error {
	o := client.SubmitOptions{Timeout: in.timeout, Key: in.key}
	if in.key != "" { // the same key is the same task
		sum := sha256.Sum256([]byte(in.key))
		o.ID = subjects.RPCID("task_" + hex.EncodeToString(sum[:16]))
	}
	// A task is validated when it runs, too late to tell the sender.
	id, fitted, changed, err := fit(q.ctx, q.c, q.l, in.tool, in.args)
	switch toolmesh.CodeOf(err) {
	case "":
		in.tool, in.args, in.changed = id, fitted, changed
	case toolmesh.CodeToolNotFound, toolmesh.CodeInvalidArguments:
		return err
	}
	if d, err := inventory.Describe(q.ctx, q.c, in.tool); err == nil {
		if v, err := tool.Compile(d.InputSchema); err == nil {
			if err := v.Validate(in.args); err != nil {
				return err
			}
		}
	}
	task, err := q.c.Submit(q.ctx, in.tool, in.args, &o)
	if err != nil {
		return err
	}
	in.rpc = task.ID()
	h := in.headers(q.w)
	h.Set("Location", "/v1/tasks/"+string(task.ID()))
	h.Set("Preference-Applied", "respond-async")
	return q.answer(http.StatusAccepted, map[string]subjects.RPCID{"id": task.ID()})
}

// accepts reports whether a request's Accept names a media type.
func accepts(r *http.Request, kind string) bool {
	return lists(r.Header, "Accept", func(one string) bool {
		name, params, err := mime.ParseMediaType(one)
		return err == nil && name == kind && (params["q"] == "" || strings.Trim(params["q"], "0.") != "")
	})
}

// lists reports whether a header, or several of its name, list an element for which is holds.
func lists(h http.Header, name string, is func(one string) bool) bool {
	for _, value := range h.Values(name) {
		for one := range strings.SplitSeq(value, ",") {
			if is(strings.TrimSpace(one)) {
				return true
			}
		}
	}
	return false
}

// prefersAsync reports whether a client wants a task.
func prefersAsync(h http.Header) bool {
	return lists(h, "Prefer", func(one string) bool {
		name, _, _ := strings.Cut(one, ";")
		return strings.EqualFold(strings.TrimSpace(name), "respond-async")
	})
}

func orNull(value json.RawMessage) json.RawMessage {
	if len(value) == 0 {
		return json.RawMessage("null")
	}
	return value
}
