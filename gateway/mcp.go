package gateway

// mcpLink is what MCP clients have of one token.
type mcpLink struct{}

func (m *mcpLink) close() {}
