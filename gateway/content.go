package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh/tool/render"
)

// resultShape is what a tool's result is to MCP clients.
type resultShape struct {
	schema  json.RawMessage // empty: the tool declares none
	collect bool
	shown   render.Rendered
}

// shapeOf returns that of a tool, which is asked for once.
func (v *view) shapeOf(ctx context.Context, t *catalogTool) (*resultShape, error) {
	if kept := t.shape.Load(); kept != nil {
		return kept, nil
	}
	if t.tool.OutputSchema == nil && !t.streaming {
		return new(resultShape), nil
	}
	d, err := describe(ctx, v.c, t.id)
	if err != nil {
		return nil, err
	}
	shown, err := render.Tool(render.MCP, d)
	if err != nil {
		return nil, err
	}
	shape := &resultShape{d.OutputSchema, d.Annotations.Collect, shown}
	t.shape.Store(shape)
	return shape, nil
}

// resultOf is a tool's result as MCP clients take it.
func resultOf(value json.RawMessage, shape *resultShape) *mcp.CallToolResult {
	value = orNull(value)
	result := new(mcp.CallToolResult)
	result.Content, _ = contentBlocks(value)
	if len(shape.schema) > 0 {
		if block := typedBytes(shape.schema, value); block != nil {
			result.Content = []mcp.Content{block}
		}
		if structured, err := shape.shown.StructuredContent(value); err == nil {
			result.StructuredContent = structured
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
