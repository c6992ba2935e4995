package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

// descriptor is what is known of a tool.
func (v *view) descriptor(ctx context.Context, id subjects.ToolID) (*tool.Descriptor, error) {
	var answer registry.DescribeAnswer
	if err := v.c.Ask(ctx, registry.VerbDescribe, registry.Request{Tool: string(id)}, &answer); err != nil {
		return nil, err
	}
	return answer.Descriptor, nil
}

// resultOf is a tool's result as MCP clients take it. Clients fail a result without the structured content
// that the tool declares.
func (v *view) resultOf(ctx context.Context, id subjects.ToolID, value json.RawMessage, list *toolList) *mcp.CallToolResult {
	value = orNull(value)
	result := new(mcp.CallToolResult)
	result.Content, _ = contentBlocks(value)
	if t := list.byID[id]; t != nil && t.OutputSchema != nil {
		if d, err := v.descriptor(ctx, id); err == nil {
			if block := typedBytes(d.OutputSchema, value); block != nil {
				result.Content = []mcp.Content{block}
			}
			if shown, err := render.Tool(render.MCP, d); err == nil {
				if structured, err := shown.StructuredContent(value); err == nil {
					result.StructuredContent = structured
				}
			}
		}
	}
	if result.Content == nil {
		text := string(value)
		_ = json.Unmarshal(value, &text) // a text is shown without its quotes
		result.Content = []mcp.Content{&mcp.TextContent{Text: text}}
	}
	return result
}

// typedBytes is the image or the sound that a tool returns, whose schema says so.
func typedBytes(schema, value json.RawMessage) mcp.Content {
	var says struct {
		Encoding string `json:"contentEncoding"`
		Media    string `json:"contentMediaType"`
	}
	var text string
	if json.Unmarshal(schema, &says) != nil || says.Encoding != "base64" || json.Unmarshal(value, &text) != nil {
		return nil
	}
	data, err := base64.StdEncoding.DecodeString(text)
	switch {
	case err != nil:
		return nil
	case strings.HasPrefix(says.Media, "image/"):
		return &mcp.ImageContent{Data: data, MIMEType: says.Media}
	case strings.HasPrefix(says.Media, "audio/"):
		return &mcp.AudioContent{Data: data, MIMEType: says.Media}
	}
	return nil
}

// contentBlocks are the content that a result is, if it is written in MCP's own form: one block, or a
// list of blocks alone.
func contentBlocks(value json.RawMessage) ([]mcp.Content, bool) {
	trimmed := bytes.TrimSpace(value)
	var all []json.RawMessage
	switch {
	case len(trimmed) == 0:
		return nil, false
	case trimmed[0] == '{':
		all = []json.RawMessage{trimmed}
	case trimmed[0] != '[' || json.Unmarshal(trimmed, &all) != nil || len(all) == 0:
		return nil, false
	}
	blocks := make([]mcp.Content, len(all))
	for i, one := range all {
		if blocks[i] = contentBlock(one); blocks[i] == nil {
			return nil, false
		}
	}
	return blocks, true
}

// contentBlock reads one block; nil for what is none.
func contentBlock(value json.RawMessage) mcp.Content {
	var kind struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(value, &kind) != nil {
		return nil
	}
	strict := func(into any) bool {
		d := json.NewDecoder(bytes.NewReader(value))
		d.DisallowUnknownFields()
		return d.Decode(into) == nil
	}
	switch kind.Type {
	case "text":
		var b struct {
			Type string
			Text *string
		}
		if strict(&b) && b.Text != nil {
			return &mcp.TextContent{Text: *b.Text}
		}
	case "image", "audio":
		var b struct {
			Type, MIMEType string
			Data           []byte
		}
		switch {
		case !strict(&b) || b.MIMEType == "" || len(b.Data) == 0:
		case kind.Type == "image":
			return &mcp.ImageContent{Data: b.Data, MIMEType: b.MIMEType}
		default:
			return &mcp.AudioContent{Data: b.Data, MIMEType: b.MIMEType}
		}
	case "resource":
		var b struct {
			Type     string
			Resource struct {
				URI, MIMEType, Text string
				Blob                []byte
			}
		}
		if strict(&b) && b.Resource.URI != "" {
			return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: b.Resource.URI, MIMEType: b.Resource.MIMEType, Text: b.Resource.Text, Blob: b.Resource.Blob}}
		}
	case "resource_link":
		var b struct{ Type, URI, Name, Title, Description, MIMEType string }
		if strict(&b) && b.URI != "" && b.Name != "" {
			return &mcp.ResourceLink{URI: b.URI, Name: b.Name, Title: b.Title, Description: b.Description, MIMEType: b.MIMEType}
		}
	}
	return nil
}
