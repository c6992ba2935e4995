// Package render shows a tool to a model. It turns a [tool.Descriptor] into the function
// declaration of a provider (OpenAI chat and responses, Anthropic, Gemini, MCP), and the model's
// answer into the tool's arguments.
//
// Each provider accepts another subset of JSON Schema and refuses a whole request for one keyword
// outside it. Accepted keywords are passed on unchanged. Others are rewritten in a form that can be
// mapped back, or left out, and [Rendered.Notes] says so. The mesh validates arguments against the
// author's own schema before a call in any case. A rendering may allow more than that schema, and
// never hides an argument without a note.
//
// [Tool] renders for a [Format]. [Arguments] turns the arguments that a model wrote, an object or
// JSON in a text, into arguments that fit the schema, and lists its changes for people. The
// registry's verbs render and arguments do the same over the wire. Errors are invalid_request for
// an unknown format, and invalid_arguments for arguments that are not a JSON object. Every function
// may be called concurrently.
//
// It must never call a provider, run a tool, or guess which tool a name means: package tool has the
// names ([tool.ProviderName]). Read on: docs/tools.md, "Names", and docs/mcp.md.
package render
