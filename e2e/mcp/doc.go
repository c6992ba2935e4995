// Package mcp holds the gateway to what others make for MCP: the conformance suite of the protocol, and
// clients of several authors. The tests need packages of npm and PyPI, which make conformance and make
// test-mcp fetch into .tools/mcp; without that folder they are skipped.
package mcp
