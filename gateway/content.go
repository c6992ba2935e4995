package gateway

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// resultOf is a tool's result as MCP clients take it.
func (t *catalogTool) resultOf(value json.RawMessage) *mcp.CallToolResult {
	result := &mcp.CallToolResult{Content: contentBlocks(value)}
	if t.tool.OutputSchema != nil {
		if block := typedBytes(t.output, value); block != nil {
			result.Content = []mcp.Content{block}
		}
		if structured, err := t.shown.StructuredContent(value); err == nil {
			result.StructuredContent = structured
		}
	}
	if result.Content == nil {
		result.Content = []mcp.Content{&mcp.TextContent{Text: (&batchResult{Result: value}).text()}}
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

// contentBlocks are the content that a result is, if it is written in MCP's own form: one block, or a list of blocks
// alone, each without members that MCP does not have. nil for any other result.
func contentBlocks(value json.RawMessage) []mcp.Content {
	list := bytes.TrimSpace(value)
	if bytes.HasPrefix(list, []byte("{")) {
		list = append(append([]byte("["), list...), ']')
	}
	var result mcp.CallToolResult
	if !bytes.HasPrefix(list, []byte("[")) || !likeBlocks(list) || json.Unmarshal(append(append([]byte(`{"content":`), list...), '}'), &result) != nil || len(result.Content) == 0 {
		return nil
	}
	var given, read any
	written, err := json.Marshal(result.Content)
	if err != nil || json.Unmarshal(list, &given) != nil || json.Unmarshal(written, &read) != nil || !reflect.DeepEqual(given, read) {
		return nil
	}
	return result.Content
}

// mostBlocks is how many blocks a result may have: the SDK takes a kilobyte for each.
const mostBlocks = 1000

// likeBlocks reports whether all items of a list are as blocks of content are. It holds one of them at a time.
func likeBlocks(list []byte) bool {
	d := json.NewDecoder(bytes.NewReader(list))
	_, err := d.Token()
	for n := 0; err == nil && d.More(); n++ {
		var one struct {
			Type, URI, Name string
			Resource        *struct{}
		}
		err = d.Decode(&one)
		whole := map[string]bool{"text": true, "image": true, "audio": true, "resource": one.Resource != nil, "resource_link": one.URI != "" && one.Name != ""}
		if n == mostBlocks || !whole[one.Type] {
			return false
		}
	}
	return err == nil
}
