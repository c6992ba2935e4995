package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// viewFresh is how long a list is used for pages and names; a client may cache it for as long.
	viewFresh = 5 * time.Second
	// viewAgain is the min age of a list that is read again for a name that is not in it.
	viewAgain = 300 * time.Millisecond
	mcpPage   = 500
	// progressEvery is the min interval of progress reports of a call.
	progressEvery = 50 * time.Millisecond
	// changedKey is the key of a result's note about changed arguments.
	changedKey = "toolmesh/changed"
	// requiresKey is the key in a tool's _meta of the capabilities that its clients must have.
	requiresKey = "toolmesh/requires"
	// mirrored marks an argument that clients mirror into a header.
	mirrored = `"x-mcp-header"`
	// placeholder is the one tool that the SDK knows. No client sees it: all calls go through it, and adding it
	// again notifies clients of a change.
	placeholder = "." // not a valid name
)

// cacheable says how long a client may cache an answer.
var cacheable = mcp.Cacheable{TTLMs: int(viewFresh.Milliseconds()), CacheScope: "private"}

// view is the tools that MCP clients with the same URL see with one token.
type view struct {
	key     viewKey
	m       *mcpLink
	c       *client.Client
	globs   subjects.Globs // of the URL
	server  *mcp.Server
	catalog *catalog

	sessions  http.Handler // of revisions with sessions
	stateless http.Handler

	mu      sync.Mutex
	now     *toolList         // of the newest reading
	mirrors map[string]string // schemas with mirrored arguments, by name
}

// toolList is the tools of a view at one time. It is immutable.
type toolList struct {
	of    *catalogTools
	named []namedTool             // in order of name
	names map[string]*catalogTool // by name
	byID  map[subjects.ToolID]*catalogTool
}

// namedTool is a tool with its name in a view.
type namedTool struct {
	name string
	*catalogTool
}

func newView(key viewKey, c *client.Client, m *mcpLink) *view {
	globs, _ := subjects.ParseGlobs(key.globs) // keyOf has validated it
	v := &view{key: key, m: m, catalog: m.catalog(c), c: c, globs: globs, server: mcp.NewServer(&mcp.Implementation{Name: "toolmesh", Version: m.of.g.opts.Version}, &mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{
		Tools: &mcp.ToolCapabilities{ListChanged: true}, Prompts: &mcp.PromptCapabilities{}, Resources: &mcp.ResourceCapabilities{},
		//lint:ignore SA1019 earlier revisions expect it
		Logging: &mcp.LoggingCapabilities{},
	}})}
	v.server.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "result", URITemplate: resultURI + "{id}", Description: "The whole result of a call that returned only its beginning, for 15 minutes.",
	}, v.readResult)
	v.touch()
	serverOf := func(*http.Request) *mcp.Server { return v.server }
	// The gateway has checked Host and Origin.
	o := mcp.StreamableHTTPOptions{DisableLocalhostProtection: true, MaxRequestBodyBytes: m.of.g.opts.MaxBody, Logger: m.of.g.log}
	v.sessions = mcp.NewStreamableHTTPHandler(serverOf, &o)
	o.Stateless, o.PropagateRequestCancellation = true, true
	v.stateless = mcp.NewStreamableHTTPHandler(serverOf, &o)
	v.server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch q := req.(type) {
			case *mcp.ListToolsRequest:
				answer, err := v.answerList(ctx, q)
				if err != nil {
					return nil, err // not an answer with a nil pointer
				}
				return answer, nil
			case *mcp.CallToolRequest:
				if q.Params == nil {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "params are missing"}
				}
				// The SDK adds a result type only to tools of its own.
				ctx, q.Params.Name = context.WithValue(ctx, calledName{}, q.Params.Name), placeholder
			}
			return next(ctx, method, req)
		}
	})
	return v
}

// calledName is the context key of a call's tool name.
type calledName struct{}

// touch notifies the clients that the list has changed.
func (v *view) touch() {
	v.server.AddTool(&mcp.Tool{Name: placeholder, InputSchema: json.RawMessage(`{"type":"object"}`)}, v.call)
}

// used reports whether a client has a session or a request now.
func (v *view) used() bool {
	for range v.server.Sessions() {
		return true
	}
	return false
}

// close ends all sessions concurrently: each waits for its calls.
func (v *view) close() {
	var closing sync.WaitGroup
	for s := range v.server.Sessions() {
		closing.Go(func() { _ = s.Close() })
	}
	closing.Wait()
}

// tools returns the list, at most age old.
func (v *view) tools(ctx context.Context, age time.Duration) (*toolList, error) {
	return v.shown(v.catalog.get(ctx, age))
}

// shown selects the list from the tools that were read and notifies clients if it has changed.
func (v *view) shown(tools *catalogTools, err error) (*toolList, error) {
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.now
	if before == nil || before.of != tools {
		v.now = v.list(tools)
		v.mirror(v.now)
		if before != nil && !slices.Equal(before.named, v.now.named) {
			v.touch()
		}
	}
	return v.now, nil
}

// mirror gives the SDK the tools with mirrored arguments: it compares header and argument before it calls. v.mu is
// held.
func (v *view) mirror(list *toolList) {
	mirrors := make(map[string]string)
	for _, t := range list.named {
		schema, _ := t.tool.InputSchema.(json.RawMessage)
		if !bytes.Contains(schema, []byte(mirrored)) {
			continue
		}
		mirrors[t.name] = string(schema)
		for _, name := range []string{string(t.id), functionName(t.id)} { // the other names of the tool
			if list.names[name] == nil {
				mirrors[name] = string(schema)
			}
		}
	}
	if maps.Equal(mirrors, v.mirrors) {
		return
	}
	v.server.RemoveTools(slices.Collect(maps.Keys(v.mirrors))...)
	for name, schema := range mirrors {
		func() {
			defer func() { // the SDK panics on a wrong x-mcp-header; clients leave such a tool out
				if wrong := recover(); wrong != nil {
					v.server.RemoveTools(name)
					v.m.of.g.log.Warn("the headers of a tool's MCP calls are not compared: its x-mcp-header is wrong", slog.String("tool", name), slog.String("error", fmt.Sprint(wrong)))
				}
			}()
			v.server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(schema)}, v.call)
		}()
	}
	v.mirrors = mirrors
}

// list selects the view's tools.
func (v *view) list(tools *catalogTools) *toolList {
	list := &toolList{of: tools, named: []namedTool{}, names: make(map[string]*catalogTool), byID: make(map[subjects.ToolID]*catalogTool)}
	var mine []*catalogTool
	called := make(map[string]int) // tools per name, of its function or whole
	for _, t := range tools.all {
		if t.tool != nil && v.globs.Match(t.id) && v.m.of.key.Tools.Match(t.id) {
			mine = append(mine, t)
			if called[functionName(t.id)]++; t.tool.Name != functionName(t.id) {
				called[t.tool.Name]++
			}
		}
	}
	for _, t := range mine {
		if (v.key.readOnly || v.m.of.key.ReadOnly) && !t.is.ReadOnly {
			continue
		}
		name := t.tool.Name
		if short := functionName(t.id); v.key.bare && called[short] == 1 {
			name = short
		}
		list.named = append(list.named, namedTool{name, t})
		list.names[name], list.byID[t.id] = t, t
	}
	slices.SortFunc(list.named, func(a, b namedTool) int { return cmp.Compare(a.name, b.name) })
	return list
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
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the cursor does not belong to this list: list from the beginning"}
		}
		after = string(name)
	}
	if v.key.search {
		return &mcp.ListToolsResult{Tools: searchTools, Cacheable: cacheable}, nil
	}
	age := viewFresh
	if after == "" {
		age = 0 // the client was notified of a change
	}
	list, err := v.tools(ctx, age)
	if err != nil {
		return nil, rpcError(err)
	}
	from, found := slices.BinarySearchFunc(list.named, after, func(t namedTool, name string) int { return cmp.Compare(t.name, name) })
	if found {
		from++
	}
	end := min(from+mcpPage, len(list.named))
	answer := &mcp.ListToolsResult{Tools: make([]*mcp.Tool, 0, end-from), Cacheable: cacheable}
	for _, t := range list.named[from:end] {
		shown := *t.tool
		shown.Name = t.name
		answer.Tools = append(answer.Tools, &shown)
	}
	if end < len(list.named) {
		answer.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(list.named[end-1].name))
	}
	return answer, nil
}

// find returns the tool that a name means: its name in the list, its id, or the only tool whose name, id or
// function differs in case and separators alone. It returns nil for none or several.
func (v *view) find(ctx context.Context, name string) (*catalogTool, error) {
	list, err := v.shown(v.catalog.atHand(ctx))
	if err == nil {
		if t := list.find(name); t != nil {
			return t, nil
		}
		list, err = v.tools(ctx, viewAgain)
	}
	if err != nil {
		return nil, err
	}
	return list.find(name), nil
}

// find returns the tool that a name means in a list; nil for none or several.
func (l *toolList) find(name string) (found *catalogTool) {
	if t := cmp.Or(l.names[name], l.byID[subjects.ToolID(name)]); t != nil {
		return t
	}
	name = tool.PlainName(name)
	for _, t := range l.named {
		if tool.PlainName(t.name) == name || tool.PlainName(string(t.id)) == name || tool.PlainName(functionName(t.id)) == name {
			if found != nil {
				return nil
			}
			found = t.catalogTool
		}
	}
	return found
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
			var in struct {
				Name      string
				Arguments json.RawMessage
			}
			if err := json.Unmarshal(q.Params.Arguments, &in); err != nil || in.Name == "" {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "call_tool takes the name of a tool, and its arguments"}
			}
			name, q.Params.Arguments = in.Name, in.Arguments
		}
	}
	t, err := v.find(ctx, name)
	switch {
	case err != nil:
		return nil, rpcError(err)
	case t == nil:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown tool " + strings.ToValidUTF8(name, "?")}
	}
	if err := v.m.of.spend(1); err != nil {
		return nil, rpcError(err)
	}
	in := call{tool: t.id, exact: true, args: nullToNone(q.Params.Arguments), rpc: subjects.NewRPCID("rpc_")}
	in.trace = codec.NewTrace(func(name string) []string {
		text, _ := q.Params.GetMeta()[name].(string)
		return []string{text}
	})
	if t.tool.Meta[requiresKey] != nil {
		if err := t.requires(q.Session.InitializeParams()); err != nil {
			return nil, err
		}
	}
	in.admit, in.release = v.m.of.bounded()
	defer in.release() // after the result is cut
	value, err := v.run(ctx, q, &in, t)
	if err != nil {
		e := toolmesh.AsError(err)
		if !toolFailed(e.Code) {
			return nil, rpcError(err)
		}
		return failedTool((&batchResult{Error: e}).text()), nil
	}
	result := t.resultOf(value)
	result.Meta = mcp.Meta{}
	v.shorten(ctx, t, value, result)
	if len(in.changed) > 0 {
		result.Meta[changedKey] = in.changed
	}
	return result, nil
}

// requires returns an error if the client lacks a capability that the tool requires.
func (t *catalogTool) requires(client *mcp.InitializeParams) error {
	var has, lacks = map[string]any{}, map[string]any{}
	if client != nil {
		raw, _ := json.Marshal(client.Capabilities)
		_ = json.Unmarshal(raw, &has)
	}
	wanted, _ := t.tool.Meta[requiresKey].([]any)
	for _, name := range wanted {
		if name, ok := name.(string); ok && has[name] == nil {
			lacks[name] = struct{}{}
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	data, _ := json.Marshal(map[string]any{"requiredCapabilities": lacks})
	return &jsonrpc.Error{Code: mcp.CodeMissingRequiredClientCapabilities, Message: "the tool " + string(t.id) + " is for clients with other capabilities", Data: data}
}

// toolFailed reports whether a model can act on a failure: it came from the tool or its arguments.
func toolFailed(code toolmesh.Code) bool {
	switch code {
	case toolmesh.CodeToolError, toolmesh.CodeInvalidArguments, toolmesh.CodeResultNotSerializable, toolmesh.CodeDeadlineExceeded,
		toolmesh.CodePayloadTooLarge, toolmesh.CodeWorkerCrashed, toolmesh.CodeWorkerOutOfMemory:
		return true
	}
	return false
}

// run makes the call. A client that asks for progress gets the items of a stream as progress.
func (v *view) run(ctx context.Context, q *mcp.CallToolRequest, in *call, t *catalogTool) (json.RawMessage, error) {
	if q.Params.GetProgressToken() == nil || !t.is.Streaming {
		report, end := reportTo(ctx, q, string(in.tool))
		defer end()
		in.report = report
		result, err := in.run(ctx, v.c, v.m.of)
		if err != nil {
			return nil, err
		}
		return orNull(result.Value), nil
	}
	items, err := v.follow(ctx, q, in, t.is.Collect)
	if err != nil && len(items) == 0 && in.mend(ctx, v.c, v.m.of, err) {
		items, err = v.follow(ctx, q, in, t.is.Collect)
	}
	switch {
	case err != nil:
		return nil, err
	case t.is.Collect:
		return tool.MarshalPlain(items)
	case len(items) == 0:
		return orNull(nil), nil
	}
	return items[0], nil
}

// follow reads a stream and reports its items as progress, only the latest one if they come too fast. It returns
// all items if the tool's result is their list, else the last one.
func (v *view) follow(ctx context.Context, q *mcp.CallToolRequest, in *call, collect bool) ([]json.RawMessage, error) {
	var told time.Time
	items, size, options := []json.RawMessage{}, 0, in.options()
	if !collect && in.admit != nil {
		options = append(options, client.Admit(func(bytes int64) error { // called again where an item grows
			if items != nil { // the item before is replaced
				items = nil
				in.release()
			}
			return in.admit(bytes)
		}))
	}
	for chunk, err := range v.c.Stream(ctx, in.tool, in.args, options...) {
		if err != nil {
			return items, err
		}
		if size += len(chunk.Data); collect && size > defaultMaxBody {
			return items, toolmesh.Errorf(toolmesh.CodePayloadTooLarge, "the items of the stream have more than %d bytes: read it over HTTP", defaultMaxBody)
		}
		if !collect {
			items = items[:0]
		}
		items = append(items, chunk.Data)
		if time.Since(told) < progressEvery {
			continue
		}
		told = time.Now()
		text := string(chunk.Data)
		_ = json.Unmarshal(chunk.Data, &text) // a text without its quotes
		_ = q.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: q.Params.GetProgressToken(), Progress: float64(chunk.Seq), Message: text})
	}
	return items, nil
}

// rpcCodes are the mesh's own error numbers, from the range that MCP leaves to implementations.
var rpcCodes = map[toolmesh.Code]int64{
	toolmesh.CodeUnavailable: -32000, toolmesh.CodeBusy: -32001, toolmesh.CodePermissionDenied: -32002, toolmesh.CodeNodeLost: -32003,
	toolmesh.CodeCancelled: -32004, toolmesh.CodeSessionNotFound: -32005, codeUnauthenticated: -32006, toolmesh.CodeStreamExpired: -32007,
	toolmesh.CodeInvalidRequest: jsonrpc.CodeInvalidParams, toolmesh.CodeToolNotFound: jsonrpc.CodeInvalidParams,
}

// rpcError returns a failure of the mesh in MCP's form, with the problem as its data.
func rpcError(err error) error {
	p := problemOf(err, "")
	number, ok := rpcCodes[p.Code]
	if !ok {
		number = jsonrpc.CodeInternalError
	}
	return &jsonrpc.Error{Code: number, Message: p.Detail, Data: p.encode()}
}

// The tools of a view with search=1. Clients can also call the tools found by their names.
const (
	findTools = "find_tools"
	callTool  = "call_tool"
	// foundMost is the max number of tools that one search returns.
	foundMost = 50
)

var searchTools = []*mcp.Tool{
	{
		Name: callTool, Description: "Call a tool that find_tools has found, by its name and with arguments that fit its inputSchema.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string","description":"The name of the tool, as find_tools gave it"},"arguments":{"type":"object","description":"The arguments of the tool"}},"required":["name"]}`),
	},
	{
		Name: findTools, Description: "Find tools by what they should do. Returns the best ones first, each with its name, description and inputSchema. Call one with call_tool.",
		InputSchema:  json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","description":"What the tool should do, in a few words"},"limit":{"type":"integer","minimum":1,"maximum":50,"description":"How many tools to return, 5 unless given"}},"required":["query"]}`),
		OutputSchema: json.RawMessage(`{"type":"object","properties":{"tools":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"description":{"type":"string"},"inputSchema":{"type":"object"},"score":{"type":"number"}},"required":["name","description","inputSchema","score"]}}},"required":["tools"]}`),
		Annotations:  &mcp.ToolAnnotations{ReadOnlyHint: true},
	},
}

// findTools handles a call of find_tools.
func (v *view) findTools(ctx context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	in := struct {
		Query string
		Limit int
	}{Limit: 5}
	if err := json.Unmarshal(q.Params.Arguments, &in); err != nil || in.Query == "" || in.Limit < 1 || in.Limit > foundMost {
		return failedTool("find_tools takes a query, a text, and a limit from 1 to 50"), nil
	}
	var answer registry.SearchAnswer
	if err := v.c.Ask(ctx, registry.VerbSearch, registry.Request{Query: in.Query, Limit: in.Limit, Tools: v.globs, ReadOnly: v.key.readOnly || v.m.of.key.ReadOnly}, &answer); err != nil {
		return nil, rpcError(err)
	}
	list, err := v.tools(ctx, viewAgain)
	if err != nil {
		return nil, rpcError(err)
	}
	found := []object{}
	for _, t := range answer.Tools {
		if one := list.byID[t.ID]; one != nil {
			found = append(found, object{"name": one.tool.Name, "description": one.tool.Description, "inputSchema": one.tool.InputSchema, "score": t.Score})
		}
	}
	body, err := tool.MarshalPlain(object{"tools": found})
	if err != nil {
		return nil, rpcError(err)
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(body)}}, StructuredContent: json.RawMessage(body)}, nil
}

// failedTool returns a failure that a model can act on.
func failedTool(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}
