package gateway

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/tool"
)

// The tools of a view with search=1. The tools that they find can be called by their names, too.
const (
	findTools = "find_tools"
	callTool  = "call_tool"
	// foundMost is how many tools are found at once.
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

// foundTool is a tool as find_tools shows it.
type foundTool struct {
	Name        string  `json:"name"`
	Description string  `json:"description"`
	InputSchema any     `json:"inputSchema"`
	Score       float64 `json:"score"`
}

// findTools answers a call of find_tools.
func (v *view) findTools(ctx context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	in := struct {
		Query string
		Limit int
	}{Limit: 5}
	if err := json.Unmarshal(q.Params.Arguments, &in); err != nil || in.Query == "" || in.Limit < 1 || in.Limit > foundMost {
		return failedTool("find_tools takes a query, a text, and a limit from 1 to 50"), nil
	}
	var answer registry.SearchAnswer
	if err := v.c.Ask(ctx, registry.VerbSearch, registry.Request{Query: in.Query, Limit: in.Limit, Tools: v.globs, ReadOnly: v.key.readOnly || v.m.of.readOnly()}, &answer); err != nil {
		return nil, rpcError(err)
	}
	list, err := v.tools(ctx, viewAgain)
	if err != nil {
		return nil, rpcError(err)
	}
	found := []foundTool{}
	for _, t := range answer.Tools {
		if one := list.byID[t.ID]; one != nil {
			found = append(found, foundTool{one.tool.Name, one.tool.Description, one.tool.InputSchema, t.Score})
		}
	}
	body, err := tool.MarshalPlain(map[string]any{"tools": found})
	if err != nil {
		return nil, rpcError(err)
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(body)}}, StructuredContent: json.RawMessage(body)}, nil
}

// called is the call that a call of call_tool asks for.
func called(q *mcp.CallToolRequest) (string, *mcp.CallToolRequest, error) {
	var in struct {
		Name      string
		Arguments json.RawMessage
	}
	if err := json.Unmarshal(q.Params.Arguments, &in); err != nil || in.Name == "" {
		return "", nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "call_tool takes the name of a tool, and its arguments"}
	}
	inner, params := *q, *q.Params
	params.Arguments = in.Arguments
	inner.Params = &params
	return in.Name, &inner, nil
}

// failedTool is a failure that a model can act on.
func failedTool(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}
