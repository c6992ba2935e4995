package gateway

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

const (
	// resultURI is what the URIs of whole results begin with.
	resultURI    = "mesh://results/"
	mcpResultMax = 25_000
)

// shorten leaves of the texts of a result what may flood no model's context, and links what is whole. It goes
// to the mesh's store, from where any gateway reads it. Structured content stays whole: clients check it.
func (v *view) shorten(ctx context.Context, result *mcp.CallToolResult) {
	most := cmp.Or(v.opts.MCPResultMax, mcpResultMax)
	left := most
	var content []mcp.Content
	for _, one := range result.Content {
		content = append(content, one)
		text, ok := one.(*mcp.TextContent)
		if !ok {
			continue
		}
		length := utf8.RuneCountInString(text.Text)
		if length <= left {
			left -= length
			continue
		}
		whole := text.Text
		text.Text, left = beginning(whole, left), 0
		note := fmt.Sprintf("The result has %d characters; this is its beginning.", length)
		link, err := v.store(ctx, whole)
		if err != nil {
			note += " The rest cannot be read: " + toolmesh.AsError(err).Message
		} else {
			note += " All of it is in the resource " + link.URI + " for 15 minutes."
			content = append(content, link)
		}
		content = append(content, &mcp.TextContent{Text: note})
	}
	result.Content = content
}

// beginning returns the first characters of a text.
func beginning(text string, n int) string {
	for at := range text {
		if n--; n < 0 {
			return text[:at]
		}
	}
	return text
}

// store keeps a text for 15 minutes and returns the link to it.
func (v *view) store(ctx context.Context, text string) (*mcp.ResourceLink, error) {
	file, err := v.c.PutBytes(ctx, []byte(text))
	if err != nil {
		return nil, err
	}
	kind := "text/plain"
	if json.Valid([]byte(text)) {
		kind = "application/json"
	}
	id := base64.RawURLEncoding.EncodeToString([]byte(file.Ref + "\n" + file.Digest + "\n" + kind))
	return &mcp.ResourceLink{URI: resultURI + id, Name: "result", Description: "All of the result", MIMEType: kind, Size: new(file.Size)}, nil
}

// readResult answers resources/read of a link that shorten gave.
func (v *view) readResult(ctx context.Context, q *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	id, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(q.Params.URI, resultURI))
	parts := strings.Split(string(id), "\n")
	if err != nil || len(parts) != 3 || !utf8.Valid(id) {
		return nil, mcp.ResourceNotFoundError(q.Params.URI)
	}
	text, err := v.c.ReadBytes(ctx, tool.File{Ref: parts[0], Digest: parts[1]})
	switch {
	case toolmesh.CodeOf(err) == toolmesh.CodeNotFound:
		return nil, mcp.ResourceNotFoundError(q.Params.URI)
	case err != nil:
		return nil, rpcError(err)
	}
	return &mcp.ReadResourceResult{
		Contents:  []*mcp.ResourceContents{{URI: q.Params.URI, MIMEType: parts[2], Text: string(text)}},
		Cacheable: cacheable,
	}, nil
}
