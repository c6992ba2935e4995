package tool

import (
	"encoding/json"

	"github.com/toolmesh/toolmesh"
)

// mcpWords is metadata.mcp for MCP clients, which reject a list of tools with a field of another type.
type mcpWords struct {
	Icons []struct {
		Src      string   `json:"src"`
		MIMEType string   `json:"mimeType"`
		Theme    string   `json:"theme"`
		Sizes    []string `json:"sizes"`
	} `json:"icons"`
	Annotations struct {
		Title           string `json:"title"`
		ReadOnlyHint    bool   `json:"readOnlyHint"`
		DestructiveHint bool   `json:"destructiveHint"`
		IdempotentHint  bool   `json:"idempotentHint"`
		OpenWorldHint   bool   `json:"openWorldHint"`
	} `json:"annotations"`
	Meta        map[string]json.RawMessage `json:"_meta"`
	InputSchema map[string]json.RawMessage `json:"inputSchema"`
}

// checkMCP checks metadata.mcp.
func checkMCP(metadata json.RawMessage) error {
	var all struct {
		MCP mcpWords `json:"mcp"`
	}
	if err := json.Unmarshal(metadata, &all); err != nil {
		return toolmesh.Errorf(toolmesh.CodeInvalidRequest, "metadata.mcp cannot be read by MCP clients: %w", err)
	}
	if raw, ok := all.MCP.Meta["toolmesh/requires"]; ok {
		var names []string
		if json.Unmarshal(raw, &names) != nil || len(names) == 0 {
			return toolmesh.Errorf(toolmesh.CodeInvalidRequest, `metadata.mcp._meta."toolmesh/requires" is %s: it is a list of capabilities, such as ["sampling"]`, raw)
		}
	}
	return nil
}
