package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool/render"
)

const (
	// viewFresh is how long a list is good for pages and names; a client may hold it for as long.
	viewFresh = 5 * time.Second
	// viewAgain is how old a list is that is made again for a name that is not in it.
	viewAgain = 300 * time.Millisecond
	mcpPage   = 500
	// progressEvery is how often a client is told of a call's progress at most.
	progressEvery = 50 * time.Millisecond
	// changedKey is where a result says what was read otherwise.
	changedKey = "toolmesh/changed"
	// requiresKey is where a tool's _meta names the capabilities that its clients must have.
	requiresKey = "toolmesh/requires"
	// mirrored is in a schema whose arguments clients mirror into headers.
	mirrored = `"x-mcp-header"`
	// placeholder is the one tool that the SDK knows, and no client sees: all calls go through it, and
	// clients are told of a change when it is added again.
	placeholder = "toolmesh"
)

// view is the tools that some MCP clients of one token see.
type view struct {
	key    viewKey
	m      *mcpLink
	uses   int   // requests that use it; guarded by m.mu
	of     *link // whose token it is; nil without one
	c      *client.Client
	globs  subjects.Globs // of the URL
	opts   *Options
	server *mcp.Server

	loading sync.Mutex        // one at a time asks the mesh
	mirrors map[string]string // the schemas of tools that the SDK compares headers of, by name; guarded by loading
	mu      sync.Mutex
	list    *toolList
	told    [sha256.Size]byte // the list that clients were last told of
}

// toolList is the tools of a view at one time. It is immutable.
type toolList struct {
	at     time.Time
	tools  []*mcp.Tool                // in order of name
	ids    map[string]subjects.ToolID // by name
	byID   map[subjects.ToolID]*mcp.Tool
	stream map[subjects.ToolID]bool
	digest [sha256.Size]byte
}

func newView(key viewKey, c *client.Client, m *mcpLink) *view {
	globs, _ := subjects.ParseGlobs(key.globs) // keyOf has looked
	v := &view{key: key, m: m, of: m.of, c: c, globs: globs, opts: m.opts, server: mcp.NewServer(m.serverInfo, &mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{
		Tools: &mcp.ToolCapabilities{ListChanged: true}, Prompts: &mcp.PromptCapabilities{}, Resources: &mcp.ResourceCapabilities{},
		//lint:ignore SA1019 clients of earlier revisions expect it
		Logging: &mcp.LoggingCapabilities{},
	}})}
	v.server.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "result", URITemplate: resultURI + "{id}", Description: "All of a result of which a call gave the beginning, for 15 minutes.",
	}, v.readResult)
	v.touch()
	v.server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch q := req.(type) {
			case *mcp.ListToolsRequest:
				return answerOf(v.answerList(ctx, q))
			case *mcp.CallToolRequest:
				if q.Params == nil {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "params are missing"}
				}
				// The SDK marks as complete only what a tool of its own returns.
				ctx, q.Params.Name = context.WithValue(ctx, calledName{}, q.Params.Name), placeholder
			}
			return next(ctx, method, req)
		}
	})
	return v
}

// calledName is the key of the name in a call's context.
type calledName struct{}

// answerOf has no result where there is an error, instead of a nil pointer to one.
func answerOf[R mcp.Result](r R, err error) (mcp.Result, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}

// touch has the clients told that the list has changed.
func (v *view) touch() {
	v.server.AddTool(&mcp.Tool{Name: placeholder, InputSchema: json.RawMessage(`{"type":"object"}`)}, v.call)
}

// used reports whether a client has a session, or a request, at the moment.
func (v *view) used() bool {
	for range v.server.Sessions() {
		return true
	}
	return false
}

// close ends the sessions of the clients, all at once: each waits for its calls.
func (v *view) close() {
	var closing sync.WaitGroup
	for s := range v.server.Sessions() {
		closing.Go(func() { _ = s.Close() })
	}
	closing.Wait()
}

// look tells the clients if the list has changed.
func (v *view) look(ctx context.Context) {
	list, err := v.tools(ctx, 0)
	if err != nil {
		return // looked at again
	}
	v.mu.Lock()
	before := v.told
	v.told = list.digest
	v.mu.Unlock()
	if before != list.digest && before != [sha256.Size]byte{} {
		v.touch()
	}
}

// tools returns the list, not older than given.
func (v *view) tools(ctx context.Context, age time.Duration) (*toolList, error) {
	asked := time.Now()
	v.loading.Lock()
	defer v.loading.Unlock()
	v.mu.Lock()
	list := v.list
	v.mu.Unlock()
	if list != nil && (time.Since(list.at) < age || list.at.After(asked)) {
		return list, nil
	}
	list, err := v.load(ctx)
	if err != nil {
		return nil, err
	}
	v.mirror(list)
	v.mu.Lock()
	v.list = list
	if v.told == [sha256.Size]byte{} {
		v.told = list.digest
	}
	v.mu.Unlock()
	return list, nil
}

// mirror has the SDK know the tools whose arguments clients mirror into headers: it compares both before it
// calls. v.loading is held.
func (v *view) mirror(list *toolList) {
	mirrors := make(map[string]string)
	for _, t := range list.tools {
		schema, _ := t.InputSchema.(json.RawMessage)
		if !bytes.Contains(schema, []byte(mirrored)) {
			continue
		}
		mirrors[t.Name] = string(schema)
		for _, name := range []string{t.Title, functionName(subjects.ToolID(t.Title))} { // it may be called by these, too
			if _, taken := list.ids[name]; !taken {
				mirrors[name] = string(schema)
			}
		}
	}
	for name := range v.mirrors {
		if mirrors[name] == "" {
			v.server.RemoveTools(name)
		}
	}
	for name, schema := range mirrors {
		if v.mirrors[name] != schema {
			func() {
				defer func() { _ = recover() }() // the SDK panics on what is wrong with x-mcp-header; clients leave such a tool out
				v.server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(schema)}, v.call)
			}()
		}
	}
	v.mirrors = mirrors
}

func (v *view) load(ctx context.Context) (*toolList, error) {
	list := &toolList{at: time.Now(), tools: []*mcp.Tool{}, ids: make(map[string]subjects.ToolID), byID: make(map[subjects.ToolID]*mcp.Tool), stream: make(map[subjects.ToolID]bool)}
	var listed []registry.ListedTool
	for after := subjects.ToolID(""); ; {
		page, next, err := listPage(ctx, v.c, after, pageMost, "", true)
		if err != nil {
			return nil, err
		}
		for _, t := range page {
			if v.globs.Match(t.ID) && v.of.may(t.ID) {
				listed = append(listed, t)
				list.stream[t.ID] = t.Streaming
			}
		}
		if after = next; after == "" {
			break
		}
	}
	shown, err := rendered(ctx, v.c, render.MCP, listed)
	if err != nil {
		return nil, err
	}
	called := make(map[string]int) // how many tools have a function's name
	for _, t := range listed {
		called[functionName(t.ID)]++
	}
	for _, one := range shown {
		t := new(mcp.Tool)
		raw := struct {
			*mcp.Tool
			InputSchema  json.RawMessage `json:"inputSchema"` // in the author's order
			OutputSchema json.RawMessage `json:"outputSchema"`
		}{Tool: t}
		if err := json.Unmarshal(one, &raw); err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "a rendered tool cannot be read: %w", err)
		}
		t.InputSchema = raw.InputSchema
		if len(raw.OutputSchema) > 0 {
			t.OutputSchema = raw.OutputSchema
		}
		if (v.key.readOnly || v.of.readOnly()) && (t.Annotations == nil || !t.Annotations.ReadOnlyHint) {
			continue
		}
		id := subjects.ToolID(t.Title) // the declaration's title is the full id
		if name := functionName(id); v.key.bare && called[name] == 1 {
			t.Name = name
		}
		list.tools = append(list.tools, t)
		list.ids[t.Name], list.byID[id] = id, t
	}
	slices.SortFunc(list.tools, func(a, b *mcp.Tool) int { return cmp.Compare(a.Name, b.Name) })
	all, err := json.Marshal(list.tools)
	if err != nil {
		return nil, toolmesh.Errorf(toolmesh.CodeProtocolError, "a rendered tool cannot be written: %w", err)
	}
	list.digest = sha256.Sum256(all)
	return list, nil
}

func functionName(id subjects.ToolID) string {
	return string(id[strings.LastIndexByte(string(id), '.')+1:])
}

// answerList answers tools/list.
func (v *view) answerList(ctx context.Context, q *mcp.ListToolsRequest) (*mcp.ListToolsResult, error) {
	after := ""
	if q.Params != nil && q.Params.Cursor != "" {
		name, err := base64.RawURLEncoding.DecodeString(q.Params.Cursor)
		if err != nil || len(name) == 0 {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the cursor is none of this list"}
		}
		after = string(name)
	}
	age := viewFresh
	if after == "" {
		age = 0 // the list may have changed, as the client was told
	}
	if v.key.search {
		return &mcp.ListToolsResult{Tools: searchTools, Cacheable: mcp.Cacheable{TTLMs: int(viewFresh.Milliseconds()), CacheScope: "private"}}, nil
	}
	list, err := v.tools(ctx, age)
	if err != nil {
		return nil, rpcError(err)
	}
	from, found := slices.BinarySearchFunc(list.tools, after, func(t *mcp.Tool, name string) int { return cmp.Compare(t.Name, name) })
	if found {
		from++
	}
	end := min(from+mcpPage, len(list.tools))
	answer := &mcp.ListToolsResult{Tools: list.tools[from:end], Cacheable: mcp.Cacheable{TTLMs: int(viewFresh.Milliseconds()), CacheScope: "private"}}
	if end < len(list.tools) {
		answer.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(list.tools[end-1].Name))
	}
	return answer, nil
}

// find returns the tool that a name means: its name in the list, its id, or the one tool whose name, id
// or function's name differs from it by case and separators alone.
func (v *view) find(ctx context.Context, name string) (subjects.ToolID, *toolList, error) {
	for _, age := range []time.Duration{viewFresh, viewAgain} {
		list, err := v.tools(ctx, age)
		if err != nil {
			return "", nil, err
		}
		if id, ok := list.ids[name]; ok {
			return id, list, nil
		}
		if id := subjects.ToolID(name); list.byID[id] != nil {
			return id, list, nil
		}
		var found subjects.ToolID
		several := false
		for shown, id := range list.ids {
			if plainly(shown) == plainly(name) || plainly(string(id)) == plainly(name) || plainly(functionName(id)) == plainly(name) {
				several = several || found != ""
				found = id
			}
		}
		if found != "" && !several {
			return found, list, nil
		}
	}
	return "", nil, nil
}

// call answers tools/call.
func (v *view) call(ctx context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	ctx, cancel := v.m.within(ctx, q.Extra)
	defer cancel(nil)
	name, _ := ctx.Value(calledName{}).(string)
	if v.key.search {
		switch name {
		case findTools:
			return v.findTools(ctx, q)
		case callTool:
			var err error
			if name, q, err = called(q); err != nil {
				return nil, err
			}
		}
	}
	id, list, err := v.find(ctx, name)
	switch {
	case err != nil:
		return nil, rpcError(err)
	case id == "":
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown tool " + strings.ToValidUTF8(name, "?")}
	}
	if err := v.of.spend(1); err != nil {
		return nil, rpcError(err)
	}
	in := call{tool: id, exact: true, args: q.Params.Arguments, rpc: subjects.NewRPCID("rpc_")}
	if string(in.args) == "null" {
		in.args = nil
	}
	if trace, ok := q.Params.GetMeta()["traceparent"].(string); ok && traceText.MatchString(trace) {
		in.trace = trace
	}
	if err := list.requires(id, q.Session.InitializeParams()); err != nil {
		return nil, err
	}
	value, err := v.run(ctx, q, &in, list.stream[id])
	if err != nil {
		e := toolmesh.AsError(err)
		if !toolFailed(e.Code) {
			return nil, rpcError(err)
		}
		text := e.Message
		if e.Code == toolmesh.CodeToolError && e.Type != "" {
			text = e.Type + ": " + e.Message
		}
		return failedTool(text), nil
	}
	result := v.resultOf(ctx, in.tool, value, list)
	v.shorten(ctx, result)
	if len(in.changed) > 0 {
		result.Meta = mcp.Meta{changedKey: in.changed}
	}
	return result, nil
}

// requires returns the error of a client that lacks a capability which the tool's author wants of clients.
func (l *toolList) requires(id subjects.ToolID, client *mcp.InitializeParams) error {
	t := l.byID[id]
	if t == nil || t.Meta[requiresKey] == nil {
		return nil
	}
	has := make(map[string]any)
	if client != nil {
		raw, _ := json.Marshal(client.Capabilities)
		_ = json.Unmarshal(raw, &has)
	}
	lacks := make(map[string]any)
	wanted, _ := t.Meta[requiresKey].([]any)
	for _, name := range wanted {
		if name, ok := name.(string); ok && has[name] == nil {
			lacks[name] = struct{}{}
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	data, _ := json.Marshal(map[string]any{"requiredCapabilities": lacks})
	return &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "the tool " + string(id) + " is for clients with other capabilities", Data: data}
}

// toolFailed reports whether a model may do something about a failure: it was the tool or its arguments.
func toolFailed(code toolmesh.Code) bool {
	switch code {
	case toolmesh.CodeToolError, toolmesh.CodeInvalidArguments, toolmesh.CodeResultNotSerializable, toolmesh.CodeDeadlineExceeded,
		toolmesh.CodePayloadTooLarge, toolmesh.CodeWorkerCrashed, toolmesh.CodeWorkerOutOfMemory:
		return true
	}
	return false
}

// run makes the call. To a client that asks for progress, the items of a stream are that.
func (v *view) run(ctx context.Context, q *mcp.CallToolRequest, in *call, streaming bool) (json.RawMessage, error) {
	token := q.Params.GetProgressToken()
	if token == nil || !streaming {
		reports := newReporter(ctx, q, string(in.tool))
		in.report = reports.report
		result, err := in.run(ctx, v.c, v.of)
		reports.end()
		if err != nil {
			return nil, err
		}
		return result.Value, nil
	}
	d, err := v.descriptor(ctx, in.tool)
	if err != nil {
		return nil, err
	}
	collect := d.Annotations.Collect
	last, all, err := v.follow(ctx, q, in, token, collect)
	if err != nil && last == nil && in.mend(ctx, v.c, v.of, err) {
		last, all, err = v.follow(ctx, q, in, token, collect)
	}
	if err != nil {
		return nil, err
	}
	if collect {
		return append(append([]byte{'['}, bytes.Join(all, []byte{','})...), ']'), nil
	}
	return orNull(last), nil
}

// follow reads a stream, and tells its items as progress: the latest one, where they come too fast. It keeps
// all items of a tool whose result they are.
func (v *view) follow(ctx context.Context, q *mcp.CallToolRequest, in *call, token any, collect bool) (last json.RawMessage, all [][]byte, err error) {
	var told time.Time
	size := 0
	for chunk, err := range v.c.Stream(ctx, in.tool, in.args, in.options()...) {
		if err != nil {
			return last, nil, err
		}
		last = chunk.Data
		if size += len(last); collect && size > defaultMaxBody {
			return last, nil, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the items of the stream have more than %d bytes: read it over HTTP", defaultMaxBody)
		}
		if collect {
			all = append(all, last)
		}
		if time.Since(told) < progressEvery {
			continue
		}
		told = time.Now()
		text := string(last)
		_ = json.Unmarshal(last, &text) // a text is told without its quotes
		_ = q.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(chunk.Seq), Message: text})
	}
	return last, all, nil
}

// rpcCodes are the numbers of the mesh's own failures, of those that MCP leaves to implementations.
var rpcCodes = map[toolmesh.Code]int64{
	toolmesh.CodeUnavailable: -32000, toolmesh.CodeBusy: -32001, toolmesh.CodePermissionDenied: -32002, toolmesh.CodeNodeLost: -32003,
	toolmesh.CodeCancelled: -32004, toolmesh.CodeSessionNotFound: -32005, codeUnauthenticated: -32006, toolmesh.CodeStreamExpired: -32007,
	toolmesh.CodeInvalidRequest: jsonrpc.CodeInvalidParams, toolmesh.CodeToolNotFound: jsonrpc.CodeInvalidParams,
}

// rpcError is a failure of the mesh as MCP clients get it; its data is the problem.
func rpcError(err error) error {
	p := problemOf(err, "")
	number, ok := rpcCodes[p.Code]
	if !ok {
		number = jsonrpc.CodeInternalError
	}
	p.RetryAfterMS = p.retryAfter.Milliseconds() // there is no header that says it
	return &jsonrpc.Error{Code: number, Message: p.Detail, Data: p.encode()}
}
