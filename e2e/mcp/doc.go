// Package mcp holds the gateway and mesh mcp to what others make for MCP: the conformance suite of the protocol,
// and clients. The tests need packages of npm and PyPI, which make conformance and make test-mcp fetch into .tools/mcp;
// without that folder they are skipped.
package mcp
